"""From a manifest to decoded images."""

from pathlib import Path
from typing import Literal

from percentmatch.data.cache import Progress, cache_folder, open_cache
from percentmatch.data.images import Images
from percentmatch.data.manifest import Manifest


def load_images(
    manifest: Manifest,
    *,
    size: int,
    frame: Literal["squash", "center"] = "squash",
    scoring: bool = False,
    folder: Path | None = None,
    verify: bool = False,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Images:
    """The images of a manifest as squares of `size` pixels, decoded once and kept in the cache `folder`.

    With `scoring`, pairs marked difficult count as unknown, so that they are left out of the metrics; without, as
    negative. `verify` compares the cache with the files' content; `skip_bad` leaves out images that cannot be read.
    """
    cached = open_cache(
        manifest.paths,
        size=size,
        frame=frame,
        folder=folder or cache_folder(),
        verify=verify,
        skip_bad=skip_bad,
        progress=progress,
    )
    pixels = cached.pixels
    if cached.bad:
        good = [row for row in range(len(manifest)) if row not in cached.bad]
        manifest, pixels = manifest.select(good), pixels[good]
    targets, known = manifest.targets, manifest.known
    if scoring:
        targets, known = manifest.scoring_labels(count_difficult=False)
    return Images(pixels, targets, known, manifest.ids, manifest.class_names)

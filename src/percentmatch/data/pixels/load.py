"""From a manifest to decoded images."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache import Progress, cache_folder, open_cache
from percentmatch.data.pixels.images import Images
from percentmatch.errors import visible

Say = Callable[[str], None]


def print_to_stderr(sentence: str) -> None:
    print(visible(sentence), file=sys.stderr, flush=True)


def load_images(
    manifest: Manifest,
    *,
    size: int,
    frame: Literal["squash", "center"] = "squash",
    folder: Path | None = None,
    verify: bool = False,
    skip_bad: bool = False,
    progress: Progress | None = None,
    say: Say = print_to_stderr,
) -> Images:
    """The images of a manifest as squares of `size` pixels, decoded once and kept in the cache `folder`.

    `verify` compares the cache with the files' content; `skip_bad` leaves out images that cannot be read. `say` gets a
    sentence for each image left out and for what `verify` found.
    """
    cached = open_cache(
        manifest.paths,
        size=size,
        frame=frame,
        folder=folder or cache_folder(),
        sources=manifest.sources,
        verify=verify,
        skip_bad=skip_bad,
        progress=progress,
    )
    pixels = cached.pixels
    if verify:
        which = ": " * bool(cached.changed) + ", ".join(str(manifest.paths[row]) for row in cached.changed)
        say(f"cache verified: {len(cached.changed)} of {len(manifest)} images had changed{which}")
    if cached.bad:
        for sentence in cached.bad.values():
            say(f"skipped: {sentence}")
        say(f"skipped {len(cached.bad)} of {len(manifest)} images")
        good = [row for row in range(len(manifest)) if row not in cached.bad]
        manifest, pixels = manifest.select(good), pixels[good]
    return Images(pixels, manifest.labels, manifest.ids, manifest.class_names)

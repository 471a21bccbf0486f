"""A set of decoded images in memory with their labels, and how a manifest becomes one."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.data.labels import TABLES, Labels, check_shape, find_rows
from percentmatch.data.manifest import Manifest
from percentmatch.data.pixels.cache import Progress, cache_folder, open_cache
from percentmatch.data.pixels.decode import DAMAGED, FORMATS, BadImage, Content, as_number, fingerprint, read
from percentmatch.errors import UserError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Images:
    """n images of one size, and what is known of c classes on them."""

    pixels: Tensor  # (n, 3, h, w) uint8
    labels: Labels  # of n images and c classes
    ids: tuple[str, ...]  # n names, unique
    class_names: tuple[str, ...]  # c
    digests: tuple[str | None, ...] | None = None  # n, of the files that they come from; None if they come from none

    def __post_init__(self) -> None:
        for field in ("ids", "class_names"):
            object.__setattr__(self, field, names := tuple(getattr(self, field)))
            if not all(isinstance(name, str) for name in names):
                raise UserError(f"{field} must be texts")
        n, c = len(self.ids), len(self.class_names)
        if not isinstance(self.pixels, Tensor):
            raise UserError(f"pixels must be a torch.Tensor, not {type(self.pixels).__name__}")
        shape, wanted = tuple(self.pixels.shape), (n, 3, *self.pixels.shape[2:])
        if self.pixels.dtype != torch.uint8 or shape != wanted:
            raise UserError(f"pixels must be uint8 of shape {wanted}, not {self.pixels.dtype} of {shape}")
        check_shape(self.labels, n, c)
        if self.pixels.ndim != 4 or len(set(self.ids)) < n or len(set(self.class_names)) < c or c == 0:
            raise UserError("images must be (n, 3, h, w), with ids that differ and at least one class, all different")

    def __len__(self) -> int:
        return len(self.pixels)

    def rows(self, ids: Sequence[str]) -> Tensor:
        """The rows of these ids: (len(ids),)."""
        return find_rows(self.ids, ids)

    def part(self, ids: Sequence[str]) -> "Images":
        """The images of these ids, in their order."""
        rows = self.rows(ids)
        digests = self.digests and tuple(self.digests[row] for row in rows.tolist())
        return Images(self.pixels[rows], self.labels.select(rows), tuple(ids), self.class_names, digests)

    def fingerprints(self, ids: Sequence[str]) -> Tensor:
        """A number for each of these images that changes with its file, or with its pixels if it comes from none.

        0 if it is not known: (len(ids),).
        """
        rows = self.rows(ids).tolist()
        found = [
            self.digests[row] if self.digests else fingerprint(self.pixels[row].cpu().numpy().tobytes()) for row in rows
        ]
        return torch.tensor([as_number(digest) for digest in found], dtype=torch.int64)

    def scoring_labels(self, *, count_difficult: bool) -> tuple[Tensor, Tensor]:
        """Targets and known, (n, c) each, to score with: difficult pairs count as positive or are left out."""
        targets, known, difficult = (getattr(self.labels, name).dense() for name in TABLES)
        return (targets | difficult, known) if count_difficult else (targets, known * (1 - difficult))


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
    digests = tuple(digest for row, digest in enumerate(cached.digests) if row not in cached.bad)
    return Images(pixels, manifest.labels, manifest.ids, manifest.class_names, digests)


def size_of(path: str | Path) -> tuple[int, int]:
    """Width and height in pixels, from the header of an image file. Raises BadImage."""
    content = read(path)
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(Content(content), formats=FORMATS) as image:
            return image.size
    except Exception as error:
        raise BadImage(DAMAGED) from error

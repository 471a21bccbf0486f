"""Probabilities for image files: a saved model in, a CSV file out."""

import csv
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from percentmatch.checkpoint import replacing
from percentmatch.data.cache import Progress
from percentmatch.data.decode import decode
from percentmatch.data.folder import is_image_name, read_folder, read_list
from percentmatch.data.load import print_to_stderr
from percentmatch.device import pick_device
from percentmatch.errors import UserError
from percentmatch.evaluate import probabilities
from percentmatch.models import Card, load_classifier
from percentmatch.run_folder import RunFolder

CHUNK = 64  # images decoded and scored at a time


def predict(
    model: Path,
    sources: Sequence[Path],
    out: Path | None,
    *,
    device: str = "auto",
    skip_bad: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> int:
    """Write `image` and one probability a class for each image of `sources`; returns how many images were scored.

    `model` is a run folder or its model.safetensors; a source is an image, a folder or a text file with one path a
    line. Without `out` the table goes to standard output. The file is moved into place when it is complete; until the
    first images are scored nothing is written.
    """
    if out and out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    paths = find(sources)
    place = pick_device(device)
    network, card = load_classifier(RunFolder(model).model if model.is_dir() else model, place)
    done = skipped = 0
    with _opened(out) as file:
        table = csv.writer(file, lineterminator="\n")
        for chunk, scores, bad in _score(network, card, paths, place):
            if bad and not skip_bad:
                raise UserError(f"{bad[0]}, or leave it out by --skip-bad-images")
            for sentence in bad:
                say(f"skipped: {sentence}")
            if chunk and not done:
                table.writerow(["image", *card.class_names])
            table.writerows([str(path), *(f"{p:.6f}" for p in row)] for path, row in zip(chunk, scores, strict=True))
            done, skipped = done + len(chunk), skipped + len(bad)
            if progress:
                progress(done + skipped, len(paths))
        if not done:
            raise UserError(f"none of the {len(paths)} images can be read")
    return done


def find(sources: Sequence[Path]) -> list[Path]:
    """The image files that the sources name, in their order; one named by several paths is there once, by the first."""
    paths: dict[str, Path] = {}
    for source in sources:
        if source.is_dir():
            found = read_folder(source).paths
        elif not is_image_name(source.name):
            found = read_list(source).paths
        elif source.exists():
            found = (source,)
        else:
            raise UserError(f"there is no file {source}; check the path")
        for path in found:
            paths.setdefault(os.path.realpath(path), path)
    if not paths:
        raise UserError("no image is named; give images, a folder or a text file with one path a line")
    return list(paths.values())


@contextmanager
def _opened(out: Path | None) -> Generator[IO[str]]:
    """Standard output, or a file; if it does not come about, the folders that were made for it go again."""
    if out is None:
        yield sys.stdout
        return
    made = [folder for folder in out.parents if not folder.exists()]  # the innermost first
    try:
        with replacing(out) as file:
            yield file
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _score(
    network: nn.Module, card: Card, paths: Sequence[Path], device: torch.device
) -> Iterator[tuple[list[Path], list[list[float]], list[str]]]:
    """Chunk by chunk: the images that could be read, their probabilities, and a sentence for each that could not."""

    def read(path: Path) -> Tensor | str:
        try:
            return torch.from_numpy(decode(path, card.decode_size, card.frame))
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow lets other threads run while it decodes
        for first in range(0, len(paths), CHUNK):
            chunk = paths[first : first + CHUNK]
            found = list(zip(chunk, pool.map(read, chunk), strict=True))
            good = [(path, pixels) for path, pixels in found if isinstance(pixels, Tensor)]
            bad = [reason for _, reason in found if isinstance(reason, str)]
            scores = []
            if good:
                scores = probabilities(network, torch.stack([pixels for _, pixels in good]), card, device).tolist()
            yield [path for path, _ in good], scores, bad

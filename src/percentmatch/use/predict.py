"""Images in, probabilities and decisions out: `Predictor` in Python, and a CSV or JSON Lines file for the command."""

import io
import json
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import compress
from pathlib import Path
from typing import IO, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from percentmatch.console.notices import print_to_stderr
from percentmatch.console.streams import shown_output
from percentmatch.data.pixels.cache import Progress, cores
from percentmatch.data.pixels.decode import decode, square
from percentmatch.data.readers.folder import is_image_name, read_folder, read_list
from percentmatch.data.readers.table import LABEL_HEADERS, PART_HEADERS, guard, write_row
from percentmatch.distributed.device import pick_device
from percentmatch.errors import UNSEEN, UserError
from percentmatch.files import replacing_named
from percentmatch.models import load_classifier
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.calibration import decisions_of, probabilities_of
from percentmatch.scoring.predictions import logits
from percentmatch.use.prediction_exports import BEGINS, ENDS, fiftyone_samples, label_studio_tasks
from percentmatch.use.thresholds import with_thresholds

LONGEST_LINE = 64 << 20  # bytes, of earlier predictions
CHUNK = 64  # images decoded and scored at a time
Source = str | Path | Image.Image | np.ndarray | Tensor  # an image
Form = Literal["csv", "jsonl", "fiftyone", "label-studio"]
FORM_OF: dict[str, Form] = {"": "csv", ".csv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class Predictor:
    """A trained model for images: the path of a run folder, of an exported folder or of a model.safetensors.

    `thresholds` is a file of thresholds chosen by hand, instead of the model's own.
    Images are given as paths, Pillow images, or uint8 arrays or tensors (h, w, 3) in RGB, in a list or one alone; a
    path alone may also be a folder, or a text file with one path a line. The rows are in the order of the images; what
    a text file names twice is one image.
    """

    def __init__(self, model: str | Path, device: str = "auto", *, thresholds: str | Path | None = None) -> None:
        path = Path(model)
        self.device = pick_device(device)
        self.network, card = load_classifier(RunFolder(path).model if path.is_dir() else path, self.device)
        self.card = with_thresholds(card, thresholds)

    @property
    def classes_(self) -> np.ndarray:
        return np.array(self.card.class_names)

    def predict_proba(self, images: Source | Iterable[Source], *, raw: bool = False) -> np.ndarray:
        """The probability of each class: (n, c) float64; calibrated where the model knows how, and not with `raw`."""
        return probabilities_of(self._logits(images), self.card, raw=raw).numpy()

    def predict(self, images: Source | Iterable[Source]) -> np.ndarray:
        """1 for each class that is decided for, else 0: (n, c); with one label an image, its class: (n,)."""
        decided = decisions_of(self._logits(images), self.card).numpy()
        return self.classes_[decided.argmax(axis=1)] if self.card.task == "single-label" else decided

    def stream(self, images: Sequence[Source]) -> Iterator[tuple[list[int], Tensor, list[str]]]:
        """Chunk by chunk: the rows of the images that could be read, their logits, a message for each other one."""
        with ThreadPoolExecutor(cores()) as pool:  # Pillow lets other threads run while it decodes
            for first in range(0, len(images), CHUNK):
                with warnings.catch_warnings(action="ignore"):  # for all threads together, as it is not thread-safe
                    found = list(enumerate(pool.map(self._read, images[first : first + CHUNK]), first))
                good = {row: pixels for row, pixels in found if isinstance(pixels, Tensor)}
                scored = torch.zeros(0, len(self.card.class_names))
                if good:
                    scored = logits(self.network, torch.stack([*good.values()]), self.card, self.device)
                if not scored.isfinite().all():
                    raise UserError("the model gives scores that are not finite numbers: its training has diverged")
                yield list(good), scored, [message for _, message in found if isinstance(message, str)]

    def _logits(self, images: Source | Iterable[Source]) -> Tensor:
        if isinstance(images, str | Path):
            images = find([Path(images)])
        elif isinstance(images, Image.Image) or (isinstance(images, np.ndarray | Tensor) and images.ndim == 3):
            images = [images]
        chunks = [torch.zeros(0, len(self.card.class_names))]
        for _, scored, bad in self.stream(list(images)):
            if bad:
                raise UserError(bad[0])
            chunks.append(scored)
        return torch.cat(chunks)

    def _read(self, image: Source) -> Tensor | str:
        """The image as the model's square (3, s, s), or what is wrong with it."""
        size, frame = self.card.decode_size, self.card.frame
        try:
            if isinstance(image, str | Path):
                str(image).encode()
                return torch.from_numpy(decode(Path(image), size, frame))
            if not isinstance(image, Image.Image):
                pixels = np.asarray(image.cpu() if isinstance(image, Tensor) else image)
                if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
                    return f"an image is {pixels.dtype} of shape {pixels.shape}; give uint8 (height, width, 3) in RGB"
                image = Image.fromarray(np.ascontiguousarray(pixels))
            image.load()
            return torch.from_numpy(square(image, size, frame))
        except UserError as error:
            return str(error)
        except UnicodeEncodeError:
            return f"cannot read image {str(image)!a}: its name is not valid UTF-8; rename the file"
        except (OSError, ValueError, SyntaxError) as error:
            return f"cannot read a Pillow image: {' '.join(str(error).split())}; replace it"


def predict(
    model: Path,
    sources: Sequence[Path],
    out: Path | None,
    *,
    form: Form | None = None,
    raw: bool = False,
    thresholds: str | Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    say: Callable[[str], None] = print_to_stderr,
) -> tuple[int, int]:
    """Write labels and probabilities of each image of `sources`; returns how many were scored, and how many not.

    `model` is as for `Predictor`; a source is an image, a folder or a text file with one path a line. `say` gets a
    message for each image that cannot be read. The form is that of the suffix of `out` if it is not given. Without
    `out` the table goes to standard output. The file is moved into place when it is complete; until the first images
    are scored nothing is written.
    """
    if out and out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file")
    form = form or (FORM_OF.get(out.suffix.lower()) if out else "csv")
    if form is None:
        raise UserError(
            f"--out {out}: name a file that ends in .csv or .jsonl, or say --format {', '.join(get_args(Form))}"
        )
    paths = find(sources)
    predictor = Predictor(model, device, thresholds=thresholds)
    names = predictor.card.class_names
    if out and out.is_file() and not _is_prediction(out, names):
        raise UserError(f"--out {out} is there already and holds no predictions of this model; name a new file")
    if form == "csv" and (odd := next((name for name in names if ";" in name), None)):
        raise UserError(f"the class '{odd}' holds a ';', which divides labels in a CSV file; use --format jsonl")
    done = skipped = 0
    with _opened(out) as file:
        for rows, scored, bad in predictor.stream(paths):
            for message in bad:
                say(f"skipped: {message}")
            if rows:
                answers = probabilities_of(scored, predictor.card, raw=raw), decisions_of(scored, predictor.card)
                WRITERS[form](file, [paths[row] for row in rows], *answers, names, header=not done)
            done, skipped = done + len(rows), skipped + len(bad)
            if progress:
                progress(done + skipped, len(paths))
        file.write(ENDS.get(form, "") if done else "")
        if not done:
            raise UserError(f"none of the {len(paths)} images can be read")
    return done, skipped


def find(sources: Sequence[Path]) -> list[Path]:
    """The image files that the sources name, in their order, without those that an earlier source names by any path."""
    paths: list[Path] = []
    seen: set[str] = set()
    for source in sources:
        if not os.path.exists(source):
            raise UserError(f"there is no file {source}; check the path")
        if source.is_dir():
            found = read_folder(source).paths
        else:
            found = (source,) if is_image_name(source.name) else _listed(source)
        targets = {path: os.path.realpath(path) for path in found}
        paths += [path for path in found if targets[path] not in seen]
        seen.update(targets.values())
    if not paths:
        raise UserError("no image is named; give images, a folder or a text file with one path a line")
    return paths


def _listed(source: Path) -> tuple[Path, ...]:
    try:
        return read_list(source).paths
    except UserError as error:
        raise UserError(f"{source} is read as a list of paths, as it is not named like an image: {error}") from None


def _csv_lines(
    file: IO[str], paths: list[Path], scores: Tensor, decided: Tensor, names: Sequence[str], *, header: bool
) -> None:
    """A row for each image: its path, the classes decided for, all probabilities. `read_table` reads it.

    A cell that a spreadsheet might run is guarded: a path by `./`, a class by an apostrophe. So is a class that names
    a column of labels files.
    """
    if header:
        file.write(_header(names))
    for path, row, chosen in zip(map(str, paths), scores.tolist(), decided.tolist(), strict=True):
        labels = [*map(guard, compress(names, chosen))]
        joined = ";".join(labels)
        if joined.startswith(("[", "{", "?")) or (len(labels) == 1 and re.search(r"[\s,|]", joined)):
            joined = f";{joined}"  # else it would be read as a list, as unknown, or divided at its space, comma or bar
        write_row(file, [path if guard(path) == path else f"./{path}", joined, *(f"{p:.6f}" for p in row)])


def _header(names: Sequence[str]) -> str:
    taken, line = (*LABEL_HEADERS, *PART_HEADERS), io.StringIO()
    columns = (f"'{name}" if name.strip().lower() in taken else guard(name) for name in names)
    write_row(line, ["image", "labels", *columns])
    return line.getvalue()


def _is_prediction(file: Path, names: Sequence[str]) -> bool:
    """Whether a file is empty, or begins like one of predictions for these classes, so that it may be replaced."""
    header = _header(names).encode()
    with suppress(OSError), open(file, "rb") as content:
        start = content.read(max(len(header), *map(len, BEGINS.values())))
        if start.startswith(b'{"image": '):
            with suppress(ValueError, RecursionError):
                decisions = json.loads(start + content.readline(LONGEST_LINE)).get("decision")
                return isinstance(decisions, dict) and decisions.keys() == {*names}
            return False
        return not start or start.startswith((header, *(text.encode() for text in BEGINS.values())))
    return True  # writing it will say what is wrong


def _json_lines(
    file: IO[str], paths: list[Path], scores: Tensor, decided: Tensor, names: Sequence[str], *, header: bool
) -> None:
    """An object for each image; `confidence` is the probability that the decision on the class is right."""
    sure = torch.where(decided > 0, scores, 1 - scores)
    tables = (decided, (scores * 1e6).round() / 1e6, (sure * 1e6).round() / 1e6)
    for path, *rows in zip(paths, *(table.tolist() for table in tables), strict=True):
        decision, probability, confidence = (dict(zip(names, row, strict=True)) for row in rows)
        answer = {"image": str(path), "labels": [*compress(names, rows[0])], "probability": probability}
        line = json.dumps({**answer, "decision": decision, "confidence": confidence}, ensure_ascii=False)
        file.write(UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n")


WRITERS = {"csv": _csv_lines, "jsonl": _json_lines, "fiftyone": fiftyone_samples, "label-studio": label_studio_tasks}


@contextmanager
def _opened(out: Path | None) -> Generator[IO[str]]:
    """Standard output, or a file; the folders that are made for it are removed if it cannot be written."""
    made = [folder for folder in out.parents if not folder.exists()] if out else []  # the innermost first
    try:
        with replacing_named(out) if out else nullcontext(shown_output()) as file:
            yield file
    finally:
        for folder in made:
            with suppress(OSError):  # it holds the file
                folder.rmdir()

"""Parquet files as the Hugging Face Hub has them: images as bytes in a struct, labels as texts or numbers beside them.

Everything else reads image files, so the images are unpacked once, to the cache.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from percentmatch.data.manifest import SUBSET_OF, Manifest
from percentmatch.data.pixels.cache import cache_folder, key_of
from percentmatch.data.readers.folder import list_files
from percentmatch.data.readers.rows import LabelFile, Row, RowError, each_row
from percentmatch.data.readers.table import LABEL_HEADERS, PART_HEADERS
from percentmatch.errors import UserError
from percentmatch.files import beside, cannot_write, check_plain

SUFFIX = ".parquet"
SUBSET = re.compile(r"([a-z]+)[-_.]")  # at the beginning of a file's name: train-00000-of-00002.parquet
MOST_GROWTH = 100, 64 << 20  # images take at most so many times the bytes of their file, and so many more
EXTRA = 'pip install "percentmatch[parquet]"'


def is_parquet(file: LabelFile) -> bool:
    return bool(_files(file.path))


def read_parquet(file: LabelFile) -> Manifest:
    """All rows of a file, or of those in a folder or in its folder `data`; their names may say the subset."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UserError(f"{file.path}: Parquet files need a package that is not there; install it by {EXTRA}") from None
    files = _files(file.path)
    try:
        facts = [(os.path.abspath(path), check_plain(path, None), os.stat(path).st_mtime_ns) for path in files]
    except OSError as error:
        raise UserError(f"cannot read the file {error.filename} ({error.strerror}); check the path") from None
    folder = cache_folder() / f"{key_of(('parquet', *facts))}.images"
    temporary = None if folder.is_dir() else beside(folder)
    try:
        if temporary:
            file.say(f"unpacking the images of {file.path} to {folder.parent}")
            temporary.mkdir(parents=True)
        rows = [row for path in files for row in _rows(path, temporary)]
        if temporary:
            try:
                os.replace(temporary, folder)
            except OSError:
                if not folder.is_dir():  # else another process was quicker
                    raise
    except OSError as error:
        raise cannot_write(folder, error) from None
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return file.manifest(rows, folder=folder)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.suffix.lower() == SUFFIX else []
    for folder in (path, path / "data"):
        if names := [name for name in list_files(folder) if name.lower().endswith(SUFFIX)] if folder.is_dir() else []:
            return [folder / name for name in sorted(names)]
    return []


def _rows(path: Path, unpacked: Path | None) -> Iterator[Row | RowError]:
    """The rows of a file; their images are written below `unpacked`."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as content:
            schema = content.schema_arrow
            image, labels, subset = _columns(path, schema)
            names = _names(schema.metadata or {}, labels)
            usual = SUBSET_OF.get(found[1], "") if (found := SUBSET.match(path.name.lower())) else ""
            if unpacked:
                (unpacked / path.stem).mkdir()
            wanted = [name for name in (image, labels, subset) if name]
            cells = [f"{image}.bytes", *wanted[1:]] if unpacked else wanted[1:]
            groups = [content.metadata.row_group(n) for n in range(content.metadata.num_row_groups)]
            most = MOST_GROWTH[0] * os.path.getsize(path) + MOST_GROWTH[1]
            left = most - sum(group.total_byte_size for group in groups)
            # one at a time, as equal images are kept once in the file, and may be large
            for number, batch in enumerate(content.iter_batches(1, columns=cells) if left > 0 else (), 1):
                (cell,), source = batch.to_pylist(), f"{path}, row {number}"
                name = f"{path.stem}/{number:08}.jpg"
                if unpacked and (picture := (cell[image] or {}).get("bytes")) and (left := left - len(picture)) > 0:
                    (unpacked / name).write_bytes(picture)
                if left <= 0:
                    break
                said = str(cell.get(subset) or usual).lower() if subset else usual
                yield from each_row([(source, (name, cell[labels], said))], lambda _, each: _row(_, *each, names))
            if left <= 0:
                raise UserError(f"{path} unpacks to more than {most >> 20:,} MiB, far more than it has; write it again")
            if unpacked and not any((unpacked / path.stem).iterdir()):
                raise UserError(f"{path} holds only the paths of its images, not their bytes; write it with the images")
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of what is written; Arrow's own have no number
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be read as Parquet ({reason}); download or write it again") from None


def _row(source: str, image: str, value: Any, subset: str, names: list[str]) -> Row:
    if subset not in SUBSET_OF:
        raise UserError(f"no part is called {subset!r}; write train, validation or test")
    if value is None or value == -1:  # the Hub's number for a label that is kept back
        return Row(image, None, source, SUBSET_OF[subset])
    shown = []
    for label in value if isinstance(value, list) else [value]:
        if isinstance(label, int) and names:
            if not 0 <= label < len(names):
                raise UserError(f"{label} is no number of the {len(names)} classes; correct the file")
            label = names[label]
        if not isinstance(label, str | int) or not str(label).strip():
            raise UserError(f"{label!r:.80} is no label; write a text or the number of a class")
        shown.append(str(label).strip())
    return Row(image, shown, source, SUBSET_OF[subset])


def _columns(path: Path, schema: Any) -> tuple[str, str, str]:
    """The columns of images and labels, and that of subsets or ""."""
    import pyarrow.types as types

    structs = [each for each in schema if types.is_struct(each.type)]
    images = [each.name for each in structs if "bytes" in {part.name for part in each.type}]
    labels = [name for header in LABEL_HEADERS for name in schema.names if name.lower() == header]
    if len(images) != 1 or not labels:
        what = f"one column of images with their bytes and one called {' or '.join(LABEL_HEADERS)}"
        raise UserError(f"{path} needs {what}; it has {', '.join(schema.names)}")
    return images[0], labels[0], next((name for name in schema.names if name.lower() in PART_HEADERS), "")


def _names(metadata: dict[bytes, bytes], column: str) -> list[str]:
    """The names of classes that are written as numbers, where the Hub's `datasets` has noted them."""
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        return [str(name) for name in feature["names"]]
    return []

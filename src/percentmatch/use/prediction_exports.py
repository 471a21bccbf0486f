"""Predictions as files of labeling programs: FiftyOne's samples.json, and Label Studio's tasks with predictions."""

import json
import os
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import IO
from urllib.parse import quote

from torch import Tensor

BEGINS = {  # which also tell that a file holds predictions and no labels
    "fiftyone": '{"info": {"predictions_of": "percentmatch"}, "samples": [',
    "label-studio": '[{"predictions": [{"model_version": "percentmatch", ',
}
ENDS = {"fiftyone": "\n]}\n", "label-studio": "\n]\n"}


def fiftyone_samples(
    file: IO[str], paths: list[Path], scores: Tensor, decided: Tensor, names: Sequence[str], *, header: bool
) -> None:
    """A sample for each image, with the classes decided for and their probabilities in the field `predictions`."""
    file.write(BEGINS["fiftyone"] if header else ",")
    for number, (path, row, chosen) in enumerate(zip(paths, scores.tolist(), decided.tolist(), strict=True)):
        found = [
            {"_cls": "Classification", "tags": [], "label": name, "confidence": round(probability, 6)}
            for name, probability in compress(zip(names, row, strict=True), chosen)
        ]
        sample = {"filepath": os.path.abspath(path), "tags": []}
        sample["predictions"] = {"_cls": "Classifications", "classifications": found}
        file.write(",\n" * bool(number) + "\n" * (not number) + json.dumps(sample, ensure_ascii=False))


def label_studio_tasks(
    file: IO[str], paths: list[Path], scores: Tensor, decided: Tensor, names: Sequence[str], *, header: bool
) -> None:
    """A task for each image, with a prediction for the tag `choice`; its score is that of the least certain class."""
    for number, (path, row, chosen) in enumerate(zip(paths, scores.tolist(), decided.tolist(), strict=True)):
        value = {"choices": [*compress(names, chosen)]}
        answer = {
            "model_version": "percentmatch",
            "score": round(min(max(probability, 1 - probability) for probability in row), 6),
            "result": [{"from_name": "choice", "to_name": "image", "type": "choices", "value": value}],
        }
        where = "/data/local-files/?d=" + quote(path.as_posix().lstrip("/"))
        task = {"predictions": [answer], "data": {"image": where}}
        file.write(("[" if header and not number else ",\n") + json.dumps(task, ensure_ascii=False))

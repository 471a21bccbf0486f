"""A model file that claims what no run writes is refused in one sentence before anything is built."""

import builtins
import json
import os
import resource
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from saved_model import CARD, save_model

from percentmatch.errors import UserError
from percentmatch.models import saved
from percentmatch.use.export import model_card
from percentmatch.use.predict import Predictor

DECISIONS = asdict(CARD)["decisions"]
MANY = [f"c{number}" for number in range(1_000_000)]
FIELDS: dict[str, dict[str, Any]] = {
    "a million classes": {"class_names": MANY, "decisions": None},
    "more classes than weights": {"class_names": MANY[:24_000], "decisions": None},
    "classes in a text": {"class_names": "abc"},
    "classes that are lists": {"class_names": [["a"], ["b"], ["c"]]},
    "classes by number": {"class_names": [1, 2, 3]},
    "classes by name": {"class_names": {"a": 1, "b": 2, "c": 3}},
    "an empty class": {"class_names": ["", "b", "c"]},
    "a size that is true": {"image_size": True},
    "a size kept that is true": {"decode_size": True},
    "a size below 0": {"image_size": -32},
    "a size of 0": {"decode_size": 0},
    "a size in text": {"image_size": "32"},
    "a size with a point": {"image_size": 32.0},
    "a huge size": {"image_size": 10**9},
    "a number of 4,000 digits": {"decode_size": 10**4000},
    "no size": {"image_size": None},
    "a dropout that is true": {"dropout": True},
    "a dropout of 2": {"dropout": 2},
    "a dropout that is no number": {"dropout": float("nan")},
    "two colours": {"mean": [0.5, 0.5]},
    "a mean in text": {"mean": ["a", "b", "c"]},
    "a mean of truths": {"mean": [True, True, True]},
    "a mean beyond numbers": {"mean": [1e300, 0, 0]},
    "a mean that is a text": {"mean": "abc"},
    "a std of 0": {"std": [0, 1, 1]},
    "an infinite std": {"std": [float("inf"), 1, 1]},
    "a std by name": {"std": {"1": 1, "2": 2, "3": 3}},
    "a strange backbone": {"backbone": "os.system"},
    "a backbone of a hub": {"backbone": "hf-hub:a/b"},
    "a backbone of a folder": {"backbone": "local-dir:/etc"},
    "a backbone that is a path": {"backbone": "../../etc/passwd"},
    "a backbone of 10 MB": {"backbone": "resnet" * (10 << 18)},
    "a backbone that is a list": {"backbone": ["resnet18"]},
    "no backbone": {"backbone": None},
    "a strange head": {"head": "__init__"},
    "a head that is a list": {"head": []},
    "a strange task": {"task": "remove"},
    "a strange frame": {"frame": "x"},
    "a version that is a number": {"version": 3},
    "one more field": {"pretrained": True},
    "options of the backbone": {"backbone_kwargs": {"num_classes": 10**9}},
    "decisions of another number": {"decisions": {**DECISIONS, "scale": [1.0]}},
    "a threshold that is no number": {"decisions": {**DECISIONS, "thresholds": [float("nan"), 0.5, 0.5]}},
    "a threshold above 1": {"decisions": {**DECISIONS, "thresholds": [7, 0.5, 0.5]}},
    "a threshold in text": {"decisions": {**DECISIONS, "thresholds": ["0", "0", "0"]}},
    "thresholds by name": {"decisions": {**DECISIONS, "thresholds": {"a": 0.1, "b": 0.1, "c": 0.1}}},
    "a scale below 0": {"decisions": {**DECISIONS, "scale": [-1, 1, 1]}},
    "a scale beyond numbers": {"decisions": {**DECISIONS, "scale": [1e308, 1, 1]}},
    "a shift that is true": {"decisions": {**DECISIONS, "shift": [True, 1, 1]}},
    "an aim that is a list": {"decisions": {**DECISIONS, "aim": [["F1"] * 9] * 9}},
    "decisions that are a list": {"decisions": [1, 2]},
    "decisions that are a text": {"decisions": "x"},
    "one more decision": {"decisions": {**DECISIONS, "more": 1}},
}
TEXTS = {
    "nested 10,000 deep": "[" * 10_000 + "]" * 10_000,
    "a card of 40 MB": '{"version": "' + "x" * (40 << 20) + '"}',
    "5 million lists": "[" + "[]," * (5 << 20) + "[]]",
    "a list": "[]",
    "a number": "3",
    "no JSON": "{",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("sound") / "model.safetensors")


def with_card(sound: Path, file: Path, text: str) -> Path:
    with safe_open(sound, framework="pt") as whole:
        tensors = {name: whole.get_tensor(name) for name in whole.keys()}  # noqa: SIM118  not a dict
    save_file(tensors, file, metadata={saved.KEY: text})
    return file


@pytest.mark.parametrize("what", [*FIELDS, *TEXTS])
def test_what_a_model_claims_is_limited(what: str, sound: Path, tmp_path: Path) -> None:
    text = TEXTS[what] if what in TEXTS else json.dumps({**asdict(CARD), **FIELDS[what]})
    file = with_card(sound, tmp_path / "model.safetensors", text)
    limits, began = resource.getrlimit(resource.RLIMIT_AS), time.process_time()
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        with pytest.raises(UserError) as caught:
            Predictor(file, "cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - began < 10
    assert "model.safetensors' is not a model" in str(caught.value) or "backbone '" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_a_large_image_needs_no_more_memory_to_build_the_network(sound: Path, tmp_path: Path) -> None:
    text = json.dumps({**asdict(CARD), "backbone": "resnet18", "image_size": 4095, "decode_size": 4096})
    file = with_card(sound, tmp_path / "model.safetensors", text)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"the weights in .* do not fit the resnet18 they name"):
        Predictor(file, "cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # a gibibyte, in kibibytes


def test_a_model_that_may_not_be_read_is_not_called_missing(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.open

    def refused(path: Any, *how: Any, **options: Any) -> Any:
        if path == sound:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *how, **options)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refused)
        with pytest.raises(UserError, match=r"^cannot read the model '.*': permission denied; check the path and its"):
            Predictor(sound, "cpu")
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(UserError, match=r"^cannot read the model '.*model\.safetensors': is a directory; check"):
        Predictor(tmp_path, "cpu")
    with pytest.raises(UserError, match="there is no model"):
        Predictor(tmp_path / "other", "cpu")


def test_the_version_of_a_model_is_text_in_its_readme() -> None:
    version = "1\n# Run\n<script>a</script> [x](javascript:b) `c` | d"
    text = model_card(replace(CARD, version=version), {})
    assert not [sign for sign in ("\n# Run", "<script", "[x]", "`c`", "; | d") if sign in text]
    assert "1 # Run &lt;script&gt;a&lt;/script&gt; &#91;x&#93;(javascript:b)" in text

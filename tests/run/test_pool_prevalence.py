"""Before a run on own data begins, a probe looks at how often the unlabeled images show the classes."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from PIL import Image

from percentmatch import Config
from percentmatch.data import unlabeled_manifest
from percentmatch.data.shards.write import write_shards
from percentmatch.runs.run_folder import RunFolder
from percentmatch.settings.config import to_repeat
from percentmatch.training import pool_prevalence
from percentmatch.training.start import train_given

COLOURS = {"red": (220, 40, 40), "blue": (40, 40, 220)}
QUICK: dict[str, Any] = {
    "backbone": "test_resnet",
    "weights": "none",
    "head_start": "probe",
    "image_size": 32,
    "labeled_batch": 4,
    "total_steps": 2,
    "validation": 0,
    "device": "cpu",
}


def write(path: Path, colour: tuple[int, int, int], seed: int) -> None:
    """A picture of one colour with a little noise."""
    noise = torch.randint(-20, 20, (32, 32, 3), generator=torch.Generator().manual_seed(seed))
    Image.fromarray((torch.tensor(colour) + noise).clamp(0, 255).to(torch.uint8).numpy()).save(path)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 labeled pictures, a third of them red, a third blue; 60 like them, and 60 without either colour."""
    folder = tmp_path_factory.mktemp("pictures")
    for name in ("labeled", "alike", "other"):
        (folder / name).mkdir()
    shades = [*COLOURS.values(), (40, 200, 40)]
    with open(folder / "labels.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", *COLOURS])
        for n in range(60):
            write(folder / "labeled" / f"{n}.png", shades[n % 3], n)
            write(folder / "alike" / f"{n}.png", shades[n % 3], 100 + n)
            write(folder / "other" / f"{n}.png", (40, 200, 40), 200 + n)
            rows.writerow([f"{n}.png", *(int(n % 3 == each) for each in range(2))])
    return folder


def run(pictures: Path, pool: str, out: Path, **given: Any) -> dict[str, Any]:
    """The settings of a run with this pool, as its config.yaml has them."""
    own = {"labels": str(pictures / "labels.csv"), "images": str(pictures / "labeled")}
    train_given({**QUICK, **own, "unlabeled": str(pictures / pool), **given}, out, choose_rest=True)
    return yaml.safe_load((out / "config.yaml").read_text())


def test_a_pool_that_shows_none_of_the_classes_is_noticed(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = run(pictures, "other", tmp_path / "other")["chosen"]["options"]
    assert chosen["prevalence_ratio"] < 0.1
    said = capsys.readouterr().err
    assert "the unlabeled images show the classes about" in said
    assert f"(estimated from 60 of them), so prevalence_ratio is {chosen['prevalence_ratio']}; to expect" in said
    assert run(pictures, "alike", tmp_path / "alike")["chosen"]["options"]["prevalence_ratio"] == 1
    assert "the unlabeled images show" not in capsys.readouterr().err


@pytest.mark.parametrize(("pool", "least", "most"), [("other", 0, 0.1), ("alike", 1, 1)])
def test_a_pool_in_shards_is_looked_at(pictures: Path, tmp_path: Path, pool: str, least: float, most: float) -> None:
    write_shards(unlabeled_manifest(pictures / pool, tuple(COLOURS)), tmp_path / "shards", images_per_shard=9)
    chosen = run(pictures, pool, tmp_path / "run", unlabeled=str(tmp_path / "shards"))["chosen"]["options"]
    assert least <= chosen["prevalence_ratio"] <= most


def test_the_estimate_is_what_the_run_learns_by(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run with the option given learns the same; one that repeats or resumes it does not estimate again."""
    written = run(pictures, "other", tmp_path / "chosen")
    ratio = written["chosen"]["options"]["prevalence_ratio"]
    monkeypatch.setattr(pool_prevalence, "prevalence_ratio", lambda *_: pytest.fail("estimated again"))
    run(pictures, "other", tmp_path / "given", options={"prevalence_ratio": ratio})
    repeated = to_repeat(written, "config.yaml")
    train_given(repeated, tmp_path / "repeated", choose_rest=True)
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("chosen", "given", "repeated")]
    assert logs[0] == logs[1] == logs[2]
    (tmp_path / "chosen/metrics.json").unlink()
    train_given(to_repeat(written, "config.yaml"), tmp_path / "chosen", resume=True)


@pytest.mark.parametrize(
    "given", [{"head_start": "prior"}, {"method": "supervised"}, {"method": "cap"}, {"method": "probe"}]
)
def test_only_a_run_that_starts_as_a_probe_and_has_the_option_looks(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.setattr(pool_prevalence, "prevalence_ratio", lambda *_: pytest.fail("looked"))
    assert Config.from_dict(to_repeat(run(pictures, "other", tmp_path / "run", **given), "it"))


def test_one_view_may_be_given_for_two(pictures: Path, tmp_path: Path) -> None:
    """The same object twice is written twice, as aliases are not read again."""
    view = {"ops": 1, "strength": 0.2}
    written = run(pictures, "alike", tmp_path / "run", labeled_view=view, weak_view=view)
    assert written["given"]["labeled_view"] == written["given"]["weak_view"] == view
    assert RunFolder(tmp_path / "run").read_config().weak_view.strength == 0.2


@pytest.mark.parametrize(
    ("images", "looked_at", "last"), [(3, 3, 2), (501, 500, 499), (900, 500, 898), (5000, 500, 4990)]
)
def test_what_is_looked_at_is_spread_over_the_pool(images: int, looked_at: int, last: int) -> None:
    """Every image of a small pool; of 501, all but the last; of 900, five of nine."""
    pixels = SimpleNamespace(stream=None, pool=torch.arange(images))
    loader = SimpleNamespace(unlabeled=torch.arange(images), pixels=pixels)
    found = pool_prevalence._unlabeled(cast(Any, SimpleNamespace(loader=loader))).tolist()
    assert len(set(found)) == len(found) == looked_at
    assert max(found) == last


@pytest.mark.parametrize(("images", "looked_at"), [(3, 3), (7, 5), (5000, 500)])
def test_a_stream_is_looked_at_in_several_places(images: int, looked_at: int) -> None:
    class Stream:
        def __len__(self) -> int:
            return images

        def rows(self, start: int, count: int) -> torch.Tensor:
            return torch.arange(start, start + count)

    loader = SimpleNamespace(unlabeled=torch.arange(0), pixels=SimpleNamespace(stream=Stream()))
    found = pool_prevalence._unlabeled(cast(Any, SimpleNamespace(loader=loader))).tolist()
    assert len(set(found)) == len(found) == looked_at
    assert max(found) < images

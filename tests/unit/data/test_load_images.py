"""From a manifest to images: difficult pairs, bad files."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from percentmatch.data import Manifest, load_images
from percentmatch.data.labels import Labels
from percentmatch.errors import UserError


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Three grey images of levels 10, 20 and 30; the second shows the class only as difficult."""
    paths = tuple(tmp_path / f"{level}.png" for level in (10, 20, 30))
    for path, level in zip(paths, (10, 20, 30), strict=True):
        Image.new("L", (8, 6), level).save(path)
    column = lambda *values: torch.tensor(values, dtype=torch.uint8)[:, None]  # noqa: E731
    ids = tuple(path.stem for path in paths)
    parts, sources = ("",) * 3, ("here",) * 3
    return Manifest(paths, ids, Labels.of(column(1, 0, 0), difficult=column(0, 1, 0)), parts, ("cat",), sources)


def test_difficult_pairs_are_negative_in_training_and_unknown_in_scoring(manifest: Manifest, tmp_path: Path) -> None:
    pool = load_images(manifest, size=4, folder=tmp_path / "cache")
    assert pool.pixels[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert pool.labels.targets.dense().flatten().tolist() == [1, 0, 0]
    assert pool.labels.known.dense().flatten().tolist() == [1, 1, 1]
    targets, known = pool.scoring_labels(count_difficult=False)
    assert (targets.flatten().tolist(), known.flatten().tolist()) == ([1, 0, 0], [1, 0, 1])
    targets, known = pool.part(("20", "10")).scoring_labels(count_difficult=True)
    assert (targets.flatten().tolist(), known.flatten().tolist()) == ([1, 1], [1, 1])


def test_a_bad_image_is_named_or_left_out(manifest: Manifest, tmp_path: Path) -> None:
    manifest.paths[1].write_text("no image")
    with pytest.raises(UserError, match=r"20\.png.*1 of 3.*--skip-bad-images"):
        load_images(manifest, size=4, folder=tmp_path / "cache")
    said: list[str] = []
    left = load_images(manifest, size=4, folder=tmp_path / "cache", skip_bad=True, say=said.append)
    assert "20.png" in said[0]
    assert said[1] == "skipped 1 of 3 images"
    assert left.ids == ("10", "30")
    assert left.pixels[:, 0, 0, 0].tolist() == [10, 30]

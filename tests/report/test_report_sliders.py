"""Thresholds chosen by hand on the page, in a real browser, and the file that predict takes."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hostile import CLASSES
from sklearn.metrics import f1_score, precision_score, recall_score

from browser import Opened, opened
from percentmatch import Predictor
from percentmatch.data import Data
from percentmatch.report import write_report
from percentmatch.report.markup import MISSING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROW = "[...document.querySelectorAll('.slider')[{n}].closest('tr').cells].slice(2).map(cell => cell.textContent)"


@pytest.fixture(scope="module")
def file(run: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "one.html"
    write_report([run], file, data=data)
    return file


@pytest.fixture
def page(browser: "Browser", file: Path) -> Generator[Opened]:
    with opened(browser, file) as shown:
        yield shown


@pytest.fixture(scope="module")
def truth(run: Path, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of the test images, of which there are more than validation images."""
    arrays = [*data.test.pixels.permute(0, 2, 3, 1).numpy()]
    return Predictor(run, "cpu").predict_proba(arrays), data.test.labels.targets.dense().numpy()


def move(page: Opened, n: int, step: int) -> None:
    page.page.locator(".slider").nth(n).fill(str(step))


def check(row: list[str], labels: np.ndarray, decided: np.ndarray) -> None:
    """The figures of a row are scikit-learn's, each followed by an interval that holds it."""
    for text, score in zip(row[1:], (precision_score, recall_score, f1_score), strict=True):
        value = score(labels, decided, zero_division=np.nan)
        if np.isnan(value):
            assert text == MISSING
            continue
        shown = f"{100 * value:.1f}"
        assert text.startswith(shown)
        low, high = text[len(shown) :].split(" to ")
        assert float(low) <= float(shown) <= float(high)


def test_a_slider_shows_what_its_threshold_does(page: Opened, truth: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, labels = truth
    grid = page.ask("data.sliders.run1.grid")
    for n in range(len(CLASSES)):
        own = page.ask(ROW.format(n=n))
        check(own, labels[:, n], probabilities[:, n] >= page.ask(f"data.sliders.run1.own[{n}]"))
        for step in (0, 20, 50, len(grid) - 1):
            move(page, n, step)
            row = page.ask(ROW.format(n=n))
            assert float(row[0]) == grid[step]
            check(row, labels[:, n], probabilities[:, n] >= grid[step])
        assert page.ask("document.querySelector('.shown-class').textContent") == CLASSES[n]
    assert page.complaints == []


def test_the_keyboard_moves_it_and_it_can_be_put_back(page: Opened) -> None:
    before = page.ask(ROW.format(n=1)), page.ask("document.querySelector('.download').href")
    slider = page.page.locator(".slider").nth(1)
    start = slider.input_value()
    slider.press("ArrowRight")
    assert int(slider.input_value()) == int(start) + 1
    assert page.ask(ROW.format(n=1))[0] != before[0][0]
    assert slider.get_attribute("aria-valuetext") == page.ask(ROW.format(n=1))[0]
    page.page.locator(".reset").click()
    assert (page.ask(ROW.format(n=1)), page.ask("document.querySelector('.download').href")) == before
    assert slider.input_value() == start


def test_the_file_is_what_predict_takes(page: Opened, run: Path, data: Data, truth: tuple, tmp_path: Path) -> None:
    """The classes that were not touched keep the model's own thresholds, to the last digit."""
    move(page, 2, 33)
    with page.page.expect_download() as download:
        page.page.locator(".download").click()
    assert download.value.suggested_filename == "thresholds.json"
    download.value.save_as(tmp_path / "thresholds.json")
    own = list(Predictor(run, "cpu").card.decisions.thresholds)
    wanted = [*own[:2], page.ask("data.sliders.run1.grid[33]"), *own[3:]]
    assert json.loads((tmp_path / "thresholds.json").read_text()) == {
        "thresholds": dict(zip(CLASSES, wanted, strict=True))
    }
    mine = Predictor(run, "cpu", thresholds=tmp_path / "thresholds.json")
    arrays = [*data.test.pixels.permute(0, 2, 3, 1).numpy()]
    np.testing.assert_array_equal(mine.predict(arrays), truth[0] >= wanted)
    assert page.complaints == []
    assert page.requests == [page.page.url]

"""The page in a real browser; skipped where there is none."""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hostile import CLASSES

from browser import Opened, opened
from percentmatch.data import Data
from percentmatch.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

COLUMN = "[...document.querySelectorAll('#run1-classes tbody')[0].rows].map(row => row.cells[{column}].dataset.v)"
PRESS = "document.querySelectorAll('#run1-classes table')[0].querySelectorAll('thead button')[{column}].click()"


@pytest.fixture(scope="module")
def files(run: Path, supervised: Path, data: Data, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pages")
    write_report([run], folder / "one.html", data=data)
    write_report([supervised, run], folder / "two.html", data=data)
    return folder / "one.html", folder / "two.html"


@pytest.fixture
def page(browser: "Browser", files: tuple[Path, Path]) -> Generator[Opened]:
    with opened(browser, files[0]) as shown:
        yield shown


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_opens_without_complaint_or_request_and_fits(
    browser: "Browser", files: tuple[Path, Path], place: int, width: int, dark: bool
) -> None:
    with opened(browser, files[place], width=width, dark=dark) as page:
        for each in CLASSES:
            page.ask(f"pick({CLASSES.index(each)})")
        page.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.ask("document.documentElement.scrollWidth") == width
        assert page.ask("document.images.length") > 0
        assert page.ask("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        background = page.ask("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in background[4:-1].split(",")) < 200) == dark
        assert page.complaints == []
        assert page.requests == [files[place].resolve().as_uri()]


def test_text_can_be_read_on_its_ground(browser: "Browser", files: tuple[Path, Path]) -> None:
    """Contrast on the cards: text 4.5 to 1 and more, the colours of curves 3 to 1."""
    script = """(() => {
      const probe = document.body.appendChild(document.createElement("i"));
      const light = (name) => {
        probe.style.color = `var(${name})`;
        const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map((v) => {
          const c = v / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return Object.fromEntries(["--ink", "--soft", "--accent", "--bad", "--s0", "--s1", "--s2", "--s3", "--s4", "--s5",
        "--s6", "--s7"].map((name) => [name, ratio(light(name), light("--card"))]));
    })()"""
    for dark in (False, True):
        with opened(browser, files[0], dark=dark) as page:
            for name, ratio in page.ask(script).items():
                assert ratio >= (3 if name.startswith("--s") and name != "--soft" else 4.5), (name, dark)


def test_every_column_sorts_both_ways_and_says_so(page: Opened) -> None:
    columns = page.ask("document.querySelectorAll('#run1-classes table')[0].querySelectorAll('thead th').length")
    assert columns == 9
    for column in range(columns):
        before = page.ask(COLUMN.format(column=column))
        key = str if column == 0 else float
        for way in ("ascending", "descending") if column == 0 else ("descending", "ascending"):
            page.ask(PRESS.format(column=column))
            values = page.ask(COLUMN.format(column=column))
            assert sorted(values) == sorted(before)
            if column:
                numbers = [key(value) for value in values]
                assert numbers == sorted(numbers, reverse=way == "descending")
            marks = page.ask(
                "[...document.querySelectorAll('#run1-classes thead')[0].querySelectorAll('th')]"
                ".map(each => each.getAttribute('aria-sort'))"
            )
            assert marks == [way if place == column else None for place in range(columns)]
    assert page.complaints == []


def test_a_missing_value_comes_last_in_both_orders(page: Opened) -> None:
    page.ask("document.querySelectorAll('#run1-classes tbody')[0].rows[1].cells[3].dataset.v = ''")
    for _ in range(2):
        page.ask(PRESS.format(column=3))
        assert page.ask(COLUMN.format(column=3))[-1] == ""


def type_into(page: Opened, text: str) -> None:
    page.page.locator(".filter").first.fill(text)


def test_the_filter_keeps_the_rows_that_match(page: Opened) -> None:
    shown = (
        "[...document.querySelectorAll('#run1-classes tbody')[0].rows].filter(row => !row.hidden)"
        ".map(row => row.cells[0].textContent)"
    )
    type_into(page, "IMG src")
    assert page.ask(shown) == [CLASSES[2]]
    assert page.ask("document.querySelector('.found').textContent") == f"1 of {len(CLASSES)} classes"
    type_into(page, "no such class")
    assert page.ask(shown) == []


def test_a_chosen_class_stands_out_everywhere(page: Opened) -> None:
    page.ask(
        "document.getElementById('chooser').value = '2'; "
        "document.getElementById('chooser').dispatchEvent(new Event('change'))"
    )
    chosen = page.ask("[...new Set([...document.querySelectorAll('[data-hi][data-c]')].map(each => each.dataset.c))]")
    assert chosen == ["2"]
    charts = page.ask("document.querySelectorAll('svg.chart:has(.class)').length")
    assert charts > 8
    assert page.ask(
        "[...document.querySelectorAll('svg.chart:has(.class[data-c=\"2\"])')]"
        ".every(each => each.querySelector('.class[data-hi]'))"
    )
    assert page.ask("document.querySelector('.shown-class').textContent") == CLASSES[2]
    assert page.ask("document.querySelector('#key').textContent") == CLASSES[2]
    stroke = "getComputedStyle(document.querySelector('svg .class[data-c=\"{c}\"] path')).stroke"
    assert page.ask(stroke.format(c=2)) != page.ask(stroke.format(c=1))


def test_a_name_in_the_table_and_the_keyboard_choose_too(page: Opened) -> None:
    page.ask("document.querySelector('[data-pick=\"3\"]').focus()")
    page.page.keyboard.press("Enter")
    assert page.ask("document.getElementById('chooser').value") == "3"
    assert page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_pointer_reads_a_curve(page: Opened) -> None:
    """Over the last point of a chosen class the tip names it, with the value that its place stands for."""
    page.ask("pick(0)")
    where = page.ask("""(() => {
      const svg = document.querySelector("svg.chart[id$='threshold-gap-fig-3b']");
      svg.scrollIntoView({block: "center"});
      const [x, y] = points(svg.querySelector(".class[data-hi]")).at(-1);
      const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
      return [box.left + x * scale, box.top + y * scale];
    })()""")
    page.page.mouse.move(where[0], where[1])
    tip = page.ask("document.getElementById('tip').hidden ? null : document.getElementById('tip').textContent")
    assert tip.startswith("disc: step 6, gap 0.")
    page.page.mouse.move(2, 2)
    assert page.ask("document.getElementById('tip').hidden")


def test_a_link_opens_its_run_and_print_opens_all(browser: "Browser", files: tuple[Path, Path]) -> None:
    with opened(browser, files[1]) as page:
        assert not page.ask("document.getElementById('run2').open")
        page.ask("document.querySelector('nav a[href=\"#run2\"]').click()")
        page.ask("new Promise(requestAnimationFrame)")
        assert page.ask("document.getElementById('run2').open")
        page.ask("window.dispatchEvent(new Event('beforeprint'))")
        assert page.ask("document.querySelectorAll('details:not([open])').length") == 0
        page.ask("window.dispatchEvent(new Event('afterprint'))")
        assert not page.ask("document.getElementById('run1').open")

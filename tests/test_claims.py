"""Every sentence that promises something about faults and strangers names the tests that hold it, and they exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
PAGES = {
    "After a fault": ("docs/reliability.md", "\n", "Not promised:"),
    "Security": ("SECURITY.md", "## What is promised", "\n## "),
}


def sentences(page: str, start: str, end: str) -> list[str]:
    """The sentences between two marks; a row of a table begins with its first cell."""
    found = []
    for block in re.split(r"\n\n|\n(?=[|-])", (ROOT / page).read_text().partition(start)[2].partition(end)[0]):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block).replace("**", "").strip()
        if plain.startswith("|"):
            plain = ": ".join(cell.strip() for cell in plain.strip("|").split("|"))
        found += re.split(r"(?<=\.) (?=[A-Z`])", " ".join(plain.removeprefix("- ").split()))
    left_out = ("The tests of each sentence", "fault: what happens", "---")
    return [sentence for sentence in found if sentence and not sentence.startswith(left_out)]


def claims(title: str) -> dict[str, list[tuple[str, str]]]:
    """The rows of a table in docs/claims.md: the first words of a sentence, and tests."""
    table = (ROOT / "docs/claims.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][1:]
    return {words.strip(): TEST.findall(tests) for words, tests in rows}


@pytest.mark.parametrize("title", PAGES)
def test_every_sentence_has_a_row_and_every_row_a_test_that_exists(title: str) -> None:
    promised, rows = sentences(*PAGES[title]), claims(title)
    assert len(promised) > 20
    for sentence in promised:
        fits = [words for words in rows if sentence.startswith(words.removesuffix(" …"))]
        assert fits, f"name the tests of this sentence in docs/claims.md: {sentence}"
    for words, tests in rows.items():
        assert any(sentence.startswith(words.removesuffix(" …")) for sentence in promised), f"no page says: {words}"
        assert tests, f"no test: {words}"
        for file, name in tests:
            assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_the_sentences_are_those_of_the_pages(tmp_path: Path) -> None:
    page, table = tmp_path / "page.md", "| a | b |\n|---|---|\n| x | Y is. Z, too. |"
    page.write_text(f"# A\n\nOne is so. `Two` is\nlonger: so.\n\n{table}\n\n- **Four** is.\n\nNot this.")
    found = ["One is so.", "`Two` is longer: so.", "a: b", "x: Y is.", "Z, too.", "Four is."]
    assert sentences(str(page), "# A", "Not") == found

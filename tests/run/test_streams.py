"""The command with outputs that are closed, full or not read, with odd names, and in an ASCII locale."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import TINY, save_scenes

from forked import exit_code, start_copy
from percentmatch.cli.main import main
from percentmatch.training.start import train
from percentmatch.use.predict import predict

SMALL = {"data": "files", "labeled": 0, "validation": 6, "total_steps": 2, "scenes_pool": 5000, "scenes_test": 1000}
ODD = "\x1b[31m\u202e\u200f\x9b"  # sets the colour, turns the text round, begins a command
SHOWN = r"\x1b[31m\u202e\u200f\x9b"
STEERS = re.compile(r"[\x1b\x9b\u200f\u202e]")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images with odd names and classes with odd and non-ASCII names; an unlabeled file that is no image."""
    folder = tmp_path_factory.mktemp("world")
    rows = []
    for name, labels in save_scenes(folder, 24, 6):
        shown = [f"{each}{ODD} é" for each, there in zip("abc", labels, strict=True) if there]
        rows.append(f"photos/{name},{';'.join(shown)}\n")
    (folder / "more" / f"29{ODD}.png").write_bytes((folder / "more" / "29.png").read_bytes())
    (folder / "more" / f"bad{ODD}.png").write_text("no image")
    (folder / "labels.csv").write_text("image,labels\n" + "".join(rows), encoding="utf-8")
    os.environ["PERCENTMATCH_CACHE"] = str(folder / "cache")
    try:
        config = {"labels": str(folder / "labels.csv"), "unlabeled": str(folder / "more"), "skip_bad_images": True}
        train(TINY.from_dict({**TINY.to_dict(), **SMALL, **config}, source="here"), folder / "run")
    finally:
        del os.environ["PERCENTMATCH_CACHE"]
    return folder


def call(monkeypatch: pytest.MonkeyPatch, line: str) -> int:
    """The command in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", ["percentmatch", *line.split()])
    try:
        main()
    except SystemExit as exit_:
        return int(exit_.code or 0)
    return 0


def shell(world: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell, in which `pm` is the command."""
    pm = f'pm() {{ "{sys.executable}" -m percentmatch "$@"; }}; {line}'
    more = {"OMP_NUM_THREADS": "1", "PERCENTMATCH_CACHE": str(world / "cache"), **environment}
    return subprocess.run(
        ["bash", "-c", pm], cwd=world, env={**os.environ, **more}, capture_output=True, encoding="utf-8", timeout=120
    )


def test_no_name_steers_the_terminal(world: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(world)
    assert call(monkeypatch, "predict run more --skip-bad-images") == 0
    assert call(monkeypatch, "data check --labels labels.csv --unlabeled more") == 1
    printed, said = capsys.readouterr()
    assert f"more/29{SHOWN}.png" in printed
    assert f"skipped: cannot read image 'more/bad{SHOWN}.png'" in said
    assert f"a{SHOWN} é" in printed
    assert not STEERS.search(printed + said)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_holds_names_as_they_are(form: str, world: Path, tmp_path: Path) -> None:
    """JSON has escapes of its own: they steer no terminal, and are the same names."""
    out = tmp_path / f"p.{form}"
    assert predict(world / "run", [world / "more"], out, say=lambda _: None) == (7, 1)
    text = out.read_text("utf-8")
    if form == "jsonl":
        assert not STEERS.search(text)
        text = "".join(json.loads(line)["image"] for line in text.split("\n") if line)
    assert f"29{ODD}.png" in text


def test_closed_output_is_missed_by_what_needs_it(world: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr(sys, "__stdout__", None)  # as with >&-
    assert call(monkeypatch, "predict run more") == 2
    assert "percentmatch: standard output is closed; name a file by --out" in capsys.readouterr().err


LINES = {
    "closed": ("pm --help >&-", (0,), ""),
    "full": ("pm --help > /dev/full", (2,), "percentmatch: cannot write to standard output: No space left on device"),
    "errors are lost": ("pm data chek 2> /dev/full", (2,), ""),
    "errors have nowhere to go": ("pm data chek 2>&-", (2,), ""),
    "nobody reads": ("pm --help | sleep 0; exit ${PIPESTATUS[0]}", (1, 141), ""),  # rich says 1
}


@pytest.mark.parametrize("case", LINES)
def test_an_output_that_cannot_be_written_ends_in_no_traceback(case: str, tmp_path: Path) -> None:
    line, codes, said = LINES[case]
    done = shell(tmp_path, line)
    assert done.returncode in codes, done.stderr
    assert done.stderr.strip() == said


def with_full_errors(*tokens: str) -> None:
    """The command as with 2> /dev/full."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
    sys.argv = ["percentmatch", *tokens]
    main()


def test_a_run_does_not_end_for_progress_that_cannot_be_shown(tmp_path: Path) -> None:
    out, said = tmp_path / "run", tmp_path / "said"
    flags = "--data scenes --scenes-pool 60 --scenes-test 20 --validation 20 --labeled 20 --image-size 32"
    flags += " --backbone test_resnet --head linear --labeled-batch 4 --total-steps 2"
    code = exit_code(start_copy(with_full_errors, "train", *flags.split(), "--out", str(out), said=said))
    assert (code, (out / "metrics.json").exists()) == (0, True), said.read_text()


def test_an_ascii_locale(world: Path, tmp_path: Path) -> None:
    """What the program writes and reads is UTF-8; names of files are the locale's, which one line says."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell(world, f"pm report run --out '{tmp_path}/r.html'", **ascii_only)
    assert done.returncode == 0, done.stderr
    assert "é" in (tmp_path / "r.html").read_text("utf-8")
    assert "this locale knows ASCII only; set PYTHONUTF8=1" in done.stderr


def test_every_text_file_is_opened_with_its_encoding() -> None:
    """Nothing depends on the locale: read_text, write_text, and open for text, name an encoding."""
    for file in sorted((Path(__file__).parents[2] / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or any(word.arg == "encoding" for word in node.keywords):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if called in ("read_text", "write_text") and isinstance(node.func, ast.Attribute):
                assert "utf-8" in texts, f"{file}:{node.lineno}"
            if (
                isinstance(node.func, ast.Name)
                and called == "open"
                and not any(word.arg is None for word in node.keywords)
            ):
                with_bytes = any("b" in str(each) for each in [*texts, *map(ast.unparse, node.args[1:])])
                assert with_bytes or any(word.arg == "opener" for word in node.keywords), f"{file}:{node.lineno}"

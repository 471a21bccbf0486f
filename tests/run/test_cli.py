"""The command line as a person meets it: help is quick, bad input is one sentence and exit code 2."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from percentmatch import __version__
from percentmatch.cli import main as cli
from percentmatch.cli.main import main
from percentmatch.settings.config import Config

SETTINGS = {
    "--scenes-pool": "60",
    "--scenes-test": "20",
    "--validation": "20",
    "--labeled": "20",
    "--image-size": "32",
    "--backbone": "test_resnet",
    "--head": "linear",
    "--labeled-batch": "4",
    "--total-steps": "3",
}


def fast(**changed: str) -> list[str]:
    settings = SETTINGS | {f"--{name}": value for name, value in changed.items()}
    return [token for pair in settings.items() for token in pair]


FAST = fast()


def call(*tokens: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "percentmatch", *tokens], capture_output=True, text=True, timeout=120)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *tokens: str) -> tuple[int, str, str]:
    """The command in this process: exit code, output, errors."""
    monkeypatch.setattr(sys, "argv", ["percentmatch", *tokens])
    try:
        main()
        code = 0
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    return code, *capsys.readouterr()


def test_help_is_quick_and_imports_no_torch() -> None:
    code = "import sys; sys.argv = ['percentmatch', '--help']; import percentmatch.cli.main as c; c.main()"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < 3  # under a second on a quiet machine
    assert "demo" in done.stdout
    assert re.search(r"\|\s+cyclopts(\.|$)", done.stderr, re.MULTILINE), "the pattern finds what is imported"
    assert not re.search(r"\|\s+torch(\.|$)", done.stderr, re.MULTILINE)


def test_version() -> None:
    assert call("--version").stdout.strip() == __version__


def test_train_evaluate_and_resume(tmp_path: Path, monkeypatch, capsys) -> None:
    out = str(tmp_path / "run")
    code, printed, _ = run(monkeypatch, capsys, "train", "--out", out, *FAST, "--option", "momentum=0.9")
    assert code == 0
    assert "mAP" in printed
    assert "momentum: 0.9" in (tmp_path / "run" / "config.yaml").read_text()
    code, printed, _ = run(monkeypatch, capsys, "evaluate", out)
    assert code == 0
    assert "hourglass" in printed
    code, _, errors = run(monkeypatch, capsys, "train", "--out", out, *FAST)
    assert code == 2
    assert "already holds a run" in errors
    code, _, errors = run(monkeypatch, capsys, "train", "--out", out, "--resume", "--lr", "0.5")
    assert code == 2
    assert "lr=0.0003, not 0.5" in errors
    assert run(monkeypatch, capsys, "train", "--out", out, "--resume")[0] == 0


def test_resume_may_be_written_with_its_value(finished: Path, monkeypatch, capsys) -> None:
    assert run(monkeypatch, capsys, "train", "--out", str(finished), "--resume=True")[0] == 0
    new = str(finished.with_name("new"))
    code, _, errors = run(monkeypatch, capsys, "train", "--out", new, *fast(labeled="100"), "--resume=false")
    assert code == 2
    assert "labeled=100" in errors  # nothing was looked for in the folder


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("lr: 5e-3\nstrong_view: {ops: 2}\noptions: {momentum: 0.9, num_bins: 50}\n")
    seen = {}
    monkeypatch.setattr("percentmatch.training.start.train_given", lambda given, *_, **__: seen.update(given) or {})
    tokens = [
        "train",
        "--out",
        "x",
        "--preset",
        "demo",
        "--config",
        str(file),
        "--lr",
        "0.25",
        "--option",
        "num_bins=60",
    ]
    cli.run([*tokens, "--strong-view.strength", "0.25", "--labeled-view.no-flip"])
    config = Config.from_dict(seen)
    assert config.lr == 0.25
    assert config.strong_view.ops == 2
    assert config.strong_view.strength == 0.25
    assert not config.labeled_view.flip
    assert config.image_size == 40  # of the preset
    assert config.options["momentum"] == 0.9
    assert config.options["num_bins"] == "60"


def test_methods_lists_every_method_and_option(monkeypatch, capsys) -> None:
    _, printed, _ = run(monkeypatch, capsys, "methods")
    assert all(name in printed for name in ("supervised", "fixmatch", "percentmatch"))
    _, printed, _ = run(monkeypatch, capsys, "methods", "percentmatch")
    assert "upper_percentile" in printed
    assert "0.98" in printed


BAD = {
    "flag typo": (["train", "--out", "OUT", "--lrr", "1"], "--lr"),
    "wrong type": (["train", "--out", "OUT", "--lr", "fast"], "--lr"),
    "out of range": (["train", "--out", "OUT", "--ema-decay", "1.5"], "ema_decay must lie between 0 and 1, not 1.5"),
    "unknown choice": (["train", "--out", "OUT", "--optimizer", "big"], "--optimizer"),
    "unknown head": (["train", "--out", "OUT", "--head", "linaer"], "unknown head 'linaer'; did you mean 'linear'?"),
    "unknown method": (["train", "--out", "OUT", "--method", "percentmach"], "did you mean 'percentmatch'?"),
    "unknown option": (["train", "--out", "OUT", "--option", "momentm=1"], "did you mean 'momentum'?"),
    "a view without a setting": (["train", "--out", "OUT", "--weak-view", "1"], "--weak-view.ops"),
    "the same with a sign": (["pretrain", "--out", "OUT", "--view=1"], "--view.ops"),
    "option without value": (["train", "--out", "OUT", "--option", "momentum"], "NAME=VALUE"),
    "option of wrong type": (["train", "--out", "OUT", "--option", "num_bins=many"], "num_bins"),
    "momentum out of range": (["train", "--out", "OUT", *FAST, "--option", "momentum=1.5"], "momentum"),
    "crossed percentiles": (
        ["train", "--out", "OUT", *FAST, "--option", "upper_percentile=0.05"],
        "upper_percentile=0.05",
    ),
    "unknown preset": (["train", "--out", "OUT", "--preset", "dmo"], "did you mean 'demo'?"),
    "no such config": (["train", "--out", "OUT", "--config", "none.yaml"], "none.yaml"),
    "unknown backbone": (["train", "--out", "OUT", *fast(backbone="resnet5O")], "resnet50"),
    "too many labels": (["train", "--out", "OUT", *fast(labeled="100")], "100"),
    "no unlabeled left": (["train", "--out", "OUT", *fast(labeled="40")], "needs unlabeled images"),
    "no such device": (["train", "--out", "OUT", *FAST, "--device", "cuda:99"], "--device cpu"),
    "unsupported device": (["train", "--out", "OUT", *FAST, "--device", "meta"], "not supported"),
    "not finite": (["train", "--out", "OUT", *fast(labeled="inf")], "labeled"),
    "infinite rate": (["train", "--out", "OUT", *FAST, "--lr", "inf"], "lr must be above 0"),
    "huge seed": (["train", "--out", "OUT", *FAST, "--seed", str(2**70)], "seed must lie"),
    "part of an image": (["train", "--out", "OUT", *fast(labeled="2.5")], "whole number"),
    "unknown weights tag": (["train", "--out", "OUT", *fast(backbone="test_resnet.")], "test_resnet"),
    "long path": (["train", "--out", "x" * 300, *FAST], "too long"),
    "resume with preset": (["train", "--out", "OUT", "--resume", "--preset", "demo"], "leave --preset out"),
    "nothing to resume": (["train", "--out", "OUT", "--resume"], "holds no run"),
    "no such run": (["evaluate", "OUT"], "holds no run"),
    "unknown command": (["trian"], "train"),
}
MISTAKES = {
    "train --labels labels.csv": "train needs --out; percentmatch train --help says what it is",
    "predict": "predict needs MODEL; percentmatch predict --help says what it is",
    "data split": "data split needs --out; percentmatch data split --help says what it is",
    "train --out": "train: --out needs a value after it; percentmatch train --help says which",
    "train --lr --out OUT": "train: --lr needs a value after it",
    "train --out OUT stray": "train does not know what 'stray' is for; put its option before it",
    "train --out OUT --epochs 5": "train has no option --epochs; give --total-steps: training is counted in steps",
    "pretrain --out OUT --epochs=5": "pretrain has no option --epochs; give --total-steps: training is",
    "train --out OUT --learning-rate 1": "train has no option --learning-rate; give --lr",
    "train --out OUT --steps 60": "train has no option --steps; give --total-steps",
    "train --out OUT --lrr 1": "train has no option --lrr; did you mean --lr?",
    "serve OUT --xyzzy": "serve has no option --xyzzy; percentmatch serve --help lists them",
    "data chek": "check",
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_2(case: str, tmp_path: Path, monkeypatch, capsys) -> None:
    tokens, named = BAD[case]
    out = tmp_path / "run"
    code, printed, errors = run(monkeypatch, capsys, *(str(out) if token == "OUT" else token for token in tokens))
    assert code == 2, printed + errors
    assert named in errors
    assert errors.startswith("percentmatch: ")
    assert len(errors.strip().splitlines()) == 1
    assert not out.exists()


def test_a_mistyped_command_is_one_sentence_and_imports_no_torch(tmp_path: Path) -> None:
    code = f"""import sys; from percentmatch.cli.main import main
for line in {[*MISTAKES]}:
    sys.argv = ["percentmatch", *line.split()]
    try:
        main()
    except SystemExit as exit_:
        print(exit_.code, "torch" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 False\n" * len(MISTAKES)
    for said, expected in zip(done.stderr.splitlines(), MISTAKES.values(), strict=True):
        assert said.startswith("percentmatch: ")
        assert expected in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("learning_rate: 1", "unknown setting 'learning_rate'"),
        ("lr: [1]", "'lr' must be a float"),
        ("total_steps: 1.5", "'total_steps' must be a int"),
        ("flip: true", "unknown setting 'flip'"),
        ("strong_view: {opps: 2}", "unknown setting 'strong_view.opps'; did you mean 'ops'?"),
        ("strong_view: 3", "strong_view"),
        ("head: huge", "unknown head 'huge'; choose from: linear, ml-decoder"),
        ("- a\n- b", "must hold names and values"),
        ("a: [", "not valid YAML"),
        ("[" * 5000, "nested too deeply"),
        ("lr: 1" + "0" * 400, "this number is too long, line 1"),
        ("options: {momentum: high}", "option 'momentum' must be a float"),
    ],
)
def test_a_bad_config_file_is_named_with_what_is_wrong(
    text: str, named: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    code, _, errors = run(monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), "--config", str(file))
    assert code == 2
    assert named in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    cli.run(["train", "--out", str(out), *FAST])
    return out


READS = {
    "evaluate": ["config.yaml", "split.json", "model.safetensors"],
    "resume": ["config.yaml", "split.json", "metrics.json", "last.pt", "log.jsonl"],
}


@pytest.mark.parametrize(("verb", "file"), [(verb, file) for verb in READS for file in READS[verb]])
@pytest.mark.parametrize("damage", ["missing", "half", "binary"])
def test_a_damaged_run_is_named_in_one_sentence_or_not_needed(
    verb: str, file: str, damage: str, finished: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Never a traceback, and never other numbers than the undamaged run's."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    content = (out / file).read_bytes()
    (out / file).unlink()
    if damage != "missing":
        (out / file).write_bytes({"half": content[: len(content) // 2], "binary": b"\xff\x00" * 99}[damage])
    if verb == "resume" and file != "metrics.json":
        (out / "metrics.json").unlink()
    tokens = ["evaluate", str(out)] if verb == "evaluate" else ["train", "--out", str(out), "--resume"]
    code, _, errors = run(monkeypatch, capsys, *tokens)
    assert code in (0, 2)
    if code == 2:
        assert file in errors
        assert len(errors.strip().splitlines()) == 1
    elif verb == "resume":
        before, after = (json.loads((folder / "metrics.json").read_text()) for folder in (finished, out))
        assert before["test"] == after["test"]
    if verb == "evaluate":
        assert code == 2


def test_a_full_disk_is_one_sentence_and_exit_code_2(tmp_path: Path, monkeypatch, capsys) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("percentmatch.files.os.fsync", full)
    code, _, errors = run(monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), *FAST)
    assert code == 2
    assert "No space left on device" in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert run(monkeypatch, capsys, "train", "--out", str(tmp_path / "run"), *FAST)[0] == 0


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    code, _, errors = run(monkeypatch, capsys, "train", "--out", str(tmp_path), *FAST)
    assert code == 2
    assert "is not empty" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

"""Imports go one way: each room may import only the rooms named for it in docs/design.md."""

import ast
from pathlib import Path

import pytest

import percentmatch

ROOT = Path(percentmatch.__file__).parent
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "records": {"errors"},
    "ranks": {"errors"},
    "distributed": {"errors", "ranks"},
    "shared_norm": {"distributed"},
    "losses": set(),
    "device": {"errors", "ranks"},
    "graph": {"errors"},
    "signals": set(),
    "progress": {"ranks"},
    "config": {"errors"},
    "presets": {"config"},
    "checkpoint": {"errors", "files"},
    "meter": set(),
    "metrics": {"errors"},
    "optim": {"config"},
    "histogram": {"errors", "distributed"},
    "labelers": {"errors", "records", "distributed", "histogram"},
    "methods": {"errors", "records", "distributed", "losses", "labelers"},
    "models": {"errors", "files", "records"},
    "augment": {"config", "device"},
    "data": {"errors", "files", "records", "config"},
    "loader": {"errors", "records", "distributed", "config", "device", "augment", "data"},
    "evaluate": {
        "errors",
        "records",
        "distributed",
        "device",
        "augment",
        "data",
        "metrics",
        "models",
        "methods",
        "run_folder",
    },
    "sound": {"errors", "checkpoint"},
    "run_folder": {"sound", "errors", "config", "checkpoint", "data", "files"},
    "followers": {"errors", "checkpoint", "config", "run_folder"},
    "decide": {"errors", "models", "records"},
    "predict": {"errors", "checkpoint", "data", "decide", "device", "evaluate", "models", "run_folder"},
    "calibrate": {"errors", "checkpoint", "data", "decide", "evaluate", "models", "run_folder"},
    "serve": {"errors", "data", "decide", "evaluate", "predict"},
    "export": {"errors", "checkpoint", "decide", "evaluate", "models", "predict", "run_folder"},
    "report": {
        "errors",
        "checkpoint",
        "config",
        "data",
        "decide",
        "device",
        "evaluate",
        "labelers",
        "methods",
        "models",
        "run_folder",
        "sound",
    },
    "show": {"errors", "methods"},
    "auto": {"errors", "config", "data", "device", "methods", "models", "presets"},
    "warm_folder": {"sound", "errors", "config", "checkpoint", "run_folder"},
    "pretrain": {
        "errors",
        "checkpoint",
        "config",
        "data",
        "device",
        "distributed",
        "augment",
        "graph",
        "loader",
        "meter",
        "models",
        "optim",
        "progress",
        "run_folder",
        "shared_norm",
        "signals",
        "warm_folder",
    },
    "compare": {"errors", "config", "data", "evaluate", "methods", "report", "run_folder", "show", "train"},
    "suggest": {
        "errors",
        "checkpoint",
        "config",
        "data",
        "decide",
        "device",
        "evaluate",
        "models",
        "run_folder",
        "show",
    },
}
ANYTHING = {
    "run",
    "train",
    "benchmark",
    "speed",
    "demo",
    "cli",
    "cli_data",
    "cli_use",
    "__main__",
    "__init__",
}  # the loop and what stands above it
HEAVY = {"torch", "timm", "torchvision", "torchmetrics"}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "percentmatch" else set()
            found |= {node.module or "", *names}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = room_of(path)
    theirs = {name.split(".")[1] for name in imports(path) if name.startswith("percentmatch.")} - {room, "__version__"}
    if room not in ANYTHING:
        assert theirs <= MAY_IMPORT[room]


@pytest.mark.parametrize("room", ["cli", "cli_data", "cli_use", "config", "presets", "errors", "__init__"])
def test_the_way_to_help_imports_nothing_heavy(room: str) -> None:
    top = {name.split(".")[0] for name in imports(ROOT / f"{room}.py", top_level_only=True)}
    assert not top & HEAVY

"""Imports go down: a module imports its own folder or lower floors, as docs/design.md shows them."""

import ast
import re
from pathlib import Path

import pytest

import percentmatch

ROOT = Path(percentmatch.__file__).parent
DESIGN = Path(__file__).parent.parent / "docs" / "design.md"
FLOORS = (  # 0 first; errors lies under all
    {"errors", "files", "records", "losses"},
    {"settings", "distributed", "console"},
    {"labelers", "augment", "models", "data"},
    {"methods", "scoring"},
    {"runs"},
    {"training"},
    {"use"},
    {"report", "serve"},
    {"cli"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FLOOR_OF |= {"errors": -1, "__init__": len(FLOORS), "__main__": len(FLOORS)}
HEAVY = {"torch", "timm", "torchvision", "torchmetrics"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def room_of(module: str) -> str:
    return module.partition(".")[0]


def imports(path: Path, *, at_import: bool = False) -> set[str]:
    """The names that a file imports, `package.name` for `from package import name`; or only those at import time."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules_of(names: set[str]) -> set[str]:
    """The modules of this package that these names are, or are in: `percentmatch.data.Images` is in `data`."""
    found = set()
    for name in names:
        package, *parts = name.split(".")
        longest = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        if package == "percentmatch":
            found.add(next((module for module in longest if module in MODULES), "__init__"))
    return found


def goes_down(module: str, imported: str) -> bool:
    room, other = room_of(module), room_of(imported)
    version = imported == "__init__"  # which all may know
    return version or room == other or FLOOR_OF[other] < FLOOR_OF[room]


@pytest.mark.parametrize("module", MODULES)
def test_an_import_goes_down(module: str) -> None:
    up = [name for name in modules_of(imports(MODULES[module])) if not goes_down(module, name)]
    assert not up, f"{module} imports {', '.join(up)}"


def test_the_check_of_imports_can_fail() -> None:
    assert not goes_down("data.split", "training.loop")
    assert not goes_down("labelers.base", "data")  # the same floor, another folder
    assert modules_of({"percentmatch.data.Images", "torch.nn"}) == {"data"}


def test_no_import_goes_round_in_a_circle() -> None:
    imported = {name: modules_of(imports(path, at_import=True)) - {name, "__init__"} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle: {' -> '.join((*way, name))}"
        if name not in done:
            for other in sorted(imported[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def test_the_design_shows_these_floors() -> None:
    rows = re.findall(r"^\| (\d) \|(.*)$", DESIGN.read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(FLOORS)))
    assert [set(re.findall(r"`([a-z_]+)/?`:", row)) for _, row in rows] == list(FLOORS)


def test_at_most_six_modules_lie_at_the_root() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 6


@pytest.mark.parametrize("module", MODULES)
def test_a_file_is_read_in_one_go(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= 300


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) in ("cli", "settings", "errors")])
def test_the_way_to_help_imports_nothing_heavy(module: str) -> None:
    top = {name.split(".")[0] for name in imports(MODULES[module], at_import=True)}
    assert not top & HEAVY

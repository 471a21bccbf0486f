"""What tests import and replace in this package is there, also in tests that are skipped on this machine."""

import ast
import builtins
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

FILES = sorted(Path(__file__).parent.rglob("*.py"))


def missing(source: str) -> list[str]:
    """Names of this package that a file imports, replaces by `setattr` or reads from an imported module, and are not.

    A target of `setattr` is a text ("percentmatch.files.os.fsync"), or a module and a name.
    """
    tree = ast.parse(source)
    modules, wanted = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("percentmatch"):
                    wanted.add(alias.name)
                    modules[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("percentmatch"):
            for alias in node.names:
                wanted.add(path := f"{node.module}.{alias.name}")
                if isinstance(found(path), ModuleType):
                    modules[alias.asname or alias.name] = path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            wanted.add(f"{modules[node.value.id]}.{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            first, second = node.args[:2] if len(node.args) > 1 else (None, None)
            if isinstance(first, ast.Constant) and str(first.value).startswith("percentmatch."):
                wanted.add(str(first.value))
            elif isinstance(first, ast.Name) and first.id in modules and isinstance(second, ast.Constant):
                wanted.add(f"{modules[first.id]}.{second.value}")
    return sorted(path for path in wanted if found(path) is None and path.rpartition(".")[2] not in vars(builtins))


def found(path: str) -> object | None:
    """A module, or what is in one; None if it is not there. What exists as None counts as something."""
    try:
        thing = resolve_name(path)
    except (AttributeError, ImportError) as error:
        return error.name if str(getattr(error, "name", "")).startswith("triton") else None
    return ... if thing is None else thing


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_names_in_a_test_are_there(file: Path) -> None:
    assert not missing(file.read_text())


def test_a_name_that_moved_is_found() -> None:
    source = """
from percentmatch.training import run as module
from percentmatch.training.loop import update, gone
def test():
    from percentmatch.models.kernels.quick import away
    monkeypatch.setattr("percentmatch.training.run.quicken2", None)
    monkeypatch.setattr("percentmatch.files.os.fsync", None)
    monkeypatch.setattr(module, "Loader2", None)
    module.Run, module.Run2
"""
    assert missing(source) == [
        "percentmatch.models.kernels.quick.away",
        "percentmatch.training.loop.gone",
        "percentmatch.training.run.Loader2",
        "percentmatch.training.run.Run2",
        "percentmatch.training.run.quicken2",
    ]

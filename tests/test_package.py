"""What `import percentmatch` offers, and the built wheel in an empty environment."""

import ast
import inspect
import pkgutil
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import percentmatch
from percentmatch import __version__, labelers

ROOT = Path(__file__).parent.parent
FACE: dict[str, str] = vars(percentmatch)["_MODULES"]


@pytest.mark.parametrize("name", FACE)
def test_a_name_is_that_of_its_module(name: str) -> None:
    assert getattr(percentmatch, name) is getattr(import_module(f"percentmatch.{FACE[name]}"), name)
    assert name in dir(percentmatch)


def test_the_face_offers_every_labeler() -> None:
    classes = {name for name in labelers.__all__ if inspect.isclass(getattr(labelers, name))}
    assert {name for name, module in FACE.items() if module == "labelers"} == classes
    assert {"train", "fit", "pretrain", "Config", "PretrainSettings", "Predictor", "METHODS"} == FACE.keys() - classes


def test_type_checkers_and_editors_see_the_same_names() -> None:
    tree = ast.parse(Path(percentmatch.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    seen = {a.asname: f"{n.module}" for n in imports for a in n.names if f"{n.module}".startswith("percentmatch.")}
    assert seen == {name: f"percentmatch.{module}" for name, module in FACE.items()}


def test_no_submodule_hides_a_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(percentmatch.__path__)}
    assert not modules & FACE.keys()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'percentmatch' has no attribute 'trian'"):
        percentmatch.trian  # noqa: B018


def test_importing_the_package_imports_no_torch() -> None:
    script = "import sys, percentmatch; dir(percentmatch); percentmatch.Config(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
    script = "import sys, percentmatch; percentmatch.PercentMatch; assert 'torch' in sys.modules"  # it can fail
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    assert uv

    def call(*command: str) -> str:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    call(uv, "build", "--wheel", "--out-dir", str(tmp_path / "dist"), str(ROOT))
    call(uv, "venv", str(tmp_path / "env"))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    call(uv, "pip", "install", "--python", str(tmp_path / "env"), str(wheel))
    assert call(str(tmp_path / "env" / "bin" / "percentmatch"), "--version").strip() == __version__

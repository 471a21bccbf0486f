"""The built wheel in an empty environment."""

import shutil
import subprocess
from pathlib import Path

import pytest

from percentmatch import __version__

ROOT = Path(__file__).parent.parent


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

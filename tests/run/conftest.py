"""Runs that several tests look at."""

from pathlib import Path

import pytest
from tiny import TINY

from percentmatch.training.start import train


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(TINY, folder)
    return folder

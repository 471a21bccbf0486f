"""A model that is served."""

from collections.abc import Generator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served import card, save_model

from percentmatch.serve.app import build_app
from percentmatch.use.predict import Predictor


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served") / "my run", card())


@pytest.fixture(scope="session")
def predictor(model: Path) -> Predictor:
    return Predictor(model, "cpu")


@pytest.fixture(scope="module")
def client(predictor: Predictor) -> Generator[TestClient]:
    """One for all, as a process that decodes takes long to start."""
    app = build_app(predictor, "my run", max_bytes=2**20, hosts=frozenset({"localhost"}))
    with TestClient(app, base_url="http://localhost:8000", raise_server_exceptions=False) as opened:
        yield opened

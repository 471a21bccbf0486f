"""Two workers fill two cores, so each test uses one thread."""

import socket

import pytest
import torch

torch.set_num_threads(1)
pytest.register_assert_rewrite("near")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])

"""Two workers fill two cores, so each test uses one thread."""

import os
import signal
import socket

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: its interpreter runs the kernels
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job; the tests of Ctrl-C need to hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)
pytest.register_assert_rewrite("near")
pytest_plugins = ["browser"]


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

"""Two workers fill two cores, so each test uses one thread."""

import atexit
import gc
import os
import signal
import socket

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in a background job; the tests of Ctrl-C need to hear it
    signal.signal(signal.SIGINT, signal.default_int_handler)
pytest.register_assert_rewrite("near")
pytest_plugins = ["browser"]


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Called before the conftest.py of another folder is imported."""
    given = pluginmanager.get_plugin("pytestconfig").known_args_namespace
    if getattr(given, "numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:
        return  # this process only hands the tests out, so it needs no torch
    os.fsync = os.fstat  # no test cuts the power, so none waits for the disk; a descriptor must still be open
    gc.disable()  # until all is imported: there is nothing to find
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported: its interpreter runs the kernels


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported stays, so it is not looked through again and again
    atexit.register(gc.unfreeze)  # or some modules complain of what was not taken down
    gc.enable()


@pytest.fixture
def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])

"""Sending a step's numbers to the device: what arrives is what was drawn."""

import pytest
import torch

from percentmatch.distributed.device import AHEAD, Sender, pick_device
from percentmatch.errors import UserError


def test_on_a_cpu_nothing_is_copied() -> None:
    drawn = {"rows": torch.arange(3)}
    assert Sender(torch.device("cpu")).send(drawn) is drawn


@pytest.mark.gpu
def test_what_was_drawn_arrives_also_when_the_device_is_behind() -> None:
    device = torch.device("cuda", 0)
    sender, arrived = Sender(device), []
    for step in range(3 * AHEAD):
        torch.cuda._sleep(2_000_000)  # cycles: the device is about a millisecond behind
        sent = sender.send({"rows": torch.arange(1000) + step, "rate": torch.tensor(step / 7, dtype=torch.float64)})
        arrived.append({name: value.clone() for name, value in sent.items()})
    for step, each in enumerate(arrived):
        assert torch.equal(each["rows"].cpu(), torch.arange(1000) + step)
        assert float(each["rate"]) == step / 7


@pytest.mark.gpu
def test_memory_that_is_still_written_to_by_earlier_work_is_waited_for() -> None:
    device, drawn = torch.device("cuda", 0), {"rows": torch.arange(1 << 20)}  # 8 MB
    nbytes = drawn["rows"].numel() * 8
    Sender(device).send(drawn)  # loads kernels and leaves pinned memory at hand: getting either waits for the device
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.zeros((1 + AHEAD) * nbytes, dtype=torch.uint8, device=device).fill_(1)
    place = before.data_ptr()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    before.fill_(255)
    del before  # its memory is free again, for work that comes after
    sender = Sender(device)
    sent = sender.send(drawn)
    assert sender.target.data_ptr() == place
    assert torch.equal(sent["rows"].cpu(), drawn["rows"])


def test_what_one_run_asks_for_does_not_stay_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    try:
        for asked in (True, None, False):
            pick_device("cuda", deterministic=asked)
            found = torch.are_deterministic_algorithms_enabled(), not torch.backends.cudnn.benchmark
            assert found == ((True, True) if asked is not False else (False, False))  # None: as it was
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^device 'cuda' is not there; use --device cpu$"):
        pick_device("cuda")

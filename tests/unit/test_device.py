"""Sending a step's numbers to the device: what arrives is what was drawn."""

import pytest
import torch

from percentmatch.device import AHEAD, Sender


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

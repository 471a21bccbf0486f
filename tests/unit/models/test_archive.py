"""A file of tensors that would take for ever to read is refused; any that torch writes is not."""

import io
import pickle
import time
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from percentmatch.errors import UserError
from percentmatch.models import archive
from percentmatch.models.archive import check_pickle, check_weights
from percentmatch.models.weights import read_weights
from percentmatch.runs.checkpoint import load_checkpoint


def doubled(times: int) -> bytes:
    """A pickle of a list of tuples, each of which holds the one before twice, and a dictionary with the last as key."""
    steps = "".join(f"h{chr(n)}h{chr(n)}\x86q{chr(n + 1)}a" for n in range(times))
    return b"\x80\x02" + f"])q\x00a{steps}}}h{chr(times)}K\x01s\x86.".encode("latin-1")


def packed(file: Path, content: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("archive/data.pkl", content)
        made.writestr("archive/version", "3\n")
    return file


@pytest.mark.parametrize("suffix", ["zip", "older"])
def test_a_key_of_billions_of_values_is_refused_at_once(suffix: str, tmp_path: Path) -> None:
    """torch would look at 2^40 of them, and Ctrl-C would have to wait for that."""
    file, content = tmp_path / "x.pt", doubled(40)
    assert pickle.loads(doubled(2)) == ([(), ((), ()), (((), ()), ((), ()))], {(((), ()), ((), ())): 1})
    if suffix == "zip":
        packed(file, content)
    else:
        file.write_bytes(b"".join(pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {})) + content)
    began = time.process_time()
    for read in (read_weights, lambda path: load_checkpoint(path, torch.device("cpu"))):
        with pytest.raises(UserError, match=r"\(ValueError\)"):
            read(file)
    assert time.process_time() - began < 2


def test_wide_tuples_within_each_other_are_refused() -> None:
    wide = "(" + "h\x00" * 100 + "tq\x000" + "(" + "h\x00" * 100 + "tq\x000" + "(" + "h\x00" * 100 + "t."
    with pytest.raises(ValueError, match="a tuple of that many values"):
        check_pickle(io.BytesIO(b"\x80\x02)q\x000" + wide.encode("latin-1")))


def test_a_pickle_of_endless_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_STEPS", 1000)
    with pytest.raises(ValueError, match="that many steps"):
        check_pickle(io.BytesIO(b"\x80\x02" + b"N0" * 600 + b"N."))


@pytest.mark.parametrize("older", [False, True], ids=["zip", "older"])
def test_what_torch_writes_is_read(older: bool, tmp_path: Path) -> None:
    """With all the steps of its state, some thousands of tensors, and lists that hold each other."""
    model = timm.create_model("resnet50", num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    nested = [[1], [1]]
    for _ in range(40):
        nested = [nested, nested]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "more": [nested, (1, (2, 3)), {4: "x"}]}
    torch.save(state, tmp_path / "x.pt", _use_new_zipfile_serialization=not older)
    check_weights(tmp_path / "x.pt")
    assert len(read_weights(tmp_path / "x.pt")) == len(model.state_dict())


def test_safetensors_that_begin_like_a_pickle_are_read(tmp_path: Path) -> None:
    """Their first byte is the last of the header's length."""
    file, beginnings = tmp_path / "x.safetensors", set()
    for length in range(0, 256, 8):
        safetensors.torch.save_file({"x": torch.ones(2)}, file, {"pad": "-" * length})
        beginnings.add(file.read_bytes()[:1])
        assert read_weights(file)["x"].tolist() == [1, 1]
    assert pickle.PROTO in beginnings

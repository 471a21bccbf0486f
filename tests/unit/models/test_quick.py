"""Normalisation, addition and activation in one kernel: the numbers of torch's own layers."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from forked import exit_code, start_copy
from percentmatch.models import build_classifier, quicken, spare_search
from percentmatch.models.kernels.quick import (
    ACTS,
    QuickBasicBlock,
    QuickBottleneck,
    QuickNorm,
    QuickNormAct,
    QuickNormRelu,
    QuickPool,
)

NAMES = ("y", "dx", "dresidual", "dweight", "dbias", "running_mean", "running_var", "batches")


Act = type[nn.Module]


def case(shape: tuple[int, ...], *, added: bool, act: Act, forked: bool = False, seed: int = 0) -> dict:
    """Inputs with means far from 0, so that a variance by plain sums of squares would cancel."""
    draw = torch.Generator().manual_seed(seed)
    c = shape[1]
    centre = 30 * torch.randn(c, generator=draw)
    x = torch.randn(shape, generator=draw) + centre[:, None, None]
    found = {
        "x": x.contiguous(memory_format=torch.channels_last),
        "residual": torch.randn(shape, generator=draw) if added else None,
        "dy": torch.randn(shape, generator=draw),
        "weight": torch.rand(c, generator=draw) + 0.5,
        "bias": torch.randn(c, generator=draw) + (torch.arange(c) % 3 * 3 if act is nn.ReLU6 else 0),  # some beyond 6
        "running_mean": centre + torch.randn(c, generator=draw),
        "act": act.__name__,
        "forked": forked,
    }
    if act is not nn.Identity:  # no gradient where rounding decides whether it is open
        before = by_torch({**found, "act": "Identity"})["y"]
        found["dy"] = found["dy"] * (before.abs() > 1e-3) * ((before - 6).abs() > 1e-3)
    return found


def prepared(case: dict) -> tuple[nn.BatchNorm2d, Tensor, Tensor | None]:
    norm = nn.BatchNorm2d(len(case["weight"])).to(case["x"])
    norm.load_state_dict({**norm.state_dict(), **{name: case[name] for name in ("weight", "bias", "running_mean")}})
    leaf = case["x"].clone(memory_format=torch.preserve_format).requires_grad_()
    return norm, leaf, None if case["residual"] is None else case["residual"].clone().requires_grad_()


def results(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, y: Tensor, dy: Tensor) -> dict:
    y.backward(dy)
    found = (y.detach(), x.grad, None if residual is None else residual.grad, norm.weight.grad, norm.bias.grad)
    return dict(zip(NAMES, (*found, norm.running_mean, norm.running_var, norm.num_batches_tracked), strict=True))


def by_kernel(case: dict) -> dict:
    from percentmatch.models.kernels.norm import forked_relu, norm_act

    norm, x, residual = prepared(case)
    act = getattr(nn, case["act"])
    if case["forked"]:
        first, second = forked_relu(norm, x, residual)
        y = 0.75 * first + 0.25 * second
    elif act in ACTS:
        y = norm_act(norm, x, residual, act=ACTS[act])
    else:
        y = act(inplace=True)(norm_act(norm, x, residual))
    return results(norm, x, residual, y, case["dy"])


def by_torch(case: dict) -> dict:
    """In float64."""
    case = {key: value.double() if isinstance(value, Tensor) else value for key, value in case.items()}
    norm, x, residual = prepared(case)
    y = norm(x)
    y = y if residual is None else y + residual
    return results(norm, x, residual, getattr(nn, case["act"])()(y), case["dy"])


def agree(mine: dict, theirs: dict, **tolerance: float) -> None:
    for name in NAMES:
        if theirs[name] is None:
            assert mine[name] is None
        else:
            torch.testing.assert_close(
                mine[name], theirs[name].to(mine[name].dtype), **tolerance, msg=lambda text, name=name: name + text
            )


def all_by_kernel(norms: list[dict], pools: list[tuple], file: Path) -> None:
    from percentmatch.models.kernels.pool import max_pool

    torch.save(([by_kernel(case) for case in norms], [pooled(max_pool, *case) for case in pools]), file)


def test_kernels_equal_torch_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, since this one may have a GPU; of pools also which of equal values gets the gradient."""
    pytest.importorskip("triton")
    norms = [
        case(shape, added=added, act=act, forked=forked)
        for shape, added, act, forked in (
            ((3, 5, 7, 6), False, nn.ReLU, True),
            ((2, 70, 9, 5), True, nn.ReLU, True),
            ((2, 24, 6, 7), False, nn.ReLU6, False),
            ((2, 5, 6, 7), False, nn.SiLU, False),
            ((2, 5, 6, 7), True, nn.ReLU6, False),
            ((4, 64, 20, 20), False, nn.Identity, False),
            ((1, 3, 1, 2), True, nn.ReLU, False),
            ((9, 4, 40, 40), True, nn.Identity, False),
        )
    ]
    pools = [pool_case(shape) for shape in ((2, 3, 8, 8), (3, 70, 7, 9), (1, 2, 1, 1))]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    said = tmp_path / "said"
    assert exit_code(start_copy(all_by_kernel, norms, pools, tmp_path / "out.pt", said=said)) == 0, said.read_text()
    my_norms, my_pools = torch.load(tmp_path / "out.pt", weights_only=True)
    for mine, one in zip(my_norms, norms, strict=True):
        agree(mine, by_torch(one), rtol=1e-4, atol=2e-4)
    for mine, one in zip(my_pools, pools, strict=True):
        torch.testing.assert_close(mine, pooled(lambda x: F.max_pool2d(x, 3, 2, 1), *one))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("added", "act", "forked"),
    [
        *((added, act, False) for added in (False, True) for act in (nn.Identity, nn.ReLU, nn.ReLU6)),
        (False, nn.SiLU, False),
        (True, nn.ReLU, True),
    ],
)
@pytest.mark.parametrize("shape", [(36, 64, 56, 56), (9, 2048, 7, 7), (5, 67, 13, 11)])
def test_kernel_equals_torch_on_a_gpu(shape: tuple, added: bool, act: Act, forked: bool) -> None:
    one = {
        key: value.cuda() if isinstance(value, Tensor) else value
        for key, value in case(shape, added=added, act=act, forked=forked).items()
    }
    agree(by_kernel(one), by_torch(one), rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "backbone", ["resnet18", "resnet50", "seresnet50", "tf_efficientnet_lite0", "mobilenetv3_small_100"]
)
def test_a_quickened_network_learns_the_same_on_a_gpu(backbone: str) -> None:
    """Its gradients are no further from those in float64 than torch's own, in float32 and in bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    device = torch.device("cuda")
    plain = build_classifier(backbone, num_classes=5, head="linear", image_size=96).to(device)
    plain = plain.to(memory_format=torch.channels_last)
    quick = build_classifier(backbone, num_classes=5, head="linear", image_size=96).to(device)
    quick = quick.to(memory_format=torch.channels_last)
    quick.load_state_dict(plain.state_dict())
    quicken(quick, device)
    images = torch.randn(16, 3, 96, 96, device=device).contiguous(memory_format=torch.channels_last)

    def learn(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
        model.zero_grad()
        kept = torch.promote_types(dtype, torch.float32)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(images.to(kept))
        logits.to(kept).square().sum().backward()
        return {name: each.grad.clone() for name, each in model.named_parameters()}

    def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
        gap = sum((one[name] - other[name]).square().sum() for name in one)
        return float((gap / sum(each.square().sum() for each in other.values())).sqrt())

    truth = learn(copy.deepcopy(plain).double(), torch.float64)
    for dtype, slack in ((torch.float32, 2.0), (torch.bfloat16, 1.2)):
        mine, theirs = (distance(learn(model, dtype), truth) for model in (quick, plain))
        assert mine < slack * theirs, (dtype, mine, theirs)
    for (name, mine), theirs in zip(quick.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(("backbone", "searches"), [("resnet18", True), ("test_efficientnet", False)])
def test_no_algorithm_is_searched_for_depthwise_layers(backbone: str, searches: bool, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    spare_search(build_classifier(backbone, num_classes=2, head="linear", image_size=32), torch.device("cuda"))
    assert torch.backends.cudnn.benchmark is searches


def pool_case(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Few different values, so that many windows hold their maximum twice."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(4, shape, generator=draw).float().contiguous(memory_format=torch.channels_last)
    return x, torch.randn(F.max_pool2d(x, 3, 2, 1).shape, generator=draw)


def pooled(pool: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = pool(leaf)
    y.backward(dy)
    assert leaf.grad is not None
    return y.detach(), leaf.grad


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_pooling_equals_torch_on_a_gpu() -> None:
    from percentmatch.models.kernels.pool import max_pool

    one = [each.cuda() for each in pool_case((36, 64, 112, 112))]
    torch.testing.assert_close(pooled(max_pool, *one), pooled(lambda x: F.max_pool2d(x, 3, 2, 1), *one))


@pytest.mark.parametrize("backbone", ["resnet50", "resnetblur50"])  # the latter has blocks of both kinds
def test_the_same_names_and_on_a_cpu_the_same_numbers(backbone: str) -> None:
    """What is swapped falls back to torch's layers where it does not train on a GPU."""
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = build_classifier(backbone, num_classes=3, head="linear", image_size=32)
    names, images = list(model.state_dict()), torch.randn(2, 3, 32, 32)
    before, scored = model(images), model.eval()(images)
    quicken(model.train(), torch.device("cuda"))
    kinds = {type(module) for module in model.modules()}
    assert {QuickBottleneck, QuickNorm, QuickNormRelu} <= kinds
    assert (QuickPool in kinds) == (backbone == "resnet50")
    assert (timm.models.resnet.Bottleneck in kinds) == (backbone == "resnetblur50")
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model.eval()(images), scored)
    torch.testing.assert_close(model.train()(images), before)


@pytest.mark.parametrize(
    ("backbone", "norm"),
    [
        ("seresnet50", QuickNorm),
        ("ecaresnet26t", QuickNorm),
        ("tf_efficientnet_lite0", QuickNormAct),
        ("convnext_atto", None),
    ],
)
def test_of_other_blocks_only_the_norms_are_swapped(backbone: str, norm: type | None) -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    model = build_classifier(backbone, num_classes=3, head="linear", image_size=64)
    names, images = list(model.state_dict()), torch.randn(2, 3, 64, 64)
    before = model.eval()(images)
    kinds = {type(module) for module in quicken(model, torch.device("cuda")).modules()}
    assert not {QuickBottleneck, QuickBasicBlock, nn.BatchNorm2d, timm.layers.BatchNormAct2d} & kinds
    assert norm is None or norm in kinds
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(images), before)


def test_on_a_cpu_nothing_is_swapped() -> None:
    model = build_classifier("resnet18", num_classes=3, head="linear", image_size=32)
    assert QuickBasicBlock not in {type(module) for module in quicken(model, torch.device("cpu")).modules()}

"""The GPU kernel that makes whole views, run by triton's interpreter, gives the pixels of the plain torch code."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from forked import exit_code, start_copy
from percentmatch.augment import NAMES, Plan, apply, draw
from percentmatch.settings.views import View

pytest.importorskip("triton")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_pixels_must_lie_as_the_kernel_reads_them() -> None:
    from percentmatch.augment.fused import make_views

    turned = torch.zeros(2, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    plan = draw(View(), size_in=(8, 8), seed=1, step=2, sample=torch.arange(2), stream=0)
    with pytest.raises(ValueError, match="contiguous"):
        make_views(turned, torch.arange(2), plan, size=8, mean=MEAN, std=STD)


def levels(views: torch.Tensor) -> torch.Tensor:
    """Normalised views as grey levels from 0 to 255."""
    mean, std = (torch.tensor(each)[:, None, None] for each in (MEAN, STD))
    return 255 * (views * std + mean)


def by_kernel(case: dict, file: Path) -> None:
    from percentmatch.augment.fused import make_views

    options = {name: case[name] for name in ("size", "mean", "std")}
    torch.save(make_views(case["images"], case["rows"], Plan(*case["plan"]), **options), file)


@pytest.mark.parametrize(
    ("view", "shape", "size"),
    [
        (View(ops=8, crop_scale=0.4), (20, 17), 16),
        pytest.param(View(ops=8, flip=False), (16, 16), 13, marks=pytest.mark.slow),
        pytest.param(View(ops=0, cutout_ratio=0.0), (9, 12), 12, marks=pytest.mark.slow),
    ],
)
def test_one_kernel_makes_the_same_views(
    view: View, shape: tuple[int, int], size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but a few pixels that lie on a rounding edge, which a later operation may then move further."""
    smooth = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(1)) * 255
    images = torch.nn.functional.interpolate(smooth, shape, mode="bilinear").round().to(torch.uint8)
    rows = torch.arange(30).flip(0)[:24]
    plan = draw(view, size_in=shape, seed=1, step=2, sample=torch.arange(24), stream=0)
    if view.ops:
        assert {NAMES[op] for op in plan.op.flatten().tolist()} == set(NAMES)
    parts = [plan.matrix, plan.shown, plan.op, plan.value, plan.cutout]
    case = {"images": images, "rows": rows, "plan": parts, "size": size, "mean": MEAN, "std": STD}
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    said = tmp_path / "said"
    assert exit_code(start_copy(by_kernel, case, tmp_path / "views.pt", said=said)) == 0, said.read_text()
    found = torch.load(tmp_path / "views.pt", weights_only=True)
    assert found.is_contiguous(memory_format=torch.channels_last)
    off = (levels(found) - levels(apply(images[rows], plan, size, MEAN, STD))).abs()
    assert (off > 0.01).float().mean() < 0.01
    assert (off > 1.01).float().mean() < 0.0005


@pytest.mark.gpu
@pytest.mark.parametrize("size", [224, 100])
def test_the_kernel_on_a_gpu_makes_the_same_views(size: int) -> None:
    from percentmatch.augment.fused import make_views

    smooth = torch.rand(60, 3, 20, 20, generator=torch.Generator().manual_seed(1)) * 255
    images = torch.nn.functional.interpolate(smooth, (256, 256), mode="bilinear").round().to(torch.uint8)
    view = View(ops=8, crop_scale=0.3)
    plan = draw(view, size_in=(256, 256), seed=1, step=2, sample=torch.arange(48), stream=0)
    rows = torch.arange(60).flip(0)[:48]
    moved = Plan(*(getattr(plan, field.name).cuda() for field in fields(plan)))
    found = make_views(images.cuda(), rows.cuda(), moved, size=size, mean=MEAN, std=STD).cpu()
    off = (levels(found) - levels(apply(images[rows], plan, size, MEAN, STD))).abs()
    assert (off > 0.01).float().mean() < 0.01
    assert (off > 1.01).float().mean() < 0.001

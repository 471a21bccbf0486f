"""The learning-rate schedule against torch's, the average against its definition."""

import pytest
import torch
from torch import nn

from percentmatch.training.optim import Ema, lr_at


@pytest.mark.parametrize(("total_steps", "ratio"), [(7000, 0.2), (100, 0.3), (37, 0.5)])
def test_one_cycle_equals_torch(total_steps: int, ratio: float) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-4, total_steps=total_steps, pct_start=ratio, cycle_momentum=False
    )
    for step in range(total_steps):
        found = lr_at(step, max_lr=3e-4, total_steps=total_steps, warmup_ratio=ratio)
        assert found == pytest.approx(schedule.get_last_lr()[0], rel=1e-6, abs=1e-12)
        optimizer.step()
        if step + 1 < total_steps:
            schedule.step()


@pytest.mark.parametrize("total_steps", [1, 2, 3, 5])
def test_very_short_schedules_stay_in_range(total_steps: int) -> None:
    rates = [lr_at(s, max_lr=1.0, total_steps=total_steps, warmup_ratio=0.2) for s in range(total_steps)]
    assert all(0 < rate <= 1 for rate in rates)


def test_ema_by_hand() -> None:
    """Weight 0 -> 1 at step 0, where decay is min(.5, 1/10) = .1: .9. Then 2 at step 90: .5 * .9 + .5 * 2 = 1.45.

    The statistics of BatchNorm are averaged as the weights are.
    """
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    nn.init.zeros_(model[0].weight)
    ema = Ema(model, 0.5)
    nn.init.ones_(model[0].weight)
    model[1].num_batches_tracked += 7
    model[1].running_mean.fill_(1.0)
    ema.update(model, torch.tensor(ema.weight(0), dtype=torch.float64))
    assert ema.model[0].weight.item() == pytest.approx(0.9)
    assert ema.model[1].running_mean.item() == pytest.approx(0.9)
    assert ema.model[1].num_batches_tracked == 7
    nn.init.constant_(model[0].weight, 2.0)
    ema.update(model, torch.tensor(ema.weight(90), dtype=torch.float64))
    assert ema.model[0].weight.item() == pytest.approx(1.45)
    assert not ema.model.training
    assert not any(p.requires_grad for p in ema.model.parameters())

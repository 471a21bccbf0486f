"""What every method and every labeler must keep, whatever its rule."""

import copy
import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from percentmatch.labelers import Labeler
from percentmatch.methods import METHODS, Method, build_method, method_row
from percentmatch.records import Batch, Facts, Scores, StepLoss, Task

CLASSES, STEPS = 5, 6
FACTS = Facts.from_targets(
    (
        torch.rand(40, CLASSES, generator=torch.Generator().manual_seed(1)) < torch.tensor([0.5, 0.3, 0.1, 1.0, 0.0])
    ).long(),
    num_unlabeled=200,
    total_steps=STEPS,
)
EAGER = {
    "percentmatch": {"warmup_steps": 0, "gap_start": -1.0, "gap_full": -0.5, "lower_percentile": 0.3}
}  # selects at once
LABELERS = [name for name, row in METHODS.items() if row.labeler]
VARIANTS = [(name, {}) for name in METHODS] + [(name, {"scores": "teacher"}) for name in LABELERS]


def make_method(name: str, task: Task = "multi-label", **options: object) -> Method:
    return build_method(name, FACTS, task, EAGER.get(name, {}) | options)


def make_labeler(name: str) -> Labeler:
    labeler = method_row(name).labeler
    assert labeler is not None
    return labeler(FACTS, **EAGER.get(name, {}))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES, bias=True))


def make_batch(step: int, task: Task = "multi-label", b: int = 8, u: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(step)
    images = [3 * torch.randn(n, 3, 4, 4, generator=generator) for n in (b, u, u)]
    targets = (torch.rand(b, CLASSES, generator=generator) < 0.3).float()
    if task == "single-label":
        targets = nn.functional.one_hot(torch.randint(CLASSES, (b,), generator=generator), CLASSES).float()
    known = torch.ones(b, CLASSES)
    index = torch.randint(200, (u,), generator=generator)
    return Batch(images[0], targets, known, torch.tensor(step), 0, images[1], images[2], index)


def make_scores(step: int, u: int = 12) -> Tensor:
    return torch.rand(u, CLASSES, generator=torch.Generator().manual_seed(100 + step)) ** 2


def run(method: Method, model: nn.Module, teacher: nn.Module, steps: range, **batch_options) -> list[StepLoss]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in steps:
        loss = method(model, make_batch(step, **batch_options), teacher)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses.append(loss)
    return losses


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_loss_is_finite_and_gradients_reach_the_student_only(name: str, options: dict, task: Task) -> None:
    model, method = make_model(), make_method(name, task, **options)
    teacher = copy.deepcopy(model).eval()
    for loss in run(method, model, teacher, range(STEPS), task=task):
        assert loss.total.isfinite()
        assert all(part.isfinite() and not part.requires_grad for part in loss.parts.values())
        torch.testing.assert_close(loss.total.detach(), sum(loss.parts.values()))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert not list(method.parameters())


@pytest.mark.parametrize("name", LABELERS)
def test_unlabeled_images_teach_the_student(name: str) -> None:
    """The gradient differs from that of the labeled images alone, and flows through the strong view, not the weak."""
    model, method = make_model(), make_method(name)
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        for logits in (model[3], teacher[3]):
            logits.weight *= 20  # confident, so that fixed thresholds select too
    batch = make_batch(0)
    images = [getattr(batch, view).requires_grad_() for view in ("images", "weak", "strong")]
    batch = dataclasses.replace(batch, images=images[0], weak=images[1], strong=images[2])
    for _ in range(3):
        loss = method(model, batch, teacher)
    assert loss.parts["unlabeled"] > 0
    weak, strong = torch.autograd.grad(loss.total, images[1:], allow_unused=True)
    assert weak is None or weak.abs().sum() == 0
    assert strong.abs().sum() > 0


@pytest.mark.parametrize("name", LABELERS)
@pytest.mark.parametrize("source", ["student", "teacher"])
def test_pseudo_labels_come_from_whom_they_should(name: str, source: str) -> None:
    """Turning the teacher's answers over changes the pseudo-labels if and only if it is asked."""
    model = make_model()
    with torch.no_grad():
        model[3].weight *= 20
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].weight *= -1
    batch = make_batch(0)
    found = [make_method(name, scores=source)(model, batch, teacher).pseudo.targets for teacher in (model, other)]
    assert torch.equal(*found) == (source == "student")


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_methods_take_bfloat16_and_only_read_in_eval_mode(name: str, options: dict) -> None:
    model, method = make_model(), make_method(name, **options)
    method(model, make_batch(0), model)
    before = copy.deepcopy(method.state_dict())
    method.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = method(model, make_batch(1), model)
    assert loss.total.dtype == torch.float32
    assert loss.total.isfinite()
    for key, value in method.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", METHODS)
def test_unknown_labels_are_masked_out(name: str) -> None:
    """Turning an unknown label over changes nothing."""
    batch = make_batch(0)
    known = torch.ones_like(batch.targets)
    known[0] = 0
    turned = batch.targets.clone()
    turned[0] = 1 - turned[0]
    model = make_model()
    losses = [
        make_method(name)(model, dataclasses.replace(batch, known=known, targets=targets), model).total
        for targets in (batch.targets, turned)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", METHODS)
def test_state_round_trip_is_exact_in_mid_run(name: str) -> None:
    model, method = make_model(), make_method(name)
    teacher = copy.deepcopy(model)
    run(method, model, teacher, range(3))
    other, other_model = make_method(name), copy.deepcopy(model)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    first = run(method, model, teacher, range(3, STEPS))
    second = run(other, other_model, teacher, range(3, STEPS))
    assert [loss.total.item() for loss in first] == [loss.total.item() for loss in second]
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


@pytest.mark.parametrize("name", LABELERS)
def test_eval_mode_only_reads(name: str) -> None:
    labeler = make_labeler(name)
    labeler(Scores(make_scores(0), 0))
    before = copy.deepcopy(labeler.state_dict())
    labeler.eval()
    first, second = labeler(Scores(make_scores(1), 1)), labeler(Scores(make_scores(1), 1))
    assert torch.equal(first.pair_weights, second.pair_weights)
    for key, value in labeler.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", LABELERS)
@pytest.mark.parametrize("u", [1, 12])
def test_bfloat16_scores_and_a_batch_of_one(name: str, u: int) -> None:
    labeler = make_labeler(name)
    for step in range(STEPS):
        found = labeler(Scores(make_scores(step, u).bfloat16(), step))
        assert found.pair_weights.dtype == torch.float32
        assert found.pair_weights.isfinite().all()
        assert (found.targets[:, FACTS.unseen] == 0).all()


def _rank(rank: int, name: str, port: str, queue: mp.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    labeler = make_labeler(name)
    for step in range(STEPS):
        found = labeler(Scores(make_scores(step).chunk(2)[rank], step))
    queue.put((rank, found.upper.numpy(), found.lower.numpy(), found.weights.numpy()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", LABELERS)
def test_two_ranks_have_the_thresholds_of_one(name: str, tmp_path, free_port: str) -> None:
    labeler = make_labeler(name)
    for step in range(STEPS):
        alone = labeler(Scores(make_scores(step), step))
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, name, free_port, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = [queue.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    for _, upper, lower, weights in results:
        assert torch.equal(torch.from_numpy(upper), alone.upper)
        assert torch.equal(torch.from_numpy(lower), alone.lower)
        assert torch.equal(torch.from_numpy(weights), alone.weights)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_no_host_synchronisation_on_a_gpu(name: str) -> None:
    model, method = make_model().cuda(), make_method(name).cuda()
    batch = make_batch(0)
    moved = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    batch = Batch(**{k: v.cuda() if isinstance(v, Tensor) else v for k, v in moved.items()})
    method(model, batch, model).total.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        method(model, batch, model).total.backward()
        method(model, dataclasses.replace(batch, step=3), model).total.backward()  # a foreign loop's plain number
    finally:
        torch.cuda.set_sync_debug_mode("default")

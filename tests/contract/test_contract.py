"""What every method and every labeler must keep, whatever its rule."""

import copy
import dataclasses
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from forked import exit_code, start_copy
from percentmatch.errors import UserError
from percentmatch.labelers import Labeler
from percentmatch.methods import METHODS, Method, build_method, declared_options, method_row, options_of, uses_unlabeled
from percentmatch.records import Batch, Facts, LabeledScores, Scores, StepLoss, Task

CLASSES, STEPS, POOL, FEW = 5, 6, 200, 16
FACTS = Facts.from_targets(
    (
        torch.rand(40, CLASSES, generator=torch.Generator().manual_seed(1)) < torch.tensor([0.5, 0.3, 0.1, 1.0, 0.0])
    ).long(),
    num_unlabeled=POOL,
    total_steps=STEPS,
    unlabeled_batch=12,
)
EAGER: dict[str, dict] = {  # options with which a method selects at once
    "pseudo_label": {"ramp_ratio": 0.0},
    "pi_model": {"ramp_ratio": 0.0},
    "temporal_ensembling": {"ramp_ratio": 0.0},
    "mean_teacher": {"ramp_ratio": 0.0},
    "mixmatch": {"ramp_ratio": 0.0},
    "percentmatch": {"warmup_steps": 0, "gap_start": -1.0, "gap_full": -0.5, "lower_percentile": 0.3},
    "priormatch": {"warmup_steps": 0},
    "cap": {"warmup_steps": 0, "refresh_steps": 2},
    "dash": {"warmup_steps": 1, "decay_steps": 2},
    "mat": {"warmup_steps": 0, "refresh_steps": 2},
    "dicap": {"warmup_steps": 0, "refresh_steps": 2},
}
LABELERS = [name for name, row in METHODS.items() if row.labeler]
UNLABELED = [name for name in METHODS if uses_unlabeled(name)]
VARIANTS = [(name, {}) for name in METHODS]
VARIANTS += [(name, {"scores": "teacher"}) for name in LABELERS if "scores" in options_of(name)]


class FakePool:
    """A pool whose scores are a function of the step, and of who is asked."""

    def __init__(self, step: int) -> None:
        self.generator = torch.Generator().manual_seed(1000 + step)

    def probabilities(self, model: str, *, dropout_passes: int = 0) -> tuple[Tensor, Tensor | None]:
        scores = torch.rand(POOL, CLASSES, generator=self.generator) ** 2
        deviations = 0.06 * torch.rand(POOL, CLASSES, generator=self.generator) ** 2
        return scores, deviations if dropout_passes else None

    def labeled(self, model: str) -> LabeledScores:
        scores = torch.rand(40, CLASSES, generator=self.generator) ** (1 + (model == "teacher"))
        targets = (torch.rand(40, CLASSES, generator=self.generator) < scores).float()
        targets[:, FACTS.unseen] = 0
        known = (torch.rand(40, CLASSES, generator=self.generator) < 0.9).float()
        return LabeledScores(scores, targets, known, torch.arange(40) % 5 == 0)


class Pointwise(nn.Module):
    """Logits that do not depend, not even by rounding, on the batch an image travels in."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((CLASSES,), 0.5))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :CLASSES] * self.scale


def make_method(name: str, task: Task = "multi-label", **options: object) -> Method:
    return build_method(name, FACTS, task, EAGER.get(name, {}) | options)


def make_labeler(name: str) -> Labeler:
    labeler = method_row(name).labeler
    assert labeler is not None
    mine = {option.name for option in declared_options(labeler)}
    made = labeler(FACTS, **{key: value for key, value in EAGER.get(name, {}).items() if key in mine})
    made.fit(FakePool(0).labeled("teacher"))
    return made


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES, bias=True))


def make_confident() -> nn.Sequential:
    """So sure of itself that fixed thresholds select too."""
    model = make_model()
    with torch.no_grad():
        model[3].weight *= 20
    return model


def make_batch(step: int, task: Task = "multi-label", b: int = 8, u: int = 12) -> Batch:
    """The unlabeled images are few, so that some come again within the batch and in later ones."""
    generator = torch.Generator().manual_seed(step)
    images = [3 * torch.randn(n, 3, 4, 4, generator=generator) for n in (b, u, u, u)]
    targets = (torch.rand(b, CLASSES, generator=generator) < 0.3).float()
    known = (torch.rand(b, CLASSES, generator=generator) < 0.9).float()
    if task == "single-label":
        targets = nn.functional.one_hot(torch.randint(CLASSES, (b,), generator=generator), CLASSES).float()
        known = torch.ones_like(targets)
    return Batch(
        images=images[0],
        targets=targets,
        known=known,
        step=torch.tensor(step),
        seed=0,
        weak=images[1],
        strong=images[2],
        weak2=images[3],
        index=torch.randint(FEW, (u,), generator=generator),
        uniforms=torch.rand(b + 2 * u, 2, generator=generator),
    )


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """The batch in two parts, or as two ranks see it."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.name != "step"}
    parts = {name: value.chunk(2) for name, value in fields.items() if isinstance(value, Tensor)}
    first, second = (dataclasses.replace(batch, **{name: value[n] for name, value in parts.items()}) for n in (0, 1))
    return first, second


def make_scores(step: int, u: int = 12, b: int = 8) -> Scores:
    generator = torch.Generator().manual_seed(100 + step)
    weak, labeled = (torch.rand(n, CLASSES, generator=generator) ** 2 for n in (u, b))
    targets = (torch.rand(b, CLASSES, generator=generator) < labeled).float()
    known = (torch.rand(b, CLASSES, generator=generator) < 0.9).float()
    index = torch.randint(FEW, (u,), generator=generator)
    return Scores(weak, step, index=index, labeled=labeled, targets=targets, known=known)


def begin(method: Method, step: int) -> bool:
    """What the loop does before a step; whether it would renew the student."""
    if not method.round_steps or step == 0 or step % method.round_steps:
        return False
    method.refresh(FakePool(step))
    return method.restarts


def run(method: Method, model: nn.Module, teacher: nn.Module, steps: range, **batch_options) -> list[StepLoss]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in steps:
        if begin(method, step):
            model.load_state_dict(make_model().state_dict())
        loss = method(model, make_batch(step, **batch_options), teacher)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        losses.append(loss)
    return losses


def assert_same_state(first: nn.Module, second: nn.Module) -> None:
    assert first.state_dict().keys() == second.state_dict().keys()
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


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


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("name", METHODS)
def test_one_unlabeled_image_is_enough(name: str, task: Task) -> None:
    for loss in run(make_method(name, task), make_model(), make_model(), range(STEPS), task=task, u=1):
        assert loss.total.isfinite()


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults_train_too(name: str) -> None:
    method = build_method(name, dataclasses.replace(FACTS, total_steps=1000))
    assert all(loss.total.isfinite() for loss in run(method, make_model(), make_model(), range(2)))


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("name", UNLABELED)
def test_unlabeled_images_teach_the_student(name: str, task: Task) -> None:
    """The unlabeled loss is there, the images behind it change the gradient of every weight, and get one themselves."""
    model, method = make_confident(), make_method(name, task)
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        teacher[1].bias += 0.1  # a teacher that is the student has nothing to teach
    batch = make_batch(0, task)
    views = {view: getattr(batch, view).requires_grad_() for view in ("weak", "weak2", "strong")}
    for step in range(STEPS):
        begin(method, step)  # a new student would not be as confident
        loss = method(model, dataclasses.replace(batch, step=torch.tensor(step), **views), teacher)
    assert loss.parts["unlabeled"] > 0
    found = torch.autograd.grad(loss.total, list(views.values()), allow_unused=True, retain_graph=True)
    reached = {view for view, value in zip(views, found, strict=True) if value is not None and value.abs().sum() > 0}
    assert reached
    assert reached <= method.views
    if method_row(name).labeler:
        assert reached == {"strong"}
    mine = torch.autograd.grad(loss.total, list(model.parameters()))
    alone = build_method("supervised", FACTS, task)(model, batch, teacher).total
    for one, other in zip(mine, torch.autograd.grad(alone, list(model.parameters())), strict=True):
        assert not torch.allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("task", ["multi-label", "single-label"])
@pytest.mark.parametrize("name", UNLABELED)
def test_a_class_without_labeled_positives_never_gets_a_positive(name: str, task: Task) -> None:
    """However sure the model is of it; class 4 has none."""
    model, method = make_confident(), make_method(name, task)
    with torch.no_grad():
        model[3].bias[4] += 100
    for step in range(STEPS):
        begin(method, step)
        pseudo = method(model, make_batch(step, task), model).pseudo
        if pseudo is not None:
            assert (pseudo.pair_weights * pseudo.targets)[:, FACTS.unseen].abs().sum() == 0


@pytest.mark.parametrize("name", [name for name, options in VARIANTS if options])
@pytest.mark.parametrize("source", ["student", "teacher"])
def test_pseudo_labels_come_from_whom_they_should(name: str, source: str) -> None:
    """Turning the teacher's answers over changes the pseudo-labels if and only if it is asked."""
    model = make_confident()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].weight *= -1
    batch, found = make_batch(0), []
    for teacher in (model, other):
        method = make_method(name, scores=source)
        method.refresh(FakePool(0))
        found.append(method(model, batch, teacher).pseudo.targets)
    assert torch.equal(*found) == (source == "student")


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_methods_take_bfloat16_and_only_read_in_eval_mode(name: str, options: dict) -> None:
    model, method = make_model(), make_method(name, **options)
    for step in range(3):
        begin(method, step)
        method(model, make_batch(step), model)
    before = copy.deepcopy(method)
    method.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = method(model, make_batch(1), model)
    assert loss.total.dtype == torch.float32
    assert loss.total.isfinite()
    if loss.pseudo is not None:
        assert loss.pseudo.pair_weights.dtype == torch.float32
    loss.total.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert_same_state(method, before)


@pytest.mark.parametrize("name", METHODS)
def test_unknown_labels_are_masked_out(name: str) -> None:
    """Turning an unknown label over changes nothing: not the loss, not what is learnt from it."""
    model, methods = make_model(), [make_method(name), make_method(name)]
    for step in range(STEPS):
        batch = make_batch(step)
        known = batch.known.clone()
        known[0] = 0
        turned = batch.targets.clone()
        turned[0] = 1 - turned[0]
        losses = []
        for method, targets in zip(methods, (batch.targets, turned), strict=True):
            begin(method, step)
            losses.append(method(model, dataclasses.replace(batch, known=known, targets=targets), model).total)
        assert losses[0] == losses[1]
    assert_same_state(*methods)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1.5, "many", True, None])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(UserError, match="option 'num_bins' must be a int"):
        make_method("percentmatch", num_bins=value)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_one_known_label_is_taken(name: str) -> None:
    batch = make_batch(0)
    method = make_method(name)
    assert (
        method(make_model(), dataclasses.replace(batch, known=torch.zeros_like(batch.known)), make_model()).total >= 0
    )
    assert all(value.isfinite().all() for value in method.state_dict().values())


@pytest.mark.parametrize(("name", "options"), [*VARIANTS, ("percentmatch", {"gate": "auc"})])
def test_mixed_labeled_images_are_taken(name: str, options: dict) -> None:
    """Labeled images mixed with the next: a share of 1 is the plain batch, one of 0 the next image's labels."""
    batch, model = make_batch(0), make_model()
    partner = {"partner_targets": batch.targets.roll(-1, 0), "partner_known": batch.known.roll(-1, 0)}
    methods = [make_method(name, **options) for _ in range(4)]
    plain, own, other, swapped = (
        method(model, dataclasses.replace(batch, **change), model).parts["supervised"]
        for method, change in zip(
            methods,
            (
                {},
                {**partner, "own_share": torch.ones(len(batch.images), 1)},
                {**partner, "own_share": torch.zeros(len(batch.images), 1)},
                {"targets": partner["partner_targets"], "known": partner["partner_known"]},
            ),
            strict=True,
        )
    )
    torch.testing.assert_close(own, plain)
    torch.testing.assert_close(other, swapped)
    assert_same_state(methods[0], methods[1])
    assert_same_state(methods[2], methods[3])
    assert not torch.allclose(own, other)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("saved", [3, 4])
def test_state_round_trip_is_exact_in_mid_run(name: str, saved: int) -> None:
    """Also right before a round begins: the save comes before the refresh."""
    model, method = make_model(), make_method(name)
    teacher = copy.deepcopy(model)
    run(method, model, teacher, range(saved))
    other, other_model = make_method(name), copy.deepcopy(model)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    first = run(method, model, teacher, range(saved, STEPS))
    second = run(other, other_model, teacher, range(saved, STEPS))
    assert [loss.total.item() for loss in first] == [loss.total.item() for loss in second]
    assert_same_state(method, other)


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_in_parts_is_learnt_as_one(name: str) -> None:
    """Nothing is learnt before the last part is there, and then the same as from the whole batch."""
    model, whole, parts = Pointwise(), make_method(name), make_method(name)
    for step in range(STEPS):
        batch = make_batch(step)
        begin(whole, step)
        one = whole(model, batch, model).pseudo
        begin(parts, step)
        before = copy.deepcopy(parts)
        first, second = halves(batch)
        answers = [parts(model, dataclasses.replace(first, last=False), model).pseudo]
        assert_same_state(parts, before)
        answers += [parts(model, second, model).pseudo]
        torch.testing.assert_close(parts.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)
        if one is not None:
            torch.testing.assert_close(torch.cat([answer.pair_weights for answer in answers]), one.pair_weights)


@pytest.mark.parametrize("name", LABELERS)
def test_labelers_only_read_in_eval_mode(name: str) -> None:
    labeler = make_labeler(name)
    labeler(make_scores(0))
    before = copy.deepcopy(labeler)
    labeler.eval()
    labeler.fit(FakePool(1).labeled("teacher"))
    first, second = labeler(make_scores(1)), labeler(make_scores(1))
    assert torch.equal(first.pair_weights, second.pair_weights)
    assert_same_state(labeler, before)


@pytest.mark.parametrize("name", LABELERS)
@pytest.mark.parametrize("u", [1, 12])
def test_bfloat16_scores_and_a_batch_of_one(name: str, u: int) -> None:
    labeler = make_labeler(name)
    for step in range(STEPS):
        scores = make_scores(step, u)
        assert scores.labeled is not None
        found = labeler(dataclasses.replace(scores, weak=scores.weak.bfloat16(), labeled=scores.labeled.bfloat16()))
        assert found.pair_weights.dtype == torch.float32
        assert found.pair_weights.isfinite().all()
        assert (found.targets * found.pair_weights)[:, FACTS.unseen].abs().sum() == 0


def learn(name: str, half: int | None = None) -> dict[str, Tensor]:
    """A method's state after a few steps with a fixed model, and its last pseudo-labels; alone or as one of two."""
    model, method = Pointwise(), make_method(name)
    for step in range(STEPS):
        begin(method, step)
        batch = make_batch(step)
        mine = batch if half is None else dataclasses.replace(halves(batch)[half], uniforms=batch.uniforms)
        loss = method(model, mine, model)
    pseudo = (
        {} if loss.pseudo is None else {f.name: getattr(loss.pseudo, f.name) for f in dataclasses.fields(loss.pseudo)}
    )
    return {**method.state_dict(), **{f"pseudo-label {key}": v for key, v in pseudo.items() if v is not None}}


def _rank(rank: int, port: str, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for name in METHODS:
        torch.save(learn(name, rank), folder / f"{name}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of two ranks learnt: one file for each method and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    ranks = [start_copy(_rank, rank, port, folder, said=folder / f"said-{rank}") for rank in range(2)]
    codes = [exit_code(process) for process in ranks]
    assert codes == [0, 0], (folder / "said-0").read_text()
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_learn_what_one_does(name: str, two_ranks: Path) -> None:
    """Each sees half of every batch; their states agree to the bit, and are those of one rank up to rounding."""
    alone = learn(name)
    first, second = (torch.load(two_ranks / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1))
    for key in make_method(name).state_dict():
        assert torch.equal(first[key], second[key]), key
    for key, value in alone.items():
        for rank, mine in enumerate((first, second)):
            expected = value if mine[key].shape == value.shape else value.chunk(2)[rank]
            torch.testing.assert_close(mine[key], expected, rtol=1e-5, atol=1e-6)


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

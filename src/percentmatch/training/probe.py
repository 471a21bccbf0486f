"""A linear probe: regularised logistic regression on the features of a frozen backbone."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from percentmatch.augment import frame, mix, resize
from percentmatch.console.notices import counted
from percentmatch.data import Images
from percentmatch.data.pixels.cache import cache_folder, key_of
from percentmatch.distributed.group import gather_shares, is_main, own_share, wait_for_all
from percentmatch.errors import UserError
from percentmatch.files import read_plain, write_atomic
from percentmatch.losses import LOSSES
from percentmatch.models import Card, Classifier, evaluating
from percentmatch.models.heads import HEADS
from percentmatch.records import Facts, Task
from percentmatch.scoring.predictions import BATCH, untuned

STRENGTHS = tuple(10.0**power for power in range(0, -7, -1))  # of the L2 penalty, the strongest first
FOLDS = 5
FEWEST = 2 * FOLDS  # fewer images are not divided into folds
FINE, COARSE = 1e-7, 1e-5  # the largest gradient at the end of a fit, and of one in a fold
PIECE = 1 << 24


@dataclass(frozen=True)
class Probe:
    """A fitted linear classifier: logits = features @ weight.T + bias."""

    weight: Tensor  # (c, d)
    bias: Tensor  # (c,)
    strength: float  # of the penalty
    held_out: Tensor  # (n, c) logits of each image by the classifier that was fitted without its fold


def fit_probe(features: Tensor, targets: Tensor, known: Tensor, task: Task = "multi-label", *, seed: int = 0) -> Probe:
    """Logistic regression on features (n, d) of what is `known` of the `targets`, (n, c) each.

    The strength of its penalty is the one with the smallest mean loss of held-out labels in a 5-fold cross-validation.
    A class that no label shows, or that every label shows, has one score for all images: its smoothed prevalence.
    """
    x, targets, known = features.double(), targets.double(), known.double()
    mean = x.mean(0)
    spread = (x - mean).square().sum(1).mean().sqrt().clamp(min=1e-12)
    x = (x - mean) / spread
    rotation = None
    if len(x) < x.shape[1]:  # the solution lies in the span of the images, which has fewer dimensions
        rotation = torch.linalg.qr(x.T).Q  # (d, n)
        x = x @ rotation
    held_out, strength = _cross_validated(x, targets, known, task, folds(targets * known, seed))
    weight, bias = _fit(x, targets, known, task, strength, FINE)
    weight = (weight if rotation is None else weight @ rotation.T) / spread  # (c, d)
    return Probe(weight, bias - weight @ mean, strength, held_out)


def folds(positive: Tensor, seed: int, number: int = FOLDS) -> Tensor:
    """The fold of each image (n,) from its positives (n, c): those of a class, the rarest first, are spread out."""
    order = torch.randperm(len(positive), generator=torch.Generator().manual_seed(mix(seed, len(positive))))
    counts = positive.sum(0)  # (c,)
    rarest = torch.where(positive[order] > 0, counts, torch.inf).amin(1)  # (n,) images of an image's rarest class
    order = order[rarest.argsort(stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order)) % number
    return fold


def _cross_validated(x: Tensor, targets: Tensor, known: Tensor, task: Task, fold: Tensor) -> tuple[Tensor, float]:
    """The held-out logits (n, c) at the best strength, and that strength."""
    if len(x) < FEWEST:
        prior = Facts.from_targets(targets, known).prior_logits(task)
        return prior.expand_as(targets), STRENGTHS[0]
    held_out = torch.zeros(len(STRENGTHS), *targets.shape, dtype=x.dtype)  # (strengths, n, c)
    for number in range(FOLDS):
        inside, outside = fold != number, fold == number
        found = None
        for row, strength in enumerate(STRENGTHS):  # each begins where the stronger one ended
            found = _fit(x[inside], targets[inside], known[inside], task, strength, COARSE, found)
            held_out[row, outside] = x[outside] @ found[0].T + found[1]
    loss = LOSSES["ce" if task == "single-label" else "bce"]
    losses = [float((loss(logits, targets) * known).mean()) for logits in held_out]
    best = losses.index(min(losses))
    return held_out[best], STRENGTHS[best]


def _fit(
    x: Tensor,
    targets: Tensor,
    known: Tensor,
    task: Task,
    strength: float,
    tolerance: float,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights (c, d) and biases (c,) with the least mean loss + strength / 2 * squared weights, summed over classes."""
    facts = Facts.from_targets(targets, known)
    prior = facts.prior_logits(task).to(x.dtype)  # (c,)
    free = (facts.positive_counts > 0) & (facts.positive_counts < facts.known_counts)  # (c,)
    weight, bias = start or (torch.zeros(len(prior), x.shape[1], dtype=x.dtype), prior)
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=500,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    share = known / known.sum(0).clamp(min=1)  # (n, c) for the mean over the known labels of each class

    def loss_of(weight: Tensor, bias: Tensor) -> Tensor:
        logits = x @ weight.T + bias  # (n, c)
        if task == "single-label":
            rows = known.amin(1)  # (n,) images whose class is known
            return (F.cross_entropy(logits, targets, reduction="none") * rows).sum() / rows.sum().clamp(min=1)
        return (F.binary_cross_entropy_with_logits(logits, targets, reduction="none") * share).sum()

    def bounded() -> tuple[Tensor, Tensor]:
        return weight * free[:, None], torch.where(free, bias, prior)

    def total() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*bounded()) + strength / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(total)
    weight, bias = bounded()
    return weight.detach(), bias.detach()


@torch.inference_mode()
def features_of(model: Classifier, images: Images, card: Card, device: torch.device) -> Tensor:
    """What a head on the backbone's pooling reads of each image: (n, d), on the host."""
    rows, found = own_share(len(images)), []
    pixels = images.pixels[rows] if rows.start < rows.stop else images.pixels[:1]
    with evaluating(model), untuned():
        for batch in frame(pixels, card.frame).split(BATCH):
            found.append(model.pooled(resize(batch.to(device), card.image_size, card.mean, card.std)).float())
            counted(sum(map(len, found)), len(pixels), "read")
    return gather_shares(torch.cat(found)[: rows.stop - rows.start].cpu(), len(images))


def remembered_features(model: Classifier, images: Images, card: Card, device: torch.device) -> Tensor:
    """The same, from the cache if the same backbone has seen the same pixels."""
    seen = (_digest(model.backbone.state_dict().values()), _digest([images.pixels]), card.image_size, card.frame)
    facts = (card.backbone, card.mean, card.std, device.type, str(next(model.parameters()).dtype), *seen)
    path = cache_folder() / f"{key_of(('features', *facts))}.features.npy"
    try:
        found = torch.from_numpy(np.load(BytesIO(read_plain(path)), allow_pickle=False))
        if found.shape[:1] == (len(images),) and found.ndim == 2 and found.isfinite().all():
            return found
    except (OSError, ValueError, EOFError):
        pass
    found = features_of(model, images, card, device)
    if is_main():
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = BytesIO()
        np.save(buffer, found.numpy())
        write_atomic(path, buffer.getvalue())
    wait_for_all()
    return found


def _digest(tensors: Iterable[Tensor]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        for piece in tensor.detach().cpu().flatten().split(PIECE):
            found.update(piece.numpy())
    return found.hexdigest()


def start_at_probe(model: Classifier, labeled: Images, card: Card, device: torch.device) -> Probe:
    """Make the head the linear probe of the labeled images, which is returned."""
    if not model.head.takes_probe:
        takers = " or ".join(name for name, head in HEADS.items() if head.takes_probe)
        raise UserError(f"only the {takers} head can start as a linear probe, not '{card.head}'; add --head {takers}")
    features = remembered_features(model, labeled, card, device)
    probe = fit_probe(features, labeled.labels.targets.dense(), labeled.labels.known.dense(), card.task)
    model.head.start_at(probe.weight, probe.bias)
    return probe

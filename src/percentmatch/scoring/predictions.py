"""Scores of a model on a set of images, in float32 whatever it was trained in; convolutions on a GPU in TF32."""

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor, nn

from percentmatch.augment import frame, resize
from percentmatch.data import Images
from percentmatch.distributed.group import gather_shares, own_share
from percentmatch.methods.base import scores_of
from percentmatch.models import Card, evaluating
from percentmatch.records import Task
from percentmatch.scoring.metrics import accuracy_top1, score

BATCH = 256


def probabilities(model: nn.Module, pixels: Tensor, card: Card, device: torch.device) -> Tensor:
    """Probabilities of uint8 images (n, 3, h, w), not calibrated, in the order given: (n, c) on the host."""
    return scores_of(logits(model, pixels, card, device), card.task)


@torch.inference_mode()
def logits(model: nn.Module, pixels: Tensor, card: Card, device: torch.device) -> Tensor:
    """The same before the sigmoid or softmax."""
    share, parts = own_share(len(pixels)), []
    own = pixels[share] if share.start < share.stop else pixels[:1]  # a rank with nothing to do shows the width
    with evaluating(model), untuned():
        for images in frame(own, card.frame).split(BATCH):
            views = resize(images.to(device), card.image_size, card.mean, card.std)
            parts.append(model(views).float())
    return gather_shares(torch.cat(parts)[: share.stop - share.start].cpu(), len(pixels))


@contextlib.contextmanager
def untuned() -> Generator[None]:
    """cuDNN takes its first choice: to try all out, size by size, takes longer than one pass over a test set."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def evaluate(scores: Tensor, images: Images, task: Task) -> dict[str, Any]:
    """The metrics of probabilities (n, c) against the images' labels.

    Pairs marked difficult are left out; the means with these pairs as positives are beside.
    """
    result = score(scores, *images.scoring_labels(count_difficult=False), images.class_names)
    if images.labels.difficult.any():
        counted = score(scores, *images.scoring_labels(count_difficult=True), images.class_names)
        result["difficult_as_positive"] = {name: counted[name] for name in ("mAP", "AUC", "mAP_11point")}
    if task == "single-label":
        result["accuracy"] = accuracy_top1(scores, images.labels.targets.dense(), images.labels.known.dense())
    return result

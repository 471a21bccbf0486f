"""Scores of a model on a set of images, in float32 whatever it was trained in; convolutions on a GPU in TF32."""

import contextlib
from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor, nn

from percentmatch.augment import frame, resize
from percentmatch.console.notices import counted
from percentmatch.data import Images
from percentmatch.distributed.group import gather_shares, own_share
from percentmatch.models import Card, evaluating
from percentmatch.records import Task, scores_of
from percentmatch.scoring.table import ScoreTable, score

BATCH = 256


def probabilities(model: nn.Module, pixels: Tensor, card: Card, device: torch.device) -> Tensor:
    """Probabilities of uint8 images (n, 3, h, w), not calibrated, in the order given: (n, c) on the host."""
    return scores_of(logits(model, pixels, card, device), card.task)


@torch.inference_mode()
def logits(model: nn.Module, pixels: Tensor, card: Card, device: torch.device) -> Tensor:
    """The same before the sigmoid or softmax."""
    rows, found = own_share(len(pixels)), []
    pixels_here = pixels[rows] if rows.start < rows.stop else pixels[:1]  # a rank without images: for the width
    with evaluating(model), untuned():
        for images in frame(pixels_here, card.frame).split(BATCH):
            views = resize(images.to(device), card.image_size, card.mean, card.std)
            found.append(model(views).float())
            counted(sum(map(len, found)), len(pixels_here), "scored")
    return gather_shares(torch.cat(found)[: rows.stop - rows.start].cpu(), len(pixels))


@contextlib.contextmanager
def untuned() -> Generator[None]:
    """cuDNN takes its first choice: to try all out, size by size, takes longer than one pass over a test set."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def evaluate(scores: Tensor, images: Images, task: Task) -> ScoreTable:
    """The metrics of probabilities (n, c) against the images' labels.

    Pairs marked difficult are left out; the means with these pairs as positives are beside.
    """
    table = score(scores, *images.scoring_labels(count_difficult=False), images.class_names, task=task)
    if not images.labels.difficult.any():
        return table
    counted = score(scores, *images.scoring_labels(count_difficult=True), images.class_names)
    return replace(table, difficult_as_positive=counted.means)

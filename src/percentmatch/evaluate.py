"""Scores of a model on a set of images."""

from typing import Any

import torch
from torch import Tensor, nn

from percentmatch.augment import resize
from percentmatch.augment.frame import frame
from percentmatch.data import Images
from percentmatch.methods.base import scores_of
from percentmatch.metrics import accuracy_top1, score
from percentmatch.models import Card
from percentmatch.records import Task

BATCH = 256


@torch.inference_mode()
def probabilities(model: nn.Module, pixels: Tensor, card: Card, device: torch.device) -> Tensor:
    """Probabilities of uint8 images (n, 3, h, w), in the order given: (n, c) on the host."""
    was_training = model.training
    model.eval()
    parts = []
    for images in frame(pixels, card.frame).split(BATCH):
        views = resize(images.to(device), card.image_size, card.mean, card.std)
        parts.append(scores_of(model(views), card.task))
    model.train(was_training)
    return torch.cat(parts).cpu()


def evaluate(scores: Tensor, images: Images, task: Task) -> dict[str, Any]:
    """The metrics of probabilities (n, c) against the images' labels."""
    result = score(scores, images.targets, images.known, images.class_names)
    return {**result, "accuracy": accuracy_top1(scores, images.targets)} if task == "single-label" else result

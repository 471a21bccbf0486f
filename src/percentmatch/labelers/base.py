"""What a labeler is, and the selection rule (Eq. 1) they share."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from percentmatch.records import PseudoLabels, Scores, Task


class Labeler(nn.Module, ABC):
    """Scores in, pseudo-labels out. Its state lives in buffers; train mode updates them, eval mode only reads."""

    @abstractmethod
    def forward(self, scores: Scores) -> PseudoLabels: ...


def select(weak: Tensor, upper: Tensor, lower: Tensor, weights: Tensor, task: Task) -> PseudoLabels:
    """Eq. 1: scores (u, c) above `upper` (c,) become positives, those below `lower` (c,) negatives.

    A class whose thresholds are crossed selects nothing. With one label an image, the whole row is kept if its largest
    score exceeds that class's upper threshold, and `lower` plays no part.
    """
    weak = weak.float()
    if task == "single-label":
        best = weak.argmax(dim=1, keepdim=True)  # (u, 1)
        targets = torch.zeros_like(weak).scatter_(1, best, 1.0)  # (u, c)
        kept = weak.gather(1, best) > upper[best]  # (u, 1)
        mask = kept.expand_as(weak).float()
    else:
        positive, negative = weak > upper, weak < lower  # (u, c)
        targets = positive.float()
        mask = ((positive | negative) & (upper > lower)).float()
    return PseudoLabels(targets, mask, weights, upper, lower)

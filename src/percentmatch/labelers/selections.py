"""How much the pairs between the thresholds count."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from percentmatch.labelers.base import check_choice
from percentmatch.records import PseudoLabels, Task

Reach = Literal["hard", "soft"]


class Selection:
    """Only the pairs beyond the thresholds count ("hard"), or those between them as well, but less ("soft")."""

    def __init__(self, reach: Reach) -> None:
        check_choice(Reach, selection=reach)
        self.soft = reach == "soft"

    def soften(
        self, pseudo: PseudoLabels, ranks: Tensor, upper: Tensor, lower: Tensor, negative_ratio: Tensor, task: Task
    ) -> PseudoLabels:
        """Full weight beyond the percentiles `upper` and `lower` (c,), none at the labeled share of negatives.

        In between, the mask is linear in a score's own percentile, its rank (u, c). With one label an image, the whole
        row has the weight of its best class as a positive.
        """
        above, below = ranks - negative_ratio, negative_ratio - ranks  # (u, c)
        positive = (above / (upper - negative_ratio).clamp(min=1e-6)).clamp(0, 1)  # 0 if unseen: ratio 1
        negative = (below / (negative_ratio - lower).clamp(min=1e-6)).clamp(0, 1)
        if task == "single-label":
            return replace(pseudo, mask=(positive * pseudo.targets).sum(dim=1, keepdim=True).expand_as(positive))
        return replace(pseudo, targets=(positive > 0).float(), mask=torch.maximum(positive, negative))

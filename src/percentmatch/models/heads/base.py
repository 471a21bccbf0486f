"""What a head is: what the backbone saw in, logits out."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor, nn


class Head(nn.Module, ABC):
    """Built as `Head(in_features, num_classes)`, and with the keyword `dropout` if it takes one."""

    reads: ClassVar[Literal["tokens", "pooled"]]  # the map as tokens (n, t, d), or the backbone's pooling (n, d)
    takes_dropout: ClassVar[bool] = False  # whether the setting `dropout` is for this head
    takes_probe: ClassVar[bool] = False  # whether it can start as a linear classifier of the backbone's pooling

    @property
    @abstractmethod
    def bias(self) -> Tensor:
        """The parameter (c,) that is added to the logits last; `--head-start prior` sets its start."""

    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        """Become the linear classifier with these weights (c, d) and biases (c,)."""
        raise NotImplementedError(type(self).__name__)

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Features as `reads` says -> logits (n, c)."""

"""One linear layer over the backbone's own pooling."""

from torch import Tensor, nn

from percentmatch.models.heads.base import Head


class LinearHead(Head):
    """Pooled features (n, d) -> logits (n, c)."""

    reads = "pooled"
    takes_dropout = True
    takes_probe = True

    def __init__(self, in_features: int, num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(in_features, num_classes)

    @property
    def bias(self) -> Tensor:
        return self.linear.bias  # (c,)

    def start_at(self, weight: Tensor, bias: Tensor) -> None:
        self.linear.weight.data.copy_(weight)
        self.linear.bias.data.copy_(bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(self.dropout(features))

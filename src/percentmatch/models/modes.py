"""A model's mode for the length of a `with` block; every module then has its own mode back."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.MultiheadAttention)


def drops(model: nn.Module) -> bool:
    """Whether some of the model's dropout has an effect."""
    found = [module for module in model.modules() if isinstance(module, DROPPING)]
    return any((each.dropout if isinstance(each, nn.MultiheadAttention) else each.p) > 0 for each in found)


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Eval mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def dropout_on(model: nn.Module) -> Generator[None]:
    """Eval mode, but for dropout, that of attention too: each pass is a draw (Gal and Ghahramani 2016)."""
    with evaluating(model):
        for module in model.modules():
            if isinstance(module, DROPPING):
                module.training = True  # not its children, which have a mode of their own
        yield

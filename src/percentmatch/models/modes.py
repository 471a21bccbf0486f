"""A model's mode for the length of a `with` block; afterwards every module has its earlier mode."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

DROPPING = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.MultiheadAttention)


def drops(model: nn.Module) -> bool:
    """Whether some of the model's dropout has an effect."""
    layers = (module for module in model.modules() if isinstance(module, DROPPING))
    return any((layer.dropout if isinstance(layer, nn.MultiheadAttention) else layer.p) > 0 for layer in layers)


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
    """Eval mode with dropout on, also in attention: each pass is a draw (Gal and Ghahramani 2016)."""
    with evaluating(model):
        for module in model.modules():
            if isinstance(module, DROPPING):
                module.training = True  # not its children, which have a mode of their own
        yield

"""A model's mode for the length of a `with` block; every module then has its own mode back."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn


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
    """Eval mode, but for dropout: each pass is a draw (Gal and Ghahramani 2016)."""
    with evaluating(model):
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.train()
        yield

"""Modes for the length of a block: eval, and eval with dropout on."""

import pytest
import torch
from torch import nn

from percentmatch.models import MLDecoder, dropout_on, drops, evaluating


def make_model() -> nn.Sequential:
    """A norm that was set to eval on purpose, one that was not, and dropout of two kinds."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.AlphaDropout(0.5))
    model[0].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("block", [evaluating, dropout_on])
def test_every_module_has_its_mode_back_even_after_a_fault(block) -> None:
    model = make_model()
    before = modes(model)
    assert before == [True, False, True, True, True, True]
    with block(model):
        assert modes(model) == ([False] * 6 if block is evaluating else [False, False, False, True, False, True])
    assert modes(model) == before
    with pytest.raises(ZeroDivisionError), block(model):
        raise ZeroDivisionError
    assert modes(model) == before


def test_dropout_draws_anew_and_the_norms_do_not_learn() -> None:
    torch.manual_seed(0)
    model, images = make_model(), torch.randn(8, 4)
    running = model[3].running_mean.clone()
    with dropout_on(model):
        first, second = model(images), model(images)
    assert not torch.equal(first, second)
    assert torch.equal(model[3].running_mean, running)
    with evaluating(model):
        assert torch.equal(model(images), model(images))


def test_the_dropout_of_attention_is_on_too() -> None:
    decoder = MLDecoder(4, 2, embed_dim=8).eval()
    decoder.dropout.p = 0.0
    decoder.attention.dropout = 0.5
    tokens = torch.randn(3, 9, 4)
    with dropout_on(decoder), torch.no_grad():
        assert not torch.equal(decoder(tokens), decoder(tokens))
    assert not any(modes(decoder))


def test_dropout_counts_where_it_has_an_effect() -> None:
    assert not drops(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.MultiheadAttention(2, 1)))
    assert drops(nn.Sequential(nn.Linear(2, 2), nn.Dropout2d(0.1)))
    assert drops(nn.Sequential(nn.MultiheadAttention(2, 1, dropout=0.1)))

"""Our ML-Decoder against timm's class of the same name, with the same weights."""

from typing import Any

import pytest
import torch
from timm.layers.ml_decoder import MLDecoder as TimmMLDecoder

from percentmatch.models import MLDecoder

OUR_NAMES = {
    "embed_standart": "embed",
    "query_embed.weight": "queries",
    "decoder.multihead_attn": "attention",
    "decoder.linear1": "expand",
    "decoder.linear2": "contract",
    "decoder.norm1": "query_norm",
    "decoder.norm2": "attention_norm",
    "decoder.norm3": "ffn_norm",
    "duplicate_pooling_bias": "group_bias",
    "duplicate_pooling": "group_weight",
}


def _our_name(name: str) -> str:
    theirs = next(start for start in OUR_NAMES if name.startswith(start))
    return OUR_NAMES[theirs] + name.removeprefix(theirs)


def _pair(num_classes: int) -> tuple[Any, MLDecoder]:
    """timm's head, repaired (its decoder asks every layer for a self-attention), and ours with its weights."""
    theirs: Any = TimmMLDecoder(num_classes, initial_num_features=64)
    theirs.decoder = theirs.decoder.layers[0]
    for parameter in theirs.parameters():  # biases start at 0 and norms at 1: move them, so that a mix-up shows
        parameter.data += 0.02 * torch.randn_like(parameter)
    ours = MLDecoder(64, num_classes)
    ours.load_state_dict({_our_name(name): value.clone() for name, value in theirs.state_dict().items()})
    return theirs.eval(), ours.eval()


@pytest.mark.parametrize("num_classes", [20, 80, 150])  # 150 classes share 100 queries, two a query
def test_logits_and_gradients_equal_timms(num_classes: int) -> None:
    torch.manual_seed(num_classes)
    theirs, ours = _pair(num_classes)
    features = torch.randn(3, 64, 4, 5)  # (n, d, h, w), as timm's reads it
    pull = torch.randn(3, num_classes)

    maps = features.clone().requires_grad_()
    expected = theirs(maps)
    (expected * pull).sum().backward()
    tokens = features.flatten(2).transpose(1, 2).clone().requires_grad_()  # (n, t, d)
    logits = ours(tokens)
    (logits * pull).sum().backward()

    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert maps.grad is not None
    torch.testing.assert_close(tokens.grad, maps.grad.flatten(2).transpose(1, 2), rtol=1e-4, atol=1e-5)
    our_parameters = dict(ours.named_parameters())
    trained = {_our_name(name): p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    assert trained.keys() == our_parameters.keys()  # the same parameters are learnt
    for name, gradient in trained.items():
        torch.testing.assert_close(
            our_parameters[name].grad, gradient, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: n + m
        )

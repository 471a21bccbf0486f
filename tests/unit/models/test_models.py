"""Heads, backbones and how a classifier is built."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.models import HEADS, Classifier, LinearHead, MLDecoder, build_classifier, to_tokens

# An NCHW map, three of them with other block types, a token sequence, and an NHWC map (whose pooled width differs).
BACKBONES = ["resnet18", "test_resnet", "test_efficientnet", "test_convnext", "test_vit", "test_mambaout"]


@pytest.mark.parametrize(("num_classes", "trainable", "total"), [(20, 7104532, 7119892), (80, 7150672, 7212112)])
def test_parameter_counts(num_classes: int, trainable: int, total: int) -> None:
    """With e = 768: embed 2048e+e = 1573632; attention 4(ee+e) = 2362368; FFN 2(2048e)+2048+e = 3148544; three norms
    6e = 4608; together 7089152. The group layer adds ce + c: 15380 at c = 20, 61520 at 80. Queries: ce more.
    """
    decoder = MLDecoder(2048, num_classes)
    assert sum(p.numel() for p in decoder.parameters()) == trainable
    assert sum(t.numel() for t in decoder.state_dict().values()) == total


def test_a_query_answers_for_neighbouring_classes() -> None:
    """Attention and FFN silenced, the queries (1, 0) and (0, 1) double and normalise to (1, -1) and (-1, 1).

    Three classes, two queries: two classes a query. Class 0: 1 - 2 + .5 = -.5; class 1: 10 - 20 = -10;
    class 2, the first of the second query: -3 + 7 = 4; the second query's other column is cut off.
    """
    decoder = MLDecoder(5, 3, embed_dim=2, num_queries=2, num_heads=1, ffn_dim=4).eval()
    with torch.no_grad():
        for silenced in (decoder.attention.out_proj, decoder.contract):
            silenced.weight.zero_()
            silenced.bias.zero_()
        decoder.queries.copy_(torch.eye(2))
        decoder.group_weight.copy_(torch.tensor([[[1.0, 10.0], [2.0, 20.0]], [[3.0, 99.0], [7.0, 99.0]]]))
        decoder.group_bias.copy_(torch.tensor([0.5, 0.0, 0.0]))
    logits = decoder(torch.randn(2, 6, 5))
    torch.testing.assert_close(logits, torch.tensor([[-0.5, -10.0, 4.0]] * 2), atol=1e-3, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_a_new_head_starts_at_the_biases_given(head: str) -> None:
    """Else the ML-Decoder starts at 0. The other weights are those of the same seed without."""
    bias = torch.tensor([-3.0, 0.5])
    torch.manual_seed(0)
    given = build_classifier("test_resnet", num_classes=2, head=head, image_size=32, bias=bias)
    torch.manual_seed(0)
    plain = build_classifier("test_resnet", num_classes=2, head=head, image_size=32)
    images = torch.randn(3, 3, 32, 32)
    given.eval(), plain.eval()
    torch.testing.assert_close(given(images) - plain(images), (bias - plain.head.bias).expand(3, 2))
    assert not torch.equal(given.head.bias, plain.head.bias)


def test_a_head_from_a_file_keeps_its_biases(tmp_path: Path) -> None:
    model = build_classifier("test_resnet", num_classes=2, head="linear", image_size=32)
    save_file(model.state_dict(), tmp_path / "whole.safetensors")
    weights = str(tmp_path / "whole.safetensors")
    again = build_classifier(
        "test_resnet", num_classes=2, head="linear", image_size=32, weights=weights, bias=torch.ones(2)
    )
    torch.testing.assert_close(again.head.bias, model.head.bias)


def test_number_of_queries() -> None:
    """One query a class up to 100; 250 classes on 100 queries need three classes a query."""
    assert MLDecoder(8, 7).queries.shape == (7, 768)
    assert MLDecoder(8, 250).queries.shape == (100, 768)
    assert MLDecoder(8, 250).group_weight.shape == (100, 768, 3)
    assert MLDecoder(8, 7, num_queries=4).group_weight.shape == (4, 768, 2)


def test_group_layer_starts_xavier_normal() -> None:
    """(q, e, k) = (100, 768, 2): fans 768 * 2 and 100 * 2, so the deviation is sqrt(2 / 1736) = .03394; no bias.

    A uniform draw of that deviation would end at sqrt(3) deviations.
    """
    torch.manual_seed(0)
    decoder = MLDecoder(8, 150)
    assert decoder.group_weight.std().item() == pytest.approx(0.03394, rel=0.02)
    assert decoder.group_weight.abs().max().item() > 4 * 0.03394
    assert decoder.group_bias.count_nonzero() == 0


def test_queries_are_dropped_into_themselves() -> None:
    """q + dropout(q) with p = .5 is q or 3q, in train mode only; eval mode gives 2q."""
    decoder = MLDecoder(8, 4, dropout=0.5)
    seen: list[Tensor] = []
    decoder.query_norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0] / decoder.queries))
    decoder(torch.randn(2, 3, 8))
    decoder.eval()(torch.randn(2, 3, 8))
    assert seen[0].round().unique().tolist() == [1.0, 3.0]
    assert not seen[0][0].round().equal(seen[0][1].round())  # drawn for each image
    assert seen[1].round().unique().tolist() == [2.0]


def test_decoder_ignores_the_order_of_tokens() -> None:
    torch.manual_seed(0)
    decoder = MLDecoder(16, 4).eval()
    tokens = torch.randn(2, 9, 16)
    torch.testing.assert_close(decoder(tokens), decoder(tokens.flip(1)), atol=1e-5, rtol=1e-5)
    assert (decoder(tokens) - decoder(tokens.roll(1, 0))).abs().max() > 1e-3  # but not which image they came from


def test_to_tokens_reads_each_layout() -> None:
    maps = torch.arange(2 * 5 * 3 * 4).reshape(2, 5, 3, 4)  # NCHW
    tokens = to_tokens(maps, 5)
    assert tokens.shape == (2, 12, 5)
    assert tokens[1, 7].equal(maps[1, :, 1, 3])  # token 7 is row 1, column 3
    assert to_tokens(maps.permute(0, 2, 3, 1), 5).equal(tokens)
    assert to_tokens(tokens, 5).equal(tokens)
    with pytest.raises(ValueError, match="width 6"):
        to_tokens(maps, 6)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_any_backbone_with_any_head(backbone: str, head: str) -> None:
    torch.manual_seed(0)
    model = build_classifier(backbone, num_classes=3, head=head, image_size=64)
    assert all(module.training for module in model.modules())
    images = torch.randn(2, 3, 64, 64)

    logits = model(images)
    assert logits.shape == (2, 3)
    (logits * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, p in model.named_parameters() if p.requires_grad}
    for part in (model.backbone, model.head):
        assert any(p.grad is not None and p.grad.any() for p in part.parameters())
    assert "head.queries" not in with_gradient

    model.eval()
    with torch.no_grad():
        once = model(images)
        assert model(images).equal(once)
        torch.testing.assert_close(model(images[1:]), once[1:], atol=1e-4, rtol=1e-4)  # images do not mix
        with torch.autocast("cpu", torch.bfloat16):
            assert model(images).isfinite().all()


def test_parameters_the_head_never_reads_are_frozen() -> None:
    """ConvNeXt's last norm follows its pooling, so the ML-Decoder never sees it; the linear head does."""
    heads = ("ml-decoder", "linear")
    decoder, linear = (build_classifier("test_convnext", num_classes=2, head=h, image_size=64) for h in heads)
    frozen = [{name for name, p in m.named_parameters() if not p.requires_grad} for m in (decoder, linear)]
    assert frozen == [{"backbone.head.norm.weight", "backbone.head.norm.bias"}, set()]


def test_linear_head_reads_the_mean_of_the_map() -> None:
    model: Any = build_classifier("test_resnet", num_classes=2, head="linear", image_size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    pooled = model.backbone.forward_features(images).mean(dim=(2, 3))
    expected = pooled @ model.head.linear.weight.T + model.head.linear.bias
    torch.testing.assert_close(model(images), expected)


def test_dropout_acts_on_the_linear_head_in_train_mode_only() -> None:
    """All ones through dropout .5 and a summing layer: each of the 1000 inputs becomes 0 or 2."""
    head = LinearHead(1000, 1, dropout=0.5)
    with torch.no_grad():
        head.linear.weight.fill_(1.0)
        head.linear.bias.zero_()
    ones = torch.ones(1, 1000)
    sums = torch.stack([head(ones)[0, 0] for _ in range(4)])
    assert (sums % 2 == 0).all()
    assert sums.unique().numel() > 1
    assert head.eval()(ones).item() == 1000
    built: Any = build_classifier("test_resnet", num_classes=2, head="linear", image_size=64, dropout=0.25)
    assert built.head.dropout.p == 0.25


def test_mean_and_std_are_the_backbones() -> None:
    model = build_classifier("test_resnet", num_classes=2, head="linear", image_size=64)
    assert (model.mean, model.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    model.backbone.pretrained_cfg = {}  # a model that names none: ImageNet's
    bare = Classifier(model.backbone, model.head)
    assert (bare.mean, bare.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_state_dict_round_trip_carries_the_queries() -> None:
    first, second = (build_classifier("test_resnet", num_classes=3, image_size=64).eval() for _ in range(2))
    images = torch.randn(2, 3, 64, 64)
    assert not second(images).equal(first(images))
    second.load_state_dict(first.state_dict())
    assert "head.queries" in first.state_dict()
    assert second(images).equal(first(images))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"backbone": "resnet5O"}, "unknown backbone 'resnet5O'; did you mean 'resnet50'?"),
        ({"backbone": "zzzzzz"}, "unknown backbone 'zzzzzz'; `timm.list_models()` lists those there are"),
        ({"backbone": "resnet18.a1_in1"}, "has no weights 'a1_in1'; did you mean 'resnet18.a1_in1k'?"),
        ({"head": "linaer"}, "unknown head 'linaer'; did you mean 'linear'?"),
        ({"dropout": 0.5}, "is for the linear head"),
        ({"num_classes": 0}, "must be at least 1"),
        ({"image_size": 0}, "must be at least 1"),
        ({"backbone": "test_vit", "image_size": 8}, "backbone 'test_vit' cannot be used at 8 pixels: "),
        ({"backbone": "crossvit_tiny_240", "image_size": 240}, "it gives several feature maps"),
        (
            {"weights": "pretraned"},
            "weights file 'pretraned' does not exist; give a file, 'none', 'pretrained' or 'offline'",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(options: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"backbone": "test_resnet", "num_classes": 2, "image_size": 64, **options}
    with pytest.raises(UserError) as caught:
        build_classifier(**arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_decoder_drops_in_four_places() -> None:
    head, calls = MLDecoder(8, 3, embed_dim=16, num_heads=2, ffn_dim=32), []
    head.dropout.register_forward_hook(lambda *_: calls.append(1))
    head(torch.randn(2, 4, 8))
    assert len(calls) == 4

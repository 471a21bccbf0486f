"""The linear probe: scikit-learn's logistic regression is the oracle."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from percentmatch.training import probe
from percentmatch.training.probe import FOLDS, STRENGTHS, fit_probe, folds


def drawn(n: int = 60, d: int = 8, c: int = 3, noise: float = 3.0) -> tuple[Tensor, Tensor]:
    """Features far from the origin, and targets that depend on them up to noise."""
    random = torch.Generator().manual_seed(n + d)
    features = torch.randn(n, d, generator=random, dtype=torch.float64) * 3 + 5
    scores = (features - 5) @ torch.randn(d, c, generator=random, dtype=torch.float64)
    return features, (scores + noise * torch.randn(n, c, generator=random) > 2).double()


def scaled(features: Tensor) -> np.ndarray:
    centred = features - features.mean(0)
    return (centred / centred.square().sum(1).mean().sqrt()).numpy()


@pytest.mark.parametrize("d", [8, 200])
def test_each_class_is_sklearns_logistic_regression(d: int) -> None:
    """Its loss is a sum over n images plus |w|^2 / (2 C): C = 1 / (n * strength); also with few images."""
    features, targets = drawn(d=d)
    found = fit_probe(features, targets, torch.ones_like(targets))
    for column in range(3):
        oracle = LogisticRegression(C=1 / (len(features) * found.strength), tol=1e-10, max_iter=10_000)
        oracle.fit(scaled(features), targets[:, column].numpy())
        mine = features @ found.weight[column] + found.bias[column]
        assert mine.numpy() == pytest.approx(oracle.decision_function(scaled(features)), abs=2e-3)


def test_one_label_an_image_is_sklearns_softmax_regression() -> None:
    features, _ = drawn()
    classes = (features[:, 0] > 5).long() + (features[:, 1] > 7).long()
    targets = torch.eye(3, dtype=torch.float64)[classes]
    found = fit_probe(features, targets, torch.ones_like(targets), "single-label")
    oracle = LogisticRegression(C=1 / (len(features) * found.strength), tol=1e-10, max_iter=10_000)
    oracle.fit(scaled(features), classes.numpy())
    mine = (features @ found.weight.T + found.bias).softmax(1).numpy()
    assert mine == pytest.approx(oracle.predict_proba(scaled(features)), abs=2e-3)


def test_a_class_learns_from_its_known_labels_alone() -> None:
    """Column 0 is known in the first 40 rows: a fit of these alone, at the same strength and scale, is the same."""
    features, targets = drawn()
    known = torch.ones_like(targets)
    known[40:, 0] = 0
    wrong = targets.clone()
    wrong[40:, 0] = 1 - wrong[40:, 0]
    found, other = fit_probe(features, targets, known), fit_probe(features, wrong, known)
    torch.testing.assert_close(found.weight, other.weight)
    oracle = LogisticRegression(C=1 / (40 * found.strength), tol=1e-10, max_iter=10_000)
    oracle.fit(scaled(features)[:40], targets[:40, 0].numpy())
    mine = features @ found.weight[0] + found.bias[0]
    assert mine.numpy() == pytest.approx(oracle.decision_function(scaled(features)), abs=2e-3)


def test_a_class_without_positives_has_its_smoothed_frequency_everywhere() -> None:
    """No positive among 60 and Laplace's rule: 1 in 62."""
    features, targets = drawn()
    targets[:, 1] = 0
    found = fit_probe(features, targets, torch.ones_like(targets))
    assert (features @ found.weight[1] + found.bias[1]).sigmoid().numpy() == pytest.approx(1 / 62)


def test_noise_asks_for_a_strong_penalty_and_order_for_a_weak_one() -> None:
    features, clear = drawn(n=200, noise=0.0)
    random = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).round().double()
    known = torch.ones_like(clear)
    assert fit_probe(features, random, known).strength >= 0.1
    assert fit_probe(features, clear, known).strength <= 1e-4


def test_held_out_scores_come_from_other_folds() -> None:
    """Labels that are noise can be learnt by heart from 200 features, but not be foreseen."""
    features, _ = drawn(n=100, d=200)
    targets = torch.rand(100, 1, generator=torch.Generator().manual_seed(1)).round().double()
    found = fit_probe(features, targets, torch.ones_like(targets))
    right = ((found.held_out > 0) == (targets > 0)).double().mean()
    assert 0.3 < right < 0.7
    assert found.held_out.shape == targets.shape


def test_folds_share_out_the_positives_of_each_class() -> None:
    """10 and 25 positives in 60 images: 2 and 5 of each in a fold of 12."""
    positive = torch.zeros(60, 2)
    positive[:10, 0], positive[20:45, 1] = 1, 1
    fold = folds(positive, seed=3)
    for number in range(FOLDS):
        inside = fold == number
        assert (inside.sum(), positive[inside, 0].sum(), positive[inside, 1].sum()) == (12, 2, 5)


def test_few_images_get_the_strongest_penalty() -> None:
    features, targets = drawn(n=9)
    assert fit_probe(features, targets, torch.ones_like(targets)).strength == STRENGTHS[0]


def test_features_are_remembered(tiny_model, monkeypatch, tmp_path) -> None:
    """Twice the same; other pixels or other weights are looked at anew, and so is a damaged file."""
    model, images, card = tiny_model
    monkeypatch.setenv("PERCENTMATCH_CACHE", str(tmp_path))
    looks = []
    look = probe.features_of
    monkeypatch.setattr(probe, "features_of", lambda *args: looks.append(1) or look(*args))
    cpu = torch.device("cpu")
    first = probe.remembered_features(model, images, card, cpu)
    assert torch.equal(first, probe.remembered_features(model, images, card, cpu))
    assert len(looks) == 1
    with torch.no_grad():
        next(model.backbone.parameters()).mul_(1.5)
    assert not torch.equal(first, probe.remembered_features(model, images, card, cpu))
    images.pixels[0] = 255 - images.pixels[0]
    probe.remembered_features(model, images, card, cpu)
    assert len(looks) == 3
    for file in tmp_path.glob("*.npy"):
        file.write_bytes(file.read_bytes()[:-8])
    probe.remembered_features(model, images, card, cpu)
    assert len(looks) == 4


@pytest.fixture
def tiny_model():
    from percentmatch.data.scenes import draw_scenes
    from percentmatch.models import Card, build_classifier

    images = draw_scenes(12, size=32)
    torch.manual_seed(0)
    model = build_classifier("test_resnet", num_classes=len(images.class_names), head="linear", image_size=32)
    about = {"backbone": "test_resnet", "head": "linear", "dropout": 0.0, "image_size": 32, "decode_size": 32}
    about |= {"frame": "squash", "task": "multi-label", "mean": model.mean, "std": model.std, "version": "0"}
    return model, images, Card(**about, class_names=images.class_names)

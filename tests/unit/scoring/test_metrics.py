"""Metrics against numbers worked out by hand."""

import json
import math

import pytest
import torch
from torch import Tensor

from percentmatch.errors import UserError
from percentmatch.scoring.metrics import accuracy_top1, pseudo_label_quality
from percentmatch.scoring.table import score


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def test_ap_and_auc_of_a_ranking() -> None:
    """Ranked: + - + - (scores .9 .8 .7 .6).

    AP: recall rises by 1/2 at ranks 1 and 3, with precision 1 and 2/3: 1/2 + 1/3 = 5/6.
    AUC: the first positive beats 2 negatives, the second 1, of 4 pairs: 3/4.
    11 points: recall >= 0 ... 0.5 (6 points): best precision 1; 0.6 ... 1 (5 points): 2/3. (6 + 10/3) / 11 = 28/33.
    """
    result = score(column(0.6, 0.7, 0.8, 0.9), column(0, 1, 0, 1), None, ["cat"]).to_dict()
    values = result["classes"]["cat"]
    assert values["AP"] == pytest.approx(5 / 6, abs=1e-7)
    assert values["AUC"] == pytest.approx(3 / 4, abs=1e-7)
    assert values["AP_11point"] == pytest.approx(28 / 33, abs=1e-7)
    assert (values["positives"], values["negatives"]) == (2, 2)
    assert (result["mAP"], result["AUC"], result["mAP_11point"]) == (values["AP"], values["AUC"], values["AP_11point"])
    assert (result["num_images"], result["num_pairs_ignored"]) == (4, 0)
    assert result["left_out_AP"] == result["left_out_AUC"] == []


def test_interpolation_takes_the_best_precision_further_down() -> None:
    """Ranked: - + + (scores .9 .8 .7). Precision at ranks 2 and 3: 1/2, 2/3; recall 1/2, 1.

    AP: 1/2 (1/2 + 2/3) = 7/12. 11 points: at every recall the best is 2/3, found at recall 1. AUC: 0 of 2 pairs.
    """
    values = score(column(0.9, 0.8, 0.7), column(0, 1, 1), None, ["cat"]).to_dict()["classes"]["cat"]
    assert values["AP"] == pytest.approx(7 / 12, abs=1e-7)
    assert values["AP_11point"] == pytest.approx(2 / 3, abs=1e-7)
    assert values["AUC"] == 0


@pytest.mark.parametrize("first", range(1, 10))
def test_eleven_points_reach_a_recall_that_equals_a_step(first: int) -> None:
    """10 positives: `first` of them on top, then 10 negatives, then the rest.

    Recall first/10 is reached with precision 1, so it counts for the first + 1 points 0, ..., first/10. The other
    10 - first points take the best precision below, 10/20, at the end.
    """
    labels = torch.tensor([1] * first + [0] * 10 + [1] * (10 - first))
    values = score(torch.linspace(1, 0, 20)[:, None], labels[:, None], None, ["cat"]).to_dict()["classes"]["cat"]
    assert values["AP_11point"] == pytest.approx(((first + 1) + (10 - first) / 2) / 11, abs=1e-7)


def test_equal_scores_enter_at_once() -> None:
    """All equal, 1 of 4 positive: one step to recall 1 at precision 1/4, so AP 1/4 (11 points too); every pair tied:
    AUC 1/2. The order of the images does not matter.
    """
    for place in range(4):
        values = score(torch.full((4, 1), 0.3), torch.eye(4)[:, place : place + 1], None, ["cat"]).to_dict()["classes"][
            "cat"
        ]
        assert values["AP"] == values["AP_11point"] == pytest.approx(1 / 4)
        assert values["AUC"] == pytest.approx(1 / 2)


def test_unknown_pairs_are_ignored_and_empty_classes_left_out() -> None:
    """Column by column, x for unknown:

    a: + - x+ with scores .9 .5 .1: without the last pair the ranking is perfect, AP = AUC = 1.
    b: - - +  with scores .1 .2 .3, the positive unknown: no positives, neither AP nor AUC.
    c: + + x- : no negatives, AP 1, no AUC.
    d: all unknown, garbage targets: neither. Means: AP over a, c; AUC over a. Unknown pairs: 1 + 1 + 1 + 3.
    """
    probabilities = torch.tensor([[0.9, 0.1, 0.5, 0.5], [0.5, 0.2, 0.5, 0.5], [0.1, 0.3, 0.9, 0.5]])
    targets = torch.tensor([[1, 0, 1, 9], [0, 0, 1, 9], [1, 1, 0, 9]])
    known = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.uint8)
    result = score(probabilities, targets, known, ["a", "b", "c", "d"]).to_dict()
    assert (result["mAP"], result["AUC"], result["mAP_11point"]) == (1, 1, 1)
    assert result["num_pairs_ignored"] == 6
    assert result["left_out_AP"] == ["b", "d"]
    assert result["left_out_AUC"] == ["b", "c", "d"]
    assert result["classes"]["b"] == {"AP": None, "AUC": None, "AP_11point": None, "positives": 0, "negatives": 2}
    assert result["classes"]["c"]["positives"] == 2
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize("num_images", [0, 3])
def test_nothing_to_score(num_images: int) -> None:
    result = score(torch.rand(num_images, 2), torch.zeros(num_images, 2), None, ["a", "b"]).to_dict()
    assert result["mAP"] is result["AUC"] is result["mAP_11point"] is None
    assert result["left_out_AP"] == ["a", "b"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("labels", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_types(dtype: torch.dtype, labels: torch.dtype) -> None:
    """0.25, 0.5 and 0.75 are exact in every type; the ranking + - + gives AP 1/2 + 1/2 x 2/3 = 5/6."""
    probabilities, targets = column(0.75, 0.5, 0.25).to(dtype), column(1, 0, 1).to(labels)
    assert score(probabilities, targets, targets >= 0, ["a"]).means["mAP"] == pytest.approx(5 / 6, abs=1e-7)


def test_user_errors() -> None:
    good, labels = torch.tensor([[0.1, 0.9]]), torch.tensor([[0, 1]])
    for broken, message in (
        ([[math.nan, 0.9]], "1 of 2 .*NaN"),
        ([[-3.0, 0.9]], "sigmoid"),
        ([[math.inf, 1.0]], "sigmoid"),
    ):
        with pytest.raises(UserError, match=message):
            score(torch.tensor(broken), labels, None, ["a", "b"])
        with pytest.raises(UserError, match=message):
            accuracy_top1(torch.tensor(broken), labels)
    with pytest.raises(UserError, match="not \\(1, 2\\), \\(1, 3\\)"):
        score(good, torch.zeros(1, 3), None, ["a", "b"])
    with pytest.raises(UserError, match="2 classes need as many different names, not a, a"):
        score(good, labels, None, ["a", "a"])
    with pytest.raises(UserError, match="must be 0 or 1"):
        score(good, 2 * labels, None, ["a", "b"])


def test_accuracy() -> None:
    """The largest of each row: 1, 0, 2; the truth: 1, 2, 2. Two of three right."""
    probabilities = torch.tensor([[0.1, 0.8, 0.1], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    assert accuracy_top1(probabilities, torch.eye(3)[[1, 2, 2]]) == pytest.approx(2 / 3)


def test_accuracy_leaves_out_images_whose_class_is_unknown() -> None:
    """All four are taken for the first class. Row 1: right. Row 2: only its class, the second, is known: wrong.

    Row 3: known not to be the second, so the class is open. Row 4: nothing is known. One of two.
    """
    probabilities = torch.tensor([[0.8, 0.1, 0.1]]).repeat(4, 1)
    targets = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0]])
    known = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 1, 0], [0, 0, 0]])
    assert accuracy_top1(probabilities, targets, known) == 0.5
    assert accuracy_top1(probabilities[2:], targets[2:], known[2:]) is None
    assert accuracy_top1(torch.zeros(0, 2), torch.zeros(0, 2)) is None
    assert accuracy_top1(probabilities[:1], torch.zeros(1, 3), torch.ones(1, 3)) == 0  # known to show none of the three


def test_pseudo_label_quality() -> None:
    """Two classes, four images; per class (pseudo, mask, truth, known):

    first:  (1,1,1,1) right positive; (1,1,0,1) wrong positive; (0,1,0,1) right negative; (0,0,1,1) not selected.
    second: (1,1,1,0) unknown, nowhere counted; (0,1,1,1) wrong negative; (0,1,0,1) right; (.7,.2,1,1) soft: positive.
    """
    pseudo = torch.tensor([[1, 1], [1, 0], [0, 0], [0, 0.7]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0.2]])
    truth = torch.tensor([[1, 1], [0, 1], [0, 0], [1, 1]])
    known = torch.tensor([[1, 0], [1, 1], [1, 1], [1, 1]])
    counts = {name: value.tolist() for name, value in pseudo_label_quality(pseudo, mask, truth, known).items()}
    assert counts == {
        "positives_right": [1, 1],
        "positives_selected": [2, 1],
        "negatives_right": [1, 1],
        "negatives_selected": [1, 2],
        "positives_true": [2, 2],
    }
    everything = pseudo_label_quality(pseudo, mask, truth)
    assert everything["positives_right"].tolist() == [1, 2]


def test_pseudo_label_quality_never_waits_for_the_device() -> None:
    """Meta tensors hold no values: any read of one (a synchronisation) would raise."""
    empty = torch.empty(5, 3, device="meta")
    counts = pseudo_label_quality(empty, empty, empty, empty)
    assert all(value.shape == (3,) and value.device.type == "meta" for value in counts.values())

"""Sparse labels hold what dense tables hold, in memory that does not grow with the classes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from percentmatch.data import Images, make_split, read_table
from percentmatch.data.labels import Flags, Labels
from percentmatch.data.readers.coco import _pack, _unpack
from percentmatch.data.readers.rows import LabelFile, Row, encode
from percentmatch.data.split import _one_of_each
from percentmatch.errors import UserError
from percentmatch.labelers import PercentMatch
from percentmatch.losses import asymmetric_loss, mean_over_images
from percentmatch.records import Facts, Scores
from percentmatch.scoring import calibration as deciding
from percentmatch.scoring import metrics
from percentmatch.scoring.calibration import decide
from percentmatch.scoring.intervals import resamples_of
from percentmatch.scoring.table import score


def draw(seed: int, n: int, c: int, share: float) -> Tensor:
    """A table (n, c) of 0 and 1, with a row of ones, one of zeros and one of half and half."""
    table = (torch.rand(n, c, generator=torch.Generator().manual_seed(seed)) < share).byte()
    table[0], table[1] = 1, 0
    table[2] = torch.arange(c) % 2
    return table


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
@pytest.mark.parametrize("at_once", [1, 50, 1 << 24])
def test_a_sparse_table_is_the_dense_one(share: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percentmatch.data.labels.AT_ONCE", at_once)
    table = draw(0, 12, 9, share)
    flags = Flags.of(table)
    rows, columns = torch.tensor([3, 0, 0, 11, 2]), [8, 0, 3]
    assert flags.shape == (12, 9)
    assert torch.equal(flags.dense(), table)
    assert torch.equal(torch.cat(list(flags.blocks())), table)
    assert torch.equal(flags[rows], table[rows])
    assert torch.equal(flags.select(rows).dense(), table[rows])
    assert torch.equal(flags.select(rows[:0]).dense(), table[:0])
    assert torch.equal(flags.choose(columns).dense(), table[:, columns])
    assert torch.equal(Flags.cat(flags, flags.select(rows)).dense(), torch.cat([table, table[rows]]))
    assert torch.equal(flags.in_columns(), table.sum(0))
    assert torch.equal(flags.in_rows(), table.sum(1))
    assert torch.equal(torch.stack(flags.ones()), torch.stack(table.nonzero(as_tuple=True)))
    assert flags.any()
    assert not Flags.full(3, 2).any()
    assert Flags.full(2, 3, 1).dense().all()
    lists = [row.nonzero().flatten().tolist() for row in table]
    assert torch.equal(Flags.listed(lists, 9).dense(), table)
    assert torch.equal(Flags.listed(lists, 9, [1] * 12).dense(), 1 - table)


def test_a_target_means_nothing_where_it_is_not_known() -> None:
    targets, known, difficult = (draw(seed, 8, 5, 0.5) for seed in range(3))
    labels = Labels.of(targets, known, difficult)
    rows = torch.tensor([7, 2])
    assert torch.equal(labels.targets.dense(), targets * known)
    assert torch.equal(labels.known.dense(), known)
    found = labels.certain(rows)
    assert torch.equal(found[0], (targets * known)[rows])
    assert torch.equal(found[1], (known * (1 - difficult))[rows])
    hashed = b"".join(piece.tobytes() for piece in labels.bytes_of(rows))
    assert hashed == b"".join(table[rows].numpy().tobytes() for table in (targets * known, known, difficult))
    both = Labels.cat(labels, Labels.none(2, 5))
    assert torch.equal(both.known.dense(), torch.cat([known, torch.zeros(2, 5).byte()]))
    chosen = labels.select(rows).choose([4, 1])
    assert torch.equal(chosen.difficult.dense(), difficult[rows][:, [4, 1]])


def test_labels_give_back_the_tables_they_were_made_from_and_check_them() -> None:
    known, difficult = draw(1, 6, 4, 0.7), draw(2, 6, 4, 0.1)
    targets = draw(0, 6, 4, 0.5) * known
    images = Images(
        torch.zeros(6, 3, 2, 2).byte(), Labels.of(targets, known, difficult), tuple("abcdef"), tuple("wxyz")
    )
    other = images.part("fa").labels
    for name, table in {"targets": targets, "known": known, "difficult": difficult}.items():
        assert torch.equal(getattr(other, name).dense(), table[[5, 0]])
    plain = Labels.of(targets)
    assert plain.known.dense().all()
    assert not plain.difficult.any()
    assert torch.equal(Labels.of(torch.where(known > 0, targets, 255), known).targets.dense(), targets)
    for wrong, sentence in (
        ((2 * targets, known), "0 or 1 where they are known"),
        ((targets, 2 * known), "hold only 0 and 1"),
        ((targets, known, 2 * difficult), "hold only 0 and 1"),
        ((targets, known.float()), r"known is torch.float32 of shape \(6, 4\)"),
        ((targets, known[:, :1]), r"known is torch.uint8 of shape \(6, 1\)"),
        ((targets.numpy(),), "targets must be a torch.Tensor, not ndarray"),
        ((targets, known.tolist()), "known must be a torch.Tensor, not list"),
    ):
        with pytest.raises(UserError, match=sentence):
            Labels.of(*wrong)


def of_each_dense(rows: list[int], most: int, positives: Tensor) -> list[int]:
    """`_one_of_each` on dense tables, class by class."""
    shown = positives[rows].bool()
    numbers = shown.sum(0)
    order = numbers.argsort(stable=True)
    ranked = shown[:, order].byte()
    alone = ranked * (ranked.cumsum(1) == 1)
    covered, drawn = numbers == 0, []
    for place, column in enumerate(order.tolist()):
        if not covered[column] and len(drawn) < most:
            best = alone[:, place] if alone[:, place].any() else ranked[:, place]
            drawn.append(int(best.argmax()))
            covered |= shown[drawn[-1]]
    return [rows[place] for place in drawn]


def test_the_split_shows_every_class_as_it_did_with_dense_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(60):
        n, c, most = (int(each) for each in torch.randint(3, 30, (3,), generator=generator))
        table = draw(trial, n, c, (trial % 10 + 1) / 20)
        rows = torch.randperm(n, generator=generator)[: 1 + trial % n].tolist()
        assert _one_of_each(rows, most, Flags.of(table)) == of_each_dense(rows, most, table)


def test_labels_take_memory_by_their_number_not_by_that_of_the_classes(tmp_path: Path) -> None:
    """300 images with four labels each: 1,200 columns of two bytes, and nine bytes a row and table."""
    sizes = []
    for c in (20, 20_000):
        rows = [f"{n}.jpg,{';'.join(str((n * 4 + k) * 7919 % c) for k in range(4))}" for n in range(300)]
        (tmp_path / "labels.csv").write_text("\n".join(["image,labels", *rows, "300.jpg,?"]))
        [(tmp_path / f"{n}.jpg").touch() for n in range(301)]
        labels = read_table(tmp_path / "labels.csv", classes=[str(k) for k in range(c)]).labels
        tables = labels.targets, labels.known, labels.difficult
        sizes.append([sum(each.nbytes for each in (t.usual, t.starts, t.columns)) for t in tables])
        assert labels.known.in_rows().tolist() == [c] * 300 + [0]
    assert sizes[0] == sizes[1] == [1200 * 2 + 301 + 302 * 8, 301 + 302 * 8, 301 + 302 * 8]


def test_a_damaged_copy_of_a_manifest_is_not_taken(tmp_path: Path) -> None:
    [(tmp_path / name).touch() for name in ("a.jpg", "b.jpg")]
    (tmp_path / "labels.csv").write_text("image,labels\na.jpg,x;y\nb.jpg,?")
    manifest = read_table(tmp_path / "labels.csv")
    back = _unpack(_pack(manifest))
    assert (back.labels.targets.dense().tolist(), back.labels.known.dense().tolist()) == (
        [[1, 1], [0, 0]],
        [[1, 1], [0, 0]],
    )
    good = manifest.labels.targets
    for wrong in ({"starts": good.starts - 1}, {"columns": good.columns + 1}, {"usual": good.usual + 2}):
        bad = replace(manifest, labels=replace(manifest.labels, targets=replace(good, **wrong)))
        with pytest.raises(ValueError, match="labels"):
            _unpack(_pack(bad))


def test_rows_say_the_same_of_classes_in_another_order() -> None:
    """The rows name x and y; a class that they do not name is unknown."""
    rows = [
        Row("a.jpg", ["x"], "first"),
        Row("b.jpg", None, "second"),
        Row("c.jpg", ["y", "x"], "third", unsure=["x"]),
        Row("d.jpg", [], "fourth", unsure=["x", "y"]),
    ]
    file = LabelFile(Path("export.json"))
    assert encode(file, rows) == (("x", "y"), [((0,), (), ()), ((), None, ()), ((1,), (0,), ()), ((), None, ())])
    names, codes = encode(replace(file, classes=["y", "new", "x"]), rows)
    assert names == ("y", "new", "x")
    assert codes == [((2,), (1,), ()), ((), None, ()), ((0,), (1, 2), ()), ((), None, ())]
    codes = encode(replace(file, classes=["y"]), rows)[1]
    assert codes == [((), (), ()), ((), None, ()), ((0,), (), ()), ((), None, ())]


class Written(TorchDispatchMode):
    """Counts the numbers that torch writes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        outputs = found if isinstance(found, tuple | list) else [found]
        self.count += sum(each.numel() for each in outputs if isinstance(each, Tensor))
        return found


def split_work(c: int) -> Callable[[], object]:
    targets, ids = draw(0, 400, c, 4 / c), [str(n) for n in range(400)]
    flags = Flags.of(targets)
    return lambda: make_split(ids, [], labeled=100, validation=50, keep_classes=flags)


def labeler_work(c: int) -> Callable[[], object]:
    counts = torch.full((c,), 5.0).double()
    labeler, weak = PercentMatch(Facts(counts, counts * 20, 100, 1000, 10)), torch.rand(36, c)
    return lambda: labeler(Scores(weak, 400))


def loss_work(c: int) -> Callable[[], object]:
    logits, targets = torch.randn(36, c, requires_grad=True), torch.zeros(36, c)
    return lambda: mean_over_images(asymmetric_loss(logits, targets)).backward()


def score_work(c: int) -> Callable[[], object]:
    return lambda: score(torch.rand(50, c), draw(0, 50, c, 0.1), None, [str(k) for k in range(c)])


def decide_work(c: int) -> Callable[[], object]:
    c = c // 3
    targets, names = draw(0, 20, c, 0.1), [str(k) for k in range(c)]
    logits = torch.randn(20, c, generator=torch.Generator().manual_seed(1)) + targets
    return lambda: decide(logits, targets, torch.ones_like(targets), task="multi-label", class_names=names)


@pytest.mark.parametrize("make", [split_work, labeler_work, loss_work, score_work, decide_work])
def test_no_work_grows_faster_than_the_number_of_classes(
    make: Callable[[int], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten times the classes: torch writes at most ten times as many numbers; a solver in one of its steps."""
    monkeypatch.setattr(deciding, "MOST_STEPS", 1)
    counts = []
    for c in (150, 1500):
        work = make(c)
        with Written() as written:
            work()
        counts.append(written.count)
    assert counts[0] < counts[1] <= 10.1 * counts[0]


def test_scores_and_decisions_do_not_depend_on_how_much_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, known = draw(0, 30, 5, 0.3), draw(1, 30, 5, 0.9)
    logits = torch.randn(30, 5, generator=torch.Generator().manual_seed(2)) + 2 * targets - 1
    whole = score(logits.sigmoid(), targets, known, "abcde").to_dict()
    decided = decide(logits, targets, known, task="multi-label", class_names="abcde")
    monkeypatch.setattr(metrics, "AT_ONCE", 70)
    monkeypatch.setattr(deciding, "AT_ONCE", 70)
    monkeypatch.setattr(deciding, "IN_CACHE", 70)
    pieces = score(logits.sigmoid(), targets, known, "abcde").to_dict()
    assert pieces["mAP"] == pytest.approx(whole["mAP"], abs=1e-12)
    assert pieces["classes"].keys() == whole["classes"].keys()
    again = decide(logits, targets, known, task="multi-label", class_names="abcde")
    assert decided is not None
    assert again is not None
    for name in ("scale", "shift", "thresholds"):
        assert getattr(again[0], name) == pytest.approx(getattr(decided[0], name), rel=1e-4)
    with pytest.raises(UserError, match="3 of 150 predicted probabilities"):
        score(
            logits.sigmoid().index_fill(0, torch.tensor([0]), torch.nan)[:, :5].where(torch.arange(5) < 3, 0.5),
            targets,
            known,
            "abcde",
        )


def test_very_many_classes_are_resampled_less_often() -> None:
    assert [resamples_of(c) for c in (1, 20, 1000, 2000, 5000, 10_000)] == [1000, 1000, 1000, 500, 200, 200]

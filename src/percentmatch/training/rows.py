"""The rows that a run writes to its log."""

import sys

from percentmatch.errors import several
from percentmatch.methods import method_row
from percentmatch.training.finish import score
from percentmatch.training.run import Run

MANY = 1000  # classes; of more, the log tells in fewer rows what each does, so that it grows no further


def log_start(run: Run) -> None:
    """The first row; says so where the run can learn less than its settings promise."""
    names, first, total = run.test.class_names, run.method.first_step, run.config.total_steps
    unseen = [name for name, never in zip(names, run.facts.unseen.tolist(), strict=True) if never]
    run.folder.log.append({"step": 0, "kind": "start", "split": run.split.digest, "unseen_classes": unseen})
    if unseen:
        print(f"no labeled image shows {several(unseen)}: never a positive pseudo-label", file=sys.stderr)
    if first >= total:
        options = " or ".join(method_row(run.config.method).warmup_options)
        print(
            f"{run.config.method} learns from unlabeled images after {first:,} steps and the run has {total:,}: "
            f"it never does; lower --option {options}, or raise --total-steps",
            file=sys.stderr,
        )


def log_training(run: Run) -> float:
    """The means since the last row; returns the loss."""
    means = run.meter.read()
    losses = {name: value for name, value in means.items() if not isinstance(value, list)}
    classes = {name: value for name, value in means.items() if isinstance(value, list)}
    rest = run.step // run.config.log_every % -(-run.num_classes // MANY)  # 0 in every row up to MANY classes
    if rest and run.step < run.config.total_steps:
        classes = {}
    row = {"lr": float(run.optimizer.param_groups[0]["lr"]), "loss": sum(losses.values()), **losses, "classes": classes}
    run.folder.log.append({"step": run.step, "kind": "train", **row})
    return row["loss"]


def log_validation(run: Run) -> float | None:
    """The scores of the EMA model on the validation images; returns mAP."""
    table = score(run, run.ema.model, run.validation)
    row = table.to_dict(short=run.num_classes > MANY)
    run.folder.log.append({"step": run.step, "kind": "validation", **row})
    return table.means["mAP"]

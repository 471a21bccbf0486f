"""`percentmatch.fit`: training from Python, with a result that a notebook shows as tables and figures."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from percentmatch.data import Data
from percentmatch.errors import UserError
from percentmatch.report import write_report
from percentmatch.report.markup import Html, join, percent, table, tag
from percentmatch.runs.run_folder import RunFolder
from percentmatch.scoring.table import final_scores
from percentmatch.settings.declare import merge
from percentmatch.training.loggers import Logger
from percentmatch.training.start import ONE_PLAN, train_given

MOST_ROWS = 100  # classes in the table; the report below shows more


class Result(dict[str, Any]):
    """What metrics.json holds, and the run `folder`. A notebook shows it as tables, and the report below them."""

    def __init__(self, metrics: dict[str, Any], folder: Path) -> None:
        super().__init__(metrics)
        self.folder = folder

    def _repr_html_(self) -> str:
        scores = final_scores(self)
        names = list(dict.fromkeys(name for each in scores.values() for name in each.headline()))
        rows = [
            (subset, [*(percent(each.headline().get(name)) for name in names), f"{each.num_images:,}"])
            for subset, each in scores.items()
        ]
        heads = ["subset", *(f"{name}, %" for name in names), "images"]
        parts = [table(f"Scores of {self.folder}", heads, rows, sortable=False)] if rows else []
        for subset, each in list(scores.items())[:1]:
            shown = [*each.classes.items()][:MOST_ROWS]
            cells = [(name, [percent(row.values.get("AP")), f"{row.positives:,}"]) for name, row in shown]
            title = f"Classes on the {subset} images"
            parts.append(table(title, ["class", "AP, %", "images"], cells, sortable=False))
        return join(*parts, self._report())

    def _report(self) -> Html:
        """The page about the run, in a frame of its own."""
        try:
            with tempfile.TemporaryDirectory() as place:
                page = Path(place) / "report.html"
                write_report([self.folder], page, images=False)
                text = page.read_text(encoding="utf-8")
        except (UserError, OSError) as error:  # the folder was moved or changed
            return tag("p", f"The report cannot be shown: {error}")
        return tag("iframe", srcdoc=text, sandbox="allow-scripts", style="width: 100%; height: 45rem; border: 0")


def fit(
    *,
    out: str | Path,
    resume: bool = False,
    minutes: float | None = None,
    data: Data | None = None,
    loggers: Sequence[Logger] = (),
    **settings: Any,
) -> Result:
    """Train on data of your own, such as `labels="labels.csv", images="photos"`, into the run folder `out`.

    `settings` are any of a `Config`; the rest is chosen by the amount of data and the machine, as on the command line,
    and printed; with `minutes`, as many steps as fit into them. Otherwise as `train`. The result holds what
    metrics.json does; a notebook shows it as tables and figures.
    """
    if minutes is not None and "total_steps" in settings:
        raise UserError(ONE_PLAN)
    given = merge(RunFolder(Path(out)).read_to_resume(), settings) if resume else settings
    metrics = train_given(
        given, out, resume=resume, choose_rest=not resume, minutes=minutes, data=data, loggers=loggers
    )
    return Result(metrics, Path(out))

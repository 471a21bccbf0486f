"""A run on the page: what its folder says, what its model says, and how the page calls its classes."""

from dataclasses import dataclass

from percentmatch.report.collect import RunRecord
from percentmatch.report.scoring import ScoredRun


@dataclass(frozen=True)
class Entry:
    """A run on the page."""

    run: RunRecord
    scored: ScoredRun | None
    missing: str | None  # why there are no scores
    class_names: tuple[str, ...]
    class_index: tuple[int, ...]  # numbers of these classes on the page
    key: str  # begins the ids of its elements
    most_points: int  # of a curve
    shown: tuple[int, ...]  # places of the classes that figures and tables show: all, unless there are very many

    @property
    def shown_index(self) -> list[int]:
        return [self.class_index[place] for place in self.shown]

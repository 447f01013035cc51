"""What is known of the trials of a search, and who is told of them. Nothing here needs the library that searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lehr.run_shape import Callback

DONE, FAILED, PRUNED, RUNNING = "done", "failed", "pruned", "running"
ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A trial: its settings, and its score where it has one."""

    number: int
    state: str
    score: float | None
    parameters: Mapping[str, bool | int | float | str]
    note: str = ""
    seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "number": self.number,
            "state": self.state,
            "score": self.score,
            "parameters": dict(self.parameters),
            "note": self.note,
            "seconds": self.seconds,
        }


def best_of(rows: Sequence[Row], *, score: str) -> Row | None:
    """The best of the trials that were scored, the first of equals."""
    scored = [(row.score if score != ACCURACY else -row.score, row) for row in rows if row.score is not None]
    return min(scored, key=lambda pair: pair[0], default=(0.0, None))[1]


def score_in_words(value: float | None, *, score: str) -> str:
    """A score as people read it."""
    if value is None:
        return "–"
    return f"{value:.2%}" if score == ACCURACY else f"{value:.4f}"


class SearchCallback(Callback):
    """Is told how a search goes, and as a callback of every training how the trial goes that is worked on."""

    def began(self, rows: Sequence[Row], *, trials: int, score: str) -> None:
        """Before the first trial, with those that were done before."""

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        """Before a trial."""

    def tried(self, row: Row, rows: Sequence[Row]) -> None:
        """After a trial, with all that there are."""

    def closed(self, rows: Sequence[Row]) -> None:
        """After the last trial, or when the search stops before it."""

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


def best_first(rows: Sequence[Row], *, score: str) -> list[Row]:
    """The best first, and after them those without a score."""
    sign = -1 if score == ACCURACY else 1
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0), row.number))


def best_of(rows: Sequence[Row], *, score: str) -> Row | None:
    """The best of the trials that were scored, the first of equals."""
    return next((row for row in best_first(rows, score=score) if row.score is not None), None)


def score_in_words(value: float | None, *, score: str) -> str:
    """A score as people read it."""
    if value is None:
        return "–"
    return f"{value:.2%}" if score == ACCURACY else f"{value:.4f}"


def setting_in_words(value: object) -> str:
    """A setting as people read it; a number with as many digits as tell it from others."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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

"""The shape of a run on the disk and on the screen: its files, its public rows, and what callbacks are told.

    RUN/
        config.json         everything that was decided before the first step; public
        ledger.db           what was done to the private records
        metrics.jsonl       one ``Evaluation`` a line; public
        checkpoints/        released weights and all that is needed to go on, as safetensors
        model.safetensors   the weights at the end, averaged where that was asked for
        certificate.json    what the model promises
        audit.json          what an attack on the method and the plan has shown; of made-up records alone, public
        report.html         the run as one page
        private/            of mode 0700, for nobody else: the key, the lock, the attempts, the split, the fingerprint
                            of the data, opt-in diagnostics, audits of the records themselves

Everything outside ``private/`` is either public beforehand or was released with noise and charged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.claims import Claim
from lehr.errors import InvalidValue

FORMAT, FORMAT_VERSION = "lehr-run", 1
SECTIONS = ("method", "data", "model", "training")


@dataclass(frozen=True)
class RunFiles:
    """Where the files of a run are."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger.db"

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def model(self) -> Path:
        return self.directory / "model.safetensors"

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.json"

    @property
    def audit(self) -> Path:
        return self.directory / "audit.json"

    @property
    def report(self) -> Path:
        return self.directory / "report.html"

    @property
    def private(self) -> Path:
        return self.directory / "private"

    @property
    def key(self) -> Path:
        return self.private / "key"

    @property
    def lock(self) -> Path:
        return self.private / "lock"

    @property
    def attempts(self) -> Path:
        return self.private / "attempts.jsonl"

    @property
    def fingerprint(self) -> Path:
        return self.private / "fingerprint"

    @property
    def split(self) -> Path:
        return self.private / "split.npy"

    @property
    def diagnostics(self) -> Path:
        return self.private / "diagnostics.jsonl"

    @property
    def private_audit(self) -> Path:
        return self.private / "audit.json"


def config_from_json(shape: object) -> dict[str, Any]:
    """What config.json holds, its sections where they are expected. Further keys are let pass."""
    if not isinstance(shape, dict) or shape.get("format") != FORMAT:
        given = shape.get("format") if isinstance(shape, dict) else type(shape).__name__
        raise InvalidValue("configuration", allowed=f"an object whose format is {FORMAT}", given=given)
    version = shape.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION}; another one needs another Lehr", given=version)
    for name in SECTIONS:
        if not isinstance(shape.get(name), dict):
            raise InvalidValue(name, allowed="an object", given=shape.get(name))
    validate.text(run=shape.get("run"))
    validate.text(method=shape["method"].get("name"))
    return shape


PRIVATE, PUBLIC, SYNTHETIC = DECLARED = ("private", "public", "synthetic")  # what the records of a run are said to be


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What is known before the first step. ``first_step`` is above zero where a run is resumed."""

    run: str
    directory: Path
    method: str
    steps: int
    first_step: int
    expected_batch_size: float
    epsilon: float  # of the whole plan, proven; infinite where a method has no privacy
    delta: float
    published: Claim | None = None  # what the paper's rule says, where the run follows it
    stops_at_accepted: int | None = None
    has_limit: bool = False  # what a step costs follows from what was released, and ``steps`` are never reached
    promises_nothing: str | None = None  # why no run of this kind is ever certified, where that is so


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands after a step. ``step`` counts candidates, accepted or not."""

    step: int
    accepted: int
    epsilon_spent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How the model did after a step, on records that are public or with noise that was charged: a row of metrics.

    Of each class it is told on public records only. The noise multiplier and the clip norm are those of the step, where
    that is known and they are public: no clip norm is told that follows gradients without noise.
    """

    step: int
    accepted: int
    epsilon_spent: float
    loss: float
    accuracy: float
    on: str  # which records: "test", "held-out records, noised (± 0.5%)"
    learning_rate: float
    accuracy_by_class: tuple[float | None, ...] | None = None  # none for a class that no record is of
    noise_multiplier: float | None = None
    clip_norm: float | None = None

    def to_json(self) -> dict[str, object]:
        """The JSON form. Infinity, which JSON has no number for, is a word; what is not known is left out."""
        row: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        row = {name: value for name, value in row.items() if value is not None}
        if self.accuracy_by_class is not None:
            row["accuracy_by_class"] = list(self.accuracy_by_class)
        return row | ({"epsilon_spent": INFINITY} if self.epsilon_spent == math.inf else {})

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The row of a JSON form. Surplus fields are refused, and missing ones that every row has."""
        expected = {field.name for field in fields(cls)}
        if not isinstance(shape, dict) or not expected - set(_OPTIONAL) <= set(shape) <= expected:
            given = sorted(map(str, shape)) if isinstance(shape, dict) else shape
            raise InvalidValue("evaluation", allowed=f"an object with the fields {sorted(expected)}", given=given)
        checked: dict[str, Any] = {name: validate.count(minimum=0, **{name: shape[name]}) for name in _COUNTS}
        checked |= {name: validate.at_least(least, **{name: shape[name]}) for name, least in _AT_LEAST.items()}
        spent = math.inf if shape["epsilon_spent"] == INFINITY else shape["epsilon_spent"]
        if not isinstance(spent, int | float) or not spent >= 0:  # infinity is a legal answer, NaN is not
            raise InvalidValue("epsilon_spent", allowed="a number >= 0 or infinity", given=spent)
        checked |= {name: read(name, shape[name]) for name, read in _OPTIONAL.items() if name in shape}
        return cls(**checked, epsilon_spent=spent, on=validate.text(on=shape["on"]))


INFINITY = "infinity"
_COUNTS = ("step", "accepted")
_AT_LEAST = {"loss": -sys.float_info.max, "accuracy": 0.0, "learning_rate": 0.0}


def _shares(name: str, given: object) -> tuple[float | None, ...]:
    if not isinstance(given, list):
        raise InvalidValue(name, allowed="a list with a number for each class", given=given)
    return tuple(None if share is None else _share(name, share) for share in given)


def _share(name: str, given: object) -> float:
    share = validate.non_negative(**{name: given})
    if not share <= 1:
        raise InvalidValue(name, allowed="numbers in [0, 1]", given=share)
    return share


def _positive(name: str, given: object) -> float:
    return validate.positive(**{name: given})


_OPTIONAL: dict[str, Callable[[str, object], Any]] = {
    "accuracy_by_class": _shares,
    "noise_multiplier": _positive,
    "clip_norm": _positive,
}


COMPLETED = "plan completed"
SPENT = "all that the limit allows is spent"  # of a run whose costs follow what it releases


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a run ended: ``reason`` is ``COMPLETED``, or why it stopped before."""

    step: int
    accepted: int
    epsilon_spent: float
    reason: str


class Callback:
    """Is told how a run goes. It sees public values only: every one is released, or was public before."""

    def started(self, start: Start) -> None:
        """Before the first step."""

    def stepped(self, progress: Progress) -> None:
        """After every step."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """After every evaluation."""

    def ended(self, end: End) -> None:
        """After the last step, or when the run stops before it."""

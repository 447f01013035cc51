"""A run's files, its metrics, and the values that callbacks receive.

    RUN/
        config.json         the settings; public
        ledger.db           the charged events
        metrics.jsonl       one ``Evaluation`` per line; public
        checkpoints/        released weights and the state to resume from, as safetensors
        model.safetensors   the final weights, or their average
        certificate.json    the guarantee
        audit.json          results of attacks on the method and plan with synthetic records; public
        report.html         the run as one page
        private/            mode 0700: key, lock, attempts, split, fingerprint of the data, opt-in diagnostics, audits
                            of the records themselves

Everything outside ``private/`` is public from the start, or was released with noise and charged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.accounting.claims import Claim
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import SECTIONS

FORMAT, FORMAT_VERSION = "lehr-run", 1


class RunFiles:
    """The paths of the files in a run's folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config.json"
        self.ledger = directory / "ledger.db"
        self.metrics = directory / "metrics.jsonl"
        self.checkpoints = directory / "checkpoints"
        self.model = directory / "model.safetensors"
        self.certificate = directory / "certificate.json"
        self.audit = directory / "audit.json"
        self.report = directory / "report.html"
        self.private = directory / "private"
        self.key = self.private / "key"
        self.lock = self.private / "lock"
        self.attempts = self.private / "attempts.jsonl"
        self.fingerprint = self.private / "fingerprint"
        self.split = self.private / "split.npy"
        self.diagnostics = self.private / "diagnostics.jsonl"
        self.private_audit = self.private / "audit.json"


def config_from_json(shape: object) -> dict[str, Any]:
    """Check the content of config.json: its format and its sections. Further keys are allowed."""
    if not isinstance(shape, dict) or shape.get("format") != FORMAT:
        given = shape.get("format") if isinstance(shape, dict) else type(shape).__name__
        raise InvalidValue("configuration", allowed=f"an object whose format is {FORMAT}", given=given)
    version = shape.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION} in this version of Lehr", given=version)
    for name in SECTIONS:
        if not isinstance(shape.get(name), dict):
            raise InvalidValue(name, allowed="an object", given=shape.get(name))
    validate.text(run=shape.get("run"))
    validate.text(method=shape["method"].get("name"))
    return shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The facts known before the first step. ``first_step`` is above zero in a resumed run."""

    run: str
    directory: Path
    method: str
    steps: int
    first_step: int
    expected_batch_size: float
    epsilon: float  # proven ε of the whole plan; infinite without privacy
    delta: float
    published: Claim | None = None  # the claim by the paper's rule, if the run follows it
    stops_at_accepted: int | None = None
    has_limit: bool = False  # costs depend on releases, and ``steps`` is only an upper bound
    promises_nothing: str | None = None  # why runs of this kind are never certified
    ranks: int = 1  # processes that train together


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The progress after a step. ``step`` counts candidates, accepted or not."""

    step: int
    accepted: int
    epsilon_spent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A row of the metrics: the model's score on public records, or with charged noise.

    A regression has no accuracy. There are an accuracy by class and ``metrics``, the user's, on public records only.
    ``clip_norm`` is missing if it depends on un-noised gradients.
    """

    step: int
    accepted: int
    epsilon_spent: float
    loss: float
    accuracy: float | None
    on: str  # which records: "test", "held-out records, noised (± 0.5%)"
    learning_rate: float
    accuracy_by_class: tuple[float | None, ...] | None = None  # None for a class without records
    noise_multiplier: float | None = None
    clip_norm: float | None = None
    metrics: Mapping[str, float | None] | None = None  # None for a value that is not finite

    @property
    def accuracy_text(self) -> str:
        """The accuracy in percent, or a dash for a regression."""
        return "–" if self.accuracy is None else f"{self.accuracy:.2%}"

    @property
    def score(self) -> tuple[str, str]:
        """The name and the text of the main score: the accuracy or, in a regression, the loss."""
        return ("loss", f"{self.loss:.4g}") if self.accuracy is None else ("accuracy", self.accuracy_text)

    def to_json(self) -> dict[str, object]:
        """The JSON form. Infinity is a word, and unknown values are omitted."""
        row: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        row = {name: value for name, value in row.items() if value is not None}
        if self.accuracy_by_class is not None:
            row["accuracy_by_class"] = list(self.accuracy_by_class)
        if self.metrics is not None:
            row["metrics"] = dict(self.metrics)
        return row | ({"epsilon_spent": INFINITY} if self.epsilon_spent == math.inf else {})

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The row of a JSON form. Unknown and missing fields are errors."""
        expected = {field.name for field in fields(cls)}
        optional = {"accuracy", "accuracy_by_class", "noise_multiplier", "clip_norm", "metrics"}
        if not isinstance(shape, dict) or not expected - optional <= set(shape) <= expected:
            given = sorted(map(str, shape)) if isinstance(shape, dict) else shape
            raise InvalidValue("evaluation", allowed=f"an object with the fields {sorted(expected)}", given=given)
        spent = math.inf if shape["epsilon_spent"] == INFINITY else shape["epsilon_spent"]
        if not isinstance(spent, int | float) or not spent >= 0:  # infinity is allowed, NaN is not
            raise InvalidValue("epsilon_spent", allowed="a number >= 0 or infinity", given=spent)
        found: dict[str, Any] = {
            name: validate.positive(**{name: shape[name]})
            for name in ("noise_multiplier", "clip_norm")
            if name in shape
        }
        if "accuracy_by_class" in shape:
            classes = shape["accuracy_by_class"]
            if not isinstance(classes, list):
                raise InvalidValue("accuracy_by_class", allowed="a list with a number for each class", given=classes)
            found["accuracy_by_class"] = tuple(
                None if share is None else _fraction(accuracy_by_class=share) for share in classes
            )
        if "metrics" in shape:
            metrics = strict_json.check_object("metrics", shape["metrics"])
            found["metrics"] = {
                name: None if value is None else validate.finite(metrics=value) for name, value in metrics.items()
            }
        return cls(
            step=validate.count(minimum=0, step=shape["step"]),
            accepted=validate.count(minimum=0, accepted=shape["accepted"]),
            epsilon_spent=spent,
            loss=validate.finite(loss=shape["loss"]),
            accuracy=validate.non_negative(accuracy=shape["accuracy"]) if "accuracy" in shape else None,
            on=validate.text(on=shape["on"]),
            learning_rate=validate.non_negative(learning_rate=shape["learning_rate"]),
            **found,
        )


INFINITY = "infinity"


def _fraction(**named: object) -> float:
    share = validate.non_negative(**named)
    if not share <= 1:
        raise InvalidValue(*named, allowed="numbers in [0, 1]", given=share)
    return share


COMPLETED = "plan completed"
INTERRUPTED = "interrupted"
SPENT = "the limit is reached"  # in a run whose costs depend on its releases


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a run ended. ``reason`` is ``COMPLETED``, or why it stopped early."""

    step: int
    accepted: int
    epsilon_spent: float
    reason: str


class Callback:
    """Override these methods to follow a run. They receive public values only."""

    def started(self, start: Start) -> None:
        """Before the first step."""

    def stepped(self, progress: Progress) -> None:
        """After every step."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """After every evaluation."""

    def ended(self, end: End) -> None:
        """After the last step, or when the run stops before it."""

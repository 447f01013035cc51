"""A job: one training run of a table, or one measurement, in public words that decide it. Its key is that of its words.

Two jobs of the same words are one job: a table that was begun goes on where it was, and tables share what they can.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import Any, Literal, TypeAlias

from lehr import validate
from lehr.errors import InvalidValue

ScoredOn: TypeAlias = Literal["all", "half", "seen"]
_PRESETS = "lehr.papers."  # a measurement is a function of this package, whatever a file says


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run. The seed decides the first weights; draws and noise are fresh in every run.

    ``scored_on`` says which test records count: "all" of them; "half", where the other half is what acceptance looks
    at; or "seen", all of them although acceptance looked at them, which is how SA-DPSGD's paper scores itself and is
    not a fair score. ``steps`` are candidates; with published accounting they are accepted ones.
    """

    data: str
    network: tuple[str, Mapping[str, Any]]
    method: str
    seed: int
    expected_batch_size: float
    steps: int
    noise_multiplier: float | None = None  # none for a method without noise
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method
    delta: float = 1e-5
    scored_on: ScoredOn = "all"
    evaluate_every: int | None = None  # steps; otherwise at the end alone
    is_plain: bool = False  # inputs are pixels in [0, 1], not standardised
    averaging: Mapping[str, Any] | None = None
    augmentation: str = "none"
    views: int = 1
    precision: str = "as_model"
    private_pca: Mapping[str, Any] | None = None
    physical_batch: int | None = None
    simulated_batch_size: float | None = None  # stands in for the expected one: nobody is protected
    records: int | None = None  # only so many of the training records, the first ones
    pretrained: Mapping[str, Any] | None = None  # a part with weights from public records: lehr.papers.pretrained

    def __post_init__(self) -> None:
        validate.count(minimum=0, seed=self.seed)
        validate.one_of(("all", "half", "seen"), scored_on=self.scored_on)

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults, so that a new field changes no key."""
        said = {"kind": "training", **asdict(self)}
        defaults = {each.name: each.default for each in fields(self)}
        return _plain({name: value for name, value in said.items() if value != defaults.get(name, ...) and value != {}})


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Whatever is no training run: a function of a preset's file, and its arguments. It returns a JSON object.

    One that takes times runs by itself, with no other job beside it.
    """

    function: str  # such as "adadp:time_of_a_step"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    takes_times: bool = False  # not among the words: it decides when the job is run, not what it gives

    def to_json(self) -> dict[str, Any]:
        return _plain({"kind": "measurement", "function": self.function, "arguments": dict(self.arguments)})

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        """What it gives, on a device."""
        module, _, name = self.function.partition(":")
        if not (module.isidentifier() and name.isidentifier()):
            raise InvalidValue("function", allowed="a file of lehr.papers and a function in it", given=self.function)
        found = getattr(import_module(_PRESETS + module), name)
        result: dict[str, Any] = found(device=device, data_dir=data_dir, **self.arguments)
        return result


Job: TypeAlias = "Training | Measurement"


def key_of(job: Job) -> str:
    """What its result is kept by."""
    return key_of_words(job.to_json())


def key_of_words(words: Mapping[str, Any]) -> str:
    """The same from the JSON form of a job."""
    said = json.dumps(words, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _plain(said: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, where tuples are lists; and a batch of 512.0 is one of 512."""
    found: dict[str, Any] = json.loads(json.dumps(said, allow_nan=False), parse_float=_shortest)
    return found


def _shortest(number: str) -> float | int:
    value = float(number)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value

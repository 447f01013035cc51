"""The public content of a run's folder: what was planned, what was charged, how the model did. No file is changed.

The run may be training meanwhile: what is read is what was on the disk at some moment. Its last row of metrics may then
be half written, as after a crash, and is left out; a row that is broken elsewhere is an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

from lehr import accounting
from lehr.accounting.claims import Claim
from lehr.accounting.events import NOTHING, Adjacency, Event, NonPrivate, counted
from lehr.accounting.ledger import Ledger
from lehr.auditing import Audit
from lehr.auditing import audit as auditing
from lehr.certificates.certificate import Certificate, read_certificate
from lehr.certificates.guarantee import claim_from_json, why_no_guarantee
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import strict_json
from lehr.planning import search_cost
from lehr.planning.plan import PRIVATE, Plan
from lehr.planning.search_cost import SearchPrice
from lehr.run import shape
from lehr.run.shape import Evaluation, RunFiles


class State(Enum):
    """How far a run has come."""

    GOING_ON = "still running, or interrupted"
    STOPPED = "stopped before the plan's end"
    ACCEPTED = "finished: enough candidates were accepted"
    SPENT = "finished, within the privacy that was allowed"
    COMPLETED = "finished: the plan was completed"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What the public files of a run say. ``plan`` is None where the method has no privacy.

    ``planned`` is all that the run may do to the records: the steps of the plan, and noised evaluations beside them.
    """

    directory: Path
    config: Mapping[str, Any]
    plan: Plan | None
    planned: Event
    evaluations: tuple[Evaluation, ...]
    certificate: Certificate | None
    charged: Event
    accepted: int
    state: State
    audit: Audit | None = None  # of made-up records; one of the records themselves is not public
    steps_noted: int = 0  # by the ledger, which one that is written by hand need not do
    minutes: int | None = None  # from the first charge to the last line of the ledger, pauses included

    @property
    def run(self) -> str:
        """The name of the run."""
        return str(self.config["run"])

    @property
    def method(self) -> str:
        """The name of the method."""
        return str(self.config["method"]["name"])

    @property
    def proven(self) -> Claim | None:
        """What holds for all that was planned; infinite where nothing does, and None where nothing was planned."""
        return None if self.plan is None else _claim(self.counted_for, self.plan.delta, self.plan.adjacency)

    @property
    def trial_of(self) -> SearchPrice | None:
        """The search on private records that the run was a trial of."""
        return _trial_of(self.config)

    @property
    def counted_for(self) -> Event:
        """All that stands behind the model: what was planned, and the other trials where it was chosen among some."""
        return self.planned if self.trial_of is None else self.trial_of.event(self.planned)

    @property
    def published(self) -> Claim | None:
        """What the paper's rule says, where the run follows it."""
        return _published(self.config)

    @property
    def is_private(self) -> bool:
        """Whether anything is promised to anybody."""
        plan, proven = self.plan, self.proven
        if plan is None or proven is None or self.promises_nothing is not None:
            return False
        return plan.noise_multiplier > 0 and math.isfinite(proven.epsilon)

    @property
    def promises_nothing(self) -> str | None:
        """Why no run of this kind is ever certified, where that is so."""
        declared = self.config["data"].get("declared", PRIVATE)
        return None if self.plan is None else why_no_guarantee(self.plan, declared=str(declared))

    @property
    def no_privacy_because(self) -> str:
        """Why nothing is promised, where that is so."""
        if self.promises_nothing is not None:
            return self.promises_nothing
        reasons = dict.fromkeys(atom.reason for atom in counted(self.planned) if isinstance(atom, NonPrivate))
        has_noise = self.plan is not None and self.plan.noise_multiplier > 0
        without = "its noise is not enough for any ε" if has_noise else "it was trained without noise"
        return "; ".join(reasons) or without

    @property
    def steps_charged(self) -> int:
        """The steps of the plan that were charged, accepted or not."""
        if self.plan is None:
            return max((row.step for row in self.evaluations), default=0)
        step = self.plan.step_event
        return self.steps_noted or sum(count for atom, count in counted(self.charged).items() if atom == step)

    @property
    def last(self) -> Evaluation | None:
        """The last evaluation."""
        return self.evaluations[-1] if self.evaluations else None


def read_run(directory: str | os.PathLike[str]) -> RunRecord:
    """What is in a run's directory. ``StoreError`` where it is none, or where a file of it cannot be understood."""
    files = RunFiles(Path(directory))
    if not files.config.is_file():
        raise StoreError(f"cannot use {directory}: it is not the directory of a run (there is no {files.config.name})")
    config = strict_json.read(files.config, config_from_json)
    plan = None if config["plan"] is None else Plan.from_json(config["plan"])
    planned: Event = NOTHING if plan is None else plan.event
    charged: Event = NOTHING
    accepted, noted, minutes = 0, 0, None
    if files.ledger.is_file():
        with Ledger.open(files.ledger) as ledger:
            planned, charged, accepted = ledger.plan_event, ledger.charged(), ledger.accepted_count()
            noted, minutes = ledger.count("steps"), _minutes([entry.at for entry in ledger.entries()])
    state = State.STOPPED
    if not files.model.is_file():
        state = State.GOING_ON
    elif counted(charged) == counted(planned):
        state = State.COMPLETED
    elif plan is not None and plan.limit is not None:  # how many steps it admits is not known beforehand
        state = State.SPENT
    elif plan is not None and plan.stops_at_accepted is not None and accepted >= plan.stops_at_accepted:
        state = State.ACCEPTED
    return RunRecord(
        directory=files.directory,
        config=config,
        plan=plan,
        planned=planned,
        evaluations=read_evaluations(files.metrics),
        certificate=read_certificate(files.certificate) if files.certificate.is_file() else None,
        charged=charged,
        accepted=accepted,
        audit=strict_json.read(files.audit, _public_audit) if files.audit.is_file() else None,
        state=state,
        steps_noted=noted,
        minutes=minutes,
    )


def config_from_json(value: object) -> dict[str, Any]:
    """The configuration of a run, with a plan that can be counted where it has one."""
    config = shape.config_from_json(value)
    if config.setdefault("stated", None) is None:
        config["stated"] = {}
    if not isinstance(config["stated"], dict):
        raise InvalidValue("stated", allowed="an object", given=config["stated"])
    if config.setdefault("plan", None) is not None:
        Plan.from_json(config["plan"])
    _published(config)
    _trial_of(config)
    return config


def _public_audit(shape: object) -> Audit:
    audit = auditing.from_json(shape)
    if audit.is_private:
        raise InvalidValue("audit", allowed="one of made-up records: this one is private, and was put here", given=True)
    return audit


def _minutes(times: Sequence[str]) -> int | None:
    """Between the first and the last of them. A ledger tells them to the minute, and they are public as such."""
    if not times:
        return None
    first, last = (datetime.fromisoformat(at) for at in (times[0], times[-1]))
    return max(0, round((last - first).total_seconds() / 60))


@lru_cache(maxsize=16)  # counting takes its time, and a page, a card and a release ask for the same
def _claim(event: Event, delta: float, adjacency: Adjacency) -> Claim:
    return accounting.claim(event, delta=delta, adjacency=adjacency)


def _published(config: Mapping[str, Any]) -> Claim | None:
    claims = config.get("claims") or {}
    if not isinstance(claims, Mapping):
        raise InvalidValue("claims", allowed="an object", given=claims)
    shape = claims.get("published")
    return None if shape is None else claim_from_json("published", shape)


def _trial_of(config: Mapping[str, Any]) -> SearchPrice | None:
    shape = config.get("trial_of")
    return None if shape is None else search_cost.from_json(shape)


def read_evaluations(path: Path) -> tuple[Evaluation, ...]:
    """The rows of metrics by their steps; one that is half written is left out."""
    rows: dict[tuple[int, str], Evaluation] = {}
    for number, line in enumerate(strict_json.read_lines(path), start=1):
        try:
            row = Evaluation.from_json(line)
        except InvalidValue as error:
            raise DamagedFile(f"line {number} of {path} cannot be understood: {error}") from error
        rows[row.step, row.on] = row  # a resumed run writes some rows again
    return tuple(sorted(rows.values(), key=lambda row: row.step))

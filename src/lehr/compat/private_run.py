"""A private run whose loop is somebody else's: planned and reserved before it, charged during it, certified after it.

The folder is that of any run (``lehr.run_shape``), so that reports, certificates and releases know it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor, nn, optim

import lehr
from lehr import accounting, validate
from lehr.append_only import a_name
from lehr.attempts import Allowance, Charges, going_on
from lehr.claims import Claim
from lehr.clipping.flat import FlatClip
from lehr.compat.hooked_steps import DrawnBatches, Draws, HookedSteps
from lehr.data.checking import check_count
from lehr.errors import InvalidValue
from lehr.events import NOTHING
from lehr.gradients.hooked import HookedEngine
from lehr.interfaces import Clipping
from lehr.mechanism import Mechanism, Method
from lehr.noise.isotropic import IsotropicNoise
from lehr.planning.plan import Plan
from lehr.reports import run_claims
from lehr.reports.certificate import Certificate, Statements
from lehr.reports.promising import check_delta
from lehr.rng import RunKey
from lehr.run_folder import RunFolder
from lehr.run_shape import FORMAT, FORMAT_VERSION, PRIVATE
from lehr.schedules import CONSTANT, Schedule
from lehr.training import describing, ending, paying
from lehr.training.public_plan import plan_for

REPLAYED = "a step that is taken again in another program's loop is never the same to the bit"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is promised and how, in the same words at every door. All of it is public.

    ``records`` is the number of records as you state it; the length of a data set is private. Where ``epsilon`` is
    given, the noise is found; otherwise ``noise_multiplier`` is given. A folder is made where ``directory`` says, or
    below ``runs``; there is a certificate where ``settings_chosen_on`` says how the settings were chosen.
    """

    delta: float
    records: int
    epsilon: float | None = None
    noise_multiplier: float | None = None
    expected_batch_size: float | None = None
    clip_norm: float = 1.0
    clipping: Clipping | None = None
    physical_batch: int | None = None
    directory: str | Path | None = None
    name: str = "private run"
    data_name: str = "unnamed"
    settings_chosen_on: str | None = None
    stated: Statements | None = None
    budget: str | Path | None = None
    treated_as_public: tuple[str, ...] = ()  # besides the number of records

    def __post_init__(self) -> None:
        validate.count(records=self.records)
        validate.delta(delta=self.delta)
        a_name(name=self.name)
        if (self.epsilon is None) == (self.noise_multiplier is None):
            given = f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier}"
            raise InvalidValue("epsilon", allowed="given, or noise_multiplier in its place", given=given)
        if self.stated is not None and self.settings_chosen_on is not None:
            raise InvalidValue("settings_chosen_on", allowed="left out beside stated", given=self.settings_chosen_on)
        check_delta(self.delta, records=self.records, is_certified=self.statements() is not None)

    @property
    def batch(self) -> float:
        """The expected batch size: 4·√records where none is given."""
        found = self.expected_batch_size
        return float(min(self.records, round(4 * math.sqrt(self.records)))) if found is None else found

    @property
    def steps_per_pass(self) -> int:
        """The steps of one pass over the stated number of records."""
        return max(1, math.ceil(self.records / validate.positive(expected_batch_size=self.batch)))

    @property
    def where(self) -> Path:
        """The folder of the run."""
        if self.directory is not None:
            return Path(self.directory)
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        return Path("runs") / f"{moment}-{self.name.replace(' ', '-').replace('/', '-')}"

    def plan(self, *, steps: int) -> Plan:
        """The plan of so many steps."""
        return plan_for(
            records=self.records,
            delta=self.delta,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.batch,
            steps=steps,
        )

    def statements(self) -> Statements | None:
        """What a certificate passes on; nothing where nobody said how the settings were chosen."""
        if self.settings_chosen_on is None:
            return None if self.stated is None else self.stated.of_records(self.records)
        return Statements(
            settings_chosen_on=self.settings_chosen_on,
            records=self.records,
            treated_as_public=("the number of records", *self.treated_as_public),
        )


@dataclass(frozen=True, kw_only=True)
class LoopsOptimizer:
    """The optimizer of a loop that is not Lehr's: it is described, and built by whoever has it."""

    described: str
    schedule: Schedule = CONSTANT

    def build(self, parameters: list[nn.Parameter]) -> NoReturn:
        """It is there already."""
        raise InvalidValue("update", allowed="one that Lehr builds", given=self.described)

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {"custom": self.described}


class PrivateRun:
    """An open run: ``steps`` does the private half of each step, and this pays for it."""

    def __init__(
        self,
        terms: Terms,
        *,
        model: nn.Module,
        optimizer: optim.Optimizer,
        door: str,
        steps: int,
        num_held: int,
        resumed_at: int | None = None,
        loss_reduction: str = "mean",
        num_passes: int = 1,
    ) -> None:
        """``steps`` are all that the plan has; ``resumed_at`` is the step of the checkpoint that the loop goes on from.

        Where a run goes on, every further step is charged: a loop that is not Lehr's never repeats itself to the bit.
        """
        check_count(stated=terms.records, held=num_held)
        self.terms, self.plan, self.model, self._door = terms, terms.plan(steps=steps), model, door
        self._optimizer = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        self.allowance = Allowance(plan=self.plan)
        mechanism = Mechanism.of(self.method, self.plan)
        engine = HookedEngine(model, loss_reduction=loss_reduction, num_passes=num_passes)
        self._curve = self.plan.curve()
        self._may_be_removed = resumed_at is None
        self.folder = self._begun(num_held) if resumed_at is None else self._gone_on_with(num_held)
        try:
            self._charges = self._charges_from(resumed_at or 0)
        except BaseException:
            self.folder.close()
            raise
        draws = Draws(
            mechanism=mechanism,
            key=self.folder.key,
            attempt=self._attempt,
            num_held=num_held,
            physical_batch=terms.physical_batch or max(1, math.ceil(terms.batch)),
        )
        self.steps = HookedSteps(engine, model, mechanism, pays=self, draws=draws, first_step=resumed_at or 0)

    @property
    def method(self) -> Method:
        """What a step does: the clip and the noise are Lehr's, the update is the loop's own."""
        return Method(
            name="dpsgd",
            clipping=self.terms.clipping or FlatClip(self.terms.clip_norm),
            noise=IsotropicNoise(),
            update=LoopsOptimizer(described=self._optimizer),
        )

    @property
    def last_step(self) -> int:
        """Where the plan ends. A run that went on has spent some of it on steps that it took again."""
        return self._charges.last_step

    @property
    def is_over(self) -> bool:
        """Whether the plan has no step left."""
        return self.steps.step >= self.last_step

    @property
    def epsilon_spent(self) -> float:
        """ε of everything that is charged so far; a few steps are charged at once."""
        return self._curve.at(self.folder.ledger.count("steps"))

    @cached_property
    def proven_claim(self) -> Claim:
        """What holds for all that the plan allows."""
        return accounting.claim(self.allowance.event, delta=self.plan.delta, adjacency=self.plan.adjacency)

    def batches(self) -> DrawnBatches:
        """For a loader: the physical batches of one pass, from where the run stands."""
        return DrawnBatches(
            self.steps.draws,
            next_step=lambda: self.steps.step,
            last_step=self.last_step,
            steps=self.terms.steps_per_pass,
        )

    def pay(self, step: int) -> int:
        """Charge the step; when this returns, that is on the disk."""
        if not step < self.last_step:
            raise InvalidValue("step", allowed=f"below {self.last_step}, where the plan ends", given=step)
        self._charges.charge_until(step)
        return self._charges.planned(step)

    def end(self, weights: Mapping[str, Tensor]) -> Certificate | None:
        """Close the ledger, and leave weights, a certificate where one can be given, and a page."""
        terms, stated = self.terms, self.terms.statements()
        self._may_be_removed = False
        ending.close_ledger(self.folder.ledger, accepted=self.steps.step)
        shared = None if terms.budget is None else paying.settled(Path(terms.budget), self.folder.ledger)
        certificate = None
        if stated is not None:
            charged = self.folder.ledger.charged()
            certificate = ending.certificate_for(self.allowance, self.plan, stated, charged=charged, shared=shared)
        ending.write(self.folder, dict(weights), certificate)
        return certificate

    def close(self) -> None:
        """Let others have the folder. Without ``end`` the run can go on later.

        One that began here and never charged a step, as where its first batch is refused, leaves nothing: its folder is
        gone, and the budget has back what was set aside. Its name stays taken there.
        """
        with self.folder:
            if not self._may_be_removed or self.folder.ledger.charged() != NOTHING:
                return
            if self.terms.budget is not None:
                paying.settled(Path(self.terms.budget), self.folder.ledger)  # which no step can be charged to any more
            self.folder.remove()

    def _charges_from(self, first_step: int) -> Charges:
        attempt = going_on(
            self.folder.files.attempts,
            first_step=first_step,
            of_checkpoint=None,
            ledger=self.folder.ledger,
            environment=None,
        )
        self._attempt = attempt.number
        return Charges(self.folder.ledger, self.allowance, attempt)

    def _begun(self, num_held: int) -> RunFolder:
        folder = RunFolder.create(
            self.terms.where,
            config=self._config(),
            key=RunKey.fresh(),
            plan_event=self.allowance.event,
            delta=self.plan.delta,
            adjacency=self.plan.adjacency,
            fingerprint=_fingerprint(num_held),
        )
        budget = None if self.terms.budget is None else Path(self.terms.budget)
        return paying.reserved(budget, folder)

    def _gone_on_with(self, num_held: int) -> RunFolder:
        if self.terms.directory is None:
            raise InvalidValue("directory", allowed="that of the run that goes on", given=None)
        folder = RunFolder.open(Path(self.terms.directory))
        try:
            folder.refuse_other(config=self._config(), fingerprint=_fingerprint(num_held))
            folder.ledger.refuse_other(run=self.terms.name, plan_event=self.allowance.event)
            if self.terms.budget is not None:
                paying.refuse_unpaid(Path(self.terms.budget), folder)
        except BaseException:
            folder.close()
            raise
        return folder

    def _config(self) -> dict[str, Any]:
        terms, stated = self.terms, self.terms.statements()
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": terms.name,
            "library_version": lehr.__version__,
            "created_on": datetime.now(UTC).date().isoformat(),
            "method": describing.method_words(self.method),
            "plan": self.plan.to_json(),
            "claims": {"proven": run_claims.to_json(self.proven_claim), "published": None},
            "data": {
                "name": terms.data_name,
                "is_known": False,
                "declared": PRIVATE,
                "records": terms.records,
                "shape": [],  # what a record looks like is the loop's own
            },
            "model": _model_words(self.model),
            "training": {"door": self._door},
            "stated": None if stated is None else {**asdict(stated), **_lists(stated)},
            "budget": None if terms.budget is None else paying.dataset_of(Path(terms.budget)),
            "trial_of": None,
        }


def _model_words(model: nn.Module) -> dict[str, Any]:
    words = describing.model_words(model, "the loop's own", None, {})  # type: ignore[arg-type]
    return {**words, "loss": "the loop's own"}


def _lists(stated: Statements) -> dict[str, list[str]]:
    """As they will be read back."""
    return {"treated_as_public": list(stated.treated_as_public), "released": list(stated.released)}


def _fingerprint(num_held: int) -> Any:
    """Of the number of records alone, under the key: a run that goes on draws anew, whatever the records are."""
    return lambda key: key.fingerprint(str(num_held).encode())

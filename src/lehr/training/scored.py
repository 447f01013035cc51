"""On which records a run is scored, what that costs, and which records acceptance looks at instead."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from lehr import validate
from lehr.acceptance.energy import PublicEnergy
from lehr.asking import Judge
from lehr.attempts import Allowance
from lehr.data.split import Split, split
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Event, Repeated, together
from lehr.gradients.batches import LossFn
from lehr.mechanism import Method
from lehr.noise.isotropic import IsotropicNoise
from lehr.planning.plan import Plan
from lehr.rng import RunKey
from lehr.run_folder import RunFolder
from lehr.sampling import adjacency_of
from lehr.schedules import CONSTANT, Schedule
from lehr.scoring import NoisyScore, Prepare, PublicScore, Scorer
from lehr.training import public_plan
from lehr.training.given_records import GivenRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The choice, made from public words and numbers before a record is touched."""

    given: GivenRecords
    method: Method
    held_out_fraction: float
    noise_multiplier: float
    acceptance_fraction: float
    evaluate_every: int | None
    beforehand: Event = NOTHING  # what is done once to the private records, before the first step

    def __post_init__(self) -> None:
        if validate.non_negative(held_out_fraction=self.held_out_fraction):
            validate.delta(held_out_fraction=self.held_out_fraction)
            validate.positive(held_out_noise_multiplier=self.noise_multiplier)
        if self.held_out_fraction and self.given.test is not None:
            allowed = "left out where there are public test records"
            raise InvalidValue("held_out_fraction", allowed=allowed, given=self.held_out_fraction)
        if self.splits_test:
            validate.delta(acceptance_fraction=self.acceptance_fraction)
            if self.given.test is None:
                allowed = f"given, or test records to take a part of: {self.method.name} looks at a public loss"
                raise InvalidValue("public", allowed=allowed, given=None)
        if self.evaluate_every is not None:
            validate.count(evaluate_every=self.evaluate_every)
            if self.on is None:
                allowed = "left out where there are neither test records nor held-out ones"
                raise InvalidValue("evaluate_every", allowed=allowed, given=self.evaluate_every)

    @property
    def is_private(self) -> bool:
        """Whether scores are taken on private records, with noise."""
        return bool(self.held_out_fraction)

    @property
    def needs_public(self) -> bool:
        """Whether acceptance looks at public records."""
        return isinstance(self.method.acceptance.energy, PublicEnergy)

    @property
    def splits_test(self) -> bool:
        """Whether acceptance is given a part of the test records."""
        return self.needs_public and self.given.public is None

    @property
    def on(self) -> str | None:
        """What is scored on, in words."""
        if self.is_private:
            return "a held-out part of the private records, with noise that is charged"
        return None if self.given.test is None else "test records, declared public"

    @property
    def public_records(self) -> str | None:
        """What acceptance looks at, in words."""
        if not self.needs_public:
            return None
        return "a part of the test records, not scored on" if self.splits_test else "public records that were given"

    @property
    def declared_public(self) -> tuple[str, ...]:
        """What the user declared public by handing it over."""
        parts = (("the test records", self.given.test), ("the records given as public", self.given.public))
        return tuple(words for words, part in parts if part is not None)

    @property
    def records_trained_on(self) -> int:
        """The stated number of records without those that are held out."""
        return max(1, round(self.given.records * (1 - self.held_out_fraction)))

    def plan(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        expected_batch_size: float | None = None,
        steps: int | None = None,
        sampling: str = "poisson",
        noise_schedule: Schedule = CONSTANT,
    ) -> Plan:
        """The plan that these numbers give, with all that is done beside its steps."""
        return public_plan.plan_for(
            records=self.records_trained_on,
            delta=delta,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            steps=steps,
            adjacency=adjacency_of(sampling),
            beside=self.event_beside(steps),
            noise_schedule=noise_schedule,
            method=self.method,
        )

    def event_beside(self, steps: int | None) -> Event:
        """All that is done to private records beside the steps."""
        return together(self.beforehand, self._scores_beside(steps))

    def _scores_beside(self, steps: int | None) -> Event:
        """Where the steps are still to be found, the number of scores is fixed."""
        if not self.is_private:
            return NOTHING
        if steps is None and self.evaluate_every is not None:
            allowed = "left out where steps is and scores are charged"
            raise InvalidValue("evaluate_every", allowed=allowed, given=self.evaluate_every)
        if steps is None:
            return Repeated(self._score_event, public_plan.EVALUATIONS)
        every = self.evaluate_every or public_plan.evaluate_every(steps)
        return Repeated(self._score_event, math.ceil(steps / every))

    def allowance(self, plan: Plan) -> Allowance:
        """The steps of the plan with the scores in between."""
        every = self.evaluate_every or public_plan.evaluate_every(public_plan.expected_steps(plan))
        return Allowance(
            plan=plan,
            beforehand=self.beforehand,
            score_event=self._score_event if self.is_private else NOTHING,
            evaluate_every=None if self.on is None else every,
        )

    def to_json(self) -> dict[str, object]:
        """What is written down."""
        return {
            "acceptance_fraction": self.acceptance_fraction if self.splits_test else None,
            "held_out_fraction": self.held_out_fraction,
            "held_out_noise_multiplier": self.noise_multiplier if self.is_private else None,
        }

    def split(self, key: RunKey) -> Split | None:
        """Who is held out, or which test records are for acceptance; refused where nobody is left in a part."""
        if self.is_private:
            found = split(self.given.private, key=key, test_fraction=self.held_out_fraction)
            _refuse_empty(found.private, found.test, held_out_fraction=self.held_out_fraction)
            return found
        if self.splits_test and self.given.test is not None:
            found = split(self.given.test, key=key, public_fraction=self.acceptance_fraction)
            _refuse_empty(found.private, found.public, acceptance_fraction=self.acceptance_fraction)
            return found
        return None

    def kept_split(self, folder: RunFolder) -> Split | None:
        """Who is in which part, kept with the run; none where there is one part alone."""
        if not folder.files.split.exists():
            made = self.split(folder.key)
            if made is None:
                return None
            unfinished = folder.files.split.with_name("split.part")
            unfinished.unlink(missing_ok=True)  # of a run that was killed while it wrote
            made.save(unfinished)
            unfinished.replace(folder.files.split)
        return Split.load(folder.files.split)

    def divided(self, kept: Split) -> GivenRecords:
        """The records, each in its part."""
        return self.given.with_held_out(kept) if self.is_private else self.given.with_acceptance(kept)

    def scorer(self, parts: GivenRecords, loss_fn: LossFn, prepare: Prepare) -> Scorer | None:
        """What scores the run."""
        if parts.held_out is not None:
            return NoisyScore(
                records=parts.held_out,
                loss_fn=loss_fn,
                prepare=prepare,
                noise_multiplier=self.noise_multiplier,
                stated_records=self.given.records * self.held_out_fraction,
            )
        if parts.test is None:
            return None
        return PublicScore(records=parts.test, loss_fn=loss_fn, prepare=prepare, tells_classes=True)

    def judge(
        self, parts: GivenRecords, model: nn.Module, loss_fn: LossFn, prepare: Prepare, plan: Plan
    ) -> Judge | None:
        """What answers acceptance, if it asks."""
        energy = self.method.acceptance.energy
        if energy is None:
            return None
        public = None
        if self.needs_public and parts.public is not None:
            public = PublicScore(records=parts.public, loss_fn=loss_fn, prepare=prepare, on="public")
        return Judge(
            energy=energy,
            plan=plan,
            model=model,
            loss_fn=loss_fn,
            prepare=prepare,
            private=parts.private,
            public=public,
        )

    @property
    def _score_event(self) -> Event:
        return IsotropicNoise().event(self.noise_multiplier)


def _refuse_empty(*parts: Tensor, **fraction: float) -> None:
    [(name, given)] = fraction.items()
    if not all(map(len, parts)):
        raise InvalidValue(name, allowed="one that leaves somebody in both parts of so few records", given=given)

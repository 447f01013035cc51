"""How a run is evaluated, what that costs, and which records acceptance uses instead."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from lehr import validate
from lehr.acceptance.proposal import PublicEnergy
from lehr.accounting.events import NOTHING, Event, Repeated, together
from lehr.config import REGRESSION, TrainingConfig
from lehr.data.split import Split, split
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.planning.plan import Plan
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import LARGEST_LOSS, Metrics, NoisyScore, Prepare, PublicScore, Scorer
from lehr.run.folder import RunFolder
from lehr.run.loss_oracle import LossOracle
from lehr.run.mechanism import Method
from lehr.run.replay import RunPlan
from lehr.training import public_plan
from lehr.training.records import RunRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationPlan:
    """Decided from public values, before any record is used."""

    records: RunRecords
    method: Method
    training: TrainingConfig
    setup_event: Event = NOTHING  # done once to the private records, before the first step
    metrics: Metrics = field(default_factory=dict)  # computed on public test records

    def __post_init__(self) -> None:
        if self.training.held_out_fraction:
            validate.delta(held_out_fraction=self.training.held_out_fraction)
        if self.training.held_out_fraction and self.records.test is not None:
            allowed = "omitted with public test records"
            raise InvalidValue("held_out_fraction", allowed=allowed, given=self.training.held_out_fraction)
        if self.training.held_out_fraction and self.records.task == REGRESSION and self.training.largest_loss is None:
            allowed = "given for held-out records: the noise needs a bound, and a squared error has none"
            raise InvalidValue("largest_loss", allowed=allowed, given=None)
        if self.metrics and self.records.test is None:
            allowed = "omitted without test records: metrics have no noise, so they are for public records only"
            raise InvalidValue("metrics", allowed=allowed, given=sorted(self.metrics))
        if self.splits_test and self.records.test is None:
            allowed = f"given, or test records to split: {self.method.name} uses a public loss"
            raise InvalidValue("public", allowed=allowed, given=None)
        if self.training.evaluate_every is not None and self.on is None:
            allowed = "omitted without test records or held-out records"
            raise InvalidValue("evaluate_every", allowed=allowed, given=self.training.evaluate_every)

    @property
    def is_private(self) -> bool:
        """Whether evaluations use private records, with noise."""
        return bool(self.training.held_out_fraction)

    @property
    def needs_public(self) -> bool:
        """Whether acceptance uses public records."""
        return isinstance(self.method.acceptance.energy, PublicEnergy)

    @property
    def splits_test(self) -> bool:
        """Whether acceptance uses a part of the test records."""
        return self.needs_public and self.records.public is None

    @property
    def on(self) -> str | None:
        """The records used for evaluation, in words."""
        if self.is_private:
            return "a held-out part of the private records, with noise that is charged"
        return None if self.records.test is None else "test records, declared public"

    @property
    def public_records(self) -> str | None:
        """The records used for acceptance, in words."""
        if not self.needs_public:
            return None
        return "a part of the test records, not used for evaluation" if self.splits_test else "the given public records"

    @property
    def declared_public(self) -> tuple[str, ...]:
        """What the user has declared public."""
        parts = (("the test records", self.records.test), ("the records given as public", self.records.public))
        return tuple(words for words, part in parts if part is not None)

    @property
    def records_trained_on(self) -> int:
        """The stated number of records, less those held out."""
        return max(1, round(self.records.records * (1 - self.training.held_out_fraction)))

    def side_events(self, steps: int | None) -> Event:
        """Everything done to private records besides the steps. If ``steps`` is unknown, the evaluations are fixed."""
        every = self.training.evaluate_every
        if not self.is_private:
            return self.setup_event
        if steps is None and every is not None:
            raise InvalidValue(
                "evaluate_every", allowed="omitted together with steps if scores are charged", given=every
            )
        number = public_plan.EVALUATIONS
        if steps is not None:
            number = math.ceil(steps / (every or public_plan.evaluate_every(steps)))
        return together(self.setup_event, Repeated(self._score_event, number))

    def run_plan(self, plan: Plan) -> RunPlan:
        """The plan with its evaluations."""
        every = self.training.evaluate_every or public_plan.evaluate_every(public_plan.expected_steps(plan))
        return RunPlan(
            plan=plan,
            setup_event=self.setup_event,
            score_event=self._score_event if self.is_private else NOTHING,
            evaluate_every=None if self.on is None else every,
        )

    def to_json(self) -> dict[str, object]:
        """What config.json records."""
        return {
            "acceptance_fraction": self.training.acceptance_fraction if self.splits_test else None,
            "held_out_noise_multiplier": self.training.held_out_noise_multiplier if self.is_private else None,
        }

    def split(self, key: RunKey) -> Split | None:
        """Which records are held out, or which test records are for acceptance. An error if a part would be empty."""
        if self.is_private:
            found = split(self.records.private, key=key, test_fraction=self.training.held_out_fraction)
            _refuse_empty(found.private, found.test, held_out_fraction=self.training.held_out_fraction)
            return found
        if self.splits_test and self.records.test is not None:
            found = split(self.records.test, key=key, public_fraction=self.training.acceptance_fraction)
            _refuse_empty(found.private, found.public, acceptance_fraction=self.training.acceptance_fraction)
            return found
        return None

    def kept_split(self, folder: RunFolder) -> Split | None:
        """The split that is stored in the run folder, made on the first call; None if nothing is split."""
        if not folder.files.split.exists():
            made = self.split(folder.key)
            if made is None:
                return None
            unfinished = folder.files.split.with_name("split.part")
            unfinished.unlink(missing_ok=True)  # left by a run that was killed while writing
            made.save(unfinished)
            unfinished.replace(folder.files.split)
        return Split.load(folder.files.split)

    def divided(self, kept: Split) -> RunRecords:
        """The records, split."""
        return self.records.with_held_out(kept) if self.is_private else self.records.with_acceptance(kept)

    def scorer(self, parts: RunRecords, loss_fn: LossFn, prepare: Prepare) -> Scorer | None:
        """The object that evaluates the run."""
        if parts.held_out is not None:
            return NoisyScore(
                records=parts.held_out,
                loss_fn=loss_fn,
                prepare=prepare,
                noise_multiplier=self.training.held_out_noise_multiplier,
                stated_records=self.records.records * self.training.held_out_fraction,
                largest_loss=self.training.largest_loss or LARGEST_LOSS,
                task=self.records.task,
            )
        if parts.test is None:
            return None
        return PublicScore(
            records=parts.test,
            loss_fn=loss_fn,
            prepare=prepare,
            task=self.records.task,
            tells_classes=True,
            metrics=self.metrics,
        )

    def oracle(
        self, parts: RunRecords, model: nn.Module, loss_fn: LossFn, prepare: Prepare, plan: Plan
    ) -> LossOracle | None:
        """The object that answers the queries of acceptance, if it has any."""
        energy = self.method.acceptance.energy
        if energy is None:
            return None
        public = None
        if self.needs_public and parts.public is not None:
            task = self.records.task
            public = PublicScore(records=parts.public, loss_fn=loss_fn, prepare=prepare, on="public", task=task)
        return LossOracle(
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
        return IsotropicNoise().event(self.training.held_out_noise_multiplier)


def _refuse_empty(*parts: Tensor, **fraction: float) -> None:
    [(name, given)] = fraction.items()
    if not all(map(len, parts)):
        raise InvalidValue(name, allowed="one that leaves records in both parts", given=given)

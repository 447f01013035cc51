"""The step attack: canaries in a run of the real loop, and an adversary who sees every released sum.

Each canary is in the data by a coin of its own. The adversary looks at each released sum along the pattern of a canary,
and adds up by how much likelier it is with the canary than without. No other test does better, and with canaries that
saturate the clip it is the very distinction that the accountant bounds: where the accounting is tight, so is the
attack. A run has thousands of canaries, in orthogonal directions, drawn by independent coins and covered by independent
noise: thousands of independent scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lehr import validate
from lehr.acceptance.proposal import PublicEnergy
from lehr.accounting import bound
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.attacks import canaries as planting
from lehr.attacks.canaries import NUM_CLASSES, PRESENT, REPLACED, ZEROED, Canaries, CoordinateCanaries, SignCanaries
from lehr.attacks.harness import (
    check_private_method,
    log_likelihood_ratio,
    observed,
    plan_run,
    train_in_temporary_folder,
)
from lehr.auditing import Audit, Check, Scores, bounds
from lehr.auditing.audit import NOISE_AS_STATED, roc_points
from lehr.auditing.bounds import check_confidence, mu_from_epsilon
from lehr.auditing.scores import pooled
from lehr.auditing.thresholds import Corrected
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import UNCLIPPED_COUNT, PrivateSum, ReleasedSum, Tensors
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Method
from lehr.run.shape import Callback
from lehr.training import engines, public_plan
from lehr.training.ending import Run

DESCRIPTION = (
    "every step: canaries as loud as the clip allows, and every released sum is seen, of rejected candidates too"
)
DRAWN_AS_STATED = "canaries are drawn, and clipped, as is stated"
NUM_CANARIES, FEWEST_CANARIES = 16_384, 64
# Patterns over all coordinates cost as much as there are coordinates: several small runs cost less than a large one.
NUM_PATTERNS = 2_048

_LARGEST_RATE = 0.3
_FEWEST_DRAWS = 200  # of all canaries, for their number to be near to normal
_LARGEST_SPREAD = 1.5  # of a score, in units of its noise, for the same


@dataclass(frozen=True, kw_only=True, eq=False)
class RunScores:
    """The scores of one run by likelihood, and by mean, which is standard normal for canaries that were not there.

    For canaries that were there it has the mean ``member_mean`` and the standard deviation ``member_std``: whether they
    were drawn adds to the noise.
    """

    run: Run
    by_likelihood: Scores
    by_mean: Scores
    member_mean: float
    member_std: float
    steps_seen: int


def attack(
    method: Method,
    plan: Plan,
    *,
    subject: str | None = None,
    num_canaries: int = NUM_CANARIES,
    confidence: float = 0.95,
    keys: Iterator[RunKey] | None = None,
    device: str | torch.device = "cpu",
    callbacks: Sequence[Callback] = (),
) -> Audit:
    """Attack a method under a plan, in as many runs as the canaries need, and compare the result with its proven ε.

    A Gaussian trade-off decides, at four thresholds with correction. The threshold at which both cases are equally
    likely under the claim would need no correction, but would find nothing where the noise is too small. The steps run
    on ``device``. ``keys`` make a test repeatable; otherwise the randomness is fresh.
    """
    check_private_method(method)
    if plan.bands > 1:
        allowed = "1 for this attack, which looks at each step alone"
        raise InvalidValue("bands", allowed=allowed, given=plan.bands)
    check_confidence(confidence=confidence)
    keys = keys or iter(RunKey.fresh, None)
    planted = canaries_for(method, plan, num_canaries=num_canaries)
    # Patterns are a few short of a power of two; a few missing canaries are not worth another run.
    num_runs = max(1, math.ceil(0.99 * num_canaries / planted.num_canaries))
    runs = [
        attack_once(method, plan, canaries=planted, key=next(keys), device=device, callbacks=callbacks)
        for _ in range(num_runs)
    ]
    by_likelihood = pooled([one.by_likelihood for one in runs])
    by_mean = pooled([one.by_mean for one in runs])
    std = max(one.member_std for one in runs)
    stated: dict[str, float] = {"delta": plan.delta, "confidence": confidence}
    return Audit(
        subject=subject or method.name,
        attack=DESCRIPTION,
        claimed_epsilon=runs[0].run.proven.epsilon,
        delta=plan.delta,
        bounds=(
            bounds.gaussian_tradeoff(
                by_likelihood, threshold=Corrected(tried=4), mu_share=_mu_share(plan, num_canaries), **stated
            ),
            bounds.known_variance(by_mean, std=std, **stated),
            bounds.clopper_pearson(by_likelihood, threshold=Corrected(tried=10), **stated),
        ),
        members=len(by_mean.members),
        others=len(by_mean.others),
        runs=num_runs,
        steps=max(one.steps_seen for one in runs),
        roc=roc_points(by_likelihood),
        checks=_checks(runs, plan),
    )


def attack_once(
    method: Method,
    plan: Plan,
    *,
    canaries: Canaries,
    key: RunKey,
    device: str | torch.device = "cpu",
    callbacks: Sequence[Callback] = (),
) -> RunScores:
    """Run the method under the plan once, with canaries in the data."""
    is_present = key.at(0, 0).uniforms("canaries", canaries.num_canaries) < 0.5
    is_replacing = plan.adjacency is Adjacency.REPLACE_ONE
    signs = 2 * is_present.double() - 1 if is_replacing else is_present.double()
    adversary = Adversary(canaries, _clipped_alone(method, canaries), plan, signs)
    records = _records(canaries, is_present, plan.adjacency)
    owners = None
    if plan.records_per_user is not None:  # a canary is a user, who has more such records than enter a step
        owners = torch.arange(len(records)).repeat_interleave(plan.records_per_user + 1)
        records = records.at(owners)
    if plan.max_records_per_user is not None:  # more of them than are to be in the run
        owners = torch.arange(len(records)).repeat_interleave(plan.max_records_per_user + 2)
        records = records.at(owners)
    decided = plan_run(
        canaries.network().to(device),
        records,
        method=observed(method, adversary.observe),
        plan=plan,
        loss_fn=planting.loss,
        num_classes=NUM_CLASSES,
        public=canaries.public() if isinstance(method.acceptance.energy, PublicEnergy) else None,
        physical_batch=_physical_batch(plan, len(records) if owners is None else int(owners.max()) + 1),
        owners=owners,
    )
    run = train_in_temporary_folder(decided, key=key, callbacks=callbacks)
    return RunScores(
        run=run,
        by_likelihood=_scores(adversary.likelihoods, is_present),
        by_mean=_scores(adversary.means(), is_present),
        member_mean=adversary.member_mean(),
        member_std=adversary.member_std(),
        steps_seen=adversary.steps_seen,
    )


def _mu_share(plan: Plan, num_canaries: int) -> float:
    """How much of the μ that is counted holds at the plan's δ, by the curve of what the plan releases.

    Seen as a μ, that curve rises towards small rates: what is counted at larger ones then stands for less than the ε
    at δ. Where δ is among the rates that are counted, or above them, it may stand for more.
    """
    least_rate = 1 / num_canaries
    if plan.delta <= least_rate:
        return 1.0
    steps = public_plan.expected_steps(plan)
    poisson = PoissonSampled(plan.sampling_probability, Gaussian(plan.noise_multiplier))
    released = (
        Repeated(poisson, steps) if plan.bins is None and plan.max_records_per_user is None else plan.events(0, steps)
    )
    rates = (plan.delta, *np.geomspace(least_rate, _LARGEST_RATE, 6).tolist())
    at_delta, *elsewhere = (mu_from_epsilon(bound(released, delta=rate).epsilon, delta=rate) for rate in rates)
    return at_delta / max(at_delta, *elsewhere) if at_delta > 0 else 0.0


def _checks(runs: Sequence[RunScores], plan: Plan) -> tuple[Check, ...]:
    """Whether noise and draws are as stated, as far as scores are so many, and so near to normal, that this shows."""
    is_replacing = plan.adjacency is Adjacency.REPLACE_ONE
    std = max(one.member_std for one in runs)
    if is_replacing and std > _LARGEST_SPREAD:
        return ()
    # A canary that is not there adds nothing; one that was replaced adds its opposite.
    others = np.concatenate([one.by_mean.others + one.member_mean * is_replacing for one in runs])
    noise = bounds.variance_p_value(others, std=std if is_replacing else 1.0)
    found = [Check(statement=NOISE_AS_STATED, p_value=noise)]
    members = np.concatenate([one.by_mean.members - one.member_mean for one in runs])
    if len(members) * plan.sampling_probability * runs[0].steps_seen >= _FEWEST_DRAWS:
        found.append(Check(statement=DRAWN_AS_STATED, p_value=bounds.mean_p_value(members, mean=0.0, std=std)))
    return tuple(found)


class Adversary:
    """Knows all records but one canary, how it is clipped, and the law of the noise; keeps a score for each canary.

    What a draw of the other records adds to a sum on average is subtracted first. ``signs_R`` says which canaries are
    there: for the score of a canary, only what it says about the others is used.
    """

    def __init__(self, canaries: Canaries, clipped_alone: PrivateSum, plan: Plan, signs_R: Tensor) -> None:
        self._canaries, self._plan, self._signs_R = canaries, plan, signs_R
        self._most = plan.max_records_per_user or 1  # records of a canary that may be drawn, each by a coin of its own
        # What a clip leaves of a canary; at other steps it may be another multiple of the same.
        # A noisy count, which all canaries move, is left out.
        of_parameters = {name: value for name, value in clipped_alone.values.items() if name != UNCLIPPED_COUNT}
        sizes = canaries.sizes(of_parameters)
        self._unit = {name: size.double() / clipped_alone.sensitivity for name, size in sizes.items()}
        self._expected = {
            clips_coordinates: canaries.expected(signs_R, clips_coordinates=clips_coordinates)
            for clips_coordinates in (False, True)
        }
        self.likelihoods = torch.zeros(canaries.num_canaries, dtype=torch.float64)
        self._sums = torch.zeros_like(self.likelihoods)
        self._precision = self._squared_precision = 0.0
        self.steps_seen = 0
        self._epoch = _EpochLikelihood(canaries.num_canaries, plan.bins) if plan.bins else None

    def observe(self, private: PrivateSum, released: ReleasedSum) -> None:
        """Look at a released sum along every canary. Of the private one, only what is public: how it was clipped."""
        sizes = {name: private.sensitivity * size for name, size in self._unit.items()}
        if private.bounds is not None:
            sizes = {name: bound.double().cpu() for name, bound in private.bounds.items()}
        weights = {name: size / torch.as_tensor(released.std_of(name)).cpu() ** 2 for name, size in sizes.items()}
        precision = sum(float((sizes[name] * weights[name]).sum()) for name in sizes)
        seen = self._along(released, sizes, weights, precision, clips_coordinates=private.bounds is not None)
        law: dict[str, Any] = {
            "precision": precision,
            "probability": self._plan.sampling_probability,
            "records": self._most,
        }
        if self._epoch is None:
            self.likelihoods += log_likelihood_ratio(seen, **law)
        else:
            self.likelihoods += self._epoch.rise(seen, precision)
        if self._plan.adjacency is Adjacency.REPLACE_ONE:  # against the opposite of the canary
            self.likelihoods -= log_likelihood_ratio(-seen, **law)
        self._sums += seen
        self._precision += precision
        self._squared_precision += precision**2
        self.steps_seen += 1

    def _along(
        self, released: ReleasedSum, sizes: Tensors, weights: Tensors, precision: float, *, clips_coordinates: bool
    ) -> Tensor:
        """What was released, less what the others add on average, along each canary, by the precision of the noise."""
        q = self._plan.sampling_probability * self._most
        expected = self._expected[clips_coordinates]
        rest = {name: released.values[name].double().cpu() for name in weights}
        if expected:
            rest = {name: value - q * sizes[name] * expected[name] for name, value in rest.items()}
        seen = self._canaries.along({name: rest[name] * weights[name] for name in weights})
        return seen + q * precision * self._signs_R if expected else seen

    def means(self) -> Tensor:
        """The sums seen, in units of their noise."""
        return self._sums / math.sqrt(self._precision)

    def member_mean(self) -> float:
        """What those of a canary that is there are on average."""
        return self._most * self._plan.sampling_probability * math.sqrt(self._precision)

    def member_std(self) -> float:
        """Their standard deviation: noise, and whether it was drawn."""
        q = self._plan.sampling_probability
        if self._plan.bins is not None:  # in a whole epoch it is drawn once; in a part of one, by a coin
            share = self.steps_seen % self._plan.bins / self._plan.bins
            return math.sqrt(1 + share * (1 - share) * self._precision / self.steps_seen**2)
        return math.sqrt(1 + self._most * q * (1 - q) * self._squared_precision / self._precision)


class _EpochLikelihood:
    """The likelihood of epochs in which a canary is in exactly one step: the mean over the steps, not a product."""

    def __init__(self, num_canaries: int, bins: int) -> None:
        self._bins, self._seen = bins, 0
        self._excess = torch.zeros(num_canaries, dtype=torch.float64)  # the sum of the ratios less one

    def rise(self, seen: Tensor, precision: float) -> Tensor:
        """By how much another step raises the logarithm of the likelihood."""
        before = torch.log1p(self._excess / self._bins)
        self._excess = self._excess + torch.expm1(seen - precision / 2)
        rise = torch.log1p(self._excess / self._bins) - before
        self._seen += 1
        if self._seen % self._bins == 0:
            self._excess = torch.zeros_like(self._excess)
        return rise


def canaries_for(method: Method, plan: Plan, *, num_canaries: int = NUM_CANARIES) -> Canaries:
    """The canaries of one run, of the kind that saturates the method's clip: at most ``num_canaries``.

    Where records are replaced or zeroed out their number is public, and every one of them is a canary, or loud.
    """
    validate.count(minimum=FEWEST_CANARIES, num_canaries=num_canaries)
    has_public_count = plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE
    if has_public_count:
        validate.count(minimum=FEWEST_CANARIES, records=plan.records)
    if not method.clipping.needs_coordinates:
        return CoordinateCanaries(num_canaries=plan.records if has_public_count else num_canaries)
    most = plan.records if has_public_count else min(num_canaries, NUM_PATTERNS)
    side = 2 ** max(2, int(math.log2(most / 2) / 2))
    planted = SignCanaries(side=side, num_loud=side**2 // 8)
    return replace(planted, num_loud=max(0, plan.records - planted.num_canaries)) if has_public_count else planted


def _records(planted: Canaries, is_present: Tensor, adjacency: Adjacency) -> InMemory:
    """The canaries that are there; where the number of records is public, another one stands in for each other."""
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        rows = is_present.nonzero().squeeze(1)
        return planted.records(rows, torch.full_like(rows, PRESENT))
    stand_in = REPLACED if adjacency is Adjacency.REPLACE_ONE else ZEROED
    return planted.records(torch.arange(len(is_present)), torch.where(is_present, PRESENT, stand_in))


def _clipped_alone(method: Method, planted: Canaries) -> PrivateSum:
    """What the clip leaves of a canary, by the rule of the first step."""
    network = planted.network()
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    rule = method.clipping.rule(method.clipping.start(parameters), 0)
    alone = planted.records(torch.tensor([0]), torch.tensor([PRESENT]))
    inputs, targets = alone.inputs[:1], alone.targets[:1]
    return MaterialisedEngine(network, planting.loss).private_sum(rule, inputs, targets)


def _physical_batch(plan: Plan, num_records: int) -> int:
    """For the number of records that the attack really holds."""
    held = max(1, num_records)
    batch = max(1, round(plan.sampling_probability * held))
    there = replace(plan, records=held, expected_batch_size=batch, largest_batch=None, bins=None)
    return engines.physical_batch_for(there, torch.device("cpu"))


def _scores(scores: Tensor, is_present: Tensor) -> Scores:
    found, present = scores.numpy().astype(np.float64), is_present.numpy()
    return Scores(found[present], found[~present])

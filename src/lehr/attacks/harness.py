"""Shared by the attacks: a temporary run of the real loop, an observer of its sums, likelihood ratios, guesses."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special, stats
from torch import Tensor, nn

from lehr import validate
from lehr.accounting.events import Adjacency
from lehr.auditing import LowerBound, one_run
from lehr.auditing.bounds import mu_from_epsilon
from lehr.auditing.one_run import check_guesses
from lehr.auditing.scores import Floats
from lehr.config import RunConfig
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.planning.plan import USER, Plan
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Method, Noise
from lehr.run.shape import Callback
from lehr.training.ending import Run
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.records import check_records
from lehr.training.training_run import TrainingRun


def check_private_method(method: Method) -> Method:
    """The method itself; refused where it has no noise."""
    if not method.is_private:
        raise InvalidValue("method", allowed="one with noise: without it there is no claim", given=method.name)
    return method


def check_addable(plan: Plan) -> None:
    """Refuse a plan under replace-one: these attacks leave a record out."""
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        allowed = "one under add-or-remove-one; where records are replaced, use lehr.attacks.step_attack"
        raise InvalidValue("plan", allowed=allowed, given=plan.adjacency.value)


def joined(first: InMemory, second: InMemory) -> InMemory:
    """The records of both, on the device of the first."""
    return InMemory(
        torch.cat([first.inputs, second.inputs.to(first.inputs.device)]),
        torch.cat([first.targets, second.targets.to(first.targets)]),
    )


def train_in_temporary_folder(
    run: TrainingRun, *, key: RunKey | None = None, callbacks: Sequence[Callback] = ()
) -> Run:
    """Train as ``lehr.fit`` does. With the same ``key`` a run has the same draws and the same noise."""
    with tempfile.TemporaryDirectory(prefix="lehr-attack-") as folder, run.open(Path(folder) / "run") as opened:
        if key is not None:
            opened.key = key
        return run.train(opened, callbacks)


def plan_run(
    model: nn.Module,
    private: InMemory,
    *,
    method: Method,
    plan: Plan,
    loss_fn: LossFn,
    num_classes: int,
    public: InMemory | None = None,
    physical_batch: int | None = None,
    owners: Tensor | None = None,
) -> TrainingRun:
    """A checked run that has not begun. ``owners`` has the user of each record, for a plan of users."""
    records = check_records(
        private,
        records=plan.records,
        max_records_per_user=plan.max_records_per_user,
        test=None,
        public=public,
        num_classes=num_classes,
        preparation=None,
        name="canaries",
        owners=owners,
        users=plan.records if plan.drawn == USER else None,
    )
    config = RunConfig.of(run={"physical_batch": physical_batch, "compiled": False, "checkpoint_seconds": 600})
    run = TrainingRun(
        name="audit",
        model=model,
        config=config,
        loss_fn=loss_fn,
        device=next(model.parameters()).device,
        evaluation=EvaluationPlan(records=records, method=method, training=config.training),
        plan=plan,
    )
    return run.check()


class Wrapper:
    """Stands in for a component of a method: everything that a subclass does not define is the component's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ObservedNoise(Wrapper):
    """A noise that calls ``observe`` with what it was given and what it released."""

    def __init__(self, noise: Noise, observe: Callable[[PrivateSum, ReleasedSum], None]) -> None:
        super().__init__(noise)
        self._observe = observe

    def release(self, private: PrivateSum, **given: Any) -> ReleasedSum:
        released: ReleasedSum = self.inner.release(private, **given)
        self._observe(private, released)
        return released


def observed(method: Method, observe: Callable[[PrivateSum, ReleasedSum], None]) -> Method:
    """The same method; ``observe`` sees every private sum and what is released of it."""
    return replace(method, noise=ObservedNoise(method.noise, observe))


def log_likelihood_ratio(along: Tensor, *, precision: float, probability: float, records: int = 1) -> Tensor:
    """The log likelihood ratio, element by element, of a sampled record plus Gaussian noise to noise alone.

    ``along`` is the released sum along the record, weighted by the inverse variance of the noise. A sum that the record
    is in has ``precision`` more of it on average, which is also its variance. There may be several such ``records``.

    >>> log_likelihood_ratio(torch.tensor([2.0, 0.0]), precision=4.0, probability=1.0)
    tensor([ 0., -2.])
    """
    if_drawn = records * along - records**2 * precision / 2
    if probability == 1:
        return if_drawn
    if records > 1:
        drawn = torch.arange(records + 1, dtype=along.dtype)
        weights = torch.from_numpy(stats.binom.logpmf(drawn.numpy(), records, probability)).to(along.dtype)
        return torch.logsumexp(weights + drawn * along.unsqueeze(-1) - drawn**2 * precision / 2, dim=-1)
    if_not_drawn = torch.full_like(if_drawn, math.log1p(-probability))
    return torch.logaddexp(if_not_drawn, math.log(probability) + if_drawn)


_LARGEST_EPSILON = 10.0  # beyond this, guesses are as good as certain
_TRIED = 24


def bounds_from_guesses(
    scores: Floats, is_present: NDArray[np.bool_], *, guesses: int, delta: float, confidence: float
) -> tuple[LowerBound, LowerBound]:
    """What the guesses certify, by themselves and with the trade-off of Gaussian noise."""
    right = num_right(scores, is_present, guesses=guesses)
    numbers: dict[str, Any] = {"right": right, "guesses": guesses, "canaries": len(scores)}
    numbers |= {"delta": delta, "confidence": confidence}
    return one_run.lower_bound(**numbers), one_run.tradeoff_lower_bound(**numbers)


def num_right(scores: Floats, is_present: NDArray[np.bool_], *, guesses: int) -> int:
    """How many of so many guesses are right: the largest scores are guessed present, the smallest absent.

    >>> num_right(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]), guesses=2)
    2
    """
    check_guesses(right=0, guesses=guesses, canaries=len(scores))
    # Equal scores are in the order of the records, which does not depend on the coins.
    order = np.argsort(scores, kind="stable")
    guessed_out, guessed_in = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(is_present[guessed_in].sum() + (~is_present[guessed_out]).sum())


def best_number_of_guesses(*, claimed_epsilon: float, canaries: int, delta: float, confidence: float) -> int:
    """The number of guesses that would certify the most if the claimed ε were tight, and scores Gaussian.

    >>> best_number_of_guesses(claimed_epsilon=3.0, canaries=1000, delta=1e-5, confidence=0.95) < 1000
    True
    """
    validate.count(canaries=canaries)
    mu = mu_from_epsilon(min(claimed_epsilon, _LARGEST_EPSILON), delta=delta)

    def certified(guesses: int) -> float:
        share = guesses / canaries
        threshold = optimize.brentq(lambda t: special.ndtr(mu - t) + special.ndtr(-t) - share, -40.0, 40.0 + mu)
        right = int(guesses * float(special.ndtr(mu - threshold) / share))
        numbers = {"right": right, "guesses": guesses, "canaries": canaries}
        return one_run.lower_bound(**numbers, delta=delta, confidence=confidence).epsilon

    tried = np.unique(np.geomspace(min(10, canaries), canaries, _TRIED).astype(int)).tolist()
    return int(max(tried, key=lambda guesses: (certified(guesses), guesses)))

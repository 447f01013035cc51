"""Acceptance rules besides simulated annealing.

Always      accepts every candidate: plain DPSGD, and every method that does not choose
NoisyTest   accepts where the noisy loss on private records falls by enough: DPSUR
NoisyMax    takes the step size, zero among them, that seems best on private records: AGD
BestStep    tries several step sizes on public records and passes the best to another acceptance
Salvage     averages a rejected sum with the next one at the same weights, for another acceptance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lehr import validate
from lehr.acceptance.proposal import (
    Acceptance,
    Decision,
    Energy,
    EnergyOfOne,
    PrivateChoice,
    PrivateEnergy,
    Proposal,
    PublicEnergy,
    check_energy,
)
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, ReleasedSum


class _Uncombined:
    """Rules whose candidates are made from the last released sum only."""

    def combined(self, state: ComponentState, released: ReleasedSum) -> ReleasedSum:
        return released


@dataclass(frozen=True)
class Always(_Uncombined):
    """Accepts every candidate."""

    energy: ClassVar[None] = None
    most_rejections: ClassVar[int] = 0

    def start(self) -> ComponentState:
        return {}

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        return Decision(1.0, {})

    def to_json(self) -> dict[str, object]:
        return {"kind": "always"}


@dataclass(frozen=True, kw_only=True)
class NoisyTest(_Uncombined):
    """Accepts where the change of the energy is below ``threshold`` times its clip; DPSUR has -1.

    Fu et al. (2024), "DPSUR: Accelerating Differentially Private Stochastic Gradient Descent Using Selective Update and
    Release". The paper charges accepted candidates alone; that is not a guarantee, for the same reason as in SA-DPSGD.
    Here each candidate is charged for its gradient and for its test.
    """

    energy: EnergyOfOne
    threshold: float = -1.0

    most_rejections: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not -1e6 <= validate.finite(threshold=self.threshold) <= 1e6:
            raise InvalidValue("threshold", allowed="a number of clips", given=self.threshold)
        check_energy(PublicEnergy, PrivateEnergy, energy=self.energy)

    def start(self) -> ComponentState:
        return {"accepted": 0}

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        unit = self.energy.loss_clip if isinstance(self.energy, PrivateEnergy) else 1.0
        is_accepted = proposal.change() <= self.threshold * unit
        return Decision(float(is_accepted), {"accepted": float(state["accepted"]) + is_accepted})

    def to_json(self) -> dict[str, object]:
        return {"kind": "noisy test", "threshold": self.threshold, "energy": self.energy.to_json()}


@dataclass(frozen=True, kw_only=True)
class NoisyMax(_Uncombined):
    """Chooses among ``step_sizes`` candidates and zero. Scales are relative to the learning rate of the update.

    Lee & Kifer (2018), "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy
    Budget". The step sizes are equal parts of the largest one; after every ``adapted_every`` accepted candidates, the
    largest becomes ``1 + headroom`` times the largest that was chosen among them.
    """

    energy: PrivateChoice
    step_sizes: int = 20
    largest: float = 2.0
    adapted_every: int = 10
    headroom: float = 0.1

    most_rejections: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_energy(PrivateChoice, energy=self.energy)
        validate.count(step_sizes=self.step_sizes)
        validate.positive(largest=self.largest)
        validate.count(adapted_every=self.adapted_every)
        validate.non_negative(headroom=self.headroom)

    def start(self) -> ComponentState:
        return {"largest": float(self.largest), "largest_chosen": 0.0, "accepted": 0}

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        largest = float(state["largest"])
        scales = [largest * part / self.step_sizes for part in range(self.step_sizes + 1)]
        chosen = scales[proposal.best(scales)]
        accepted = int(state["accepted"]) + (chosen != 0)
        largest_chosen = max(float(state["largest_chosen"]), chosen)
        if chosen != 0 and accepted % self.adapted_every == 0:
            largest, largest_chosen = (1 + self.headroom) * largest_chosen, 0.0
        return Decision(chosen, {"largest": largest, "largest_chosen": largest_chosen, "accepted": accepted})

    def to_json(self) -> dict[str, object]:
        return {"kind": "noisy max", **asdict(self), "energy": self.energy.to_json()}


@dataclass(frozen=True)
class _Wrapper:
    """A rule on top of another acceptance, whose energy it uses."""

    inner: Acceptance

    @property
    def energy(self) -> Energy | None:
        return self.inner.energy

    @property
    def most_rejections(self) -> int | None:
        return self.inner.most_rejections


@dataclass(frozen=True)
class BestStep(_Wrapper):
    """Passes the step size with the least public energy to another acceptance. Scales are of the learning rate.

    All candidates are post-processing of one charged gradient, and so is a loss on public records. On private records
    every further step size would be one more charged query, so that is refused.
    """

    step_scales: Sequence[float] = (0.5, 1.0, 2.0)

    def __post_init__(self) -> None:
        given: object = self.step_scales
        if not isinstance(given, list | tuple) or not given:
            raise InvalidValue("step_scales", allowed="a list of numbers above zero", given=given)
        scales = tuple(validate.positive(step_scales=scale) for scale in given)
        object.__setattr__(self, "step_scales", scales)
        if not isinstance(self.inner.energy, PublicEnergy):
            allowed = "one with a public energy: on private records each step size is one more query"
            raise InvalidValue("inner", allowed=allowed, given=self.inner.to_json()["kind"])

    def start(self) -> ComponentState:
        return self.inner.start()

    def combined(self, state: ComponentState, released: ReleasedSum) -> ReleasedSum:
        return self.inner.combined(state, released)

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        best = self.step_scales[proposal.best(self.step_scales)]
        decision = self.inner.decide(state, _AtScale(proposal, best), released)
        return decision._replace(step_scale=best * decision.step_scale)

    def to_json(self) -> dict[str, object]:
        return {"kind": "best step", "step_scales": list(self.step_scales), "of": self.inner.to_json()}


@dataclass(frozen=True)
class _AtScale:
    """The same candidates, with another one as the step of size one."""

    proposal: Proposal
    unit: float

    def change(self, step_scale: float = 1.0) -> float:
        return self.proposal.change(self.unit * step_scale)

    def best(self, step_scales: Sequence[float]) -> int:
        return self.proposal.best([self.unit * scale for scale in step_scales])

    def uniform(self) -> float:
        return self.proposal.uniform()


_INNER, _SUM, _STD, _PRECISION = "inner/", "carried/", "carried_std/", "carried_precision"


@dataclass(frozen=True)
class Salvage(_Wrapper):
    """Another acceptance over the mean of all sums that were released since the weights last moved.

    Sums that were released at the same weights measure the same thing with independent noise. Their mean, weighted by
    the precision of their noise, is post-processing of charged releases. An accepted candidate starts it anew.
    """

    def start(self) -> ComponentState:
        return {**_prefixed(_INNER, self.inner.start()), _PRECISION: 0.0}

    def combined(self, state: ComponentState, released: ReleasedSum) -> ReleasedSum:
        before = float(state[_PRECISION])
        if not before:
            return released
        precision = before + _precision(released)
        share = before / precision
        values, noise_std = {}, {}
        for name, value in released.values.items():
            values[name] = value + share * (torch.as_tensor(state[_SUM + name]) - value)
            carried_std = torch.as_tensor(state[_STD + name])
            noise_std[name] = torch.hypot(share * carried_std, (1 - share) * _std(released, name))
        return ReleasedSum(values=values, noise_std=noise_std, noise_multiplier=precision**-0.5)

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        inner_state = {name.removeprefix(_INNER): state[name] for name in state if name.startswith(_INNER)}
        decision = self.inner.decide(inner_state, proposal, released)
        after = {**_prefixed(_INNER, decision.state), _PRECISION: 0.0}
        if not decision.is_accepted:
            stds = {name: _std(released, name) for name in released.values}
            after |= {**_prefixed(_SUM, released.values), **_prefixed(_STD, stds), _PRECISION: _precision(released)}
        return decision._replace(state=after)

    def to_json(self) -> dict[str, object]:
        return {"kind": "salvage", "of": self.inner.to_json()}


def _precision(released: ReleasedSum) -> float:
    return released.noise_multiplier**-2 if released.noise_multiplier else 1.0


def _std(released: ReleasedSum, name: str) -> Tensor:
    return torch.as_tensor(released.std_of(name), dtype=torch.float64)


def _prefixed(prefix: str, state: ComponentState) -> dict[str, float | Tensor]:
    return {prefix + name: value for name, value in state.items()}

"""Three papers' privacy claims, against what their methods release.

    python -m examples.published_claims

SA-DPSGD and DPSUR charge the updates that were accepted and no others. Acceptance changes the law of an update, and
here that law is composed for two neighbouring data sets: what comes out is a lower bound on the true ε, to be held
against the claimed one. ADADP scales its noise by gradients that have none. Here records are planted whose presence is
then read off the released values, with the clip and the noise that the library trains with.

It prints tables and draws two pictures, in less than a minute, and needs matplotlib. docs/published_claims.md explains
it.
"""

from __future__ import annotations

import argparse
import bisect
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn

from examples import pictures
from lehr import Adjacency, Event, Gaussian, PoissonSampled, Repeated, bound
from lehr import Composed as ComposedEvent
from lehr.accounting import ACCOUNTANTS
from lehr.extend import (
    AdaptiveClip,
    MaterialisedEngine,
    PoissonSampling,
    Prior,
    ProportionalNoise,
    RawPrior,
    ReleasedPrior,
    ReleasedSum,
    RunKey,
    StepOutcome,
    Unclipped,
)

Floats = NDArray[np.float64]

DELTA = 1e-5
CELLS = 20_000  # of one update; merging outcomes into cells can only hide something
REACH = 10.0  # standard deviations that the cells cover; the two outermost ones go on for ever
SPACING = 1e-5  # of the grid of privacy losses
WINDOW = 42.0  # losses that the grid covers, two thirds of them below zero
UNLUCKY = 1e-12  # the probability with which the rounded losses may mislead; taken off δ


@dataclass(frozen=True)
class Setting:
    """A run as its paper describes it. ``most_rejections`` in a row; the test, where there is one, is DPSUR's."""

    name: str
    records: int
    expected_batch_size: float
    noise_multiplier: float
    accepted: int = 0
    most_rejections: int = 0
    test_noise_multiplier: float = 0.0

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.records


TEST_BATCH = 256
# Name, records, batch, noise; then accepted updates and rejections in a row, or the noise of the test.
SA_DPSGD = (
    Setting("MNIST", 60_000, 512, 1.23, accepted=4698, most_rejections=10),
    Setting("FashionMNIST", 60_000, 2048, 2.15, accepted=1157, most_rejections=10),
    Setting("CIFAR-10", 50_000, 1024, 1.54, accepted=1435, most_rejections=5),
)
# The recommendations of the authors' code for ε = 3.
DPSUR = (
    Setting("MNIST", 60_000, 1024, 1.35, test_noise_multiplier=0.9),
    Setting("FashionMNIST", 60_000, 2048, 2.15, test_noise_multiplier=0.8),
    Setting("CIFAR-10", 50_000, 8192, 5.67, test_noise_multiplier=1.1),
)


# --- What is counted ------------------------------------------------------------------------------------------------


def candidates(setting: Setting, count: int) -> Event:
    """So many gradients, each with its test where there is one."""
    gradients = Repeated(PoissonSampled(setting.sampling_probability, Gaussian(setting.noise_multiplier)), count)
    if not setting.test_noise_multiplier:
        return gradients
    test = PoissonSampled(TEST_BATCH / setting.records, Gaussian(setting.test_noise_multiplier))
    return ComposedEvent((gradients, Repeated(test, count)))


def by_paper(setting: Setting, count: int) -> float:
    """ε by the papers' accountant: Rényi divergences, converted as in Mironov (2017)."""
    mironov = ACCOUNTANTS["rdp-mironov17"]
    return mironov.epsilon(candidates(setting, count), delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def tight(setting: Setting, count: int) -> float:
    """The smallest ε that is proven for so many candidates."""
    return bound(candidates(setting, count), delta=DELTA).epsilon


def accepted_within(setting: Setting, epsilon: float) -> int:
    """How many accepted updates a paper's rule allows."""
    return bisect.bisect_right(range(1, 20_000), epsilon, key=lambda count: by_paper(setting, count))


# --- What is released -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Update:
    """The probabilities of one update's cells, without the target record and with it, and the cells' left edges."""

    edges: Floats
    without: Floats
    present: Floats

    def accepted(self, acceptance: Floats, *, most_rejections: int | None) -> Update:
        """The law of the update that is accepted in the end: drawn anew until it is, or until it has to be."""
        return Update(
            self.edges,
            _accepted(self.without, acceptance, most_rejections),
            _accepted(self.present, acceptance, most_rejections),
        )


def candidate(*, sampling_probability: float, noise_multiplier: float, cut_at: tuple[float, ...] = ()) -> Update:
    """One candidate along the target's gradient, whose clipped norm is one: the worst pair of neighbours."""
    reach = REACH * noise_multiplier
    inner = np.union1d(np.linspace(-reach, 1 + reach, CELLS), cut_at)
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    without = _normal_masses(edges / noise_multiplier)
    moved = _normal_masses((edges - 1) / noise_multiplier)
    return Update(edges[:-1], without, (1 - sampling_probability) * without + sampling_probability * moved)


def _accepted(masses: Floats, acceptance: Floats, most_rejections: int | None) -> Floats:
    rate = float(masses @ acceptance)
    if most_rejections is None:
        return masses * acceptance / rate
    forced = (1 - rate) ** most_rejections
    return masses * (acceptance * (1 - forced) / rate + forced)


def _normal_masses(edges: Floats) -> Floats:
    """Standard normal probability between neighbouring edges, precise in both tails."""
    tails = special.ndtr(-np.abs(edges))
    left, right = tails[:-1], tails[1:]
    same_side = np.signbit(edges[:-1]) == np.signbit(edges[1:])
    return np.asarray(np.where(same_side, np.abs(left - right), 1 - left - right))


def half_space(setting: Setting, *, rate: float) -> Update:
    """The accepted update where a public rule takes one candidate in so many: those farthest along a direction."""
    threshold = setting.noise_multiplier * float(special.ndtri(1 - rate))
    drawn = candidate(
        sampling_probability=setting.sampling_probability,
        noise_multiplier=setting.noise_multiplier,
        cut_at=(threshold,),
    )
    acceptance = (drawn.edges >= threshold).astype(np.float64)
    return drawn.accepted(acceptance, most_rejections=setting.most_rejections)


def noisy_half_space(setting: Setting, *, rate: float) -> Update:
    """The same for DPSUR: the loss falls on one side and rises on the other, both by more than the test's clip."""
    threshold = setting.noise_multiplier * float(special.ndtri(1 - rate))
    drawn = candidate(
        sampling_probability=setting.sampling_probability,
        noise_multiplier=setting.noise_multiplier,
        cut_at=(threshold,),
    )
    # The noise is 2 σ clips wide, and a change below minus one clip is taken.
    falls, rises = 0.5, float(special.ndtr(-1 / setting.test_noise_multiplier))
    return drawn.accepted(np.where(drawn.edges >= threshold, falls, rises), most_rejections=None)


# --- What that is worth ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Composed:
    """Lower bounds on the privacy loss of many updates, and the probability of each of them."""

    losses: Floats
    masses: Floats
    doubt: float

    def delta_at_least(self, epsilon: float) -> float:
        """No mechanism that releases such updates is (ε, δ)-private with a smaller δ."""
        above = self.losses > epsilon
        return float(self.masses[above] @ -np.expm1(epsilon - self.losses[above])) - self.doubt

    def epsilon_at_least(self, delta: float) -> float:
        """The same for a given δ; zero where nothing can be said."""
        low, high = 0.0, WINDOW
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta_at_least(middle) > delta else (low, middle)
        return low


def composed(update: Update, *, count: int, spacing: float = SPACING) -> Composed:
    """So many independent updates, of the data set with the record against the one without it.

    Every loss is rounded down. What that takes away from their sum is a sum of independent numbers between zero and
    the spacing, which is close to its mean (Hoeffding); that mean, less what is needed for certainty, is given back.
    """
    losses = np.log(update.present / update.without)
    places = np.floor(losses / spacing)
    lost = float(update.present @ (losses - places * spacing))
    given_back = count * lost - spacing * math.sqrt(count * math.log(1 / UNLUCKY) / 2)
    size = 2 ** round(math.log2(WINDOW / spacing))
    first = -(2 * size // 3)
    one = np.bincount(places.astype(np.int64) % size, weights=update.present, minlength=size)
    whole = np.fft.irfft(np.fft.rfft(one) ** count, size)
    masses = np.maximum(np.roll(whole, -first), 0)
    # A sum of losses is below −b with probability at most e^(−b). Only such sums would come back at the upper end.
    wrapped = math.exp((first + count) * spacing)
    return Composed((first + np.arange(size)) * spacing + given_back, masses, UNLUCKY + wrapped)


def one_update_in_the_tails(*, noise_multiplier: float, most_rejections: int) -> tuple[float, float, float]:
    """ε, the δ of one Gaussian update there, and that of the accepted one where only the far tails are taken."""
    epsilon = bound(Gaussian(noise_multiplier), delta=DELTA).epsilon
    far = noise_multiplier**2 * epsilon
    drawn = candidate(sampling_probability=1, noise_multiplier=noise_multiplier, cut_at=(0.5 - far, 0.5 + far))
    acceptance = ((drawn.edges >= 0.5 + far) | (drawn.edges < 0.5 - far)).astype(np.float64)
    taken = drawn.accepted(acceptance, most_rejections=most_rejections)
    return epsilon, _delta(drawn, epsilon), _delta(taken, epsilon)


def _delta(update: Update, epsilon: float) -> float:
    return float(np.maximum(update.present - math.exp(epsilon) * update.without, 0).sum())


# --- The attack on ADADP --------------------------------------------------------------------------------------------

RECORDS, BATCH, STEPS, NOISE_MULTIPLIER, CLIP_NORM = 60_000, 600, 1800, 8.0, 4.0
NUM_PLANTED, NUM_SHARED = 400, 8


class Answer(nn.Module):
    """A model whose gradient is its input: coordinates that everybody moves, and one for each planted record."""

    def __init__(self, num_planted: int) -> None:
        super().__init__()
        self.shared = nn.Linear(NUM_SHARED, 1, bias=False)
        self.planted = nn.Linear(num_planted, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.shared(inputs[:, :NUM_SHARED]) + self.planted(inputs[:, NUM_SHARED:])
        return found


@dataclass(frozen=True)
class Attacked:
    """What an attacker sees of the planted coordinates, step by step, and which of their records were there."""

    seen: Tensor
    is_present: Tensor

    def success(self, scores: Tensor) -> float:
        """The share of every second record that is got right, by the threshold that is best for the others."""
        known, unknown = scores[::2], scores[1::2]
        between = known.sort().values.unfold(0, 2, 1).mean(1)
        best = max(between, key=lambda threshold: int(((known >= threshold) == self.is_present[::2]).sum()))
        return float(((unknown >= best) == self.is_present[1::2]).double().mean())

    def sizes(self) -> Tensor:
        """How large each coordinate was, as logarithms; the first steps, before any prior, say nothing about that."""
        return self.seen[10:].square().mean(0).sqrt().log()

    def sums(self) -> Tensor:
        """What a coordinate adds up to, each step weighted by how much it moved all of them."""
        return (self.seen / self.seen.square().mean(1, keepdim=True)).sum(0)


def attacked(prior: Prior, *, steps: int = STEPS, num_planted: int = NUM_PLANTED) -> Attacked:
    """ADADP's clip and noise on records of which some planted ones, by a coin each, are missing."""
    key, generator = RunKey(bytes(32)), torch.Generator().manual_seed(0)  # the records are made up, and nothing is kept
    model = Answer(num_planted)
    engine = MaterialisedEngine(model, lambda outputs, targets: outputs.squeeze(-1))
    sampling = PoissonSampling(expected_batch_size=BATCH, records=RECORDS)
    scale = None if prior.unproven is None else 1.2  # the paper's beta belongs to the paper's prior
    clipping, noise = AdaptiveClip(clip_norm=CLIP_NORM, prior=prior, bound_scale=scale), ProportionalNoise()
    is_present = torch.rand(num_planted, generator=generator) < 0.5
    held = _records(is_present, generator)
    state, seen = clipping.start(dict(model.named_parameters())), []
    for step in range(steps):
        randomness = key.at(step, 0)
        inputs = held[sampling.draw(len(held), randomness)]
        gradients = engine.gradients(inputs, inputs[:, 0])
        private = clipping.rule(state, step)(gradients)
        if clipping.unproven:
            state = clipping.peek(state, Unclipped()(gradients), divisor=BATCH)
        released: ReleasedSum = noise.release(private, noise_multiplier=NOISE_MULTIPLIER, randomness=randomness)
        state = clipping.learn(state, StepOutcome(released=released, divisor=BATCH, is_accepted=True))
        seen.append(released.values["planted.weight"][0].double() / BATCH)
    return Attacked(torch.stack(seen), is_present)


def _records(is_present: Tensor, generator: torch.Generator) -> Tensor:
    """Gradients: of the planted records, each along a coordinate of its own, and of all others, along the shared."""
    own = CLIP_NORM * torch.eye(len(is_present))[is_present]
    shared = 1 + torch.randn(RECORDS - len(own), NUM_SHARED, generator=generator)
    held = torch.zeros(RECORDS, NUM_SHARED + len(is_present))
    held[: len(own), NUM_SHARED:] = own
    held[len(own) :, :NUM_SHARED] = shared
    return held


def guaranteed(epsilon: float) -> float:
    """The most that any attack can get right about a coin, under (ε, δ)."""
    return (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))


# --- Tables and pictures --------------------------------------------------------------------------------------------


def print_annealing() -> dict[str, Composed]:
    """SA-DPSGD's table; and what was composed, for the picture."""
    epsilon, claimed, true = one_update_in_the_tails(noise_multiplier=1.23, most_rejections=10)
    print("SA-DPSGD: one Gaussian update, sigma 1.23, accepted in the far tails or after 10 rejections")
    print(f"  at epsilon {epsilon:.3f}: delta {claimed:.3g} claimed, {true:.3g} true, {true / claimed:.2f} times")
    mnist = SA_DPSGD[0]
    print(f"SA-DPSGD: {mnist.accepted} accepted updates of its MNIST run, half-space rule, delta {DELTA:g}")
    print(f"  claimed {_up(by_paper(mnist, mnist.accepted))}; tight, were the updates not chosen, ", end="")
    print(f"{tight(mnist, mnist.accepted):.3f}")
    found = {}
    for rate in (1.0, 0.5, 0.2, 0.1):
        update = half_space(mnist, rate=rate) if rate < 1 else _of_every_candidate(mnist)
        found[f"{rate:g}"] = composed(update, count=mnist.accepted)
        print(f"  accepted {rate:4.0%}: true epsilon at least {_down(found[f'{rate:g}'].epsilon_at_least(DELTA))}")
    print("SA-DPSGD: charging every candidate up to the cap")
    for setting in SA_DPSGD:
        most = setting.accepted * (setting.most_rejections + 1)
        print(f"  {setting.name:13} {most:6} candidates: {_up(tight(setting, most))} proven", end="")
        print(f", {_up(by_paper(setting, setting.accepted))} claimed")
    return found


def _up(bound: float) -> str:
    """A bound from above is never rounded down."""
    return f"{math.ceil(100 * bound) / 100:.2f}"


def _down(bound: float) -> str:
    """A bound from below is never rounded up."""
    return f"{math.floor(100 * bound) / 100:.2f}"


def _of_every_candidate(setting: Setting) -> Update:
    return candidate(sampling_probability=setting.sampling_probability, noise_multiplier=setting.noise_multiplier)


def print_noisy_test() -> None:
    """DPSUR's table."""
    print("DPSUR: charging every candidate, by the paper's accountant and by the tight one")
    print(f"  {'':13} {'accepted':>8} {'claimed':>8} {'tight':>6}   1 in 2        1 in 3        1 in 4")
    for setting in DPSUR:
        accepted = accepted_within(setting, 3.0)
        print(f"  {setting.name:13} {accepted:8} {_up(by_paper(setting, accepted)):>8}", end="")
        print(f" {_up(tight(setting, accepted)):>6}", end="")
        for per_accepted in (2, 3, 4):
            count = per_accepted * accepted
            print(f"   {_up(by_paper(setting, count))} / {_up(tight(setting, count))}", end="")
        print()
    mnist = DPSUR[0]
    accepted = accepted_within(mnist, 3.0)
    least = composed(noisy_half_space(mnist, rate=0.05), count=accepted).epsilon_at_least(DELTA)
    print(f"  MNIST, {accepted} accepted, a loss that falls for one candidate in 20: ", end="")
    print(f"true epsilon at least {_down(least)}")


def print_adaptive() -> dict[str, Attacked]:
    """ADADP's table; and what the attacker saw, for the picture."""
    setting = Setting("ADADP", RECORDS, BATCH, NOISE_MULTIPLIER, accepted=STEPS)
    epsilon = tight(setting, STEPS)
    print(f"ADADP: {NUM_PLANTED} planted records, sigma* {NOISE_MULTIPLIER:g}, {STEPS} steps")
    print(f"  epsilon {by_paper(setting, STEPS):.3f} claimed, {epsilon:.3f} tight for noise that is fixed beforehand;")
    print(f"  an attack may then succeed at most {guaranteed(epsilon):.3f} of the time")
    deviation = math.sqrt(0.25 / (NUM_PLANTED // 2))
    print(f"  the share of {NUM_PLANTED // 2} records got right, where guessing has 0.500 ± {deviation:.3f}:")
    print(f"  {'prior':10} {'all steps, by size':>20} {'by sum':>8} {'last step alone':>16}")
    found = {"published": attacked(RawPrior()), "proven": attacked(ReleasedPrior())}
    for name, run in found.items():
        by_size, by_sum = run.success(run.sizes()), run.success(run.sums())
        print(f"  {name:10} {by_size:20.3f} {by_sum:8.3f} {run.success(run.seen[-1].abs().log()):16.3f}")
    published = found["published"]
    there, absent = (published.sizes()[published.is_present == is_there].exp() for is_there in (True, False))
    print(f"  published: root mean squares {there.min():.1e} or more if there, {absent.max():.1e} or less if not")
    found_all = int(published.is_present[1::2].sum())
    print(f"  {found_all} of {found_all} found: delta at least {0.05 ** (1 / found_all):.3f}, with 95 % confidence")
    print(f"  never drawn, and so hidden: {(1 - BATCH / RECORDS) ** STEPS:.1e}")
    return found


def draw_annealing(found: dict[str, Composed], path: Path) -> None:
    """δ over ε: as claimed, and what is at least true."""
    mnist = SA_DPSGD[0]
    epsilons = np.linspace(1, 7, 40)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for rate, colour in (("1", "black"), ("0.5", "#3182bd"), ("0.2", "#e6550d"), ("0.1", "#a63603")):
        label = "updates as they are" if rate == "1" else f"accepted {float(rate):.0%}"
        deltas = [max(found[rate].delta_at_least(epsilon), 1e-11) for epsilon in epsilons]
        right.plot(epsilons, deltas, color=colour, label=label)
    right.axhline(DELTA, color="#999999", linewidth=0.8, linestyle=":")
    right.plot(3, DELTA, marker="x", color="black", label="the claim", linestyle="none")
    right.set(yscale="log", ylim=(1e-10, 1), xlabel="ε", ylabel="δ is at least", title="4698 accepted updates")
    right.legend(frameon=False, loc="lower left")
    drawn, taken = _of_every_candidate(mnist), half_space(mnist, rate=0.2)
    for update, colour, label in ((drawn, "black", "as drawn"), (taken, "#e6550d", "as accepted")):
        widths = np.diff(update.edges[1:])
        left.plot(update.edges[1:-1:40], (update.present[1:-1] / widths)[::40], color=colour, label=label)
    left.set(xlim=(-4, 5), xlabel="one update along the target's gradient, over the clip norm", ylabel="density")
    left.set_title("accepted 20 %, at most 10 rejections")
    left.legend(frameon=False)
    pictures.save(figure, path)


def draw_adaptive(found: dict[str, Attacked], path: Path) -> None:
    """One coordinate of a record that is there, and one of a record that is not, over the steps."""
    figure, grid = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharex=True)
    for (name, run), axes in zip(found.items(), grid, strict=True):
        for is_there, colour, label in ((False, "#3182bd", "its record is missing"), (True, "#e6550d", "it is there")):
            planted = int(torch.nonzero(run.is_present == is_there)[0])
            axes.plot(
                range(0, len(run.seen), 15), run.seen[::15, planted].abs(), ".", ms=2.5, color=colour, label=label
            )
        axes.set(yscale="log", xlabel="step", title=f"ADADP, {name}", ylabel="size of one released coordinate")
    grid[0].legend(frameon=False, loc="center right")
    pictures.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the pictures go")
    out: Path = parser.parse_args().out
    draw_annealing(print_annealing(), out / "published_annealing.svg")
    print_noisy_test()
    draw_adaptive(print_adaptive(), out / "published_adadp.svg")


if __name__ == "__main__":
    main()

"""Every refutation refutes, the library's own form holds, and the page has what the scripts print."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from examples.published_claims import attacked, by_paper, candidate
from examples.published_claims import half_space as accepted_law
from examples.refutations import (
    accumulated,
    drawn_size,
    empty_batches,
    half_space,
    raw_prior,
    shuffled,
    two_tails,
)
from examples.refutations.many_runs import KEY, Runs, clipped, released
from examples.refutations.refutation import Refutation, down, up
from lehr.privacy.clipping import RawPrior
from lehr.privacy.sampling import PoissonSampling

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/published_claims.md").read_text(encoding="utf-8")


def agrees(refutation: Refutation) -> None:
    """The mistake is refuted, the library's own form is not, and a reader of the page sees these very figures."""
    assert not refutation.mistake.holds
    assert refutation.own.holds
    assert refutation.text() in PAGE


@pytest.mark.whole
@pytest.mark.parametrize("module", [two_tails, drawn_size, shuffled, empty_batches, accumulated])
def test_mistakes_are_refuted_and_the_form_of_the_library_holds(module: Any, tmp_path: Path) -> None:
    refutation = module.refute()
    agrees(refutation)
    assert refutation.mistake.certified.assumes == ()
    refutation.draw(tmp_path / "picture.svg")
    assert 5_000 < (tmp_path / "picture.svg").stat().st_size < 60_000


@pytest.mark.whole
def test_the_papers_are_refuted_at_their_own_size() -> None:
    agrees(half_space.refute())  # one candidate in five is accepted
    seen = attacked(RawPrior(), num_planted=raw_prior.NUM_PLANTED)
    assert seen.success(seen.sizes()) > 0.9
    certified = raw_prior.outcome("", seen, counted=0.0).certified
    assert certified.assumes == ()
    assert f"0.28      {down(certified.epsilon)}  Clopper-Pearson" in PAGE


@pytest.mark.whole
def test_noise_from_raw_gradients_is_refuted_and_the_proven_form_holds() -> None:
    refutation = raw_prior.refute(steps=250, num_planted=60)
    assert not refutation.mistake.holds
    assert refutation.own.holds


def test_attacked_runs_follow_the_composed_law() -> None:
    accepted, num_each = 60, 4000
    # By the paper's cooling the first update of a run is accepted after one rejection, and has another law.
    floored = replace(half_space.ACCEPTANCE, cooling="floored")
    seen = half_space.attacked(num_each=num_each, accepted=accepted, candidates=200, acceptance=floored)
    for law, count, is_accepted, scores in (
        (accepted_law(half_space.MNIST, rate=half_space.RATE), accepted, True, seen.accepted),
        (
            candidate(sampling_probability=half_space.PROBABILITY, noise_multiplier=half_space.SIGMA),
            200,
            False,
            seen.candidates,
        ),
    ):
        std = half_space.known_std(law, count=count, is_accepted=is_accepted)
        for side in (scores.members, scores.others):
            assert side.std() / std == pytest.approx(1, abs=5 / math.sqrt(num_each))
        # The mean of a log likelihood ratio is the divergence, of one side or of the other.
        log_ratio = np.log(law.present / law.without)
        for side, weights in ((scores.members, law.present), (scores.others, law.without)):
            mean = count * float(weights @ log_ratio)
            assert side.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(num_each))


def test_runs_made_at_once_are_independent() -> None:
    runs = Runs(num_each=300, num_others=3, others_gradient=1.0, target_gradient=-5.0)
    randomness = KEY.at(0, 0)
    everybody = runs.drawn(PoissonSampling(expected_batch_size=1, records=1).draw(len(runs.run_of), randomness))
    (sums,) = clipped(everybody).values.values()
    expected = torch.tensor([2.0] * 300 + [3.0] * 300, dtype=torch.float64)
    assert torch.equal(sums, expected)  # the target is clipped to -1
    noise = released(clipped(everybody), noise_multiplier=2.0, randomness=randomness) - sums
    assert float(noise.std()) == pytest.approx(2.0, abs=5 * 2.0 / math.sqrt(1200))
    assert abs(float(torch.corrcoef(noise.view(2, -1))[0, 1])) < 5 / math.sqrt(300)


def test_claims_are_rounded_up_and_bounds_down() -> None:
    assert up(2.991) == "3.00"
    assert down(2.999) == "2.99"
    assert up(by_paper(half_space.MNIST, half_space.MNIST.accepted)) == "3.00"


def test_a_shuffled_epoch_has_every_record_in_one_batch() -> None:
    runs = Runs(num_each=5, num_others=shuffled.RECORDS - 1)
    batches = list(shuffled.shuffled(runs, KEY.at(0, 0)))
    assert len(batches) == shuffled.STEPS
    assert sorted(torch.cat(batches).tolist()) == list(range(len(runs.run_of)))
    sizes = torch.stack([torch.bincount(runs.run_of[places], minlength=runs.num_runs) for places in batches])
    assert sizes[:-1].eq(shuffled.BATCH).all()
    assert sizes[-1].tolist() == [shuffled.BATCH] * 5 + [shuffled.BATCH - 1] * 5


def test_the_page_says_how_to_run_each_and_shows_its_picture() -> None:
    for module in (two_tails, half_space, raw_prior, drawn_size, shuffled, empty_batches, accumulated):
        name = module.__name__.rpartition(".")[2]
        assert f"python -m examples.refutations.{name}" in PAGE
        assert f"pictures/refuted_{name}.svg" in PAGE
        assert (ROOT / f"docs/pictures/refuted_{name}.svg").stat().st_size < 60_000

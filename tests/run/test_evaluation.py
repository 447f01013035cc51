"""Scores: public ones exact, private ones noised and charged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.accounting.events import NOTHING, Gaussian
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import Inputs
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import RECORDS_AT_ONCE, NoisyScore, PublicScore, Score

KEY = RunKey(bytes(range(32)))


class Copying(nn.Module):
    """Its outputs are its inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def as_it_is(inputs: Inputs) -> Inputs:
    return inputs


def records(num: int, seed: int = 0) -> InMemory:
    generator = torch.Generator().manual_seed(seed)
    return InMemory(torch.randn(num, 3, generator=generator), torch.randint(0, 3, (num,), generator=generator))


def noisy(held: InMemory, noise_multiplier: float = 1.0, stated: float = 100.0) -> NoisyScore:
    return NoisyScore(
        records=held, loss_fn=losses, prepare=as_it_is, noise_multiplier=noise_multiplier, stated_records=stated
    )


def test_public_score_is_the_mean() -> None:
    held = records(2 * RECORDS_AT_ONCE + 7)
    score = PublicScore(records=held, loss_fn=losses, prepare=as_it_is).score(Copying())
    assert score.loss == pytest.approx(float(losses(held.inputs, held.targets).mean()), rel=1e-6)
    assert score.accuracy == pytest.approx(float((held.inputs.argmax(1) == held.targets).double().mean()))


def test_public_score_by_class() -> None:
    inputs = torch.eye(3)[[0, 0, 1, 2, 2, 2]]
    held = InMemory(inputs, torch.tensor([0, 1, 1, 0, 0, 1]))
    score = PublicScore(records=held, loss_fn=losses, prepare=as_it_is, tells_classes=True).score(Copying())
    assert score.accuracy_by_class == (1 / 3, 1 / 3, None)
    assert PublicScore(records=held, loss_fn=losses, prepare=as_it_is).score(Copying()).accuracy_by_class is None


def test_scores_by_class_agree_with_the_whole() -> None:
    held = records(2 * RECORDS_AT_ONCE + 7)
    score = PublicScore(records=held, loss_fn=losses, prepare=as_it_is, tells_classes=True).score(Copying())
    assert score.accuracy_by_class is not None
    counts = torch.bincount(held.targets, minlength=3).tolist()
    whole = sum((share or 0) * count for share, count in zip(score.accuracy_by_class, counts, strict=True))
    assert whole == pytest.approx((score.accuracy or 0) * len(held))


def test_private_score_has_no_classes() -> None:
    assert noisy(records(50)).score(Copying(), KEY.at(0, 0)).accuracy_by_class is None


def test_only_private_scores_are_charged() -> None:
    assert PublicScore(records=records(3), loss_fn=losses, prepare=as_it_is).event == NOTHING
    assert noisy(records(3), noise_multiplier=7.0).event == Gaussian(7.0)


def test_private_score_with_little_noise() -> None:
    held = records(500)
    score = noisy(held, noise_multiplier=0.01, stated=500).score(Copying(), KEY.at(0, 0))
    exact = PublicScore(records=held, loss_fn=losses, prepare=as_it_is).score(Copying())
    assert score.accuracy == pytest.approx(exact.accuracy, abs=0.001)
    assert score.loss == pytest.approx(exact.loss, rel=0.01)


def test_sensitivity_of_a_private_score() -> None:
    held = records(50)
    worst = InMemory(
        torch.cat([held.inputs, torch.tensor([[math.inf, math.nan, 0.0]])]), torch.cat([held.targets, held.targets[:1]])
    )
    with_it, without = (noisy(each, 1e-9).score(Copying(), KEY.at(0, 0)) for each in (worst, held))
    moved = [100 * ((with_it.accuracy or 0) - (without.accuracy or 0)), 100 * (with_it.loss - without.loss) / 4]
    assert math.hypot(*moved) <= math.sqrt(2) + 1e-5


def test_noise_of_a_private_score() -> None:
    held = records(50)
    scorer = noisy(held, noise_multiplier=1.0, stated=100.0)
    scores = [scorer.score(Copying(), KEY.at(step, 0)) for step in range(400)]
    accuracies = torch.tensor([100 * (score.accuracy or 0) for score in scores])
    shares = torch.tensor([100 * score.loss / 4 for score in scores])
    for found in (accuracies, shares):
        std = float(found.std())
        assert std == pytest.approx(math.sqrt(2), rel=0.12)
        assert std != pytest.approx(1.5 * math.sqrt(2), rel=0.12)
        assert std != pytest.approx(math.sqrt(2) / 1.5, rel=0.12)
    assert abs(float(torch.corrcoef(torch.stack([accuracies, shares]))[0, 1])) < 0.15


def test_noise_of_a_score_differs_from_the_steps() -> None:
    like = {"score": torch.zeros(2, dtype=torch.float64)}
    step = KEY.at(3, 0)
    assert not torch.equal(step.normals("noise", like)["score"], step.normals("score", like)["score"])


def test_score_is_reproducible() -> None:
    scorer = noisy(records(50))
    assert scorer.score(Copying(), KEY.at(3, 0)) == scorer.score(Copying(), KEY.at(3, 0))
    assert scorer.score(Copying(), KEY.at(3, 0)) != scorer.score(Copying(), KEY.at(3, 1))


def test_scores_are_clipped_to_their_range() -> None:
    scores = [noisy(records(5), 1000.0, 5.0).score(Copying(), KEY.at(step, 0)) for step in range(20)]
    assert all(0 <= (score.accuracy or 0) <= 1 and 0 <= score.loss <= 4 for score in scores)
    assert {score.accuracy for score in scores} & {0.0, 1.0}


def test_model_without_class_outputs() -> None:
    held = InMemory(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InvalidValue, match="model"):
        PublicScore(records=held, loss_fn=lambda outputs, targets: outputs.sum((1, 2)), prepare=as_it_is).score(
            Copying()
        )


@pytest.mark.parametrize("wrong", [{"noise_multiplier": 0.0}, {"stated": 0.0}, {"noise_multiplier": math.nan}])
def test_invalid_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        noisy(records(3), **wrong)


def test_a_regression_releases_its_loss_alone() -> None:
    """Its sensitivity is 1, and the noise is scaled to that."""
    held = InMemory(torch.zeros(50, 1), torch.full((50,), 3.0))

    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).square()

    def score(noise_multiplier: float, step: int = 0) -> Score:
        scorer = NoisyScore(
            records=held,
            loss_fn=squared,
            prepare=as_it_is,
            noise_multiplier=noise_multiplier,
            stated_records=100.0,
            largest_loss=10.0,
            task="regression",
        )
        return scorer.score(Copying(), KEY.at(step, 0))

    assert score(1e-9).loss == pytest.approx(9.0 * 50 / 100)
    assert score(1e-9).accuracy is None
    shares = torch.tensor([100 * score(1.0, step).loss / 10 for step in range(400)])
    assert float(shares.std()) == pytest.approx(1.0, rel=0.12)
    assert float(shares.std()) != pytest.approx(math.sqrt(2), rel=0.12)


def test_the_accuracy_of_several_labels_is_the_share_of_correct_ones() -> None:
    outputs, labels = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]]), torch.tensor([[1.0, 0, 0], [1, 1, 0]])
    given: dict[str, Any] = {"loss_fn": lambda o, t: (o - t).mean(1), "prepare": as_it_is, "task": "multilabel"}
    score = PublicScore(records=InMemory(outputs, labels), tells_classes=True, **given).score(Copying())
    assert score.accuracy == pytest.approx(5 / 6)
    assert score.accuracy_by_class is None


def test_metrics_see_all_public_records_at_once() -> None:
    held = records(RECORDS_AT_ONCE + 7)
    metrics = {"number": lambda outputs, targets: len(outputs), "none": lambda outputs, targets: math.nan}
    score = PublicScore(records=held, loss_fn=losses, prepare=as_it_is, metrics=metrics).score(Copying())
    assert score.metrics == {"number": len(held), "none": None}

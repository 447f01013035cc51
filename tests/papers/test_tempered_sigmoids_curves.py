"""Figure 3 of the tempered sigmoids' paper."""

from __future__ import annotations

import pytest

from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.table import Cell, Measured
from lehr.papers.tempered_sigmoids import TABLE3
from lehr.papers.tempered_sigmoids_curves import FIGURE3, proven_epsilon, published_epsilon
from lehr.papers.tempered_sigmoids_runs import MNIST, QUICK, TANH, private

SMALL = Size(is_quick=True, seeds=2)


def trajectory(accuracy: float) -> dict[str, object]:
    return {"trajectory": [[steps, steps, accuracy * steps / 120, 1.0] for steps in range(12, 121, 12)]}


def test_epsilon_is_that_of_the_accountants() -> None:
    assert published_epsilon(MNIST, MNIST.steps) == pytest.approx(2.9306, abs=1e-4)
    assert proven_epsilon(MNIST, MNIST.steps) == pytest.approx(2.317, abs=1e-3)
    assert proven_epsilon(QUICK, 12) < published_epsilon(QUICK, 12) < published_epsilon(QUICK, 24)


def test_the_two_activations_differ_in_nothing_else() -> None:
    pairs: dict[tuple[str, int], list[Training]] = {}
    for job in FIGURE3.jobs(Size()):
        assert isinstance(job, Training)
        pairs.setdefault((job.data, job.seed), []).append(job)
    for pair in pairs.values():
        tanh, relu = ({**job.to_json(), "network": None} for job in pair)
        assert tanh == relu
        assert [job.network[1]["activation"] for job in pair] == ["tanh", "relu"]


def test_tanh_is_the_runs_of_table_3() -> None:
    assert {key_of(private(MNIST, TANH, seed)) for seed in range(5)} <= {key_of(job) for job in TABLE3.jobs(Size())}
    assert {key_of(private(MNIST, TANH, seed)) for seed in range(5)} <= {key_of(job) for job in FIGURE3.jobs(Size())}


def test_accuracies_are_read_off_where_the_published_epsilon_is_reached() -> None:
    jobs = [private(QUICK, TANH, seed) for seed in range(2)]
    found = {key_of(job): trajectory(accuracy) for job, accuracy in zip(jobs, (0.8, 1.0), strict=True)}
    shown = FIGURE3.shown(Outcomes(found), SMALL)
    rows = shown.tables[0].rows
    for row in rows:
        _agrees(*row)
    assert rows[-1][3] == QUICK.steps
    first, second = shown.charts[0].lines
    assert list(first.y) == pytest.approx([0.9 * steps / 120 for steps in range(12, 121, 12)])
    assert first.x[-1] == published_epsilon(QUICK, 120)
    assert second.x[-1] == proven_epsilon(QUICK, 120)


def _agrees(title: Cell, published: Cell, proven: Cell, steps: Cell, relu: Cell, tanh: Cell, paper: Cell) -> None:
    assert isinstance(steps, int)
    assert (published, proven) == (published_epsilon(QUICK, steps), proven_epsilon(QUICK, steps))
    assert relu == Measured(())
    assert isinstance(tanh, Measured)
    assert tanh.values == pytest.approx((0.8 * steps / 120, steps / 120))
    assert (title, paper) == (QUICK.title, None)


def test_each_row_is_the_last_look_within_a_round_epsilon() -> None:
    rows = FIGURE3.shown(Outcomes({}), SMALL).tables[0].rows
    published = [row[1] for row in rows if isinstance(row[1], float)]
    following = [published_epsilon(QUICK, row[3] + 12) for row in rows[:-1] if isinstance(row[3], int)]
    assert published == sorted(published)
    assert len(published) == len(rows) > 3
    for cost, after in zip(published, following, strict=False):
        assert any(cost <= each < after for each in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0))

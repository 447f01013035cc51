from __future__ import annotations

from typing import Any

import pytest

from lehr.papers import adadp
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Job, Training, key_of
from lehr.papers.table import Measured, Table


def run_with(*rows: tuple[int, float]) -> dict[str, Any]:
    """An outcome whose accuracies are these, after so many steps."""
    return {"trajectory": [[steps, steps, accuracy, 1.0] for steps, accuracy in rows]}


def outcomes(*found: tuple[Job, dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): outcome for job, outcome in found})


def row_of(table: Table, name: str) -> tuple[Any, ...]:
    [row] = [row for row in table.rows if row[0] == name]
    return row


def test_table_1_has_the_papers_settings_on_mnist() -> None:
    jobs = adadp.table1_jobs(Size())
    assert {job.seed for job in jobs if isinstance(job, Training)} == {0, 1, 2}
    for job in jobs:
        assert isinstance(job, Training)
        assert (job.data, job.expected_batch_size, job.noise_multiplier, job.delta) == ("mnist", 600, 3.0, 1e-4)
        assert job.private_pca == {"dimensions": 60, "noise_multiplier": 6.0}
        assert job.network[0] == "projected_mlp"
        assert job.is_plain


@pytest.mark.parametrize(
    "name, method, settings",
    [
        ("DPSGD", "dpsgd", adadp.PAPERS_DPSGD),
        ("ADADP, published", "adadp", {"accounting": "published"}),
        ("ADADP, proven", "adadp", {}),
        ("ADADP, proven, rate 0.005", "adadp", {"learning_rate": 0.005}),
    ],
)
def test_both_forms_are_run_at_the_papers_rate_and_at_ours(name: str, method: str, settings: dict[str, Any]) -> None:
    [way] = [way for way in adadp.MNIST.ways if way.name == name]
    assert (way.method, way.settings) == (method, settings)


def test_steps_pass_every_epsilon_that_the_paper_prints_for_adadp() -> None:
    last = adadp.MNIST.epsilon(adadp.STEPS_OF_ADADP, accountant=adadp.PUBLISHED)
    assert 1.40 < last < 1.41


def test_steps_of_dpsgd_pass_the_papers_first_three_and_the_last_is_out_of_reach() -> None:
    assert adadp.MNIST.epsilon(adadp.STEPS_OF_DPSGD, accountant=adadp.PUBLISHED) > 1.96
    assert adadp.MNIST.epsilon(100_000, accountant=adadp.PUBLISHED) < 5.48


def test_epsilon_has_the_private_components_in_it() -> None:
    without = adadp.epsilon_of(1000, sampling_probability=0.01, noise=3.0, components=None, accountant=adadp.PUBLISHED)
    assert without < adadp.MNIST.epsilon(1000, accountant=adadp.PUBLISHED) == pytest.approx(0.877, abs=1e-3)
    assert adadp.MNIST.epsilon(0, accountant=adadp.PROVEN) > 0


def test_proven_epsilon_is_below_the_papers_rule() -> None:
    proven, published = (adadp.MNIST.epsilon(1000, accountant=name) for name in (adadp.PROVEN, adadp.PUBLISHED))
    assert proven == pytest.approx(0.599, abs=1e-3)
    assert proven < published


def test_table_1_without_outcomes_has_the_papers_numbers_and_empty_cells() -> None:
    published, proven, accuracies = adadp.table1_shown(Outcomes({}), Size()).tables
    assert row_of(published, "DPSGD, in the paper")[1:5] == (1.10, 1.61, 1.96, 5.48)
    assert row_of(published, "ADADP, in the paper")[1:5] == (0.75, 0.78, 0.80, 1.40)
    assert row_of(published, "DPSGD")[1:5] == (None,) * 4
    assert row_of(proven, "ADADP, proven")[1:5] == (None,) * 4
    assert set(row_of(accuracies, "ADADP, proven")[1:]) == {Measured(())}


def test_epsilon_is_that_of_the_first_step_at_which_every_run_has_the_accuracy() -> None:
    way = adadp.MNIST.ways[0]
    first, second = (adadp.MNIST.job(way, seed) for seed in (0, 1))
    found = outcomes(
        (first, run_with((100, 0.91), (200, 0.93), (300, 0.90))), (second, run_with((100, 0.89), (300, 0.92)))
    )
    published, proven, _ = adadp.table1_shown(found, Size()).tables
    expected = tuple(adadp.MNIST.epsilon(steps, accountant=adadp.PUBLISHED) for steps in (200, 300))
    assert row_of(published, way.name)[1] == Measured(expected)
    expected = tuple(adadp.MNIST.epsilon(steps, accountant=adadp.PROVEN) for steps in (200, 300))
    assert row_of(proven, way.name)[1] == Measured(expected)


def test_an_accuracy_that_some_runs_never_have_is_said_to_be_so() -> None:
    way = adadp.MNIST.ways[0]
    first, second = (adadp.MNIST.job(way, seed) for seed in (0, 1))
    found = outcomes((first, run_with((100, 0.93))), (second, run_with((100, 0.89))))
    published = adadp.table1_shown(found, Size()).tables[0]
    assert row_of(published, way.name)[1] == "1 of 2 runs by 1.99"


def test_nothing_that_is_published_only_stands_in_the_table_of_proven_epsilons() -> None:
    proven = adadp.table1_shown(Outcomes({}), Size()).tables[1]
    assert not any("published" in str(row[0]) for row in proven.rows)


def test_accuracies_are_read_at_exactly_the_steps_of_their_column() -> None:
    way = adadp.MNIST.ways[0]
    found = outcomes((adadp.MNIST.job(way, 0), run_with((500, 0.5), (999, 0.6), (3000, 0.7))))
    accuracies = adadp.table1_shown(found, Size()).tables[2]
    assert row_of(accuracies, way.name)[1:4] == (Measured((0.5,)), Measured(()), Measured((0.7,)))


def test_quick_tables_say_that_they_are_quick() -> None:
    shown = adadp.table1_shown(Outcomes({}), Size(is_quick=True))
    assert all("quick" in table.title for table in shown.tables)
    jobs = adadp.table1_jobs(Size(is_quick=True))
    assert len(jobs) == 3
    assert not {key_of(job) for job in jobs} & {key_of(job) for job in adadp.table1_jobs(Size())}


def test_as_many_seeds_are_run_as_are_asked_for() -> None:
    assert len(adadp.table1_jobs(Size(seeds=2))) == 2 * len(adadp.MNIST.ways)

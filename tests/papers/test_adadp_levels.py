from __future__ import annotations

from typing import Any

import pytest

from lehr.papers import adadp_levels as levels
from lehr.papers import adadp_runs as runs
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
    jobs = levels.TABLE1.jobs(Size())
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
        (
            "DPSGD",
            "dpsgd",
            {"learning_rate": 0.1, "clip_norm": 4.0, "momentum": 0.0, "schedule": runs.FALLING},
        ),
        ("ADADP, published", "adadp", {"accounting": "published"}),
        ("ADADP, proven", "adadp", {}),
        ("ADADP, proven, rate 0.005", "adadp", {"learning_rate": 0.005}),
    ],
)
def test_both_forms_are_run_at_the_papers_rate_and_at_ours(name: str, method: str, settings: dict[str, Any]) -> None:
    [way] = [way for way in levels.MNIST.ways if way.name == name]
    assert (way.method, way.settings) == (method, settings)


def test_steps_pass_every_epsilon_that_the_paper_prints_for_adadp() -> None:
    last = levels.MNIST.setting.epsilon(levels.STEPS_OF_ADADP, accountant=runs.PUBLISHED)
    assert 1.40 < last < 1.41


def test_steps_of_dpsgd_pass_the_papers_first_three_and_the_last_is_out_of_reach() -> None:
    assert levels.MNIST.setting.epsilon(levels.STEPS_OF_DPSGD, accountant=runs.PUBLISHED) > 1.96
    assert levels.MNIST.setting.epsilon(100_000, accountant=runs.PUBLISHED) < 5.48


def test_proven_epsilon_is_below_the_papers_rule() -> None:
    proven, published = (levels.MNIST.setting.epsilon(1000, accountant=name) for name in (runs.PROVEN, runs.PUBLISHED))
    assert proven == pytest.approx(0.599, abs=1e-3)
    assert proven < published


def test_table_1_without_outcomes_has_the_papers_numbers_and_empty_cells() -> None:
    published, proven, accuracies = levels.TABLE1.shown(Outcomes({}), Size()).tables
    assert row_of(published, "DPSGD, in the paper")[1:5] == (1.10, 1.61, 1.96, 5.48)
    assert row_of(published, "ADADP, in the paper")[1:5] == (0.75, 0.78, 0.80, 1.40)
    assert row_of(published, "DPSGD")[1:5] == (None,) * 4
    assert row_of(proven, "ADADP, proven")[1:5] == (None,) * 4
    assert set(row_of(accuracies, "ADADP, proven")[1:]) == {Measured(())}


def test_epsilon_is_that_of_the_first_step_at_which_every_run_has_the_accuracy() -> None:
    way = levels.MNIST.ways[0]
    first, second = (levels.MNIST.runs(way, [seed])[0] for seed in (0, 1))
    found = outcomes(
        (first, run_with((100, 0.91), (200, 0.93), (300, 0.90))), (second, run_with((100, 0.89), (300, 0.92)))
    )
    published, proven, _ = levels.TABLE1.shown(found, Size()).tables
    expected = tuple(levels.MNIST.setting.epsilon(steps, accountant=runs.PUBLISHED) for steps in (200, 300))
    assert row_of(published, way.name)[1] == Measured(expected)
    expected = tuple(levels.MNIST.setting.epsilon(steps, accountant=runs.PROVEN) for steps in (200, 300))
    assert row_of(proven, way.name)[1] == Measured(expected)


def test_an_accuracy_that_some_runs_never_have_is_said_to_be_so() -> None:
    way = levels.MNIST.ways[0]
    first, second = (levels.MNIST.runs(way, [seed])[0] for seed in (0, 1))
    found = outcomes((first, run_with((100, 0.93))), (second, run_with((100, 0.89))))
    published = levels.TABLE1.shown(found, Size()).tables[0]
    assert row_of(published, way.name)[1] == "1 of 2 by 1.99"


def test_nothing_that_is_published_only_stands_in_the_table_of_proven_epsilons() -> None:
    proven = levels.TABLE1.shown(Outcomes({}), Size()).tables[1]
    assert not any("published" in str(row[0]) for row in proven.rows)


def test_accuracies_are_read_at_exactly_the_steps_of_their_column() -> None:
    way = levels.MNIST.ways[0]
    found = outcomes((levels.MNIST.runs(way, [0])[0], run_with((500, 0.5), (999, 0.6), (3000, 0.7))))
    accuracies = levels.TABLE1.shown(found, Size()).tables[2]
    assert row_of(accuracies, way.name)[1:4] == (Measured((0.5,)), Measured(()), Measured((0.7,)))


def test_a_quick_table_is_of_other_records_and_has_none_of_the_papers_numbers() -> None:
    shown = levels.TABLE1.shown(Outcomes({}), Size(is_quick=True))
    assert all("digits" in table.title for table in shown.tables)
    assert not any("in the paper" in str(row[0]) for table in shown.tables for row in table.rows)
    jobs = levels.TABLE1.jobs(Size(is_quick=True))
    assert len(jobs) == 3
    assert not {key_of(job) for job in jobs} & {key_of(job) for job in levels.TABLE1.jobs(Size())}


def test_as_many_seeds_are_run_as_are_asked_for() -> None:
    assert len(levels.TABLE1.jobs(Size(seeds=2))) == 2 * len(levels.MNIST.ways)


def test_on_cifar_10_only_linear_layers_are_trained_over_convolutions_from_cifar_100() -> None:
    jobs = levels.TABLE1_CIFAR_10.jobs(Size(seeds=1))
    assert len(jobs) == 3
    for job in jobs:
        assert isinstance(job, Training)
        assert (job.data, job.expected_batch_size, job.noise_multiplier, job.delta) == ("cifar-10", 2000, 4.0, 1e-4)
        assert job.network == ("alexnet_like", {"frozen_convolutions": True})
        assert job.pretrained is not None
        assert (job.pretrained["data"], job.pretrained["part"]) == ("cifar-100", "convolutions")
        assert job.private_pca is None


def test_on_cifar_10_the_papers_numbers_stand_beside_empty_cells() -> None:
    published = levels.TABLE1_CIFAR_10.shown(Outcomes({}), Size()).tables[0]
    assert row_of(published, "DPSGD, in the paper")[1:5] == (0.89, 1.85, 4.75, 8.36)
    assert row_of(published, "ADADP, in the paper")[1:5] == (0.62, 1.07, 2.13, 3.55)
    assert row_of(published, "ADADP, published")[1:5] == (None,) * 4


def test_steps_on_cifar_10_are_those_that_the_notes_say() -> None:
    setting = levels.CIFAR_10.setting
    assert [setting.most_steps(epsilon) for epsilon in (2.13, 3.55, 4.75, 8.36)] == [2101, 5508, 9415, 25503]


def test_rates_were_tried_with_a_seed_that_no_table_uses() -> None:
    jobs = levels.RATES.jobs(Size())
    assert {job.seed for job in jobs if isinstance(job, Training)} == {runs.SEED_OF_SEARCHES}
    assert runs.SEED_OF_SEARCHES not in {job.seed for job in levels.TABLE1.jobs(Size()) if isinstance(job, Training)}
    methods = [job.method for job in jobs if isinstance(job, Training)]
    assert methods.count("dpsgd") >= methods.count("adadp")


def test_rates_show_the_accuracy_of_each_that_was_run() -> None:
    job = levels.RATES.jobs(Size())[0]
    [table] = levels.RATES.shown(outcomes((job, run_with((300, 0.5), (900, 0.6), (3000, 0.7)))), Size()).tables
    assert table.rows[0][1:] == (0.5, 0.6, 0.7)
    assert table.rows[1][1:] == (None, None, None)

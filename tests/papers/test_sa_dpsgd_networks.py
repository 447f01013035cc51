"""Other rates on CIFAR-10 with the network of Papernot et al."""

from __future__ import annotations

from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.sa_dpsgd_networks import EXPERIMENTS, SEED, TRIED

[RATES] = EXPERIMENTS


def test_every_run_has_its_rate_and_the_other_network_and_a_seed_that_no_table_has() -> None:
    jobs = RATES.jobs(Size())
    assert len({key_of(job) for job in jobs}) == len(TRIED)
    for job, (rate, momentum, is_plain) in zip(jobs, TRIED, strict=True):
        assert isinstance(job, Training)
        assert (job.network[0], job.seed, job.steps) == ("cifar_cnn", SEED, 1435)
        assert (job.settings["learning_rate"], job.settings["momentum"], job.is_plain) == (rate, momentum, is_plain)


def test_accuracies_stand_beside_their_rates_and_nothing_where_no_run_was_made() -> None:
    second = RATES.jobs(Size())[1]
    [table] = RATES.shown(Outcomes({key_of(second): {"accuracy": 0.36}}), Size()).tables
    assert [row[-1] for row in table.rows] == [None, 0.36, *[None] * (len(TRIED) - 2)]


def test_a_quick_one_says_so() -> None:
    [table] = RATES.shown(Outcomes({}), Size(is_quick=True)).tables
    assert table.title.startswith("Quick")
    assert len(RATES.jobs(Size(is_quick=True))) == 2

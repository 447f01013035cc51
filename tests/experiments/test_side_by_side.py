"""The methods beside one another: read off the papers' runs, at what is proven."""

from __future__ import annotations

from experiments.experiment import Job, Outcome, Outcomes, Size, Statistic, key_of
from experiments.sa_dpsgd_runs import FASHION_MNIST, MNIST, TANH, proven_epsilon, runs_of
from experiments.side_by_side import side_by_side


def _outcome(job: Job) -> Outcome:
    """Its accuracy at a look is the share of the steps that are done."""
    words = job.to_json()
    every = words.get("evaluate_every", words["steps"])
    rows = [[step, step, step / 1e6, 0.1] for step in range(every, words["steps"] + 1, every)]
    return {"accuracy": 0.5, "trajectory": rows, "epsilon_proven": 2.5}


def test_accuracies_are_read_at_the_last_look_within_a_proven_epsilon_of_three() -> None:
    jobs = side_by_side.jobs(Size())
    assert {key_of(job) for job in runs_of(MNIST, TANH, Size())} <= {key_of(job) for job in jobs}
    found = Outcomes({key_of(job): _outcome(job) for job in jobs})
    images, components = side_by_side.report(found, Size()).tables
    rows = {row[0]: row for row in images.rows}
    assert rows[TANH.title][1] == Statistic((7209 / 1e6,) * 5)
    assert rows[TANH.title][3] == Statistic((1768 / 1e6,) * 5)
    for setting, place in ((MNIST, 2), (FASHION_MNIST, 4)):
        epsilon = rows[TANH.title][place]
        assert isinstance(epsilon, float)
        assert epsilon <= 3
        assert proven_epsilon(setting, setting.proven_steps + 1) > 3
    proven = {row[0]: row[2] for row in components.rows}
    assert proven["ADADP, published"] == "nothing proven"
    assert isinstance(proven["ADADP, proven"], float)

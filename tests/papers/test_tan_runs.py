from __future__ import annotations

import math

import pytest

from lehr.papers import tan_runs
from lehr.papers.experiment import Size
from lehr.papers.job import key_of
from lehr.papers.training import train

WHOLE, QUICK = Size(), Size(is_quick=True)


def test_a_smaller_batch_simulates_the_reference_and_the_reference_itself_does_not() -> None:
    small, whole = (tan_runs.run(batch=batch, steps=600, seed=0) for batch in (64, 4096))
    assert (small.expected_batch_size, small.noise_multiplier, small.simulated_batch_size) == (4096, 3.0, 64)
    assert whole.simulated_batch_size is None
    assert whole.delta == 1e-5


def test_runs_are_made_as_the_paper_says() -> None:
    run = tan_runs.run(batch=512, steps=2500, seed=0)
    assert run.settings == {"learning_rate": 4.0, "clip_norm": 1.0, "momentum": 0.0}
    assert run.averaging == {"kind": "exponential", "decay": 0.999}
    assert run.network == ("wide_resnet", {"order": "after"})


def test_fewer_records_have_a_larger_delta_in_proportion() -> None:
    run = tan_runs.run(batch=4096, steps=2500, seed=0, records=25_000)
    assert run.records == 25_000
    assert run.delta == pytest.approx(2e-5)


def test_tables_share_the_runs_that_they_can() -> None:
    reference = tan_runs.law(WHOLE, steps=2500, batch=4096)
    assert reference == tan_runs.data_size(WHOLE, records=50_000, batch=4096, steps=2500)
    simulated = tan_runs.law(WHOLE, steps=600, batch=256)
    assert simulated == tan_runs.same_eta(WHOLE, steps=600, stands_for=4096, batch=256, rate=4.0)
    assert tan_runs.pipeline(WHOLE, batch=512) == tan_runs.order(WHOLE, side="after", views=4)


def test_every_point_has_its_first_seed_before_any_has_its_second_and_no_job_is_twice() -> None:
    points = [tan_runs.law(WHOLE, steps=600, batch=batch) for batch in (64, 128, 64)]
    jobs = tan_runs.by_seed(points)
    assert [(job.seed, job.simulated_batch_size) for job in jobs] == [
        (seed, batch) for seed in (0, 1, 2) for batch in (64, 128)
    ]


def test_a_number_of_seeds_can_be_asked_for() -> None:
    assert len(tan_runs.law(Size(seeds=5), steps=600, batch=64)) == 5
    assert len(tan_runs.law(QUICK, steps=600, batch=64)) == 1


def test_a_quick_job_keeps_the_ratio_of_noise_to_batch_and_is_another_job() -> None:
    [quick] = tan_runs.law(QUICK, steps=600, batch=512)
    whole = tan_runs.law(WHOLE, steps=600, batch=512)[0]
    assert quick.data == "digits"
    assert quick.noise_multiplier == whole.noise_multiplier
    assert quick.expected_batch_size / (quick.simulated_batch_size or math.nan) == 8
    assert key_of(quick) != key_of(whole)


def test_every_quick_network_can_be_trained() -> None:
    for network in (tan_runs.WIDE_RESNET, tan_runs.VIT, tan_runs.NF_RESNET):
        job = tan_runs.quick(tan_runs.run(batch=256, steps=60, seed=0, network=network))
        outcome = train(job, device="cpu", data_dir=None)
        assert outcome["candidates"] == 2
        assert outcome["epsilon_simulated"] > 1


def test_only_what_is_quick_says_so_in_its_title() -> None:
    assert tan_runs.titled("Table", WHOLE) == "Table"
    assert tan_runs.titled("Table", QUICK).startswith("Quick")

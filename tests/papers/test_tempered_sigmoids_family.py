"""Figures 1 and 2 of the tempered sigmoids' paper."""

from __future__ import annotations

import math

import pytest

from lehr.networks.activations import activation_named
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.tempered_sigmoids import TABLE3
from lehr.papers.tempered_sigmoids_family import FIGURE1, FIGURE2, TRIPLETS, Triplet, family


def test_the_family_has_tanh_as_its_first() -> None:
    assert next(iter(family())) == "(2, 2, 1): tanh"
    [chart] = FIGURE1.shown(Outcomes({}), Size()).charts
    tanh = chart.lines[0]
    assert list(tanh.y) == pytest.approx([math.tanh(x) for x in tanh.x], abs=1e-12)
    assert FIGURE1.jobs(Size()) == []


def test_triplets_are_words_that_a_network_knows_and_tanh_is_table_3s() -> None:
    for triplet in TRIPLETS:
        activation_named(triplet.word)
    assert Triplet(2, 2, 1).word == "tanh"
    assert Triplet(1, 4, 0.5).word == "tempered_sigmoid(1, 4, 0.5)"
    table3 = {key_of(job) for job in TABLE3.jobs(Size())}
    assert sum(key_of(job) in table3 for job in FIGURE2.jobs(Size())) == 2  # one on each data set


def test_the_best_tenth_is_averaged_once_every_triplet_was_run() -> None:
    jobs = [job for job in FIGURE2.jobs(Size()) if isinstance(job, Training) and job.data == "mnist"]
    best = {TRIPLETS.index(Triplet(*each)): 0.98 for each in ((1, 2, 0.5), (2, 2, 1), (3, 2, 1.5))}
    found = {key_of(job): {"accuracy": best.get(place, 0.9)} for place, job in enumerate(jobs)}
    summary, all_of_mnist, _ = FIGURE2.shown(Outcomes(found), Size()).tables
    mnist, fashion = summary.rows
    assert mnist[1:3] == ("(1.97, 2.27, 1.15)", "(2.00, 2.00, 1.00)")
    assert mnist[-1] == 27
    assert fashion[2] is None
    assert fashion[-1] == 0
    assert {tuple(row[:3]) for row in all_of_mnist.rows[:3]} == {(1, 2, 0.5), (2, 2, 1), (3, 2, 1.5)}
    _, *rest = found
    partly = FIGURE2.shown(Outcomes({key: found[key] for key in rest}), Size()).tables[0].rows[0]
    assert partly[2] is None
    assert partly[-1] == 26


def test_the_chart_has_a_line_for_every_scale_and_offset() -> None:
    found = {key_of(job): {"accuracy": 0.9} for job in FIGURE2.jobs(Size())}
    charts = FIGURE2.shown(Outcomes(found), Size()).charts
    assert [len(chart.lines) for chart in charts] == [9, 9]
    assert {tuple(line.x) for line in charts[0].lines} == {(1, 2, 4)}

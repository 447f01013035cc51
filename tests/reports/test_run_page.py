from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr import accounting
from lehr.acceptance.annealed import Annealed
from lehr.accounting.claims import Premise, Standing
from lehr.accounting.events import Adjacency, Composed, Gaussian, NonPrivate
from lehr.certificates.guarantee import best_guess_text, claim_to_json, guarantee_text
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports.run_page import SIMULATED, cost_rows, first_reached, position, promised, render
from lehr.rounding import at_most
from lehr.schedules import StepDecay
from tests.audits import HOLDING, REFUTED
from tests.certificates.conftest import PROVEN, PUBLISHED, filled_certificate
from tests.reports.pages import Page, chart_lines, charts
from tests.written_runs import PLAN, certificate, configuration, evaluations, write_run

EXPENSIVE = replace(PLAN, noise_multiplier=1.0, expected_batch_size=200.0, delta=1e-4)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    write_run(directory, rows=evaluations(accepted=0.75))
    return read_run(directory)


@pytest.fixture(scope="module")
def text(record: RunRecord) -> str:
    return render(record)


def words_of(record: RunRecord) -> str:
    return Page(render(record)).words


def with_config(record: RunRecord, **sections: Any) -> RunRecord:
    return replace(record, config={**record.config, **sections})


def declared_public(record: RunRecord) -> RunRecord:
    return with_config(record, data={**record.config["data"], "declared": "public"})


def test_the_guarantee_comes_first_and_in_words(text: str) -> None:
    words, own = Page(text).words, certificate(steps_taken=40)
    stated = guarantee_text(epsilon=own.epsilon, delta=own.delta, adjacency=own.adjacency, unit="one image")
    for expected in (
        stated,
        best_guess_text(epsilon=own.epsilon, delta=own.delta, unit="one image"),
        "This is proven.",
    ):
        assert words.index(expected) < words.index("How it went")
    for expected in ("the number of records", own.claim.theorem):
        assert expected in words


def test_steps_score_and_settings_are_in_the_words(text: str) -> None:
    for words in ("40 of 40 planned", "95.00%", "0.0500", "sa-dpsgd", "clip norm", "30 of 40 (75.0%)", "digits"):
        assert words in Page(text).words


def test_the_charts_have_every_evaluation(text: str) -> None:
    assert set(charts(text)) == {"accuracy", "loss", "spent", "acceptance", "noise"}
    for name in ("accuracy", "loss"):
        line, rows = chart_lines(text, name)["test"], evaluations()
        assert line["x"] == [row.epsilon_spent for row in rows]
        assert line["y"] == pytest.approx([getattr(row, name) for row in rows], rel=1e-5)


def test_every_chart_has_a_place_a_heading_and_its_numbers_as_a_table(record: RunRecord) -> None:
    rows = [
        replace(row, accuracy_by_class=(1.0, 0.5), noise_multiplier=2.0, clip_norm=0.1)
        for row in evaluations(accepted=0.75)
    ]
    method = {**record.config["method"], "acceptance": Annealed().to_json()}
    full = with_config(replace(record, evaluations=tuple(rows), audit=HOLDING), method=method)
    text = render(full, position=position(full))
    expected = {"accuracy", "loss", "spent", "acceptance", "temperature", "noise", "clip", "classes"}
    assert set(charts(text)) == expected | {"audit-roc-0", "audit-tradeoff-0", "constant-eta"}
    page = Page(text)
    elements = [attributes.get("id") for _, attributes in page.tags]
    assert {*charts(text), *(f"{chart}-title" for chart in charts(text))} <= set(elements)
    assert len({*filter(None, elements)}) == len([*filter(None, elements)])
    assert sum(tag == "details" for tag, _ in page.tags) == len(charts(text))
    order = ("50/50 membership", "Treated as public", "Accuracy against ε", "How it went", "Share of candidates",
             "Noise multiplier", "Audit", "How ε was computed", "Configuration", "Cost")  # fmt: skip
    places = [page.words.index(part) for part in order]
    assert places == sorted(places)


def test_acceptance_is_left_out_where_every_step_was_accepted(record: RunRecord) -> None:
    text = render(replace(record, evaluations=tuple(evaluations())))
    assert "acceptance" not in charts(text)
    assert "Candidates accepted" not in Page(text).words


@pytest.mark.parametrize("state", State)
def test_the_page_says_how_far_the_run_has_come(record: RunRecord, state: State) -> None:
    assert state.value.capitalize() in words_of(replace(record, state=state))


def test_before_the_end_the_guarantee_is_that_of_the_whole_plan(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_over=False, steps_taken=20)
    words = words_of(read_run(tmp_path / "run"))
    assert f"ε = {at_most(PLAN.claim().epsilon)} at δ" in words
    assert "proven for the plan" in words
    write_run(tmp_path / "new", is_over=False, rows=[])
    assert charts(render(read_run(tmp_path / "new"))) == {}


def test_the_guarantee_includes_what_is_done_beside_the_steps(record: RunRecord) -> None:
    planned = Composed((PLAN.event, Gaussian(2.0)))
    whole = accounting.claim(planned, delta=PLAN.delta, adjacency=PLAN.adjacency)
    assert f"ε = {at_most(whole.epsilon)} at" in render(replace(record, certificate=None, planned=planned))


def test_a_run_without_privacy_says_so_first_and_charts_against_steps(tmp_path: Path, record: RunRecord) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None, method={"name": "sgd"}), rows=[])
    rows = tuple(replace(row, epsilon_spent=math.inf) for row in evaluations())
    plain = replace(read_run(tmp_path / "run"), evaluations=rows)
    for one in (plain, replace(plain, certificate=record.certificate)):  # whatever lies in its folder
        text = render(one)
        assert "No privacy: it was trained without noise" in Page(text).words
        assert "δ" not in Page(text).words
        assert "ε =" not in Page(text).words
        assert chart_lines(text, "accuracy")["test"]["x"] == [10, 20, 30, 40]


def test_a_published_epsilon_is_shown_with_what_it_is_worth(record: RunRecord) -> None:
    words = words_of(with_config(record, claims={"published": claim_to_json(PUBLISHED)}))
    assert f"ε = {at_most(certificate(steps_taken=40).epsilon)} at δ = 1e-05, proven" in words
    assert "As published: ε = 1" in words
    assert "This is not a guarantee: the choice looks at the records." in words
    words = words_of(with_config(record, claims={"published": claim_to_json(PROVEN)}))
    assert "As published: ε = 2.5" in words
    assert "not a guarantee" not in words


def test_where_nothing_is_proven_the_page_says_why_and_shows_no_epsilon_but_the_papers(record: RunRecord) -> None:
    leaks = replace(record, planned=Composed((PLAN.event, NonPrivate("bounds follow raw gradients"))), certificate=None)
    words = words_of(with_config(leaks, claims={"published": claim_to_json(PUBLISHED)}))
    assert "No privacy: bounds follow raw gradients." in words
    assert "As published: ε = 1" in words
    assert "ε ≤" not in words


def test_hostile_names_are_words_and_nothing_else(tmp_path: Path, text: str) -> None:
    attack = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"
    config = configuration(
        run=attack,
        method={"name": attack, attack: attack},
        data={"name": attack, "public_records": attack},
        stated={"unit_of_privacy": attack, "treated_as_public": [attack]},
    )
    broken = Premise(attack, Standing.BROKEN, because=attack)
    config["claims"] = {"published": claim_to_json(replace(PUBLISHED, theorem=attack, premises=(broken,)))}
    write_run(tmp_path / "run", config=config, rows=evaluations(on=attack, accepted=0.5))
    hostile = render(read_run(tmp_path / "run"))
    assert attack not in hostile
    assert "alert('x')" in Page(hostile).words
    assert "{{ 7 * 7 }}" in Page(hostile).words
    assert len(Page(hostile).scripts) == len(Page(text).scripts)
    assert {tag for tag, _ in Page(hostile).tags} == {tag for tag, _ in Page(text).tags}


@pytest.mark.parametrize("audit, words", [(HOLDING, "87 % of the claim"), (REFUTED, "REFUTED. ")])
def test_an_audit_is_on_the_page_with_both_curves(record: RunRecord, audit: Any, words: str) -> None:
    text = render(replace(record, evaluations=(), audit=audit))
    assert words in Page(text).words
    assert set(charts(text)) == {"audit-roc-0", "audit-tradeoff-0"}
    assert words not in words_of(record)


def test_a_certificate_of_a_run_that_promises_nothing_promises_nothing(record: RunRecord) -> None:
    assert record.certificate is not None
    words = words_of(declared_public(record))
    assert "No privacy: the training records were declared public." in words
    assert "ε =" not in words


@pytest.mark.parametrize("accountant", ["pld", "filter"])
def test_a_certificate_that_promises_more_than_the_run_is_another_runs_and_is_not_believed(
    record: RunRecord, accountant: str
) -> None:
    certificate = record.certificate
    assert certificate is not None
    assert record.proven is not None
    assert promised(record) == certificate.claim
    better = replace(certificate, epsilon=record.proven.epsilon / 2, accountant=accountant)
    foreign = replace(record, certificate=better)
    assert promised(foreign) == record.proven
    assert "it is another run's" in words_of(foreign)
    other_delta = replace(record, certificate=replace(certificate, delta=record.proven.delta * 2))
    assert promised(other_delta) == record.proven


def test_evaluations_are_thinned_out_and_the_end_at_accepted_candidates_is_named(record: RunRecord) -> None:
    many = replace(record, evaluations=tuple(evaluations(range(1, 41))), plan=replace(PLAN, stops_at_accepted=30))
    assert "20 of 40, evenly spread." in words_of(many)
    assert "30 candidates are accepted" in words_of(many)
    assert "evenly spread." not in words_of(record)


def test_costs_are_of_expected_records_and_whole_minutes(record: RunRecord) -> None:
    rows = dict(cost_rows(record))
    assert rows["Records used"] == "640 expected (40 steps of 16)"
    assert rows["Passes over the data"] == "0.64 expected"
    assert rows["Time"].startswith("less than a minute, ")
    assert rows["ε per 100 steps"] == "1 on average"  # 0.4 for forty
    assert rows["ε per pass over the data"] == "0.625 on average"
    assert rows["ε when 90% was first reached"] == "0.2"
    assert "ε when 97% was first reached" not in rows
    slow = dict(cost_rows(replace(record, minutes=95)))
    assert (slow["Time"][:11], slow["Steps per minute"]) == ("1 h 35 min,", "0.4211 on average")
    budget = dict(cost_rows(replace(record, certificate=filled_certificate())))["Budget of the records"]
    assert budget == "MNIST, training half: ε = 2.75 of 3 spent, this run included"
    best = replace(record, evaluations=(replace(evaluations((40,))[0], accuracy=1.0),))
    assert [accuracy for accuracy, _ in first_reached(best)] == [0.95, 0.97, 0.98, 0.99]


def test_a_run_without_privacy_has_costs_but_no_epsilon(record: RunRecord) -> None:
    rows = dict(cost_rows(declared_public(record)))
    assert "Records used" in rows
    assert not [name for name in rows if "ε" in name]
    bare = replace(record, plan=None, certificate=None, minutes=None)
    assert [*cost_rows(bare)] == [("Trained parameters", "195")]


def record_of(plan: Plan, directory: Path, declared: str = "private") -> RunRecord:
    config = configuration(data={"declared": declared}) | {"plan": plan.to_json()}
    write_run(directory / "run", config=config, is_over=False)
    return replace(read_run(directory / "run"), plan=plan, planned=plan.event)


@pytest.mark.parametrize("is_simulated", [False, True])
def test_the_plan_is_marked_on_the_curve_of_its_own_eta(tmp_path: Path, is_simulated: bool) -> None:
    plan = simulate(EXPENSIVE, expected_batch_size=50) if is_simulated else EXPENSIVE
    found = position(record_of(plan, tmp_path, declared="public" if is_simulated else "private"))
    assert found is not None
    [mark] = [line for line in found.chart.lines if line.is_mark]
    assert (mark.x, mark.y) == ([1.0], [EXPENSIVE.bound().epsilon])  # of a simulation, the plan that it stands for
    assert found.chart.note.endswith(SIMULATED) == is_simulated
    assert "η of the run" in dict(found.facts)


@pytest.mark.parametrize(
    "plan, declared",
    [
        (replace(EXPENSIVE, noise_schedule=StepDecay(every=10, decay=0.9)), "private"),
        (replace(EXPENSIVE, adjacency=Adjacency.REPLACE_ONE), "private"),
        (replace(EXPENSIVE, noise_multiplier=0.0), "private"),
        (EXPENSIVE, "public"),
    ],
    ids=["unequal steps", "replaced records", "no noise", "public records"],
)
def test_where_the_total_noise_says_nothing_there_is_no_position(tmp_path: Path, plan: Plan, declared: str) -> None:
    assert position(record_of(plan, tmp_path, declared)) is None

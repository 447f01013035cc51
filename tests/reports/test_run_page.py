"""The page of a run, of several runs, and their charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr import accounting
from lehr.accounting.claims import Premise, Standing
from lehr.accounting.events import Adjacency, Composed, Gaussian, NonPrivate
from lehr.certificates.guarantee import best_guess_text, claim_to_json, guarantee_text
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.errors import InvalidValue
from lehr.planning.simulation import simulate
from lehr.reports.prediction_page import compare_with_run
from lehr.reports.run_page import FEWEST_OF_A_LINE, MOST_RUNS, POINTS, claim_of, render, render_comparison
from lehr.rounding import at_most, rounded_up
from lehr.run.shape import Evaluation
from tests.audits import HOLDING, REFUTED
from tests.certificates.conftest import PROVEN, PUBLISHED, filled_certificate
from tests.predictions import PREDICTION
from tests.reports.pages import Page, chart_lines, charts
from tests.written_runs import PLAN, certificate, configuration, evaluations, write_run

ATTACK = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"
LARGEST = 5_000_000  # bytes of a page; nearly all of it is the drawing library


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


def with_rows(record: RunRecord, rows: Sequence[Evaluation], **changed: Any) -> RunRecord:
    return replace(record, evaluations=tuple(replace(row, **changed) for row in rows))


def declared_public(record: RunRecord, **sections: Any) -> RunRecord:
    return with_config(record, data={**record.config["data"], "declared": "public"}, **sections)


# The guarantee.


def test_guarantee_comes_first_and_in_words(text: str) -> None:
    words, own = Page(text).words, certificate(steps_taken=40)
    for expected in (
        guarantee_text(epsilon=own.epsilon, delta=own.delta, adjacency=own.adjacency, unit="one image"),
        best_guess_text(epsilon=own.epsilon, delta=own.delta, unit="one image"),
        "This is proven.",
        "the number of records",
    ):
        assert words.index(expected) < words.index("How it went")
    assert own.claim.theorem in words


def test_guarantee_before_the_end_is_that_of_the_whole_plan(tmp_path: Path, record: RunRecord) -> None:
    write_run(tmp_path / "run", is_over=False, steps_taken=20, rows=[])
    text = render(read_run(tmp_path / "run"))
    assert f"ε = {at_most(PLAN.claim().epsilon)} at δ" in Page(text).words
    assert "proven for the plan" in Page(text).words
    assert charts(text) == {}
    planned = Composed((PLAN.event, Gaussian(2.0)))  # evaluations with noise beside the steps
    whole = accounting.claim(planned, delta=PLAN.delta, adjacency=PLAN.adjacency)
    assert f"ε = {at_most(whole.epsilon)} at" in render(replace(record, certificate=None, planned=planned))


def test_run_without_privacy_says_so_and_shows_no_epsilon(tmp_path: Path, record: RunRecord) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None, method={"name": "sgd"}), rows=[])
    plain = with_rows(read_run(tmp_path / "run"), evaluations(), epsilon_spent=math.inf)
    for one in (plain, replace(plain, certificate=record.certificate)):  # whatever lies in its folder
        text = render(one)
        assert "No privacy: it was trained without noise" in Page(text).words
        assert "δ" not in Page(text).words
        assert chart_lines(text, "accuracy")["test"]["x"] == [10, 20, 30, 40]
    assert record.certificate is not None
    words = words_of(declared_public(record))
    assert "No privacy: the training records were declared public." in words
    assert "ε =" not in words


def test_leak_shows_only_the_papers_epsilon(record: RunRecord) -> None:
    leaks = replace(record, planned=Composed((PLAN.event, NonPrivate("bounds follow raw gradients"))), certificate=None)
    text = render(with_config(leaks, claims={"published": claim_to_json(PUBLISHED)}))
    assert "No privacy: bounds follow raw gradients." in Page(text).words
    assert "As published: ε = 1" in Page(text).words
    assert "spent" not in charts(text)


@pytest.mark.parametrize("claim, is_bad", [(PUBLISHED, True), (PROVEN, False)])
def test_published_epsilon_is_shown_with_its_worth(record: RunRecord, claim: Any, is_bad: bool) -> None:
    words = words_of(with_config(record, claims={"published": claim_to_json(claim)}))
    assert f"ε = {at_most(certificate(steps_taken=40).epsilon)} at δ = 1e-05, proven" in words
    assert f"As published: ε = {at_most(claim.epsilon)}" in words
    assert ("not a guarantee" in words) == is_bad


@pytest.mark.parametrize("accountant", ["pld", "filter"])
def test_foreign_certificate_is_not_believed(record: RunRecord, accountant: str) -> None:
    certificate, proven = record.certificate, record.proven
    assert certificate is not None
    assert proven is not None
    own = certificate.claim
    assert claim_of(record) == own
    for other in (
        replace(certificate, epsilon=proven.epsilon / 2, accountant=accountant),
        replace(certificate, delta=proven.delta * 2, accountant=accountant),
    ):
        foreign = replace(record, certificate=other)
        assert claim_of(foreign) == proven
        assert "it is another run's" in words_of(foreign)


# The rest of the page of a run.


@pytest.mark.parametrize("state", State)
def test_page_has_state_steps_scores_and_settings(record: RunRecord, state: State) -> None:
    words = words_of(replace(record, state=state, plan=replace(PLAN, stops_at_accepted=30)))
    assert state.value.capitalize() in words
    for expected in ("40 of 40 planned", "30 candidates are accepted", "95.00%", "0.0500", "sa-dpsgd", "Clip norm"):
        assert expected in words
    assert "30 of 40 (75.0%)" in words
    assert "Candidates accepted" not in words_of(with_rows(record, evaluations()))


def test_costs_are_of_expected_records_and_whole_minutes(record: RunRecord) -> None:
    words = words_of(replace(record, minutes=95))
    assert "640 expected, 0.64 passes" in words
    assert "95 minutes" in words
    assert record.certificate is not None
    paid = replace(record.certificate, budget=filled_certificate().budget)
    assert "MNIST, training half: ε = 2.75 of 3 spent" in words_of(replace(record, certificate=paid))


def test_every_chart_has_a_heading_and_its_numbers(record: RunRecord) -> None:
    rows = evaluations(accepted=0.75)
    rows = [replace(row, noise_multiplier=1 / row.step, clip_norm=2 / row.step) for row in rows]
    full = with_rows(record, rows, accuracy_by_class=(1.0, 0.5))
    full = declared_public(replace(full, audit=HOLDING))
    text = render(full, outcome=compare_with_run(PREDICTION, full))
    elements = {"accuracy", "loss", "acceptance", "noise", "clip", "classes", "audit-roc-0", "prediction"}
    assert set(charts(text)) == elements
    page = Page(text)
    ids = [*filter(None, (attributes.get("id") for _, attributes in page.tags))]
    assert {*elements, *(f"{chart}-title" for chart in elements)} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert sum(attributes.get("class") == "numbers" for _, attributes in page.tags) == len(elements)


@pytest.mark.parametrize("audit, words", [(HOLDING, "87 % of the claim"), (REFUTED, "REFUTED. ")])
def test_audit_is_on_the_page(record: RunRecord, audit: Any, words: str) -> None:
    text = render(replace(record, evaluations=(), audit=audit))
    assert words in Page(text).words
    assert set(charts(text)) == {"audit-roc-0"}


def test_hostile_names_are_shown_as_text(tmp_path: Path, text: str, record: RunRecord) -> None:
    config = configuration(
        run=ATTACK,
        method={"name": ATTACK, ATTACK: ATTACK},
        data={"name": ATTACK, "public_records": ATTACK},
        stated={"unit_of_privacy": ATTACK, "treated_as_public": [ATTACK]},
    )
    broken = Premise(ATTACK, Standing.BROKEN, because=ATTACK)
    config["claims"] = {"published": claim_to_json(replace(PUBLISHED, theorem=ATTACK, premises=(broken,)))}
    write_run(tmp_path / "run", config=config, rows=evaluations(on=ATTACK, accepted=0.5))
    hostile = read_run(tmp_path / "run")
    for page in (render(hostile), render_comparison([record, hostile])):
        assert ATTACK not in page
        assert "alert('x')" in Page(page).words
        assert "{{ 7 * 7 }}" in Page(page).words
        assert len(Page(page).scripts) == len(Page(text).scripts)
        assert "b" not in {tag for tag, _ in Page(page).tags}


# Charts.


def test_charts_have_every_evaluation_against_epsilon(text: str) -> None:
    assert set(charts(text)) == {"accuracy", "loss", "spent", "acceptance"}
    for name in ("accuracy", "loss"):
        line, rows = chart_lines(text, name)["test"], evaluations()
        assert line["x"] == [row.epsilon_spent for row in rows]
        assert line["y"] == pytest.approx([getattr(row, name) for row in rows], rel=1e-5)


def test_epsilon_on_a_chart_is_rounded_up(record: RunRecord) -> None:
    text = render(with_rows(record, evaluations((10,)), epsilon_spent=3.9999401))
    assert chart_lines(text, "accuracy")["test"]["x"] == [4.0]
    assert chart_lines(text, "spent")["ε spent (proven)"]["y"] == [4.0]


@pytest.mark.parametrize("state", State)
def test_run_that_ended_early_has_a_line_to_the_charged_epsilon(record: RunRecord, state: State) -> None:
    text = render(replace(with_rows(record, evaluations((5, 10))), state=state))
    ended_early = state in (State.ACCEPTED, State.STOPPED)
    for name in ("accuracy", "loss"):
        lines = chart_lines(text, name)
        assert ("test, charged" in lines) == ended_early
        if ended_early:
            charged = lines["test, charged"]
            assert (charged["dash"], charged["colour"]) == ("dot", 0)
            assert charged["x"] == [0.1, rounded_up(PLAN.claim().epsilon, digits=5)]
            assert charged["y"] == [lines["test"]["y"][-1]] * 2


def test_acceptance_noise_and_clip_are_those_of_the_rows(record: RunRecord) -> None:
    rows = [
        replace(row, accepted=n, clip_norm=1 / row.step) for row, n in zip(evaluations(), (10, 15, 15, 25), strict=True)
    ]
    rows = [replace(row, noise_multiplier=20 / row.step) for row in rows]
    text = render(with_rows(record, rows))
    assert chart_lines(text, "acceptance")["accepted"]["y"] == pytest.approx([1, 0.75, 0.5, 0.625])
    assert chart_lines(text, "noise")["noise multiplier"]["y"] == pytest.approx([2, 1, 2 / 3, 0.5], rel=1e-5)
    assert chart_lines(text, "clip")["clip norm"]["y"] == pytest.approx([0.1, 0.05, 1 / 30, 0.025], rel=1e-5)
    assert not {"acceptance", "noise", "clip"} & set(charts(render(with_rows(record, evaluations()))))


def test_constants_are_numbers_and_not_charts(record: RunRecord) -> None:
    constant = with_rows(record, evaluations(), noise_multiplier=2.0, clip_norm=0.1)
    for text in (render(constant), render_comparison([constant, with_config(constant, run="other")])):
        assert not {"noise", "clip"} & set(charts(text))
        assert "2, constant" in Page(text).words
        assert "0.1, constant" in Page(text).words


def test_baseline_is_beside_the_accuracy_and_outside_the_guarantee(record: RunRecord) -> None:
    plain = replace(with_rows(record, evaluations((100,))), plan=None, certificate=None)
    words = Page(render(record, baseline=plain)).words
    assert "98.00% without privacy" in words
    assert "ε does not cover the accuracy without privacy" in words
    assert "does not cover" not in Page(render(record, baseline=declared_public(plain))).words


@pytest.mark.parametrize("other", ["private", "not evaluated", "other data", "other network"])
def test_baseline_must_be_the_same_network_without_privacy(record: RunRecord, other: str) -> None:
    plain = replace(record, plan=None, certificate=None)
    wrong = {
        "private": record,
        "not evaluated": replace(plain, evaluations=()),
        "other data": with_config(plain, data={**plain.config["data"], "name": "letters"}),
        "other network": with_config(plain, model={**plain.config["model"], "network": "small_cnn"}),
    }
    with pytest.raises(InvalidValue, match="baseline"):
        render(record, baseline=wrong[other])


def test_configuration_is_in_the_words_of_users(record: RunRecord) -> None:
    method = {
        "name": "dpsgd",
        "clipping": {"rule": "FlatClip", "clip_norm": 0.1},
        "update": {
            "optimizer": "sgd",
            "learning_rate": 0.5,
            "arguments": {"momentum": 0.9},
            "schedule": {"kind": "constant"},
        },
        "acceptance": {"kind": "always"},
    }
    words = words_of(with_config(record, method=method))
    for expected in ("Clip norm 0.1", "Clipping flat clip", "Optimizer sgd (momentum 0.9)", "Learning rate 0.5"):
        assert expected in words
    for hidden in ("FlatClip", "Acceptance", "Schedule", "None"):
        assert hidden not in words


def test_classes_are_bars_and_many_classes_are_sorted(record: RunRecord) -> None:
    [line] = chart_lines(render(with_rows(record, evaluations(), accuracy_by_class=(0.5, None, 0))), "classes").values()
    assert (line["is_bars"], line["x"], line["y"]) == (True, [0, 1, 2], [0.5, None, 0])
    many = tuple((7 * n % 100) / 100 for n in range(100))
    [line] = chart_lines(render(with_rows(record, evaluations(), accuracy_by_class=many)), "classes").values()
    assert not line["is_bars"]
    assert line["y"] == sorted(many)


def test_chart_is_thinned_and_keeps_its_ends(record: RunRecord) -> None:
    runs = [with_config(with_rows(record, evaluations(range(1, 2001))), run=f"{n}") for n in range(MOST_RUNS)]
    for page, element in ((render(runs[0]), "spent"), (render_comparison(runs), "accuracy-steps")):
        lines = [*chart_lines(page, element).values()]
        assert sum(len(line["x"]) for line in lines) <= max(POINTS, len(lines) * FEWEST_OF_A_LINE)
        assert all((line["x"][0], line["x"][-1]) == (1, 2000) for line in lines)
        assert len(page.encode()) < LARGEST


def test_each_set_of_records_is_a_line(record: RunRecord) -> None:
    both = with_rows(record, (*evaluations(), *evaluations((15,), on="held out")))
    assert [*chart_lines(render(both), "accuracy")] == ["test", "held out"]


# Several runs.


@pytest.fixture(scope="module")
def compared(record: RunRecord) -> str:
    """One with a promise, one by a paper's rule, and three that promise nothing for different reasons."""
    simulated = simulate(PLAN, expected_batch_size=4)
    public = replace(declared_public(record, run="open"), certificate=None)
    return render_comparison(
        [
            record,
            with_config(record, run="paper", claims={"published": claim_to_json(PUBLISHED)}),
            public,
            replace(with_config(public, run="small"), plan=simulated, planned=simulated.event),
            replace(with_config(record, run="plain"), plan=None, certificate=None),
        ]
    )


def test_runs_without_privacy_are_called_so_everywhere(compared: str) -> None:
    open_, plain, small = "open [no privacy]", "plain [no privacy]", "small [simulation: no privacy]"
    assert [*chart_lines(compared, "accuracy-steps")] == ["first try", "paper", open_, small, plain]
    for element in ("accuracy", "loss", "spent"):
        assert [*chart_lines(compared, element)] == ["first try", "paper"]
    words = Page(compared).words
    assert f"Not on the charts against ε: {open_}; {small}; {plain}." in words
    assert "none: it was trained without noise" in words
    for name in ("open", "plain"):
        assert words.count(name + " ") == words.count(f"{name} [no privacy]") > 0


def test_comparison_has_every_guarantee_before_the_scores(compared: str) -> None:
    words = Page(compared).words
    assert words.index("Guarantee") < words.index("Accuracy against ε")
    assert "ε = 0.20393 at δ = 1e-05, proven (certified), for one image, add-or-remove-one" in words
    assert "1 — not a guarantee: the choice looks at the records" in words
    assert "95.00% on test" in words


def test_runs_keep_their_colour_and_names_differ(record: RunRecord) -> None:
    text = render_comparison([replace(record, evaluations=()), record, replace(record, directory=Path("a/second"))])
    for element in ("accuracy", "spent", "acceptance"):
        lines = chart_lines(text, element)
        assert len(lines) == 2
        assert [line["colour"] for line in lines.values()] == [1, 2]
        assert charts(text)[element]["names_lines"]


def test_comparison_warns_of_differences(record: RunRecord) -> None:
    plan = replace(PLAN, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    other = with_config(record, run="b", data={**record.config["data"], "name": "letters"})
    other = replace(with_rows(other, evaluations(on="own")), plan=plan, planned=plan.event, certificate=None)
    words = Page(render_comparison([record, other])).words
    for warning in ("different δ", "adjacency", "digits, letters", "own, test"):
        assert warning in words
    assert "different δ" not in Page(render_comparison([record, with_config(record, run="b")])).words


@pytest.mark.parametrize("count", [0, 1, MOST_RUNS + 1])
def test_too_few_or_too_many_runs_are_refused(record: RunRecord, count: int) -> None:
    with pytest.raises(InvalidValue, match="runs"):
        render_comparison([record] * count)

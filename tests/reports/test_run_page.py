from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from lehr import accounting
from lehr.acceptance.annealed import Annealed
from lehr.claims import Premise, Standing
from lehr.events import Composed, Gaussian, NonPrivate
from lehr.reports.rounding import at_most
from lehr.reports.run_claims import to_json
from lehr.reports.run_page import promised, render
from lehr.reports.run_position import position
from lehr.reports.run_reading import RunRecord, State, read_run
from lehr.reports.wording import guarantee
from tests.audits import HOLDING, REFUTED
from tests.reports.conftest import PROVEN, PUBLISHED
from tests.reports.pages import Page
from tests.written_runs import PLAN, certificate, configuration, evaluations, write_run

LARGEST = 5_000_000  # bytes; nearly all of it is the drawing library


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    write_run(directory, rows=evaluations(accepted=0.75))
    return read_run(directory)


@pytest.fixture(scope="module")
def text(record: RunRecord) -> str:
    return render(record)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_is_one_file_that_asks_the_network_for_nothing(text: str, page: Page) -> None:
    assert len(text.encode()) < LARGEST
    assert not any("src" in attributes or "href" in attributes for _, attributes in page.tags)


def test_the_promise_comes_first_and_in_words(page: Page) -> None:
    promised = certificate(steps_taken=40)
    words = guarantee(epsilon=promised.epsilon, delta=promised.delta, adjacency=promised.adjacency, unit="one image")
    assert words in page.words
    assert page.words.index(words) < page.words.index("How it went")
    for expected in ("This is proven.", "the number of records", promised.claim.claim.theorem):
        assert expected in page.words


def test_steps_score_and_settings_are_in_the_words(page: Page) -> None:
    for words in (
        "40 of 40 planned",
        "95.00%",
        "0.0500",
        "sa-dpsgd",
        "clip norm",
        "30 of 40 (75.0%)",
        "Candidates accepted",
        "digits",
    ):
        assert words in page.words


def test_the_charts_have_every_evaluation(page: Page) -> None:
    charts = {chart["element"]: chart for chart in json.loads(page.scripts[0])}
    assert set(charts) == {"accuracy", "loss", "spent", "acceptance", "noise"}
    for name in ("accuracy", "loss"):
        [line] = charts[name]["lines"]
        rows = evaluations()
        assert line["x"] == [row.epsilon_spent for row in rows]
        assert line["y"] == pytest.approx([getattr(row, name) for row in rows], rel=1e-5)


def test_every_chart_has_a_place_a_heading_and_its_numbers_as_a_table(record: RunRecord) -> None:
    rows = [
        replace(row, accuracy_by_class=(1.0, 0.5), noise_multiplier=2.0, clip_norm=0.1)
        for row in evaluations(accepted=0.75)
    ]
    full = replace(record, evaluations=tuple(rows), audit=HOLDING, config=annealed(record))
    page = Page(render(full, position=position(full)))
    charts = {chart["element"] for chart in json.loads(page.scripts[0])}
    expected = {"accuracy", "loss", "spent", "acceptance", "temperature", "noise", "clip", "classes"}
    assert charts == expected | {"audit-roc-0", "audit-tradeoff-0", "constant-eta"}
    elements = {attributes.get("id") for _, attributes in page.tags}
    assert charts | {f"{chart}-title" for chart in charts} <= elements
    assert sum(tag == "details" for tag, _ in page.tags) == len(charts)


def annealed(record: RunRecord) -> dict[str, object]:
    return {**record.config, "method": {**record.config["method"], "acceptance": Annealed().to_json()}}


def test_the_parts_come_in_the_order_in_which_people_ask(record: RunRecord) -> None:
    words = Page(render(replace(record, audit=HOLDING))).words
    parts = ("is right in at most", "Treated as public", "Accuracy against ε", "How it went", "Share of candidates",
             "Noise multiplier", "Attacked", "How ε was counted", "Configuration", "What it cost")  # fmt: skip
    places = [words.index(part) for part in parts]
    assert places == sorted(places)


def test_acceptance_is_not_spoken_of_where_every_step_was_accepted(record: RunRecord) -> None:
    page = Page(render(replace(record, evaluations=tuple(evaluations()))))
    assert "acceptance" not in {chart["element"] for chart in json.loads(page.scripts[0])}
    assert "Candidates accepted" not in page.words


def test_each_set_of_records_has_a_line_of_its_own(record: RunRecord) -> None:
    rows = (*evaluations(), *evaluations((15,), on="held out, noised"))
    page = Page(render(replace(record, evaluations=rows)))
    assert [line["name"] for line in json.loads(page.scripts[0])[0]["lines"]] == ["test", "held out, noised"]


@pytest.mark.parametrize("state", State)
def test_the_page_says_how_far_the_run_has_come(record: RunRecord, state: State) -> None:
    assert state.value.capitalize() in Page(render(replace(record, state=state))).words


def test_before_the_end_the_promise_is_that_of_the_whole_plan(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_over=False, steps_taken=20)
    words = Page(render(read_run(tmp_path / "run"))).words
    claim = PLAN.claim()
    assert guarantee(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit="one image") in words
    assert "proven for the plan" in words


def test_the_promise_includes_what_is_done_beside_the_steps(record: RunRecord) -> None:
    planned = Composed((PLAN.event, Gaussian(2.0)))
    page = render(replace(record, certificate=None, planned=planned))
    whole = accounting.claim(planned, delta=PLAN.delta, adjacency=PLAN.adjacency)
    assert f"ε = {at_most(whole.epsilon)} at" in page


def test_a_run_without_privacy_says_so_first_and_charts_against_steps(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None, method={"name": "sgd"}), rows=[])
    record = read_run(tmp_path / "run")
    rows = tuple(replace(row, epsilon_spent=math.inf) for row in evaluations())
    page = Page(render(replace(record, evaluations=rows)))
    assert "No privacy: it was trained without noise" in page.words
    assert "δ" not in page.words
    assert json.loads(page.scripts[0])[0]["lines"][0]["x"] == [10, 20, 30, 40]


def test_a_run_that_has_just_begun_has_a_page_too(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_over=False, rows=[])
    assert Page(render(read_run(tmp_path / "run"))).scripts == []


def test_both_numbers_of_a_run_by_a_papers_rule_are_shown_with_what_they_are(record: RunRecord) -> None:
    published = replace(record, config={**record.config, "claims": {"published": to_json(PUBLISHED)}})
    words = Page(render(published)).words
    assert f"ε = {at_most(certificate(steps_taken=40).epsilon)} at δ = 1e-05, proven" in words
    assert "As published: ε = 1" in words
    assert "This is not a guarantee: the choice looks at the records." in words


def test_a_papers_rule_that_holds_is_not_called_broken(record: RunRecord) -> None:
    published = replace(record, config={**record.config, "claims": {"published": to_json(PROVEN)}})
    words = Page(render(published)).words
    assert "As published: ε = 2.5" in words
    assert "not a guarantee" not in words


def test_where_nothing_is_proven_the_page_says_why_and_shows_no_epsilon_but_the_papers(record: RunRecord) -> None:
    looked = replace(record, planned=Composed((PLAN.event, NonPrivate("bounds follow raw gradients"))))
    claims = {"published": to_json(PUBLISHED)}
    page = Page(render(replace(looked, certificate=None, config={**record.config, "claims": claims})))
    assert "No privacy: bounds follow raw gradients." in page.words
    assert "As published: ε = 1" in page.words
    assert "ε spent" not in page.words.replace("ε spent (proven)", "")
    assert "ε ≤" not in page.words


def test_a_run_that_ends_at_its_accepted_candidates_says_at_how_many(record: RunRecord) -> None:
    words = Page(render(replace(record, plan=replace(PLAN, stops_at_accepted=30)))).words
    assert "30 candidates are accepted" in words


def broken(words: str) -> Premise:
    return Premise(words, Standing.BROKEN, because=words)


def test_hostile_names_are_words_and_nothing_else(tmp_path: Path, page: Page) -> None:
    attack = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"
    config = configuration(
        run=attack,
        method={"name": attack, attack: attack},
        data={"name": attack, "public_records": attack},
        stated={"unit_of_privacy": attack, "treated_as_public": [attack]},
    )
    config["claims"] = {"published": to_json(replace(PUBLISHED, theorem=attack, premises=(broken(attack),)))}
    write_run(tmp_path / "run", config=config, rows=evaluations(on=attack, accepted=0.5))
    text = render(read_run(tmp_path / "run"))
    hostile = Page(text)
    assert attack not in text
    assert "alert('x')" in hostile.words
    assert "{{ 7 * 7 }}" in hostile.words
    assert len(hostile.scripts) == len(page.scripts)
    assert {tag for tag, _ in hostile.tags} == {tag for tag, _ in page.tags} | {"strong"}  # as published


def test_an_audit_is_a_part_of_the_page_with_both_curves(record: RunRecord) -> None:
    page = Page(render(replace(record, audit=HOLDING)))
    for words in ("Attacked", "Not refuted. The claim is", "87 % of the claim", "Guessing at random is the diagonal"):
        assert words in page.words
    elements = {attributes.get("id") for _, attributes in page.tags}
    charts = {chart["element"] for chart in json.loads(page.scripts[0])}
    assert {"audit-roc-0", "audit-tradeoff-0", "accuracy", "loss"} <= charts <= elements


def test_a_refuted_claim_is_on_the_page(record: RunRecord) -> None:
    assert "REFUTED. The attack shows more than can be" in Page(render(replace(record, audit=REFUTED))).words


def test_a_run_that_was_scored_on_nothing_still_shows_its_audit(record: RunRecord) -> None:
    page = Page(render(replace(record, evaluations=(), audit=HOLDING)))
    assert {chart["element"] for chart in json.loads(page.scripts[0])} == {"audit-roc-0", "audit-tradeoff-0"}
    assert "ε spent is that of a run" not in page.words


def test_without_an_audit_the_page_speaks_of_none(page: Page) -> None:
    assert "Attacked" not in page.words


def test_a_certificate_in_the_folder_of_a_run_that_promises_nothing_promises_nothing(record: RunRecord) -> None:
    public = {**record.config, "data": {**record.config["data"], "declared": "public"}}
    page = Page(render(replace(record, config=public)))
    assert record.certificate is not None
    assert "No privacy: the records that it is trained on were declared public." in page.words
    assert "ε =" not in page.words


@pytest.mark.parametrize("accountant", ["pld", "filter"])
def test_a_certificate_that_promises_more_than_the_run_is_another_runs_and_is_not_believed(
    record: RunRecord, accountant: str
) -> None:
    certificate = record.certificate
    assert certificate is not None
    assert record.proven is not None
    assert promised(record) == certificate.claim.claim
    better = replace(certificate.claim.claim, epsilon=record.proven.epsilon / 2, accountant=accountant)
    foreign = replace(record, certificate=replace(certificate, claim=replace(certificate.claim, claim=better)))
    assert promised(foreign) == record.proven
    assert "it is another run's" in Page(render(foreign)).words
    elsewhere = replace(certificate.claim.claim, delta=record.proven.delta * 2)
    other_delta = replace(record, certificate=replace(certificate, claim=replace(certificate.claim, claim=elsewhere)))
    assert promised(other_delta) == record.proven


def test_a_certificate_in_the_folder_of_a_run_without_noise_promises_nothing(tmp_path: Path, record: RunRecord) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None, method={"name": "sgd"}), rows=[])
    assert record.certificate is not None
    page = Page(render(replace(read_run(tmp_path / "run"), certificate=record.certificate)))
    assert "No privacy: it was trained without noise" in page.words
    assert "ε =" not in page.words


def test_evaluations_that_are_left_out_of_the_table_are_said_to_be(record: RunRecord) -> None:
    many = replace(record, evaluations=tuple(evaluations(range(1, 41))))
    assert "20 of 40, evenly spread." in Page(render(many)).words
    assert "evenly spread." not in Page(render(record)).words

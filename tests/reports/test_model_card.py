from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.events import NonPrivate
from lehr.reports import model_card, wording
from lehr.reports.certificate import AuditResult
from lehr.reports.run_claims import to_json
from lehr.reports.run_reading import RunRecord, read_run
from tests.reports.conftest import PUBLISHED
from tests.written_runs import certificate, configuration, evaluations, write_run


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    write_run(tmp_path / "run")
    return read_run(tmp_path / "run")


def test_the_promise_stands_under_the_title_and_the_whole_certificate_at_the_end(record: RunRecord) -> None:
    promised = certificate(steps_taken=40)
    sentence = wording.guarantee(
        epsilon=promised.epsilon, delta=promised.delta, adjacency=promised.adjacency, unit="one image"
    )
    card = model_card.page(record)
    title, promise, *_ = card.split("\n\n")
    assert title == "# first try: a model trained with differential privacy"
    assert promise == f"> {model_card.said(sentence)}"
    assert wording.page(promised).rstrip() in card


def test_the_card_says_what_was_evaluated_and_how_it_was_trained(record: RunRecord) -> None:
    card = model_card.page(record)
    for words in ("95.00%", "On these records: test", "sa-dpsgd", "clip norm 0.1", "noise multiplier 2", "40 steps"):
        assert words in card


def test_the_card_of_a_loop_that_has_records_of_its_own_kind_says_nothing_about_them(record: RunRecord) -> None:
    data = {**record.config["data"], "shape": [], "num_classes": None}
    model = {**record.config["model"], "network": None}
    card = model_card.page(replace(record, config={**record.config, "data": data, "model": model}))
    assert "Takes:" not in card
    assert "Gives:" not in card
    assert 'released_model.load(".", model=your_network())' in card
    assert "released_model.predict" not in card


def test_a_card_without_evaluations_says_so(record: RunRecord) -> None:
    assert "None was made" in model_card.page(replace(record, evaluations=()))


def test_a_run_that_stopped_early_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps_taken=20)
    assert "stopped before the plan's end; 20 steps were charged" in model_card.page(read_run(tmp_path / "run"))


def test_without_privacy_the_first_line_says_that_there_is_no_guarantee(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    card = model_card.page(read_run(tmp_path / "run"))
    assert card.splitlines()[0].startswith("# No privacy guarantee")
    assert "certificate" not in card


def test_the_number_of_a_papers_rule_stands_behind_the_proven_one_with_what_it_is(record: RunRecord) -> None:
    published = replace(record, config={**record.config, "claims": {"published": to_json(PUBLISHED)}})
    card = model_card.page(published)
    assert "ε as published: 1 — not a guarantee: the choice looks at the records." in card
    assert card.index("is proven:") < card.index("ε as published")


def test_where_nothing_is_proven_the_title_says_why(record: RunRecord) -> None:
    looked = replace(record, certificate=None, planned=NonPrivate("raw <gradients>"))
    assert model_card.page(looked).startswith("# No privacy guarantee: raw &lt;gradients&gt;, and this model may")


def test_text_of_the_run_is_no_mark_up(tmp_path: Path) -> None:
    attack = "x\n# y <script>alert(1)</script> [a](javascript:b) ![c](d) `e` ``` | f"
    config = configuration(
        run=attack.replace("\n", " "),
        method={"name": attack, attack: attack},
        data={"name": attack, "public_records": attack},
        training={"precision": attack},
        stated={"data_collection": attack},
    )
    write_run(tmp_path / "run", config=config, rows=evaluations(on=attack))
    card = model_card.page(read_run(tmp_path / "run"))
    assert "<script" not in card
    assert re.search(r"(?<!\\)\]\(", card) is None
    assert "\n# y" not in card
    assert sum(line.startswith("```") for line in card.splitlines()) == 4  # the two blocks of the card itself


def test_the_card_says_whether_and_how_the_guarantee_was_attacked(record: RunRecord) -> None:
    assert "- Attacked: no audit is reported." in model_card.page(record)
    assert record.certificate is not None
    audit = AuditResult(method="canaries <in> one run", epsilon_lower_bound=0.125, confidence=0.95)
    card = model_card.page(replace(record, certificate=replace(record.certificate, audit=audit)))
    assert "Attacked: canaries &lt;in&gt; one run; this shows ε of at least 0.125 with confidence 0.95" in card

"""The public content of a run's folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.events import NOTHING, Composed, NonPrivate, Repeated
from lehr.accounting.ledger import Ledger
from lehr.certificates.guarantee import claim_to_json
from lehr.certificates.run_reading import State, _minutes, read_run
from lehr.errors import DamagedFile, StoreError
from lehr.files import strict_json
from lehr.schedules import LinearDecay
from tests.audits import HOLDING, PRIVATE
from tests.certificates.conftest import PUBLISHED
from tests.training.tiny import fit_tiny
from tests.written_runs import PLAN, certificate, configuration, evaluations, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_everything_that_was_written_is_read_and_no_file_is_changed(run: Path) -> None:
    write_run(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    record = read_run(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert (record.config, record.plan) == (configuration(), PLAN)
    assert record.evaluations == tuple(evaluations())
    assert record.certificate == certificate(steps_taken=40)
    assert record.charged == Repeated(PLAN.step_event, 40)
    assert (record.run, record.method, record.accepted, record.steps_charged) == ("first try", "sa-dpsgd", 40, 40)
    assert record.state is State.COMPLETED
    assert record.minutes in (0, 1)  # the minute may have turned meanwhile


@pytest.mark.parametrize(
    "how, enough, state",
    [
        ({"steps_taken": 20}, None, State.STOPPED),
        ({"is_over": False}, None, State.GOING_ON),
        ({"steps_taken": 20}, 20, State.ACCEPTED),
        ({"steps_taken": 20}, 21, State.STOPPED),
    ],
)
def test_how_far_a_run_has_come(run: Path, how: dict[str, Any], enough: int | None, state: State) -> None:
    write_run(run, config=configuration(plan=replace(PLAN, stops_at_accepted=enough).to_json()), **how)
    assert read_run(run).state is state


def test_the_proven_claim_is_computed_and_the_published_one_is_read(run: Path) -> None:
    write_run(run, config=configuration() | {"claims": {"proven": None, "published": claim_to_json(PUBLISHED)}})
    record = read_run(run)
    assert record.proven == PLAN.claim()
    assert record.published == PUBLISHED
    assert record.is_private
    unnoised = replace(record, planned=Composed((PLAN.event, NonPrivate("raw gradients"))))
    assert unnoised.proven is not None
    assert unnoised.proven.epsilon == math.inf
    assert not unnoised.is_private
    assert unnoised.no_privacy_because == "raw gradients"


def test_steps_with_changing_noise_are_counted_by_the_ledger(run: Path) -> None:
    fit_tiny(run, noise_schedule=LinearDecay(steps=5, first=2.0, last=1.0))
    assert read_run(run).steps_charged == 5


def test_a_run_is_read_while_its_ledger_is_open(run: Path) -> None:
    files = write_run(run, steps_taken=20, is_over=False)
    with Ledger.open(files.ledger) as ledger:
        for steps in (21, 22):
            ledger.record(PLAN.step_event)
            assert read_run(run).steps_charged == steps


def test_a_last_line_that_a_crash_cut_off_is_left_out(run: Path) -> None:
    files = write_run(run)
    with files.metrics.open("a") as file:
        file.write('{"step": 50, "acc')
    assert read_run(run).evaluations == tuple(evaluations())


GOOD_ROW = evaluations()[0].to_json()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"step": 1}',
        *(
            json.dumps(GOOD_ROW | change)
            for change in ({"step": -1}, {"loss": "high"}, {"accuracy": True}, {"on": ""}, {"accepted": 1.5})
        ),
    ],
)
def test_a_broken_line_elsewhere_is_an_error_that_names_it(run: Path, line: str) -> None:
    files = write_run(run)
    first, *others = files.metrics.read_text().splitlines()
    files.metrics.write_text("\n".join([first, line, *others]) + "\n")
    with pytest.raises(DamagedFile, match=r"line 2 of .*metrics\.jsonl"):
        read_run(run)


def test_rows_that_a_resumed_run_wrote_again_count_once(run: Path) -> None:
    write_run(run, rows=[*evaluations((10, 20)), *evaluations((20, 30)), *evaluations((20,), on="held out")])
    rows = [(row.step, row.on) for row in read_run(run).evaluations]
    assert rows == [(10, "test"), (20, "test"), (20, "held out"), (30, "test")]


def test_a_run_without_privacy_has_no_plan_and_an_infinite_epsilon(run: Path) -> None:
    files = write_run(run, config=configuration(plan=None, method={"name": "sgd"}, stated=None), rows=[])
    files.metrics.write_text(json.dumps(GOOD_ROW | {"step": 7, "epsilon_spent": "infinity"}) + "\n")
    record = read_run(run)
    assert (record.plan, record.certificate, record.charged) == (None, None, NOTHING)
    assert record.last is not None
    assert record.last.epsilon_spent == math.inf
    assert record.steps_charged == 7
    assert record.state is State.COMPLETED
    assert record.config["stated"] == {}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "lehr-certificate"},
        {"format_version": 2},
        {"format_version": True},
        {"method": {}},
        {"method": None},
        {"run": ""},
        {"data": "mnist"},
        {"plan": {"steps": 1}},
        {"claims": "proven"},
        {"claims": {"published": {"epsilon": 1.0}}},
    ],
)
def test_a_configuration_of_another_shape_is_refused(run: Path, change: dict[str, Any]) -> None:
    files = write_run(run)
    files.config.write_text(json.dumps(configuration() | change))
    with pytest.raises(StoreError, match=r"config\.json"):
        read_run(run)


def test_an_audit_is_read_and_one_of_private_records_is_refused(run: Path) -> None:
    files = write_run(run)
    strict_json.write(files.audit, HOLDING.to_json())
    assert read_run(run).audit == HOLDING
    strict_json.write(files.audit, PRIVATE.to_json(), overwrite=True)
    with pytest.raises(StoreError, match=r"audit\.json"):
        read_run(run)
    files.audit.write_text(json.dumps(HOLDING.to_json()).replace("not refuted", "refuted"))
    with pytest.raises(StoreError, match=r"audit\.json"):
        read_run(run)


def test_a_run_lasts_whole_minutes() -> None:
    assert _minutes(["2026-01-31T23:50+00:00", "2026-02-01T00:05+00:00", "2026-02-01T01:20+00:00"]) == 90
    assert _minutes([]) is None

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


def test_everything_that_was_written_is_read(run: Path) -> None:
    write_run(run)
    record = read_run(run)
    assert record.config == configuration()
    assert record.plan == PLAN
    assert record.evaluations == tuple(evaluations())
    assert record.certificate == certificate(steps_taken=40)
    assert record.charged == Repeated(PLAN.step_event, 40)
    assert (record.run, record.method, record.accepted, record.steps_charged) == ("first try", "sa-dpsgd", 40, 40)
    assert record.state is State.COMPLETED


def test_a_run_that_stopped_early_and_one_that_goes_on_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "stopped", steps_taken=20)
    write_run(tmp_path / "going on", steps_taken=40, is_over=False)
    assert read_run(tmp_path / "stopped").state is State.STOPPED
    assert read_run(tmp_path / "going on").state is State.GOING_ON
    assert read_run(tmp_path / "going on").certificate is None


def test_a_run_that_ends_at_its_accepted_candidates_is_finished_with_them(tmp_path: Path) -> None:
    for name, enough in {"all": 20, "more": 21}.items():
        config = configuration(plan=replace(PLAN, stops_at_accepted=enough).to_json())
        write_run(tmp_path / name, config=config, steps_taken=20)
    assert read_run(tmp_path / "all").state is State.ACCEPTED
    assert read_run(tmp_path / "more").state is State.STOPPED


def test_what_is_proven_is_counted_again_and_what_is_published_is_read(run: Path) -> None:
    write_run(run, config=configuration() | {"claims": {"proven": None, "published": claim_to_json(PUBLISHED)}})
    record = read_run(run)
    assert record.proven == PLAN.claim()
    assert record.published == PUBLISHED
    assert record.is_private


def test_where_something_was_done_without_noise_nothing_is_promised_and_the_reason_is_known(run: Path) -> None:
    write_run(run)
    looked = replace(read_run(run), planned=Composed((PLAN.event, NonPrivate("raw gradients"))))
    assert looked.proven is not None
    assert looked.proven.epsilon == math.inf
    assert not looked.is_private
    assert looked.no_privacy_because == "raw gradients"


def test_steps_with_noise_that_changes_are_counted_by_the_ledgers_notes(run: Path) -> None:
    fit_tiny(run, noise_schedule=LinearDecay(steps=5, first=2.0, last=1.0))
    assert read_run(run).steps_charged == 5


def test_reading_adds_nothing_to_any_file(run: Path) -> None:
    write_run(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    read_run(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_is_read_while_its_ledger_is_open(run: Path) -> None:
    files = write_run(run, steps_taken=20, is_over=False)
    with Ledger.open(files.ledger) as ledger:
        ledger.record(PLAN.step_event)
        assert read_run(run).steps_charged == 21
        ledger.record(PLAN.step_event)
        assert read_run(run).steps_charged == 22


def test_a_last_line_that_a_crash_cut_off_is_left_out(run: Path) -> None:
    files = write_run(run)
    with files.metrics.open("a") as file:
        file.write('{"step": 50, "acc')
    assert read_run(run).evaluations == tuple(evaluations())


@pytest.mark.parametrize("line", ["{", '{"step": 1}', "[]", '{"step": -1}'])
def test_a_broken_line_elsewhere_is_an_error_that_names_it(run: Path, line: str) -> None:
    files = write_run(run)
    first, *others = files.metrics.read_text().splitlines()
    files.metrics.write_text("\n".join([first, line, *others]) + "\n")
    with pytest.raises(DamagedFile, match=r"line 2 of .*metrics\.jsonl"):
        read_run(run)


@pytest.mark.parametrize("change", [{"loss": "high"}, {"accuracy": True}, {"on": ""}, {"accepted": 1.5}])
def test_a_row_whose_values_are_of_the_wrong_kind_is_an_error(run: Path, change: dict[str, Any]) -> None:
    files = write_run(run)
    [row, *_] = evaluations()
    files.metrics.write_text(json.dumps(row.to_json() | change) + "\n")
    with pytest.raises(DamagedFile, match="line 1"):
        read_run(run)


def test_rows_that_a_resumed_run_wrote_again_count_once(run: Path) -> None:
    write_run(run, rows=[*evaluations((10, 20)), *evaluations((20, 30)), *evaluations((20,), on="held out, noised")])
    assert [(row.step, row.on) for row in read_run(run).evaluations] == [
        (10, "test"),
        (20, "test"),
        (20, "held out, noised"),
        (30, "test"),
    ]


def test_a_run_without_privacy_has_no_plan_and_an_infinite_epsilon(run: Path) -> None:
    files = write_run(run, config=configuration(plan=None, method={"name": "sgd"}), rows=[])
    [row] = evaluations((7,))
    files.metrics.write_text(json.dumps(row.to_json() | {"epsilon_spent": "infinity"}) + "\n")
    record = read_run(run)
    assert (record.plan, record.certificate, record.charged) == (None, None, NOTHING)
    assert record.last is not None
    assert record.last.epsilon_spent == math.inf
    assert record.steps_charged == 7
    assert record.state is State.COMPLETED


def test_nothing_need_have_been_stated(run: Path) -> None:
    write_run(run, config=configuration(stated=None))
    assert read_run(run).config["stated"] == {}


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not the directory of a run"):
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
    assert read_run(run).audit is None
    strict_json.write(files.audit, HOLDING.to_json())
    assert read_run(run).audit == HOLDING
    strict_json.write(files.audit, PRIVATE.to_json(), overwrite=True)
    with pytest.raises(StoreError, match=r"audit\.json: audit must be one of made-up records"):
        read_run(run)
    files.audit.write_text(files.audit.read_text().replace("not refuted", "refuted"))
    with pytest.raises(StoreError, match=r"audit\.json"):
        read_run(run)


def test_the_time_of_a_run_is_that_of_its_ledger_in_whole_minutes(run: Path) -> None:
    write_run(run)
    assert read_run(run).minutes in (0, 1)  # the minute may have turned meanwhile
    assert _minutes(["2026-01-31T23:50+00:00", "2026-02-01T00:05+00:00", "2026-02-01T01:20+00:00"]) == 90
    assert _minutes([]) is None

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import StoreError
from lehr.planning.simulation import simulate
from lehr.reports.rounding import at_most
from lehr.reports.run_claims import to_json
from lehr.reports.run_list import LARGEST_BYTES, LIVELY_SECONDS, TAIL_BYTES, Listed, RunList
from lehr.run_shape import RunFiles
from tests.reports.conftest import PROVEN, PUBLISHED
from tests.written_runs import PLAN, configuration, evaluations, write_run


def only(folder: Path) -> Listed:
    [listed] = RunList(folder).listed()
    return listed


def claiming(**sections: Any) -> dict[str, Any]:
    """A configuration that has counted what its plan costs, as a run does that begins."""
    return {**configuration(**sections), "claims": {"proven": to_json(PROVEN), "published": to_json(PUBLISHED)}}


def aged(files: RunFiles, seconds: float) -> None:
    then = time.time() - seconds
    for path in (files.metrics, files.ledger):
        os.utime(path, (then, then))


def test_a_run_that_goes_on_shows_what_it_spent_of_what_its_plan_costs(tmp_path: Path) -> None:
    write_run(tmp_path / "first", config=claiming(), is_over=False, rows=evaluations([10, 20]))
    assert only(tmp_path) == Listed(
        key=only(tmp_path).key,
        kind="training",
        name="first",
        state="training",
        method="sa-dpsgd",
        data="digits",
        epsilon="0.2 of 2.5",
        accuracy="90.00% on test",
        steps="20 of 40",
        started="2026-01-31",
    )


def test_the_epsilon_is_never_that_of_the_papers_rule(tmp_path: Path) -> None:
    write_run(tmp_path / "first", config=claiming())
    assert only(tmp_path).epsilon == at_most(PROVEN.epsilon) != at_most(PUBLISHED.epsilon)


def test_a_run_that_counted_nothing_yet_is_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "first", is_over=False, rows=[])
    assert only(tmp_path).epsilon == f"– of {at_most(PLAN.claim().epsilon)}"
    assert only(tmp_path).steps == "– of 40"


def test_a_run_that_has_long_written_nothing_is_not_called_training(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False)
    aged(files, LIVELY_SECONDS + 60)
    assert only(tmp_path).kind == "open"
    assert only(tmp_path).state == "still running, or interrupted; nothing new for 2 min"
    aged(files, 3 * 86_400)
    assert only(tmp_path).state.endswith("nothing new for 3 days")


@pytest.mark.parametrize(
    "steps, plan, kind, state",
    [
        (40, {}, "finished", "finished: the plan was completed"),
        (30, {}, "stopped", "stopped before the plan's end"),
        (30, {"stops_at_accepted": 30}, "finished", "finished: enough candidates were accepted"),
        (30, {"stops_at_accepted": 31}, "stopped", "stopped before the plan's end"),
    ],
)
def test_a_run_with_a_model_says_how_it_ended(
    tmp_path: Path, steps: int, plan: dict[str, Any], kind: str, state: str
) -> None:
    config = claiming(plan=replace(PLAN, **plan).to_json())
    write_run(tmp_path / "first", config=config, steps_taken=steps, rows=evaluations([10, steps]))
    listed = only(tmp_path)
    assert (listed.kind, listed.state, listed.epsilon) == (kind, state, "2.5")  # whatever it used, the plan is charged


@pytest.mark.parametrize(
    "sections",
    [
        {"plan": None, "method": {"name": "plain-sgd"}},
        {"data": {"declared": "public"}},
        {"plan": replace(PLAN, noise_multiplier=0.0).to_json()},
        {"plan": simulate(PLAN, expected_batch_size=4).to_json(), "data": {"declared": "public"}},
    ],
    ids=["no plan", "public records", "no noise", "simulation"],
)
def test_a_run_that_promises_nothing_shows_no_epsilon(tmp_path: Path, sections: dict[str, Any]) -> None:
    write_run(tmp_path / "first", config=claiming(**sections), is_over=False)
    assert only(tmp_path).epsilon == "no privacy"


def test_a_trial_of_a_search_shows_no_epsilon_of_its_own(tmp_path: Path) -> None:
    price = {"kind": "composition", "trials": 3}
    write_run(tmp_path / "first", config={**claiming(), "trial_of": price}, is_over=False)
    assert only(tmp_path).epsilon == "counted for its search"


def test_runs_are_found_below_other_folders_and_the_newest_is_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "search/trials/7", "old")):
        files = write_run(tmp_path / name)
        os.utime(files.config, (1e9 - age, 1e9 - age))
    (tmp_path / "notes").mkdir()
    write_run(tmp_path / ".hidden" / "run")
    write_run(tmp_path / "new" / "copies" / "inside of a run")
    assert [listed.name for listed in RunList(tmp_path).listed()] == ["new", "search/trials/7", "old"]


def test_the_folder_of_a_run_itself_is_a_list_of_one(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    assert only(tmp_path / "first").name == "first"


def test_a_folder_without_runs_is_an_empty_list_and_none_is_an_error(tmp_path: Path) -> None:
    assert RunList(tmp_path).listed() == []
    with pytest.raises(StoreError, match="no such folder"):
        RunList(tmp_path / "nowhere")


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False, rows=evaluations([10, 20]))
    with files.metrics.open("ab") as file:
        file.write(b'{"step": 30, "accur')
    assert only(tmp_path).steps == "20 of 40"


def test_the_last_row_is_found_after_many(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False, rows=[])
    row = b'{"step": %d, "accepted": 1, "epsilon_spent": 0.5, "accuracy": 0.25, "on": "test"}\n'
    files.metrics.write_bytes(b"".join(row % step for step in range(2000)))
    assert files.metrics.stat().st_size > 2 * TAIL_BYTES
    assert only(tmp_path).steps == "1,999 of 40"


@pytest.mark.parametrize("value", ["10" * 200, '"infinity"', "null", "[1]", "true", '"<b>"', "1e999"])
@pytest.mark.parametrize("name", ["step", "accuracy", "epsilon_spent"])
def test_odd_values_are_left_out_and_hide_nothing_else(tmp_path: Path, name: str, value: str) -> None:
    files = write_run(tmp_path / "first", config=claiming(), is_over=False, rows=[])
    files.metrics.write_text(f'{{"{name}": {value}}}\n')
    write_run(tmp_path / "second")
    listed = {one.name: one for one in RunList(tmp_path).listed()}
    assert listed["second"].kind == "finished"
    assert listed["first"].kind in ("training", "broken")
    assert listed["first"].accuracy == "–"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "lehr-run"}', "\0\0", '{"format": "lehr-run", "format_version": 2}']
)
def test_a_folder_that_cannot_be_understood_is_listed_as_broken(tmp_path: Path, content: str) -> None:
    write_run(tmp_path / "good")
    files = write_run(tmp_path / "bad")
    files.config.write_text(content)
    listed = {one.name: one for one in RunList(tmp_path).listed()}
    assert listed["bad"].kind == "broken"
    assert str(tmp_path) not in listed["bad"].state
    assert listed["good"].kind == "finished"


def test_metrics_that_are_no_rows_are_broken(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    for content in (b"\xff\xfe\n", b"[]\n", b"{\n"):
        files.metrics.write_bytes(content)
        assert only(tmp_path).kind == "broken"


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "run")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "linked").symlink_to(outside.directory)
    assert RunList(runs).listed() == []
    inside = write_run(runs / "first")
    inside.config.unlink()
    inside.config.symlink_to(outside.config)
    listing = RunList(runs)
    [listed] = listing.listed()
    assert listed.state == "broken: one of its files is a link, or no file"
    assert listing.directory(listed.key) is None


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "ledger.db", "certificate.json", "audit.json"])
def test_a_pipe_in_place_of_a_file_does_not_hold_up_the_list(tmp_path: Path, name: str) -> None:
    files = write_run(tmp_path / "first")
    (files.directory / name).unlink(missing_ok=True)
    os.mkfifo(files.directory / name)
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    assert listed.kind == "broken"
    assert listing.directory(listed.key) is None


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    with files.metrics.open("ab") as file:
        file.truncate(LARGEST_BYTES + 1)
    assert only(tmp_path).state == "broken: one of its files is far too large"


def test_a_run_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=True, rows=evaluations([10]))
    listing = RunList(tmp_path)
    [before] = listing.listed()
    assert listing.listed()[0] is before
    with files.metrics.open("a") as file:
        file.write('{"step": 40, "accepted": 40, "accuracy": 0.5, "on": "test"}\n')
    [after] = listing.listed()
    assert (before.steps, after.steps) == ("10 of 40", "40 of 40")


def test_a_run_is_found_by_its_key_until_it_is_gone(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    assert listing.directory(listed.key) == files.directory
    assert RunList(tmp_path).directory(listed.key) == files.directory  # a list that nobody has asked for yet
    files.directory.rename(tmp_path / "second")
    listing.listed()
    assert listing.directory(listed.key) is None


def test_a_file_that_became_a_link_since_the_list_was_made_is_noticed(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    files.metrics.rename(tmp_path / "metrics")
    files.metrics.symlink_to(tmp_path / "metrics")
    assert listing.directory(listed.key) is None


@pytest.mark.parametrize("key", ["", "..", "first", "../first", "/etc/passwd", "first/private", "\0"])
def test_no_path_is_a_key(tmp_path: Path, key: str) -> None:
    write_run(tmp_path / "first")
    assert RunList(tmp_path).directory(key) is None


def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    os.rename(os.fsencode(tmp_path / "first"), os.fsencode(tmp_path) + b"/\xff<b>")
    listed = only(tmp_path)
    assert listed.name == "�<b>"
    assert RunList(tmp_path).directory(listed.key) is not None

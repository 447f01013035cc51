from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.experiment import key_of
from experiments.store import ResultFile, Store, outcomes_in
from lehr.errors import InvalidValue, StoreError
from tests.experiments.made_up_jobs import ABOUT, tiny

JOB, OTHER = tiny(seed=0), tiny(seed=1)


def kept(*accuracies: float, **changed: object) -> ResultFile:
    jobs = [tiny(seed=seed) for seed in range(len(accuracies))]
    entries = {
        key_of(job): {"job": job.to_json(), "result": {"accuracy": accuracy}, **ABOUT}
        for job, accuracy in zip(jobs, accuracies, strict=True)
    }
    said = {"what": "Accuracies", "paper": "a", "name": "table1", "entries": entries, **changed}
    return ResultFile(**said)  # type: ignore[arg-type]


def test_what_was_kept_is_found_again_by_the_words_of_its_job(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert not store.has(JOB)
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    assert store.has(tiny(seed=0))
    assert store.outcomes([JOB, OTHER]).by_key == {key_of(JOB): {"accuracy": 0.5}}
    assert store.entry(key_of(JOB))["machine"] == ABOUT["machine"]


def test_a_failure_is_no_outcome_and_is_forgotten_when_the_job_succeeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep_failure(JOB, "Diverged: the loss is nan", about=ABOUT)
    assert not store.has(JOB)
    assert store.outcomes([JOB]).by_key == {}
    assert store.failures([JOB, OTHER]) == {key_of(JOB): "Diverged: the loss is nan"}
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    assert store.failures([JOB]) == {}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda entry: {**entry, "job": OTHER.to_json()}, id="of another job"),
        pytest.param(lambda entry: {**entry, "more": 1}, id="a field too many"),
        pytest.param(lambda entry: {key: entry[key] for key in entry if key != "date"}, id="a field missing"),
        pytest.param(lambda entry: {**entry, "result": [1]}, id="no object"),
        pytest.param(lambda entry: [entry], id="a list"),
    ],
)
def test_an_entry_that_is_not_one_is_refused_by_its_files_name(tmp_path: Path, spoilt) -> None:  # type: ignore[no-untyped-def]
    store = Store(tmp_path)
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    file = tmp_path / f"{key_of(JOB)}.json"
    file.write_text(json.dumps(spoilt(json.loads(file.read_text()))))
    with pytest.raises(StoreError, match=file.name):
        store.entry(key_of(JOB))


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_file_is_no_outcome_and_is_named_until_its_job_is_done_again(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    file = tmp_path / f"{key_of(JOB)}.json"
    file.write_text(text)
    assert not store.has(JOB)
    assert store.outcomes([JOB]).by_key == {}
    [why] = store.damaged([JOB, JOB, OTHER])
    assert file.name in why
    store.keep(JOB, {"accuracy": 0.6}, about=ABOUT)
    assert (store.damaged([JOB]), store.outcomes([JOB]).of(JOB)) == ([], {"accuracy": 0.6})


def test_a_damaged_note_of_a_failure_is_a_failure_still(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep_failure(JOB, "Diverged: the loss is nan", about=ABOUT)
    file = tmp_path / f"{key_of(JOB)}.failed.json"
    file.write_text("{")
    assert file.name in store.failures([JOB])[key_of(JOB)]


def test_a_kept_file_comes_back_as_it_was_and_fills_a_store(tmp_path: Path) -> None:
    path = tmp_path / "a_table1.json"
    kept(0.5, 0.6).write(path)
    found = ResultFile.read(path)
    assert found == kept(0.5, 0.6)
    assert outcomes_in(found).of(OTHER) == {"accuracy": 0.6}
    store = Store(tmp_path / "store")
    store.fill(found.entries)
    assert store.has(JOB)
    assert store.has(OTHER)


def test_an_outcome_under_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    kept(0.5).write(path)
    path.write_text(path.read_text().replace(key_of(JOB), key_of(OTHER)))
    with pytest.raises(StoreError, match="key"):
        ResultFile.read(path)


def test_kept_files_of_one_table_are_joined_and_the_newer_wins() -> None:
    joined = kept(0.5, 0.6).joined(kept(0.7))
    assert outcomes_in(joined).of(JOB) == {"accuracy": 0.7}
    assert outcomes_in(joined).of(OTHER) == {"accuracy": 0.6}


@pytest.mark.parametrize("changed", [{"is_quick": True}, {"name": "table2"}, {"paper": "b"}])
def test_what_is_quick_or_of_another_table_is_not_joined(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(changed))):
        kept(0.5).joined(kept(0.6, **changed))

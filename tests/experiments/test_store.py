from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.experiment import key_of
from experiments.store import ResultFile, Store, outcomes_in
from lehr.errors import InvalidValue, StoreError
from tests.experiments.made_up_jobs import ABOUT, tiny

JOB, OTHER = tiny(seed=0), tiny(seed=1)


def packed(*accuracies: float, **changed: Any) -> ResultFile:
    jobs = [tiny(seed=seed) for seed in range(len(accuracies))]
    entries = {
        key_of(job): {"job": job.to_json(), "result": {"accuracy": accuracy}, **ABOUT}
        for job, accuracy in zip(jobs, accuracies, strict=True)
    }
    return ResultFile(**{"what": "Accuracies", "paper": "a", "name": "table1", "entries": entries, **changed})


def test_an_outcome_is_found_by_the_settings_of_its_job(tmp_path: Path) -> None:
    store = Store(tmp_path / "new" / "store")
    assert not store.has(JOB)
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    assert store.has(tiny(seed=0))
    assert store.outcomes([JOB, OTHER]).by_key == {key_of(JOB): {"accuracy": 0.5}}
    assert store.entries([JOB])[key_of(JOB)]["machine"] == ABOUT["machine"]


def test_a_failure_is_forgotten_when_the_job_succeeds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.keep_failure(JOB, "Diverged: the loss is nan", about=ABOUT)
    assert not store.has(JOB)
    assert store.failures([JOB, OTHER]) == {key_of(JOB): "Diverged: the loss is nan"}
    [note] = tmp_path.iterdir()
    note.write_text("{")  # a damaged note is still a failure
    assert note.name in store.failures([JOB])[key_of(JOB)]
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    assert store.failures([JOB]) == {}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda entry: {**entry, "job": OTHER.to_json()}, id="another job"),
        pytest.param(lambda entry: {**entry, "more": 1}, id="surplus field"),
        pytest.param(lambda entry: {key: entry[key] for key in entry if key != "date"}, id="missing field"),
        pytest.param(lambda entry: {**entry, "result": [1]}, id="result is no object"),
        pytest.param(lambda entry: [entry], id="a list"),
        pytest.param(None, id="no JSON"),
    ],
)
def test_a_damaged_file_is_no_outcome_until_its_job_is_run_again(
    tmp_path: Path, spoil: Callable[[Any], object] | None
) -> None:
    store = Store(tmp_path)
    store.keep(JOB, {"accuracy": 0.5}, about=ABOUT)
    [file] = tmp_path.iterdir()
    file.write_text("{" if spoil is None else json.dumps(spoil(json.loads(file.read_text()))))
    assert not store.has(JOB)
    assert store.outcomes([JOB]).by_key == {}
    [error] = store.damaged([JOB, JOB, OTHER])
    assert file.name in error
    store.keep(JOB, {"accuracy": 0.6}, about=ABOUT)
    assert (store.damaged([JOB]), store.outcomes([JOB]).get(JOB)) == ([], {"accuracy": 0.6})


def test_a_packed_file_reads_back_and_fills_a_store(tmp_path: Path) -> None:
    path, store = tmp_path / "a_table1.json", Store(tmp_path / "store")
    packed(0.5, 0.6).write(path)
    file = ResultFile.read(path)
    assert file == packed(0.5, 0.6)
    assert outcomes_in(file).get(OTHER) == {"accuracy": 0.6}
    store.fill(file.entries)
    assert store.has(JOB)
    assert store.has(OTHER)
    path.write_text(path.read_text().replace(key_of(JOB), "0" * 24))  # under the key of another job
    with pytest.raises(StoreError, match="key"):
        ResultFile.read(path)


def test_files_of_one_table_are_merged_and_the_newer_wins() -> None:
    merged = outcomes_in(packed(0.5, 0.6).merged(packed(0.7)))
    assert (merged.get(JOB), merged.get(OTHER)) == ({"accuracy": 0.7}, {"accuracy": 0.6})


@pytest.mark.parametrize("changed", [{"is_quick": True}, {"name": "table2"}, {"paper": "b"}])
def test_files_of_other_tables_are_not_merged(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(changed))):
        packed(0.5).merged(packed(0.6, **changed))

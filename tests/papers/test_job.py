from __future__ import annotations

import json

import pytest

from lehr.errors import InvalidValue
from lehr.papers.job import Measurement, key_of, key_of_words
from tests.papers.made_up_jobs import tiny


def test_jobs_of_the_same_words_are_one_job() -> None:
    assert key_of(tiny()) == key_of(tiny())
    assert key_of(tiny(expected_batch_size=32.0, network=("small_cnn", {}))) == key_of(tiny())
    assert key_of(tiny(settings={"learning_rate": 1.0})) == key_of(tiny(settings={"learning_rate": 1}))


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"settings": {"learning_rate": 0.1}}, {"scored_on": "half"}, {"views": 2}, {"records": 9}]
)
def test_whatever_decides_a_job_is_among_its_words(changed: dict[str, object]) -> None:
    assert key_of(tiny(**changed)) != key_of(tiny())


def test_a_field_at_its_default_is_not_said_so_that_new_fields_change_no_key() -> None:
    assert "views" not in tiny().to_json()
    assert tiny(views=1, records=None) == tiny()


def test_words_have_the_same_key_after_they_were_in_a_file() -> None:
    job = tiny(settings={"schedule": {"kind": "constant"}}, expected_batch_size=32.5)
    assert key_of_words(json.loads(json.dumps(job.to_json()))) == key_of(job)


def test_when_a_measurement_is_run_does_not_decide_what_it_is() -> None:
    one, other = (Measurement(function="adadp:time", takes_times=alone) for alone in (True, False))
    assert key_of(one) == key_of(other)


@pytest.mark.parametrize("function", ["os.path:join", "adadp", "adadp:a.b", ":f"])
def test_a_measurement_is_a_function_of_this_package_alone(function: str) -> None:
    with pytest.raises(InvalidValue, match="function"):
        Measurement(function=function).called(device="cpu", data_dir=None)


def test_a_job_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValue, match="scored_on"):
        tiny(scored_on="some")
    with pytest.raises(InvalidValue, match="seed"):
        tiny(seed=-1)

from __future__ import annotations

from lehr.papers.experiment import Outcomes
from lehr.papers.job import key_of
from tests.papers.made_up_jobs import tiny


def test_a_job_that_was_not_run_has_no_outcome() -> None:
    there, missing = tiny(seed=0), tiny(seed=1)
    outcomes = Outcomes({key_of(there): {"accuracy": 0.5}})
    assert outcomes.of(there) == {"accuracy": 0.5}
    assert outcomes.of(missing) is None
    assert outcomes.of_all([missing, there]) == [{"accuracy": 0.5}]

"""What is left of a run that is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting.events import Gaussian, Repeated, counted
from lehr.certificates.certificate import Statements
from lehr.errors import CertificateMismatch
from lehr.planning.plan import Plan
from lehr.run.folder import RunFolder
from lehr.run.replay import RunPlan
from lehr.training import ending
from lehr.training.ending import Run
from tests.training.tiny import fit_tiny

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)
ALLOWANCE = RunPlan(plan=PLAN, score_event=Gaussian(20.0), evaluate_every=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit_tiny(tmp_path_factory.mktemp("ending") / "run", settings_chosen_on="fixed")


def test_a_certificate_is_for_all_that_the_plan_allowed_whatever_was_done() -> None:
    done = Repeated(PLAN.step_event, 2)
    made = ending.certificate_for(ALLOWANCE, PLAN, Statements(settings_chosen_on="fixed", records=40), charged=done)
    assert counted(made.event) == {PLAN.step_event: 5, Gaussian(20.0): 3}
    assert made.ex_post is not None
    assert made.ex_post.epsilon < made.epsilon


def test_more_than_the_plan_allowed_is_not_certified() -> None:
    done = Repeated(PLAN.step_event, 6)
    with pytest.raises(CertificateMismatch):
        ending.certificate_for(ALLOWANCE, PLAN, Statements(settings_chosen_on="fixed", records=40), charged=done)


def test_writing_the_end_again_does_no_harm(run: Run) -> None:
    before = (run.directory / "certificate.json").read_bytes()
    with RunFolder.open(run.directory) as folder:
        ending.write(folder, run.certificate)
    assert (run.directory / "certificate.json").read_bytes() == before


def test_a_run_without_an_evaluation_has_no_accuracy(tmp_path: Path) -> None:
    assert fit_tiny(tmp_path / "run", test=None, steps=1).accuracy is None

"""The winner's folder says what paid for it, and that can be said again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.files import json_file, strict_json
from lehr.planning.search_cost import Composition
from lehr.reports import certificate_file
from lehr.reports.checking import check
from lehr.run_shape import RunFiles
from lehr.search import paying
from lehr.search.certifying import certify
from tests.search.paid_searches import HOW, paid_in
from tests.training.tiny import new_budget


def test_a_trial_is_certified_with_the_budget_that_paid(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path, Composition(2)), new_budget(tmp_path / "b")
    paying.reserve(budget, paid, name="ours", run_id="ours alone")
    run = RunFiles(tmp_path / "run")
    paid.configuration({"learning_rate": 0.5, "momentum": 0.0}).train(
        directory=run.directory, quiet=True, name="ours", **HOW, **paid.how()
    )
    before = certificate_file.read(run.certificate)
    for _ in range(2):
        certify(run, paid, name="ours", budget=budget, created_on="2026-01-31")
    after = certificate_file.read(run.certificate)
    check(after)
    assert before.budget is None
    assert after.budget is not None
    assert after.epsilon == before.epsilon
    assert after.issued_on == "2026-01-31"
    config = json_file.read(run.config, strict_json.a_table)
    assert (config["created_on"], config["budget"]) == ("2026-01-31", "tiny images")
    assert "Begun on 2026-01-31" in run.report.read_text()


def test_a_certificate_is_of_the_day_of_the_end_and_not_of_that_of_the_trial(tmp_path: Path) -> None:
    paid, run = paid_in(tmp_path), RunFiles(tmp_path / "run")
    paid.configuration({"learning_rate": 0.5, "momentum": 0.0}).train(
        directory=run.directory, quiet=True, name="ours", **HOW, **paid.how()
    )
    made = certificate_file.read(run.certificate)
    certificate_file.write(run.certificate, replace(made, issued_on="2026-01-31"), overwrite=True)
    certify(run, paid, name="ours", budget=None)
    assert certificate_file.read(run.certificate) == made

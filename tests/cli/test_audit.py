"""``lehr audit``: a run, a configuration or every method, attacked through the real command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from lehr.attacks import subjects
from lehr.auditing import audit as auditing
from lehr.certificates.certificate import read_certificate
from lehr.config import RunConfig
from lehr.files import strict_json
from lehr.privacy.rng import StepRandomness
from lehr.run.shape import RunFiles
from lehr.training.fit import fit
from tests.cli.conftest import Run, RunJson
from tests.reports.pages import Page
from tests.training.tiny import fit_tiny

FEW = ("--canaries", "256")
CONFIG = """
[data]
npz = "private.npz"
records = 40
num_classes = 3
[privacy]
epsilon = 3
steps = 4
expected_batch_size = 8
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trained") / "run"
    fit_tiny(directory, settings_chosen_on="fixed", name="ours", delta=1e-3)
    return directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunFiles:
    shutil.copytree(trained, tmp_path / "run")
    return RunFiles(tmp_path / "run")


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = StepRandomness.normals
    monkeypatch.setattr(
        StepRandomness,
        "normals",
        lambda self, purpose, like: {name: value / 50 for name, value in drawn(self, purpose, like).items()},
    )


def test_audit_of_a_run_goes_to_its_folder_page_and_certificate(lehr: Run, run: RunFiles) -> None:
    shown = lehr("audit", "run", *FEW)
    words = " ".join(shown.stdout.split())
    for expected in ("Audit of ours", "claimed", "certified", "95 % confidence", "kept in run/audit.json"):
        assert expected in words
    assert "attacking ours: 5 steps planned" in shown.stderr
    kept = strict_json.read(run.audit, auditing.from_json)
    assert (kept.subject, kept.members + kept.others, kept.delta) == ("ours", 256, 1e-3)
    lehr("certificate", "check", "run/certificate.json")
    issued = read_certificate(run.certificate)
    assert issued.audit is not None
    assert "256 canaries" in issued.audit.method
    assert "audit-roc-0" in run.report.read_text(encoding="utf-8")
    assert "in place of an audit that was not refuted" in lehr("audit", "run", *FEW, "-q").stdout


def test_refuted_claim_exits_with_4_and_is_not_certified(
    lehr: Run, lehr_json: RunJson, run: RunFiles, without_noise: None
) -> None:
    before = run.certificate.read_bytes()
    shown = lehr("audit", "run", *FEW, "-q", code=4)
    assert "REFUTED. " in shown.stdout
    assert shown.stderr == "lehr: ours: REFUTED\n"
    assert run.certificate.read_bytes() == before
    assert "Do not rely on the claim" in Page(run.report.read_text(encoding="utf-8")).words
    assert "refuted" in lehr("release", "run", "--to", "model", code=1).stderr
    answer = lehr_json("audit", "run", *FEW, code=4)
    [audit] = answer["audits"]
    assert (answer["refuted"], answer["suspicious"], answer["kept"]) == (["ours"], [], "run/audit.json")
    assert answer["not_certified_because"] is not None
    assert audit.pop("seconds") >= 0
    assert audit == json.loads(run.audit.read_text(encoding="utf-8"))


def test_configuration_is_attacked_without_its_records(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG, encoding="utf-8")
    assert "Audit of dpsgd" in lehr("audit", "run.toml", *FEW, "-q", "--report", "page.html").stdout
    assert "Audit of dpsgd" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.toml"]


def test_all_methods_are_in_one_table(lehr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "private_methods", lambda: ("dpsgd", "auto-s"))
    shown = lehr("audit", "--method", "all", "--steps", "2", "--canaries", "128", "-q", "--report", "all.html").stdout
    words = Page((tmp_path / "all.html").read_text(encoding="utf-8")).words
    assert all(f" {method} " in text for method in ("dpsgd", "auto-s") for text in (shown, words))
    assert "certified with 95 % confidence" in shown


def test_numbers_of_one_method_reach_the_attack(lehr_json: RunJson) -> None:
    numbers = ("--epsilon", "2", "--delta", "1e-4", "--sampling-probability", "0.2", "--steps", "4", *FEW)
    answer = lehr_json("audit", "--method", "auto-s", *numbers, "--confidence", "0.9")
    [audit] = answer["audits"]
    assert (audit["subject"], audit["delta"], audit["steps"]) == ("auto-s", 1e-4, 4)
    assert 1.9 < audit["claimed_epsilon"] <= 2
    assert {bound["confidence"] for bound in audit["bounds"]} == {0.9}
    assert (answer["kept"], answer["report"]) == (None, None)


def test_attack_on_the_model_is_for_the_owner_of_the_records(lehr: Run, own: Path) -> None:
    data = {"npz": "private.npz", "test_npz": "test.npz", "records": 40, "num_classes": 3, "name": "clinic"}
    privacy = {"noise_multiplier": 1.0, "steps": 2, "expected_batch_size": 8.0, "settings_chosen_on": "fixed"}
    fit(config=RunConfig.of(data=data, privacy=privacy), directory=own / "run", quiet=True, compiled=False)
    files = RunFiles(own / "run")
    before = files.certificate.read_bytes(), files.report.read_bytes()
    shown = lehr("audit", "run", "--attack", "model", "--npz", "private.npz", "--test-npz", "test.npz").stdout
    assert "This is PRIVATE" in shown
    assert "kept in run/private/audit.json" in shown
    assert os.stat(files.private_audit).st_mode & 0o777 == 0o600
    assert not files.audit.exists()
    assert (files.certificate.read_bytes(), files.report.read_bytes()) == before

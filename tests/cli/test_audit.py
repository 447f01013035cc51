"""``lehr audit``: a run, a configuration or every method, attacked through the real command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from lehr.attacks import subjects
from lehr.auditing import audit as auditing
from lehr.certificates.certificate import read_certificate
from lehr.config import RunConfig
from lehr.files import strict_json
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.rng import StepRandomness
from lehr.run.shape import RunFiles
from lehr.training.fit import fit
from tests.cli.conftest import Run, RunJson
from tests.reports.pages import Page
from tests.training.tiny import PRIVATE, TEST, fit_tiny

FEW = ("--canaries", "256")
SHORT = ("--steps", "4", *FEW)
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


def test_the_result_of_a_run_goes_to_its_folder_its_page_and_its_certificate(lehr: Run, run: RunFiles) -> None:
    said = lehr("audit", "run", *FEW, "-q")
    words = " ".join(said.stdout.split())
    for expected in (
        "Audit of ours",
        "claimed",
        "certified",
        "95 % confidence",
        "decided by",
        "kept in run/audit.json",
    ):
        assert expected in words
    assert "certificate was issued again" in words
    kept = strict_json.read(run.audit, auditing.from_json)
    assert (kept.subject, kept.members + kept.others, kept.delta) == ("ours", 256, 1e-3)
    lehr("certificate", "check", "run/certificate.json")
    issued = read_certificate(run.certificate)
    assert issued.audit is not None
    assert "256 canaries" in issued.audit.method
    assert "audit-roc-0" in run.report.read_text(encoding="utf-8")
    lehr("report", "run", "--to", "page.html")
    assert "audit-roc-0" in Path("page.html").read_text("utf-8")
    again = lehr("audit", "run", *FEW)
    assert "in place of an audit that was not refuted" in again.stdout
    assert "attacking ours: 5 steps planned" in again.stderr
    assert "in a temporary folder" in again.stderr
    assert "attacking" not in again.stdout


def test_what_is_refuted_is_said_everywhere_but_in_the_certificate(
    lehr: Run, run: RunFiles, without_noise: None
) -> None:
    before = run.certificate.read_bytes()
    said = lehr("audit", "run", *FEW, "-q", code=4)
    assert "REFUTED. " in said.stdout
    assert "Not in the run's certificate: it does not bear the claim out." in said.stdout
    assert said.stderr == "lehr: ours: REFUTED\n"
    assert run.certificate.read_bytes() == before
    assert "Do not rely on the claim" in Page(run.report.read_text(encoding="utf-8")).words
    assert "found the claim refuted" in lehr("release", "run", "--to", "model", code=1).stderr


def test_a_program_is_told_the_same(lehr_json: RunJson, run: RunFiles, without_noise: None) -> None:
    said = lehr_json("audit", "run", *FEW, code=4)
    [audit] = said["audits"]
    assert (said["refuted"], said["suspicious"], said["kept"]) == (["ours"], [], "run/audit.json")
    assert said["not_certified_because"] == "it does not bear the claim out"
    assert audit["seconds"] >= 0
    del audit["seconds"]
    assert audit == json.loads(run.audit.read_text(encoding="utf-8"))


def test_a_configuration_is_attacked_without_its_records(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG, encoding="utf-8")
    said = lehr("audit", "run.toml", *FEW, "-q", "--report", "page.html").stdout
    assert "Audit of dpsgd" in said
    assert "page.html: the same" in said
    assert "Audit of dpsgd" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "run.toml"]


def test_all_methods_are_in_one_table(lehr: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "private_methods", lambda: ("dpsgd", "auto-s"))
    said = lehr("audit", "--method", "all", "--steps", "2", "--canaries", "128", "-q", "--report", "all.html").stdout
    words = Page((tmp_path / "all.html").read_text(encoding="utf-8")).words
    for method in ("dpsgd", "auto-s"):
        assert f" {method} " in said
        assert f" {method} " in words
    assert "certified with 95 % confidence" in said


def test_one_method_is_attacked_as_it_is_asked(lehr_json: RunJson) -> None:
    said = lehr_json(
        "audit", "--method", "auto-s", "--epsilon", "2", "--delta", "1e-4", "--sampling-probability", "0.2", *SHORT,
        "--confidence", "0.9",
    )  # fmt: skip
    [audit] = said["audits"]
    assert (audit["subject"], audit["delta"], audit["steps"]) == ("auto-s", 1e-4, 4)
    assert 1.9 < audit["claimed_epsilon"] <= 2
    assert {bound["confidence"] for bound in audit["bounds"]} == {0.9}
    assert (said["kept"], said["report"]) == (None, None)


def test_the_model_alone_is_attacked_for_the_owner_of_the_records(lehr: Run, tmp_path: Path) -> None:
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST}.items():
        np.savez(tmp_path / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    data = {"npz": "private.npz", "test_npz": "test.npz", "records": 40, "num_classes": 3, "name": "clinic"}
    privacy = {"noise_multiplier": 1.0, "steps": 2, "expected_batch_size": 8.0, "settings_chosen_on": "fixed"}
    fit(config=RunConfig.of(data=data, privacy=privacy), directory=tmp_path / "run", quiet=True, compiled=False)
    files = RunFiles(tmp_path / "run")
    before = files.certificate.read_bytes(), files.report.read_bytes()
    said = lehr("audit", "run", "--attack", "model", "--npz", "private.npz", "--test-npz", "test.npz").stdout
    assert "This is PRIVATE" in said
    assert "kept in run/private/audit.json" in said
    assert os.stat(files.private_audit).st_mode & 0o777 == 0o600
    assert not files.audit.exists()
    assert (files.certificate.read_bytes(), files.report.read_bytes()) == before


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        ((), 2, "audit must be of a RUN, of a CONFIG.toml, or with --method"),
        (("nowhere",), 3, "cannot use nowhere: there is neither the folder of a run nor a configuration"),
        (("run", "--method", "all"), 2, "method must be left out beside a run"),
        (("run", "--epsilon", "3"), 2, "epsilon must be left out beside a run"),
        (("run", "--confidence", "1"), 2, "confidence must be a number in (0, 1); given: 1.0"),
        (("run", "--confidence", "nan"), 2, "confidence must be"),
        (("run", "--canaries", "63"), 2, "canaries must be a whole number >= 64; given: 63"),
        (("run", "--device", "abacus"), 2, "device must be one that torch can use here"),
        (("run", "--attack", "chess"), 2, "attack must be one of model, steps; given: 'chess'"),
        (("run", "--npz", "private.npz"), 2, "npz must be left out beside attack steps"),
        (("run", "--attack", "model", "--json"), 2, "json must be left out beside attack model"),
        (("run", "--attack", "model", "--report", "page.html"), 2, "report must be left out beside attack model"),
        (("run", "--attack", "model", "--device", "cuda"), 2, "device must be left out beside attack model"),
        (("--method", "all", "--attack", "model"), 2, "attack must be steps; model only with the folder of a run"),
        (("run", "--report", "there.html"), 3, "there.html: it is there already"),
        (("--method", "plain-sgd"), 2, "method must be one of adadp, "),
        (("--method", "dpsgd", "--steps", "0"), 2, "steps must be"),
        (("--method", "dpsgd", "--sampling-probability", "1.5"), 2, "sampling_probability must be"),
        (("--method", "agd", "--epsilon", "0.001"), 1, "agd cannot be planned"),
        (("broken.toml",), 3, "broken.toml: it is not TOML"),
        (("plain.toml",), 2, "method must be one with noise"),
        (("by-hand",), 2, "attack it in Python"),
        (("empty",), 3, "empty has no run that began"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_one_line_before_anything_is_played(
    arguments: tuple[str, ...], code: int, says: str, lehr: Run, run: RunFiles, tmp_path: Path
) -> None:
    (tmp_path / "there.html").write_text("mine", encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[data", encoding="utf-8")
    (tmp_path / "plain.toml").write_text("[method]\nname = 'plain-sgd'\n[privacy]\nsteps = 3\n", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    if arguments == ("by-hand",):
        fit_tiny(tmp_path / "by-hand", method=dpsgd(clip_norm=0.5), steps=1)
    said = lehr("audit", *arguments, code=code)
    assert said.stderr.startswith("lehr: ")
    assert says in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1
    assert not run.audit.exists()
    assert (tmp_path / "there.html").read_text(encoding="utf-8") == "mine"

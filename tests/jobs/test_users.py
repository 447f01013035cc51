"""Protect users who have several records each: from a table, from a file on the command line, from scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

from lehr import fit
from lehr.attacks.final_model import attack_run
from lehr.certificates.certificate import certificate_text
from lehr.cli.main import app
from lehr.errors import InvalidValue
from lehr.planning.budget import Budget
from lehr.training import earlier_fits

RECORDS, USERS = 240, 40
GENERATOR = np.random.default_rng(0)
IDS = np.array([f"user {number}" for number in GENERATOR.integers(0, USERS, RECORDS)])
LABELS = np.arange(RECORDS) % 2
INPUTS = (GENERATOR.normal(size=(RECORDS, 4)) + LABELS[:, None]).astype(np.float32)
PLAN: dict[str, Any] = {
    "users": USERS,
    "delta": 1e-3,
    "noise_multiplier": 2.0,
    "steps": 3,
    "batch_size": 8,
    "quiet": True,
}


def test_the_owner_is_a_column_of_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(INPUTS, columns=list("abcd")).assign(label=LABELS, patient=IDS)
    run = fit(
        nn.Linear(4, 2),
        frame,
        owners="patient",
        records_per_user=3,
        num_classes=2,
        test=frame.iloc[:20].assign(a=0.5),
        settings_chosen_on="fixed",
        directory=tmp_path / "run",
        **PLAN,
    )
    assert (run.plan.unit, run.plan.records, run.plan.records_per_user) == ("user", USERS, 3)
    assert run.certificate is not None
    text = certificate_text(run.certificate)
    assert "one user with all their records, at most 3 of them in a step" in " ".join(text.split())
    assert "Number of users, stated as public: 40." in text
    assert "one user with all their records" in (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert "user 1" not in "".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "run").glob("*.*") if path.suffix in (".json", ".html")
    )


def command(*words: str) -> dict[str, Any]:
    earlier_fits.forget()
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, f"{result.stdout}{result.stderr}{result.exception!r}"
    shape: dict[str, Any] = json.loads(result.stdout)
    return shape


def test_the_owner_is_an_array_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Budget, training, resume and audit of a run of users on the command line."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=INPUTS, y=LABELS, patient=IDS)
    assert command("budget", "create", "b", "--dataset", "d", "--epsilon", "20", "--delta", "1e-3", "--unit", "user")
    data = ("--npz", "data.npz", "--owners", "patient", "--users", "40", "--num-classes", "2")
    plan = (
        "--steps",
        "3",
        "--noise-multiplier",
        "4",
        "--batch-size",
        "2",
        "--records-per-user",
        "2",
        "--delta",
        "1e-3",
    )
    mlp = ("--network", "mlp", "--no-compile", "--run", "run", "--budget", "b", "--settings-chosen-on", "fixed")
    assert command("train", *data, *plan, *mlp)["steps"] == 3
    assert command("train", "--resume", "run", *data[:6], "--budget", "b")["steps"] == 3
    with Budget.open("b") as account:
        assert (account.unit, len(account.status().runs)) == ("user", 1)
    assert command("certificate", "show", "run/certificate.json")["stated"]["unit_of_privacy"].startswith("one user")
    assert command("audit", "run", "--canaries", "64", "--quiet")["refuted"] == []
    with pytest.raises(InvalidValue, match="unit of privacy is a record"):
        attack_run("run", (INPUTS, LABELS))


def test_scikit_learn_takes_owners(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("lehr.integrations.sklearn")
    model = sklearn.LehrClassifier(
        epsilon=None,
        noise_multiplier=2.0,
        delta=1e-3,
        steps=2,
        records=USERS,
        expected_batch_size=8,
        records_per_user=3,
        classes=[0, 1],
        hidden_layer_sizes=(),
        settings_chosen_on="fixed",
    )
    model.fit(INPUTS, LABELS, owners=IDS)
    assert (model.plan_.unit, model.plan_.records) == ("user", USERS)
    assert model.certificate_.stated.treated_as_public == ("the number of users",)

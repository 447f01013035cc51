"""A release has the model and what it promises, and nothing private; it ends the run, also after a crash."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lehr
from lehr import data, networks
from lehr.accounting.events import Gaussian, NonPrivate, Repeated
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import (
    AuditResult,
    Certificate,
    certificate_text,
    read_certificate,
    write_certificate,
)
from lehr.certificates.guarantee import claim_to_json, guarantee_text
from lehr.certificates.issuing import issue
from lehr.certificates.release import markdown_text, model_card_text, release
from lehr.certificates.released_model import evaluate
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.config import RunConfig
from lehr.errors import BudgetExceeded, CertificateMismatch, DamagedFile, InvalidValue, LehrError, StoreError
from lehr.files import atomic
from lehr.methods.by_name import named
from lehr.optim.averaging import ExponentialAverage
from lehr.planning.budget import Budget
from lehr.privacy.rng import RunKey
from lehr.reports.audit_file import keep
from lehr.run.mechanism import Method
from lehr.run.shape import RunFiles
from tests.audits import REFUTED, SUSPICIOUS, showing
from tests.certificates.conftest import PUBLISHED
from tests.training.tiny import PUBLIC, fit_tiny, new_budget
from tests.written_runs import PLAN, STATEMENTS, certificate, configuration, evaluations, small_model, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return write_run(tmp_path / "run")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "model"


HOME = "/" + "home/lovelace"  # nobody's


def private_files(files: RunFiles) -> list[Path]:
    return list(files.private.iterdir()) if files.private.is_dir() else []


def certified(run: Path, to: Path, **how: Any) -> Certificate:
    """Release a run and return the certificate."""
    certificate = release(run, to, **how).certificate
    assert certificate is not None
    return certificate


def test_weights_certificate_card_and_configuration_are_released_and_nothing_else(run: RunFiles, to: Path) -> None:
    released = release(run.directory, to)
    names = ["README.md", "certificate.json", "config.json", "model.safetensors"]
    assert sorted(path.name for path in to.iterdir()) == names
    weights = load_file(to / "model.safetensors")
    assert weights.keys() == small_model().state_dict().keys()
    assert all(weights[name].equal(value) for name, value in small_model().state_dict().items())
    assert read_certificate(to / "certificate.json") == certificate(steps_taken=40) == released.certificate


def test_a_released_model_scores_as_it_did_in_its_run(tmp_path: Path, to: Path) -> None:
    digits, arguments = data.load("digits"), {"image_side": 8, "num_classes": 10}
    run = lehr.fit(
        networks.build("small_cnn", **arguments),
        digits,
        epsilon=8,
        delta=1e-4,
        steps=4,
        expected_batch_size=64,
        averaging=ExponentialAverage(decay=0.5),
        settings_chosen_on="fixed",
        config=RunConfig.of(model={"network": "small_cnn", **arguments}),
        directory=tmp_path / "run",
        quiet=True,
    )
    release(run.directory, to)
    scores = evaluate(to, digits.test)
    assert scores.accuracy == pytest.approx(run.evaluations[-1].accuracy)
    assert scores.loss == pytest.approx(run.evaluations[-1].loss, rel=1e-5)
    assert private_files(RunFiles(run.directory)) == []


def test_the_key_and_all_that_is_private_are_destroyed_and_the_ledger_is_closed(run: RunFiles, to: Path) -> None:
    run.split.write_bytes(b"which record is where")
    run.diagnostics.write_text("{}\n")
    release(run.directory, to)
    assert private_files(run) == []
    with Ledger.open(run.ledger) as ledger, pytest.raises(BudgetExceeded):
        ledger.accepted(0)


def test_no_key_fingerprint_or_home_folder_is_released(tmp_path: Path, to: Path) -> None:
    config = configuration(
        run=f"of {HOME}/secret/photos",
        data={"name": f"{HOME}/secret/photos", "folder": r"C:\Users\lovelace\photos"},
        training={
            "precision": "float32",
            "data_dir": "~/lovelace/data",
            "command": [f"{HOME}/bin/python", "../lovelace/x", f"{HOME} ada/b c"],
        },
    )
    files = write_run(tmp_path / "run", config=config)
    save_file(small_model().state_dict(), files.model, metadata={"written_by": "lovelace"})
    secrets = (files.key.read_bytes(), files.fingerprint.read_bytes(), b"lovelace")
    release(files.directory, to)
    for path in to.iterdir():
        assert not any(secret in path.read_bytes() for secret in secrets)
    written = json.loads((to / "config.json").read_text())
    assert (written["run"], written["data"]["name"]) == ("of photos", "photos")
    assert written["training"]["command"] == ["python", "x", "b c"]
    assert written["training"]["precision"] == "float32"


def test_a_run_that_stopped_early_is_released_with_the_epsilon_of_its_whole_plan(tmp_path: Path, to: Path) -> None:
    assert certified(write_run(tmp_path / "run", steps_taken=20).directory, to).event == PLAN.event
    assert "stopped before the plan's end; 20 steps were charged" in (to / "README.md").read_text()


def forge(**changes: Any) -> Callable[[RunFiles], None]:
    """A certificate in the folder that holds, but not for this run."""

    def write(run: RunFiles) -> None:
        given = {"event": PLAN.event, "delta": PLAN.delta, "stated": STATEMENTS, **changes}
        write_certificate(run.certificate, issue(given.pop("event"), **given), overwrite=True)

    return write


def shrink_epsilon(run: RunFiles) -> None:
    run.certificate.write_text(json.dumps({**json.loads(run.certificate.read_text()), "epsilon": 0.01}))


def change_plan(**changes: Any) -> Callable[[RunFiles], None]:
    def write(run: RunFiles) -> None:
        run.certificate.unlink()
        run.config.write_text(json.dumps(configuration(plan=replace(PLAN, **changes).to_json())))

    return write


def put_something_in_the_way(run: RunFiles) -> None:
    (run.directory.parent / "model").mkdir()
    (run.directory.parent / "model/thesis.tex").write_text("years of work")


Prepare = Callable[[RunFiles], object]
UNRELEASABLE: dict[str, tuple[Prepare, type[LehrError]]] = {
    "not over": (lambda run: run.model.unlink(), StoreError),
    "weights that are no numbers": (
        lambda run: save_file({"1.weight": torch.full((3, 64), float("nan"))}, run.model),
        DamagedFile,
    ),
    "no ledger": (lambda run: run.ledger.unlink(), StoreError),
    "another plan than the ledger's": (change_plan(noise_multiplier=9.0), CertificateMismatch),
    "another delta than the ledger's": (change_plan(delta=1e-3), CertificateMismatch),
    "refuted": (lambda run: keep(run.directory, REFUTED), CertificateMismatch),
    "suspicious": (lambda run: keep(run.directory, SUSPICIOUS), CertificateMismatch),
    "a folder in the way": (put_something_in_the_way, StoreError),
    "a loop of links in the way": (
        lambda run: (run.directory.parent / "model").symlink_to("model"),
        StoreError,
    ),
}


@pytest.mark.parametrize("name", UNRELEASABLE)
def test_an_unreleasable_run_keeps_its_key_and_nothing_is_written(name: str, run: RunFiles, to: Path) -> None:
    prepare, error = UNRELEASABLE[name]
    prepare(run)
    before = {*to.parent.iterdir(), *to.glob("*")}
    with pytest.raises(error):
        release(run.directory, to)
    assert run.key.exists()
    assert {*to.parent.iterdir(), *to.glob("*")} == before


OTHER_CERTIFICATES = {
    "event": forge(event=Repeated(PLAN.step_event, 10)),
    "delta": forge(delta=1e-3),
    "stated": forge(stated=replace(STATEMENTS, unit_of_privacy="one person")),
    "epsilon": shrink_epsilon,
}


@pytest.mark.parametrize("differing", OTHER_CERTIFICATES)
def test_a_certificate_in_the_folder_is_not_believed(differing: str, run: RunFiles, to: Path) -> None:
    OTHER_CERTIFICATES[differing](run)
    with pytest.raises(CertificateMismatch, match=differing):
        release(run.directory, to)
    assert run.key.exists()
    assert not to.exists()


def test_a_run_that_is_training_is_refused(run: RunFiles, to: Path) -> None:
    with atomic.locked(run.lock, for_what="training"), pytest.raises(StoreError):
        release(run.directory, to)
    assert run.key.exists()


def test_a_model_is_not_released_into_its_run(run: RunFiles) -> None:
    with pytest.raises(InvalidValue, match="to must be"):
        release(run.directory, run.directory / "model")


def test_the_choice_of_settings_is_stated_once(run: RunFiles, to: Path) -> None:
    with pytest.raises(InvalidValue, match="settings_chosen_on"):
        release(run.directory, to, settings_chosen_on="fixed")  # it was stated as public
    run.config.write_text(json.dumps(configuration(stated=None)))
    run.certificate.unlink()
    with pytest.raises(InvalidValue, match="settings_chosen_on"):
        release(run.directory, to)
    promised = certified(run.directory, to, settings_chosen_on="fixed")
    assert promised.epsilon == certificate(steps_taken=40).epsilon
    assert promised.stated.settings_chosen_on == "fixed"
    assert promised.stated.treated_as_public == ("the number of records", "test")


def test_without_its_certificate_a_run_is_released_with_the_same_one(run: RunFiles, to: Path) -> None:
    run.certificate.unlink()
    promised = certified(run.directory, to)
    assert replace(promised, issued_on="2026-01-31") == replace(certificate(steps_taken=40), issued_on="2026-01-31")


def test_a_run_paid_by_a_budget_is_released_with_what_the_budget_says(tmp_path: Path, to: Path) -> None:
    budget = new_budget(tmp_path / "b", epsilon=30.0)
    fit_tiny(tmp_path / "search", name="search", budget=budget, steps=2)
    fit_tiny(tmp_path / "final", name="final", budget=budget, steps=2, settings_chosen_on="private")
    with pytest.raises(InvalidValue, match="budget must be given"):
        release(tmp_path / "final", to)
    Budget.create(tmp_path / "other", dataset="others", epsilon=0.5, delta=1e-3).close()
    with pytest.raises(InvalidValue, match="that of 'tiny images'"):
        release(tmp_path / "final", to, budget=tmp_path / "other")
    path = tmp_path / "final/certificate.json"
    found = read_certificate(path)
    assert found.budget is not None
    cheap = issue(found.event, delta=found.delta, stated=found.stated, budget=replace(found.budget, epsilon=29.0))
    write_certificate(path, cheap, overwrite=True)
    with pytest.raises(CertificateMismatch, match="epsilon"):
        release(tmp_path / "final", to, budget=budget)
    write_certificate(path, found, overwrite=True)
    with Budget.open(budget) as account:
        account.reserve(Gaussian(9.0), run="later")  # since the certificate was issued
    promised = certified(tmp_path / "final", to, budget=budget)
    assert promised.budget is not None
    assert (promised.epsilon, promised.accountant) == (30.0, "filter")
    assert [paid.run for paid in promised.budget.paid_for] == ["search", "final", "later"]


def test_an_empty_folder_is_filled_and_missing_parents_are_made(run: RunFiles, to: Path, tmp_path: Path) -> None:
    to.mkdir()
    release(run.directory, to)
    assert (to / "model.safetensors").is_file()
    release(write_run(tmp_path / "other").directory, tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c/README.md").is_file()


@pytest.mark.parametrize("place", [(Ledger, "finish"), (RunKey, "destroy"), (Path, "unlink")])
def test_an_interrupted_release_is_completed_by_releasing_again(
    run: RunFiles, to: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, breaks)
        with pytest.raises(KeyboardInterrupt):
            release(run.directory, to)
    before = {path: path.read_bytes() for path in to.iterdir()}
    assert len(before) == 4
    release(run.directory, to)
    assert private_files(run) == []
    shutil.rmtree(run.private)
    release(run.directory, to)
    assert {path: path.read_bytes() for path in to.iterdir()} == before


def test_a_full_disk_leaves_no_half_a_release_and_the_key(
    run: RunFiles, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        release(run.directory, to)
    assert [path.name for path in to.parent.iterdir()] == ["run"]
    assert run.key.exists()


def heading(to: Path) -> str:
    """The first line of the card, behind what is for machines."""
    return (to / "README.md").read_text().split("\n---\n\n", maxsplit=1)[1].splitlines()[0]


@pytest.mark.parametrize("plan", [None, {"noise_multiplier": 0.0}])
def test_a_model_without_privacy_is_released_only_if_that_is_allowed(
    tmp_path: Path, to: Path, plan: dict[str, float] | None
) -> None:
    files = write_run(tmp_path / "run", config=configuration(plan=plan))
    with pytest.raises(InvalidValue, match="allow_no_privacy"):
        release(files.directory, to)
    assert release(files.directory, to, allow_no_privacy=True).certificate is None
    assert heading(to).startswith("# No privacy guarantee")
    assert not (to / "certificate.json").exists()


def test_a_run_by_a_papers_rule_is_released_with_the_proven_epsilon_and_lists_the_papers(
    tmp_path: Path, to: Path
) -> None:
    method = named("sa-dpsgd", accounting="published")
    run = fit_tiny(tmp_path / "run", method=method, public=PUBLIC, steps=2)
    released = release(run.directory, to, settings_chosen_on="fixed")
    assert released.certificate is not None
    assert released.certificate.epsilon == pytest.approx(run.proven.epsilon)
    [listed] = released.certificate.published_claims
    assert listed == released.published
    assert run.published is not None
    assert listed.epsilon == pytest.approx(run.published.epsilon, rel=1e-7)
    assert (listed.kind, listed.broken) == ("published", run.published.broken)


def test_a_run_under_a_limit_is_released_with_the_epsilon_of_the_limit(tmp_path: Path, to: Path) -> None:
    method = named("agd", choice_batch_size=8, step_sizes=2)
    run = fit_tiny(tmp_path / "run", method=method, steps=2, epsilon=9.0, noise_multiplier=None)
    promised = certified(run.directory, to, settings_chosen_on="fixed")
    assert promised.epsilon == pytest.approx(9.0, rel=1e-6)
    assert promised.ex_post is None


@pytest.mark.parametrize(
    "method, how, because",
    [
        (named("adadp", accounting="published"), {}, "gradients that have no noise"),
        (named("plain-sgd"), {"noise_multiplier": None}, "it was trained without noise"),
    ],
    ids=["adadp", "plain-sgd"],
)
def test_without_a_proof_there_is_no_certificate_whatever_a_paper_says(
    method: Method, how: dict[str, None], because: str, tmp_path: Path, to: Path
) -> None:
    run = fit_tiny(tmp_path / "run", method=method, steps=2, settings_chosen_on="fixed", **how)
    assert run.certificate is None
    with pytest.raises(InvalidValue, match=because):
        release(run.directory, to, settings_chosen_on="fixed")
    assert release(run.directory, to, allow_no_privacy=True).certificate is None
    assert because in heading(to)


@pytest.mark.parametrize("is_issued", [True, False])
def test_the_audit_of_a_run_is_in_the_certificate_and_on_the_card(run: RunFiles, to: Path, is_issued: bool) -> None:
    if not is_issued:
        run.certificate.unlink()
    keep(run.directory, showing(0.1, claimed_epsilon=certificate(steps_taken=40).epsilon))
    assert certified(run.directory, to).audit is not None
    assert "shows ε of at least 0.1 with confidence 0.95" in (to / "README.md").read_text(encoding="utf-8")


# The model card.


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    write_run(tmp_path / "run")
    return read_run(tmp_path / "run")


def test_the_card_begins_with_the_guarantee_and_ends_with_the_certificate(record: RunRecord) -> None:
    promised = certificate(steps_taken=40)
    sentence = guarantee_text(
        epsilon=promised.epsilon, delta=promised.delta, adjacency=promised.adjacency, unit="one image"
    )
    card = model_card_text(record)
    _, title, promise, *_ = card.split("\n\n")
    assert title == "# first try: a model trained with differential privacy"
    assert promise == f"> {markdown_text(sentence)}"
    assert certificate_text(promised).rstrip() in card
    for words in ("95.00%", "On these records: test", "sa-dpsgd", "clip norm 0.1", "noise multiplier 2", "40 steps"):
        assert words in card
    published = {**record.config, "claims": {"published": claim_to_json(PUBLISHED)}}
    card = model_card_text(replace(record, evaluations=(), config=published))
    assert "None was made" in card
    assert card.index("is proven:") < card.index("ε as published: 1 — not a guarantee")


def test_the_example_on_the_card_runs_as_it_stands(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"image_side": 8, "num_classes": 3}
    config = configuration(model={"network": "small_cnn", "arguments": arguments})
    files = write_run(tmp_path / "run", config=config, model=networks.build("small_cnn", **arguments))
    release(files.directory, to)
    [example] = re.findall(r"```python\n(.*?)```", (to / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    monkeypatch.chdir(to)
    runpy.run_path(str(tmp_path / "example.py"))
    assert capsys.readouterr().out.startswith("tensor([")


def test_text_of_the_run_is_no_mark_up(tmp_path: Path) -> None:
    attack = "x\n# y <script>alert(1)</script> [a](javascript:b) ![c](d) `e` ``` | f {{ record }}"
    config = configuration(
        run=attack.replace("\n", " "),
        method={"name": attack, attack: attack},
        data={"name": attack, "public_records": attack},
        training={"precision": attack},
        stated={"data_collection": attack},
    )
    write_run(tmp_path / "run", config=config, rows=evaluations(on=attack))
    record = read_run(tmp_path / "run")
    assert record.certificate is not None
    audit = AuditResult(method="canaries <script>", epsilon_lower_bound=0.125, confidence=0.95)
    audited = replace(record, certificate=replace(record.certificate, audit=audit))
    for card in (
        model_card_text(audited),
        model_card_text(replace(record, certificate=None, planned=NonPrivate(attack))),
    ):
        text = card.split("## The certificate in words")[0]
        assert "<script" not in text
        assert re.search(r"(?<!\\)\]\(", card) is None
        assert "\n# y" not in card
        assert sum(line.startswith("```") for line in text.splitlines()) == 2  # the example

"""A release has the model and what it promises, and nothing private; it ends the run, also after a crash."""

from __future__ import annotations

import fcntl
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
from lehr.auditing import Audit
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
from lehr.errors import BudgetExceeded, CertificateMismatch, DamagedFile, InvalidValue, StoreError
from lehr.methods.by_name import named
from lehr.optim.averaging import ExponentialAverage
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
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


def test_weights_certificate_card_and_configuration_are_released_and_nothing_else(run: RunFiles, to: Path) -> None:
    released = release(run.directory, to)
    assert sorted(path.name for path in to.iterdir()) == [
        "certificate.json",
        "config.json",
        "model.safetensors",
        "model_card.md",
    ]
    weights = load_file(to / "model.safetensors")
    assert weights.keys() == small_model().state_dict().keys()
    assert all(weights[name].equal(value) for name, value in small_model().state_dict().items())
    assert read_certificate(to / "certificate.json") == certificate(steps_taken=40) == released.certificate


def test_what_was_trained_is_released_and_scores_as_it_did_in_its_run(tmp_path: Path, to: Path) -> None:
    digits = data.load("digits")
    network = ("small_cnn", {"image_side": 8, "num_classes": 10})
    run = lehr.fit(
        networks.build(network[0], **network[1]),
        digits,
        epsilon=8,
        delta=1e-4,
        steps=4,
        expected_batch_size=64,
        averaging=ExponentialAverage(decay=0.5),
        settings_chosen_on="fixed",
        config=RunConfig.of(model={"network": network[0], **network[1]}),
        directory=tmp_path / "run",
        quiet=True,
    )
    release(run.directory, to)
    scores = evaluate(to, digits.test)
    assert scores.accuracy == pytest.approx(run.evaluations[-1].accuracy)
    assert scores.loss == pytest.approx(run.evaluations[-1].loss, rel=1e-5)
    assert private_files(RunFiles(run.directory)) == []


def test_the_key_and_all_that_is_private_are_gone_and_the_ledger_is_closed(run: RunFiles, to: Path) -> None:
    run.split.write_bytes(b"which record is where")
    run.diagnostics.write_text("{}\n")
    release(run.directory, to)
    assert private_files(run) == []
    with Ledger.open(run.ledger) as ledger, pytest.raises(BudgetExceeded, match="finished"):
        ledger.accepted(0)


def test_nothing_of_the_key_the_fingerprint_or_the_home_folder_is_in_the_release(tmp_path: Path, to: Path) -> None:
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
    key, fingerprint = files.key.read_bytes(), files.fingerprint.read_text()
    release(files.directory, to)
    for path in to.iterdir():
        content = path.read_bytes()
        assert key not in content
        assert fingerprint.encode() not in content
        assert b"lovelace" not in content
    written = json.loads((to / "config.json").read_text())
    assert (written["run"], written["data"]["name"]) == ("of photos", "photos")
    assert written["training"]["command"] == ["python", "x", "b c"]
    assert written["training"]["precision"] == "float32"


def test_a_run_that_stopped_early_is_released_with_the_epsilon_of_its_whole_plan(tmp_path: Path, to: Path) -> None:
    files = write_run(tmp_path / "run", steps_taken=20)
    released = release(files.directory, to)
    assert released.certificate is not None
    assert released.certificate.event == PLAN.event
    assert "stopped before the plan's end" in (to / "model_card.md").read_text()


def test_a_run_that_is_not_over_is_refused(tmp_path: Path, to: Path) -> None:
    files = write_run(tmp_path / "run", is_over=False)
    with pytest.raises(StoreError, match="not over"):
        release(files.directory, to)
    assert files.key.exists()
    assert not to.exists()


def test_a_run_that_is_being_trained_is_refused(run: RunFiles, to: Path) -> None:
    descriptor = os.open(run.private / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match="another process has it"):
        release(run.directory, to)
    os.close(descriptor)
    assert run.key.exists()


def test_where_nothing_was_stated_before_the_choice_of_settings_must_be_stated_now(tmp_path: Path, to: Path) -> None:
    run = write_run(tmp_path / "run", config=configuration(stated=None))
    run.certificate.unlink()
    with pytest.raises(InvalidValue, match="settings_chosen_on"):
        release(run.directory, to)
    assert run.key.exists()
    released = release(run.directory, to, settings_chosen_on="fixed")
    assert released.certificate is not None
    assert released.certificate.epsilon == certificate(steps_taken=40).epsilon
    assert released.certificate.stated.settings_chosen_on == "fixed"
    assert released.certificate.stated.treated_as_public == ("the number of records", "test")


def test_what_was_stated_is_not_contradicted(run: RunFiles, to: Path) -> None:
    with pytest.raises(InvalidValue, match=r"what was stated for the run \(public\)"):
        release(run.directory, to, settings_chosen_on="fixed")


def test_without_its_certificate_a_run_is_released_with_the_same_one(run: RunFiles, to: Path) -> None:
    run.certificate.unlink()
    promised = release(run.directory, to).certificate
    assert promised is not None
    assert replace(promised, issued_on="2026-01-31") == replace(certificate(steps_taken=40), issued_on="2026-01-31")


OTHERS: dict[str, Callable[[], Certificate]] = {
    "event": lambda: issue(Repeated(PLAN.step_event, 10), delta=PLAN.delta, stated=STATEMENTS),
    "delta": lambda: issue(PLAN.event, delta=1e-3, stated=STATEMENTS),
    "stated": lambda: issue(PLAN.event, delta=PLAN.delta, stated=replace(STATEMENTS, unit_of_privacy="one person")),
}


@pytest.mark.parametrize("differing", OTHERS)
def test_a_certificate_in_the_folder_is_not_believed(differing: str, run: RunFiles, to: Path) -> None:
    write_certificate(run.certificate, OTHERS[differing](), overwrite=True)
    with pytest.raises(CertificateMismatch, match=f"is not the certificate of this run: its .*{differing}"):
        release(run.directory, to)
    assert run.key.exists()
    assert not to.exists()


def test_what_a_run_without_a_ledger_did_is_not_known(run: RunFiles, to: Path) -> None:
    run.ledger.unlink()
    with pytest.raises(StoreError, match=r"it has no ledger\.db"):
        release(run.directory, to)


@pytest.mark.parametrize("plan", [replace(PLAN, noise_multiplier=9.0), replace(PLAN, delta=1e-3)])
def test_a_plan_that_is_not_the_ledgers_is_refused(plan: Plan, tmp_path: Path, to: Path) -> None:
    run = write_run(tmp_path / "run", config=configuration(plan=plan.to_json()))
    run.certificate.unlink()
    with pytest.raises(CertificateMismatch, match="the ledger of another plan"):
        release(run.directory, to)


@pytest.fixture(scope="module")
def chosen_privately(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was chosen after another one, which the same budget paid for."""
    folder = tmp_path_factory.mktemp("chosen")
    budget = new_budget(folder / "b", epsilon=30.0)
    how: dict[str, Any] = {"budget": budget, "steps": 2, "settings_chosen_on": "private"}
    fit_tiny(folder / "search", name="search", **{**how, "settings_chosen_on": None})
    fit_tiny(folder / "final", name="final", **how)
    return folder


def test_a_run_that_a_budget_paid_for_is_released_with_what_the_budget_says(chosen_privately: Path, to: Path) -> None:
    folder = shutil.copytree(chosen_privately, to.parent / "copy")
    with pytest.raises(InvalidValue, match="budget must be given: the budget of 'tiny images'"):
        release(folder / "final", to)
    Budget.create(folder / "other", dataset="others", epsilon=0.5, delta=1e-3).close()
    with pytest.raises(InvalidValue, match="that of 'tiny images'"):
        release(folder / "final", to, budget=folder / "other")
    with Budget.open(folder / "b") as budget:
        budget.reserve(Gaussian(9.0), run="later")  # since the certificate was issued
    promised = release(folder / "final", to, budget=folder / "b").certificate
    assert promised is not None
    assert promised.budget is not None
    assert (promised.epsilon, promised.claim.claim.accountant) == (30.0, "filter")
    assert [paid.run for paid in promised.budget.paid_for] == ["search", "final", "later"]


def test_a_certificate_with_another_budget_is_not_believed(chosen_privately: Path, to: Path) -> None:
    folder = shutil.copytree(chosen_privately, to.parent / "copy")
    found = read_certificate(folder / "final/certificate.json")
    assert found.budget is not None
    cheap = issue(found.event, delta=found.delta, stated=found.stated, budget=replace(found.budget, epsilon=29.0))
    assert cheap.epsilon == 29.0
    write_certificate(folder / "final/certificate.json", cheap, overwrite=True)
    with pytest.raises(CertificateMismatch, match="its epsilon is not"):
        release(folder / "final", to, budget=folder / "b")


def test_a_certificate_beside_a_model_without_privacy_is_not_released(tmp_path: Path, to: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(plan={"noise_multiplier": 0.0}))
    assert files.certificate.exists()
    assert release(files.directory, to, allow_no_privacy=True).certificate is None
    assert not (to / "certificate.json").exists()


def test_a_certificate_that_was_made_smaller_is_refused(run: RunFiles, to: Path) -> None:
    shape = json.loads(run.certificate.read_text())
    shape["epsilon"] = shape["claim"]["epsilon"] = 0.01
    run.certificate.write_text(json.dumps(shape))
    with pytest.raises(CertificateMismatch):
        release(run.directory, to)
    assert run.key.exists()


def test_weights_that_are_no_numbers_are_refused(run: RunFiles, to: Path) -> None:
    save_file({"1.weight": torch.full((3, 64), float("nan"))}, run.model)
    with pytest.raises(DamagedFile, match="not finite"):
        release(run.directory, to)
    assert run.key.exists()


def test_a_folder_with_something_in_it_is_refused_and_stays(run: RunFiles, to: Path) -> None:
    to.mkdir()
    (to / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not an empty folder"):
        release(run.directory, to)
    assert [path.name for path in to.iterdir()] == ["thesis.tex"]
    assert run.key.exists()
    assert [path.name for path in to.parent.iterdir() if path.name.endswith(".part")] == []


def test_an_empty_folder_is_filled_and_missing_parents_are_made(run: RunFiles, to: Path, tmp_path: Path) -> None:
    to.mkdir()
    release(run.directory, to)
    assert (to / "model.safetensors").is_file()
    other = write_run(tmp_path / "other")
    release(other.directory, tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c" / "model_card.md").is_file()


def test_a_model_is_not_released_into_its_run(run: RunFiles) -> None:
    with pytest.raises(InvalidValue, match="outside the run's own"):
        release(run.directory, run.directory / "model")


@pytest.mark.parametrize("part", ["finish", "destroy", "unlink"])
def test_a_release_that_broke_off_is_completed_by_releasing_again(
    run: RunFiles, to: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    place = {"finish": (Ledger, "finish"), "destroy": (RunKey, "destroy"), "unlink": (Path, "unlink")}[part]

    def breaks(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*place, breaks)
        with pytest.raises(KeyboardInterrupt):
            release(run.directory, to)
    before = {path: path.read_bytes() for path in to.iterdir()}
    assert len(before) == 4
    release(run.directory, to)
    assert {path: path.read_bytes() for path in to.iterdir()} == before
    assert private_files(run) == []


def test_releasing_twice_does_no_harm(run: RunFiles, to: Path) -> None:
    release(run.directory, to)
    release(run.directory, to)
    shutil.rmtree(run.private)
    release(run.directory, to)
    assert len(list(to.iterdir())) == 4


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


@pytest.mark.parametrize("plan", [None, {"noise_multiplier": 0.0}])
def test_a_model_without_privacy_is_released_only_where_that_is_said(
    tmp_path: Path, to: Path, plan: dict[str, float] | None
) -> None:
    files = write_run(tmp_path / "run", config=configuration(plan=plan))
    files.certificate.unlink(missing_ok=True)
    with pytest.raises(InvalidValue, match="allow_no_privacy"):
        release(files.directory, to)
    assert release(files.directory, to, allow_no_privacy=True).certificate is None
    assert (to / "model_card.md").read_text().startswith("# No privacy guarantee")
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
    assert listed.claim == released.published
    assert run.published is not None
    assert listed.claim.epsilon == pytest.approx(run.published.epsilon, rel=1e-7)
    assert (listed.kind, listed.claim.broken) == ("published", run.published.broken)


def test_a_run_under_a_limit_is_released_with_the_epsilon_of_the_limit(tmp_path: Path, to: Path) -> None:
    method = named("agd", choice_batch_size=8, step_sizes=2)
    run = fit_tiny(tmp_path / "run", method=method, steps=2, epsilon=9.0, noise_multiplier=None)
    released = release(run.directory, to, settings_chosen_on="fixed")
    assert released.certificate is not None
    assert released.certificate.epsilon == pytest.approx(9.0, rel=1e-6)
    assert released.certificate.ex_post is None


def test_records_that_are_scored_on_are_public_also_where_a_pca_was_paid_for(tmp_path: Path, to: Path) -> None:
    model = networks.build("projected_mlp", inputs=16, dimensions=2, hidden=4, num_classes=3)
    pca = {"dimensions": 2, "noise_multiplier": 3.0}
    run = fit_tiny(tmp_path / "run", model=model, private_pca=pca, steps=2)
    released = release(run.directory, to, settings_chosen_on="fixed")
    assert released.certificate is not None
    assert released.certificate.stated.treated_as_public == (
        "the number of records",
        "test records, declared public",
    )


@pytest.mark.parametrize(
    "method, how, because",
    [
        (named("adadp", accounting="published"), {}, "gradients that have no noise"),
        (named("plain-sgd"), {"noise_multiplier": None}, "it was trained without noise"),
    ],
    ids=["adadp", "plain-sgd"],
)
def test_where_nothing_is_proven_there_is_no_certificate_whatever_a_paper_says(
    method: Method, how: dict[str, None], because: str, tmp_path: Path, to: Path
) -> None:
    run = fit_tiny(tmp_path / "run", method=method, steps=2, settings_chosen_on="fixed", **how)
    assert run.certificate is None
    with pytest.raises(InvalidValue, match=because):
        release(run.directory, to, settings_chosen_on="fixed")
    assert release(run.directory, to, allow_no_privacy=True).certificate is None
    assert because in (to / "model_card.md").read_text().splitlines()[0]


def test_the_example_on_the_card_runs_as_it_stands(
    tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"image_side": 8, "num_classes": 3}
    config = configuration(model={"network": "small_cnn", "arguments": arguments})
    files = write_run(tmp_path / "run", config=config, model=networks.build("small_cnn", **arguments))
    release(files.directory, to)
    [example] = re.findall(r"```python\n(.*?)```", (to / "model_card.md").read_text(), flags=re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    monkeypatch.chdir(to)
    runpy.run_path(str(tmp_path / "example.py"))
    assert capsys.readouterr().out.startswith("tensor([")


def test_the_audit_of_a_run_is_in_the_certificate_and_on_the_card(run: RunFiles, to: Path) -> None:
    keep(run.directory, showing(0.1, claimed_epsilon=certificate(steps_taken=40).epsilon))
    released = release(run.directory, to)
    assert released.certificate is not None
    assert released.certificate.audit is not None
    assert "shows ε of at least 0.1 with confidence 0.95" in (to / "model_card.md").read_text(encoding="utf-8")


def test_a_certificate_that_is_issued_at_the_release_has_the_audit(run: RunFiles, to: Path) -> None:
    run.certificate.unlink()
    keep(run.directory, showing(0.1, claimed_epsilon=certificate(steps_taken=40).epsilon))
    released = release(run.directory, to)
    assert released.certificate is not None
    assert released.certificate.audit is not None


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS], ids=["refuted", "suspicious"])
def test_what_an_attack_has_found_is_not_passed_over(audit: Audit, run: RunFiles, to: Path) -> None:
    keep(run.directory, audit)
    with pytest.raises(CertificateMismatch, match=r"its audit \(audit\.json\) found the claim"):
        release(run.directory, to)
    assert not to.exists()
    assert run.key.exists()


def test_a_target_that_is_a_loop_of_links_is_refused_and_the_run_stays(run: RunFiles, to: Path) -> None:
    to.symlink_to(to.name)
    with pytest.raises(StoreError, match=to.name):
        release(run.directory, to)
    assert run.key.exists()


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    write_run(tmp_path / "run")
    return read_run(tmp_path / "run")


def test_the_promise_stands_under_the_title_and_the_whole_certificate_at_the_end(record: RunRecord) -> None:
    promised = certificate(steps_taken=40)
    sentence = guarantee_text(
        epsilon=promised.epsilon, delta=promised.delta, adjacency=promised.adjacency, unit="one image"
    )
    card = model_card_text(record)
    title, promise, *_ = card.split("\n\n")
    assert title == "# first try: a model trained with differential privacy"
    assert promise == f"> {markdown_text(sentence)}"
    assert certificate_text(promised).rstrip() in card


def test_the_card_says_what_was_evaluated_and_how_it_was_trained(record: RunRecord) -> None:
    card = model_card_text(record)
    for words in ("95.00%", "On these records: test", "sa-dpsgd", "clip norm 0.1", "noise multiplier 2", "40 steps"):
        assert words in card


def test_the_card_of_a_loop_that_has_records_of_its_own_kind_says_nothing_about_them(record: RunRecord) -> None:
    data = {**record.config["data"], "shape": [], "num_classes": None}
    model = {**record.config["model"], "network": None}
    card = model_card_text(replace(record, config={**record.config, "data": data, "model": model}))
    assert "Takes:" not in card
    assert "Gives:" not in card
    assert 'released_model.load(".", model=your_network())' in card
    assert "released_model.predict" not in card


def test_a_card_without_evaluations_says_so(record: RunRecord) -> None:
    assert "None was made" in model_card_text(replace(record, evaluations=()))


def test_a_run_that_stopped_early_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps_taken=20)
    assert "stopped before the plan's end; 20 steps were charged" in model_card_text(read_run(tmp_path / "run"))


def test_without_privacy_the_first_line_says_that_there_is_no_guarantee(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    card = model_card_text(read_run(tmp_path / "run"))
    assert card.splitlines()[0].startswith("# No privacy guarantee")
    assert "certificate.json" not in card


def test_the_number_of_a_papers_rule_stands_behind_the_proven_one_with_what_it_is(record: RunRecord) -> None:
    published = replace(record, config={**record.config, "claims": {"published": claim_to_json(PUBLISHED)}})
    card = model_card_text(published)
    assert "ε as published: 1 — not a guarantee: the choice looks at the records." in card
    assert card.index("is proven:") < card.index("ε as published")


def test_where_nothing_is_proven_the_title_says_why(record: RunRecord) -> None:
    looked = replace(record, certificate=None, planned=NonPrivate("raw <gradients>"))
    assert model_card_text(looked).startswith("# No privacy guarantee: raw &lt;gradients&gt;, and this model may")


def test_text_of_the_run_is_no_mark_up(tmp_path: Path) -> None:
    attack = "x\n# y <script>alert(1)</script> [a](javascript:b) ![c](d) `e` ``` | f"
    config = configuration(
        run=attack.replace("\n", " "),
        method={"name": attack, attack: attack},
        data={"name": attack, "public_records": attack},
        training={"precision": attack},
        stated={"data_collection": attack},
    )
    write_run(tmp_path / "run", config=config, rows=evaluations(on=attack))
    card = model_card_text(read_run(tmp_path / "run"))
    assert "<script" not in card
    assert re.search(r"(?<!\\)\]\(", card) is None
    assert "\n# y" not in card
    assert sum(line.startswith("```") for line in card.splitlines()) == 4  # the two blocks of the card itself


def test_the_card_says_whether_and_how_the_guarantee_was_attacked(record: RunRecord) -> None:
    assert "- Attacked: no audit is reported." in model_card_text(record)
    assert record.certificate is not None
    audit = AuditResult(method="canaries <in> one run", epsilon_lower_bound=0.125, confidence=0.95)
    card = model_card_text(replace(record, certificate=replace(record.certificate, audit=audit)))
    assert "Attacked: canaries &lt;in&gt; one run; this shows ε of at least 0.125 with confidence 0.95" in card

"""What an audit is about is made again from words, without a record, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidValue, StoreError, Unreachable
from lehr.games import every_method, subjects
from lehr.methods.by_name import METHODS
from lehr.methods.by_name import named as method_named
from lehr.methods.dpsgd import dpsgd
from lehr.training.describing import method_words
from tests.training.tiny import PUBLIC, fit_tiny

NUMBERS: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "steps": 20, "sampling_probability": 0.1}


@pytest.mark.parametrize(
    "name, settings",
    [
        ("dpsgd", {"clip_norm": 0.5, "schedule": {"kind": "step-decay", "every": 2, "decay": 0.5}}),
        ("sa-dpsgd", {"rejection_threshold": 4, "keeps_momentum": True}),
        ("adadp", {}),
    ],
)
def test_the_method_and_the_plan_of_a_run_are_made_again(
    name: str, settings: Mapping[str, Any], tmp_path: Path
) -> None:
    method = method_named(name, **settings)
    run = fit_tiny(tmp_path / "run", method=method, name="ours", public=PUBLIC)
    subject = subjects.of_run(tmp_path / "run")
    assert subject.name == "ours"
    assert subject.plan == run.plan
    assert method_words(subject.method) == method_words(method)


def test_a_method_that_was_made_by_hand_is_not_taken_for_the_one_of_its_name(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", method=dpsgd(clip_norm=0.5))
    with pytest.raises(InvalidValue, match=r"step_game\.attack.*clip_norm"):
        subjects.of_run(tmp_path / "run")


def test_a_method_of_another_name_is_refused(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["method"]["name"] = "our own"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InvalidValue, match="attack it in Python"):
        subjects.of_run(tmp_path / "run")


def test_what_claims_nothing_is_refused(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "plain", method="plain-sgd", noise_multiplier=None)
    with pytest.raises(InvalidValue, match="one with noise"):
        subjects.of_run(tmp_path / "plain")
    fit_tiny(tmp_path / "hoped", method=method_named("adadp", accounting="published"))
    with pytest.raises(InvalidValue, match="no claim to refute"):
        subjects.of_run(tmp_path / "hoped")


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"trial_of": {"kind": "selection", "mean": 3.0, "shape": 1.0}}, "no trial of a search"),
        ({"data": {"declared": "public"}}, "claims something: its records were declared public"),
    ],
)
def test_a_run_whose_claim_is_not_that_of_its_plan_is_refused(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    run = fit_tiny(tmp_path / "run")
    path = run.directory / "config.json"
    config = json.loads(path.read_text())
    data = config["data"] | changed.get("data", {})
    path.write_text(json.dumps(config | changed | {"data": data}))
    with pytest.raises(InvalidValue, match=reason):
        subjects.of_run(run.directory)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run that began"):
        subjects.of_run(tmp_path)


def test_every_private_method_is_found() -> None:
    found = {subject.name: subject for subject in subjects.named(subjects.ALL, **NUMBERS)}
    assert set(found) - {every_method.TEMPERED} == set(METHODS) - {"plain-sgd"}
    assert all(subject.plan.claim().epsilon <= 3 for subject in found.values())
    assert found[every_method.TEMPERED].host is not None
    assert found["dpsgd"].host is None


def test_one_method_is_found_by_its_name_and_an_unknown_one_is_refused() -> None:
    [subject] = subjects.named("auto-s", **NUMBERS)
    assert (subject.name, subject.method.name, subject.plan.steps) == ("auto-s", "auto-s", 20)
    with pytest.raises(InvalidValue, match="method must be one of adadp, "):
        subjects.named("plain-sgd", **NUMBERS)


def test_an_epsilon_out_of_reach_names_the_method() -> None:
    with pytest.raises(Unreachable, match="agd cannot be planned"):
        subjects.named("agd", **{**NUMBERS, "epsilon": 1e-3})


def test_the_game_is_played_under_the_name_and_the_confidence_that_are_asked() -> None:
    [subject] = subjects.named("dpsgd", **{**NUMBERS, "steps": 4})
    audit = subject.attacked(num_canaries=64, confidence=0.9)
    assert (audit.subject, audit.members + audit.others, audit.steps) == ("dpsgd", 64, 4)
    assert {bound.confidence for bound in audit.bounds} == {0.9}

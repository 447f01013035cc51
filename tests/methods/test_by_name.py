"""Methods by their names, from words and numbers that a file can hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lehr.errors import InvalidValue
from lehr.methods.auto_s import auto_s
from lehr.methods.by_name import METHODS, MOMENTS, named
from lehr.methods.dpsgd import dpsgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.optim.optimizers import adam
from lehr.schedules import Cosine, LinearWarmup


def slots(method: Any) -> tuple[object, ...]:
    return method.name, method.clipping, method.noise, method.update, method.acceptance


def test_a_method_is_called_what_it_calls_itself() -> None:
    assert [named(name).name for name in METHODS] == list(METHODS)


def test_every_method_of_the_package_is_found() -> None:
    expected = "adadp adal adan agd auto-s dpopt dpsgd dpsgd-per-layer dpsur plain-sgd sa-dpsgd"
    assert " ".join(METHODS) == expected


@pytest.mark.parametrize("word", ["Proven", "", None, True])
@pytest.mark.parametrize("name", ["dpsgd", "adadp", "dpsur", "sa-dpsgd"])
def test_any_other_word_for_the_accounting_is_refused(name: str, word: object) -> None:
    with pytest.raises(InvalidValue, match="accounting must be one of proven, published"):
        named(name, accounting=word)


def test_the_moments_of_all_steps_are_a_sound_rule() -> None:
    assert not MOMENTS.is_broken
    assert not MOMENTS.counts_accepted_only


def test_a_name_with_settings_is_the_function_with_arguments() -> None:
    assert slots(named("dpsgd", clip_norm=1.0, learning_rate=2.0)) == slots(dpsgd(clip_norm=1.0, learning_rate=2.0))
    assert slots(named("auto-s", stability=0.5)) == slots(auto_s(stability=0.5))
    assert slots(named("sa-dpsgd", rejection_threshold=2)) == slots(sa_dpsgd(rejection_threshold=2))


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_norm": 1.0},
        {"schedule": LinearWarmup(steps=2, after=Cosine(total_steps=9))},
        {"schedule": {"kind": "constant"}},
        {"update": adam(0.02)},
        {"update": adam(0.02).to_json(), "clip_norm": 3.0},
    ],
    ids=str,
)
def test_what_is_noted_makes_the_same_method_again(settings: dict[str, Any]) -> None:
    method = named("dpsgd", **settings)
    noted = json.loads(json.dumps(dict(method.settings)))
    assert slots(named("dpsgd", **noted)) == slots(method)
    assert dict(named("dpsgd", **noted).settings) == noted


@pytest.mark.parametrize(
    "name, settings, says",
    [
        ("dp-sgd", {}, "method must be one of adadp, .*, dpsgd, .*, sa-dpsgd; given: 'dp-sgd'"),
        (3, {}, "method must be one of"),
        ("dpsgd", {"clip_nrom": 1.0}, "setting of dpsgd must be one of accounting, .*; given: 'clip_nrom'"),
        ("dpsgd", {"stability": 0.1}, "setting of dpsgd must be"),
        ("dpsgd", {"clip_norm": "wide"}, "clip_norm must be"),
        ("dpsgd", {"learning_rate": True}, "learning_rate must be"),
        ("dpsgd", {"momentum": "much"}, "momentum"),
        ("dpsgd", {"schedule": "cosine"}, "schedule must be an object whose kind is one of"),
        ("dpsgd", {"schedule": {"kind": "sine"}}, "schedule must be an object whose kind is one of"),
        ("dpsgd", {"update": "adam"}, "update must be an object with the fields"),
        ("dpsgd", {"update": adam(0.1).to_json(), "momentum": 0.5}, "update must be given alone"),
        ("sa-dpsgd", {"rejection_threshold": 1.5}, "rejection_threshold must be a whole number"),
    ],
)
def test_what_is_unknown_or_unsound_is_refused_by_name(name: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        named(name, **settings)


@pytest.mark.parametrize(
    "method, settings, message",
    [
        pytest.param("sa-dpsgd", {"salvage": "no"}, "salvage must be true or false", id="a word for a switch"),
        pytest.param("sa-dpsgd", {"step_scales": 2}, "step_scales must be a list of numbers", id="one for several"),
        pytest.param("dpsur", {"threshold": "abc"}, "threshold must be", id="a word for a number"),
        pytest.param("dpsgd-per-layer", {"shares": 3}, "shares must be", id="a number for a table"),
        pytest.param("dpsgd", {"clip_schedule": {"kind": "up"}}, "clip_schedule must be", id="an unknown schedule"),
        pytest.param("agd", {"accounting": "published"}, "accounting must be proven", id="no rule of a paper"),
        pytest.param(
            "sa-dpsgd",
            {"energy": {"kind": "private choice", "loss_clip": 1.0, "epsilon": 0.1}},
            "energy must be a PublicEnergy or PrivateEnergy",
            id="an energy that it cannot ask for",
        ),
    ],
)
def test_what_a_file_may_say_wrongly_is_refused_by_its_own_name(method: str, settings: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        named(method, **settings)

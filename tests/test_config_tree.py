"""``RunConfig``: what it refuses, that every view follows its fields, and that files lose nothing."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lehr import fit
from lehr.cli.common import config_options
from lehr.config import ALIASES, Option, RunConfig, TrainingConfig, option, options, sections
from lehr.errors import InvalidValue

WORDS = st.text("abcxyz-_ 019é\"\\'#\n", min_size=1).filter(str.strip)
NUMBERS = st.floats(1e-9, 0.75)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
CHOICES = {
    "declared": ["private", "public", "synthetic"],
    "task": ["classification", "regression", "multilabel"],
    "accounting": ["proven", "published"],
    "settings_chosen_on": ["fixed", "public", "private"],
    "noise": ["float", "discrete"],
    "adjacency": ["add-or-remove-one", "replace-one", "zero-out"],
    "correlation": ["banded", "banded-inverse"],
    "precision": ["as_model", "bfloat16"],
}


def value_of(each: Option) -> st.SearchStrategy[Any]:
    if each.key in CHOICES:
        return st.sampled_from(CHOICES[each.key])
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(1, 10**6),
        float: NUMBERS,
        str: WORDS,
        Path: WORDS.map(Path),
    }
    return kinds.get(each.type, st.dictionaries(WORDS, VALUES, max_size=2))


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    chosen = draw(st.lists(st.sampled_from(sorted(options())), unique=True, max_size=12))
    config = RunConfig().with_options(**{name: draw(value_of(options()[name])) for name in chosen})
    own = draw(st.dictionaries(st.from_regex(r"own_[a-z]{1,4}", fullmatch=True), VALUES, max_size=2))
    return config.with_values(method=own, model=own)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_a_configuration_reads_back_from_toml_and_json(config: RunConfig) -> None:
    assert RunConfig.of(**tomllib.loads(config.to_toml())) == config
    assert RunConfig.from_json(config.to_json()) == config
    assert RunConfig().with_values(**config.tables()) == config


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_works_in_python_in_a_file_and_on_the_command_line(alias: str) -> None:
    name = ALIASES[alias]
    each = options()[name]
    value = 4 if each.type is int else 0.25
    expected = RunConfig().with_options(**{name: value})
    assert RunConfig().with_options(**{alias: value}) == expected
    assert RunConfig.of(**{each.table: {alias: value}}) == expected
    assert f"--{alias.replace('_', '-')}" in shown_help(RunConfig)
    for twice in (RunConfig().with_options, lambda **both: RunConfig.of(**{each.table: both})):
        with pytest.raises(InvalidValue):
            twice(**{alias: value, name: value})


@pytest.mark.parametrize(
    "typo, meant", [("epsilom", "epsilon"), ("clip_nrom", "clip_norm"), ("max_grad_nrm", "max_grad_norm")]
)
def test_a_misspelt_keyword_is_refused_with_the_closest_one(typo: str, meant: str) -> None:
    with pytest.raises(InvalidValue, match=meant) as caught:
        fit("small_cnn", "digits", **cast(Any, {typo: 1.0}))
    assert caught.value.given == typo


@pytest.mark.parametrize(
    "named",
    [
        {"views": 0},
        {"views": True},
        {"precision": "float64"},
        {"patience": 0},
        {"physical_batch": -1},
        {"checkpoint_seconds": float("nan")},
        {"checkpoint_seconds": -1.0},
        {"epsilon": "3"},
        {"delta": 1.0},
        {"steps": 2.5},
        {"streamed": "yes"},
        {"declared": "pubic"},
        {"seed": -1},
        {"npz": ""},
        {"npz": 3},
        {"records": "many"},
        {"network": ["small_cnn"]},
        {"method": 3},
        {"sampling": [float("inf")]},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_when_the_configuration_is_built(named: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        RunConfig().with_options(**named)
    assert [caught.value.name] == list(named)


def test_later_values_override_and_none_does_not() -> None:
    config = RunConfig.of(data={"name": "digits"}, privacy={"epsilon": 3})
    config = config.with_values(data={"name": None, "records": 7}, privacy={"epsilon": 4, "delta": None})
    assert config.data == {"name": "digits", "records": 7}
    assert config.privacy == {"epsilon": 4}
    assert config.with_options(quiet=True).with_options(quiet=False).run == {}


def test_a_run_records_no_path_and_no_machine() -> None:
    everything = {each.key for each in options().values() if each.type is Path or each.table == "run"}
    recorded = RunConfig().to_json(is_recorded=True)
    assert [key for table in recorded.values() for key in table if key in everything - {"name"}] == []
    assert recorded["run"] == {}


# --- One field more -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LongerTraining(TrainingConfig):
    """[training] with one field more."""

    label_smoothing: float = option("Mass of the label spread over all classes.", 0.0)


@dataclass(frozen=True, kw_only=True)
class LongerConfig(RunConfig):
    training: LongerTraining = field(default_factory=LongerTraining)


def shown_help(tree: type[RunConfig]) -> str:
    def command(**fields: Any) -> None:
        del fields

    app = typer.Typer(rich_markup_mode=None)
    app.command()(config_options(tree=tree)(command))
    return " ".join(CliRunner().invoke(app, ["--help"], terminal_width=200).output.split())


def test_a_new_field_is_in_fit_in_toml_on_the_command_line_and_in_config_json() -> None:
    changed = LongerConfig().with_options(label_smoothing=0.1)  # as the keywords of fit are read
    assert changed.training.label_smoothing == 0.1
    assert LongerConfig.of(**tomllib.loads("[training]\nlabel_smoothing = 0.1")) == changed
    assert "label_smoothing = 0.1" in changed.to_toml()
    assert "--label-smoothing" in shown_help(LongerConfig)
    assert "Mass of the label spread over all classes." in shown_help(LongerConfig)
    assert "--label-smoothing" not in shown_help(RunConfig)
    assert changed.to_json(is_recorded=True)["training"]["label_smoothing"] == 0.1
    assert LongerConfig.from_json(changed.to_json(is_recorded=True)) == changed


def test_the_signature_of_fit_has_every_field_once() -> None:
    shown = [ALIASES.get(name, name) for name in inspect.signature(fit).parameters]
    assert len(shown) == len(set(shown))
    assert set(options()) - set(shown) == {"dataset", "network"} - set(shown)
    assert set(sections()) == {"data", "model", "method", "privacy", "training", "run"}

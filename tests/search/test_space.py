"""TODO."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lehr.config import RunConfig
from lehr.errors import InvalidValue
from lehr.optim.optimizers import Update
from lehr.search.request import Search, check_space
from lehr.search.space import (
    WORDS,
    Choices,
    Range,
    Space,
    apply_settings,
    read_dimension,
    takes_update,
    usual_space,
    why_not_scaled,
)
from lehr.training.prepare import method_and_plan

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [1, 1],
        0.5,
        {"low": 1},
        {"low": 1, "high": 1},
        {"low": 2, "high": 1},
        {"low": math.nan, "high": 1},
        {"low": 0, "high": math.inf},
        {"low": 0, "high": 1, "log": True},
        {"low": 1, "high": 2, "log": True, "step": 1},
        {"low": 1, "high": 2, "log": "yes"},
        {"low": 1, "high": 2, "step": 0},
        {"low": 1, "high": 2, "steps": 1},
    ],
)
def test_what_is_neither_choices_nor_a_range_is_refused_by_its_name(shape: Any) -> None:
    with pytest.raises(InvalidValue, match="views"):
        read_dimension("views", shape)


def test_a_table_is_kept_as_text_and_meant_as_a_table() -> None:
    tables = [{"network": "wide_resnet", "depth": 16}, "small_cnn"]
    choices = read_dimension("network", tables)
    assert all(isinstance(text, str) for text in choices.tried)
    assert [choices.meant(text) for text in choices.tried] == tables


def test_a_range_of_whole_steps_is_of_whole_numbers() -> None:
    views = read_dimension("views", {"low": 1, "high": 8, "step": 3})
    assert views.listed == (1, 4, 7)
    assert all(isinstance(value, int) for value in views.listed)


def test_draws_lie_within_the_range_and_are_uniform() -> None:
    draws = [float(Range("x", 1.0, 3.0).drawn(GENERATOR)) for _ in range(2000)]
    assert min(draws) >= 1
    assert max(draws) <= 3
    assert abs(sum(draws) / 2000 - 2) < 0.06  # four and a half standard deviations


def test_draws_of_a_logarithmic_range_are_uniform_in_their_ratios() -> None:
    draws = [math.log10(float(Range("x", 0.01, 1.0, log=True).drawn(GENERATOR))) for _ in range(2000)]
    assert abs(sum(draws) / 2000 + 1) < 0.06


def test_each_choice_and_each_step_is_as_likely_as_the_others() -> None:
    for dimension in (Choices("x", ("a", "b", "c")), Range("x", 1, 3, step=1, is_whole=True)):
        draws = [dimension.drawn(GENERATOR) for _ in range(1500)]
        assert all(abs(draws.count(value) - 500) < 90 for value in dimension.listed or ())  # five standard deviations


ALL = {
    "optimizer": ["sgd", "adam"],
    "learning_rate": {"low": 0.1, "high": 1, "log": True},
    "adaptive_learning_rate": {"low": 0.001, "high": 0.1, "log": True},
    "momentum": [0.0, 0.9],
    "dampening": [0.0, 0.9],
    "ema_decay": [0.0, 0.99],
    "augmentation": ["none", "flip_crop"],
    "views": [1, 4],
    "network": ["small_cnn"],
    "batch_factor": [0.5, 1],
}


@pytest.mark.parametrize(
    "name",
    ["momentun", "data.name", "privacy.epsilon", "privacy.delta", "privacy.stated", "training.view", "search.trials"],
)
def test_what_is_no_setting_or_must_not_be_varied_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"key of \[search.space\]"):
        Space.read({name: [1, 2]})


def test_dotted_keys_may_be_quoted_or_not() -> None:
    assert Space.read({"method": {"clip_norm": [1, 2]}}) == Space.read({"method.clip_norm": [1, 2]})


def test_what_decides_is_asked_for_first_whatever_the_order_of_the_file() -> None:
    names = [dimension.name for dimension in Space.read(dict(reversed(ALL.items()))).dimensions]
    assert names == list(WORDS)


def test_settings_are_asked_for_only_where_they_mean_something() -> None:
    space = Space.read(ALL)
    first, last = (space.chosen(lambda d, place=place: d.tried[place]) for place in (0, -1))  # type: ignore[misc]
    assert {"adaptive_learning_rate", "dampening", "views"} & first.keys() == set()
    assert {"learning_rate", "momentum", "dampening"} & last.keys() == set()


def test_one_learning_rate_serves_every_optimizer_where_it_stands_alone() -> None:
    space = Space.read({"optimizer": ["adam"], "learning_rate": [0.1]})
    assert space.chosen(lambda d: d.tried[0]) == {"optimizer": "adam", "learning_rate": 0.1}


def test_every_combination_is_listed_once_and_none_that_is_not_asked_for() -> None:
    space = Space.read({key: ALL[key] for key in ("optimizer", "momentum", "dampening", "augmentation", "views")})
    found = space.combinations()
    # three of SGD (no momentum; momentum with either dampening) and one of Adam, each with three kinds of views
    assert len(found) == 12
    assert len({str(sorted(one.items())) for one in found}) == 12


def test_a_range_without_steps_has_no_combinations() -> None:
    with pytest.raises(InvalidValue, match="learning_rate"):
        Space.read(ALL).combinations()


def test_what_a_study_keeps_is_read_back() -> None:
    space = Space.read({"network": [{"network": "small_cnn", "image_side": 8}], "momentum": [0.5]})
    parameters = space.chosen(lambda d: d.tried[0])
    assert space.meant(parameters) == {"network": {"network": "small_cnn", "image_side": 8}, "momentum": 0.5}


PRIVACY = {"noise_multiplier": 2.0, "expected_batch_size": 64, "steps": 400, "delta": 1e-4}
BASE = RunConfig.of(privacy=PRIVACY, method={"learning_rate": 0.5, "clip_norm": 0.3})
_, PLAN = method_and_plan(BASE)


def with_settings(configuration: RunConfig = BASE, **settings: Any) -> RunConfig:
    return apply_settings(configuration, settings, plan=PLAN)


def test_another_optimizer_has_its_own_arguments_and_rate() -> None:
    configuration = with_settings(optimizer="adam", adaptive_learning_rate=0.01)
    update = configuration.method["update"]
    assert (update["optimizer"], update["learning_rate"], update["arguments"]) == ("adam", 0.01, {})
    method, _ = method_and_plan(configuration)
    assert method.update.to_json()["optimizer"] == "adam"
    assert method.settings["clip_norm"] == 0.3


def test_dampening_goes_with_momentum() -> None:
    update = with_settings(momentum=0.9, dampening=0.9).method["update"]
    assert update["arguments"]["momentum"] == update["arguments"]["dampening"] == 0.9
    assert "update" not in with_settings(momentum=0.0).method


def test_a_schedule_of_the_learning_rate_is_kept() -> None:
    schedule = {"kind": "cosine", "total_steps": 400, "final_fraction": 0.1}
    base = BASE.with_values(method={"schedule": schedule})
    assert with_settings(base, learning_rate=1.0).method["schedule"] == schedule
    assert with_settings(base, optimizer="adam").method["update"]["schedule"] == schedule


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_a_larger_batch_keeps_the_total_noise_and_the_rate_follows_the_steps(factor: float) -> None:
    changed = with_settings(batch_factor=factor, learning_rate=0.1)
    method, plan = method_and_plan(changed)
    assert plan.noise_multiplier == PLAN.noise_multiplier
    total = [p.sampling_probability * math.sqrt(p.steps) / p.noise_multiplier for p in (PLAN, plan)]
    assert total[0] == pytest.approx(total[1], rel=1e-12)
    assert isinstance(method.update, Update)
    assert method.update.learning_rate * plan.steps == pytest.approx(0.1 * PLAN.steps)


def test_there_are_as_many_scores_whatever_the_steps() -> None:
    base = BASE.with_values(training={"evaluate_every": 40})
    assert with_settings(base, batch_factor=2).training["evaluate_every"] == 10
    assert with_settings(base, batch_factor=100).training["evaluate_every"] == 1


def test_where_an_epsilon_is_asked_for_the_noise_is_found_so_that_it_is_kept() -> None:
    base = RunConfig.of(privacy={"epsilon": 3.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4})
    _, before = method_and_plan(base)
    changed = apply_settings(base, {"batch_factor": 2}, plan=before)
    _, plan = method_and_plan(changed)
    assert (plan.expected_batch_size, plan.steps) == (128, 4)
    assert plan.bound().epsilon <= 3.0
    assert plan.noise_multiplier == pytest.approx(before.noise_multiplier, rel=0.2)


def test_averages_augmentations_networks_and_any_other_key_are_put_in_their_tables() -> None:
    settings = {"ema_decay": 0.99, "augmentation": "flip_crop", "views": 4, "training.patience": 3}
    settings |= {"network": {"network": "wide_resnet", "depth": 16}, "method.clip_norm": 1.0}
    changed = apply_settings(BASE, settings, plan=PLAN)
    assert changed.training["averaging"] == {"kind": "exponential", "decay": 0.99}
    assert (changed.training["augmentation"], changed.training["views"]) == ("flip_crop", 4)
    assert changed.training["patience"] == 3
    assert changed.model == {"network": "wide_resnet", "depth": 16}
    assert changed.method["clip_norm"] == 1.0


def test_no_average_and_no_augmentation_undo_what_the_configuration_says() -> None:
    base = BASE.with_values(training={"averaging": {"kind": "exponential", "decay": 0.9}, "views": 8})
    changed = with_settings(base, ema_decay=0.0, augmentation="none")
    assert changed.training["averaging"] == {"kind": "none"}
    assert changed.training.views == 1


def test_arguments_of_a_network_stay_with_that_network() -> None:
    base = BASE.with_values(model={"network": "small_cnn", "activation": "tanh"})
    assert with_settings(base, network="small_cnn").model == {"network": "small_cnn", "activation": "tanh"}
    assert with_settings(base, network="paper_cnn").model == {"network": "paper_cnn"}


def test_a_method_with_its_own_optimizer_has_a_learning_rate_alone() -> None:
    base = RunConfig.of(privacy=PRIVACY, method={"name": "adadp"})
    assert not takes_update(base)
    assert with_settings(base, learning_rate=0.01).method == {"name": "adadp", "learning_rate": 0.01}
    with pytest.raises(InvalidValue, match="learning_rate"):
        with_settings(base, batch_factor=2)


def test_a_plan_whose_steps_are_not_alike_is_not_scaled() -> None:
    method, _ = method_and_plan(BASE)
    assert why_not_scaled(PLAN, method) is None
    scheduled, _ = method_and_plan(
        BASE.with_values(method={"schedule": {"kind": "cosine", "total_steps": 400, "final_fraction": 0.1}})
    )
    assert "constant" in (why_not_scaled(PLAN, scheduled) or "")
    plain, without_noise = method_and_plan(RunConfig.of(method={"name": "plain-sgd"}, privacy={"steps": 5}))
    assert why_not_scaled(without_noise, plain) is not None


PRIVACY_defaults = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def names(**words: Any) -> list[str]:
    configuration = RunConfig.of(privacy=PRIVACY_defaults).with_values(**words)
    _, plan = method_and_plan(configuration)
    return [d.name for d in usual_space(configuration, plan, searched_on=configuration.data).dimensions]


def test_all_that_the_paper_varies_is_varied() -> None:
    assert names() == [
        "optimizer", "learning_rate", "adaptive_learning_rate", "momentum", "dampening", "ema_decay", "augmentation",
        "views", "batch_factor",
    ]  # fmt: skip


def test_what_a_configuration_cannot_vary_is_left_out() -> None:
    assert "optimizer" not in names(method={"name": "adadp"})
    assert "batch_factor" not in names(method={"name": "sa-dpsgd", "accounting": "published"})
    assert "augmentation" not in names(data={"npz": "records.npz", "records": 1000, "num_classes": 2})


def test_every_usual_setting_can_be_tried() -> None:
    configuration = RunConfig.of(privacy=PRIVACY_defaults, data={"declared": "public"})
    search = Search(configuration=configuration, space=Space(()))
    space = usual_space(configuration, search.plan, searched_on=configuration.data)
    check_space(Search(configuration=configuration, space=space))


@pytest.mark.parametrize("numbers", [{"expected_batch_size": 1000}, {"steps": 3}])
def test_no_batch_is_tried_that_there_are_no_records_or_no_steps_for(numbers: dict[str, int]) -> None:
    configuration = RunConfig.of(privacy={**PRIVACY_defaults, **numbers}, data={"declared": "public"})
    search = Search(configuration=configuration, space=Space(()))
    [factor] = [
        d for d in usual_space(configuration, search.plan, searched_on={}).dimensions if d.name == "batch_factor"
    ]
    assert factor.tried == (0.5, 1)
    check_space(Search(configuration=configuration, space=Space((factor,))))

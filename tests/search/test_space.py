"""What a search varies, and how settings are put into a configuration."""

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
    Space,
    all_values,
    apply_settings,
    draw,
    extremes,
    read_distribution,
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
        {"low": 1.0, "high": 2, "log": True, "step": 1},
        {"low": 1, "high": 2, "log": "yes"},
        {"low": 1, "high": 2, "step": 0},
        {"low": 1, "high": 2, "step": "x"},
        {"low": 1, "high": 2, "steps": 1},
    ],
)
def test_what_is_neither_choices_nor_a_range_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidValue, match="views"):
        read_distribution("views", shape)


def test_a_range_of_whole_steps_has_whole_numbers() -> None:
    values = all_values(read_distribution("views", {"low": 1, "high": 8, "step": 3}))
    assert values == (1, 4, 7)
    assert all(isinstance(value, int) for value in values)


def test_draws_lie_within_the_range_and_are_uniform() -> None:
    straight = read_distribution("x", {"low": 1.0, "high": 3.0})
    draws = [float(draw(straight, GENERATOR)) for _ in range(2000)]
    assert min(draws) >= 1
    assert max(draws) <= 3
    assert abs(sum(draws) / 2000 - 2) < 0.06  # four and a half standard deviations
    logarithmic = read_distribution("x", {"low": 0.01, "high": 1.0, "log": True})
    assert abs(sum(math.log10(float(draw(logarithmic, GENERATOR))) for _ in range(2000)) / 2000 + 1) < 0.06


@pytest.mark.parametrize("shape", [["a", "b", "c"], {"low": 1, "high": 3, "step": 1}])
def test_each_choice_and_each_step_is_as_likely_as_the_others(shape: Any) -> None:
    distribution = read_distribution("x", shape)
    draws = [draw(distribution, GENERATOR) for _ in range(1500)]
    assert all(abs(draws.count(value) - 500) < 90 for value in all_values(distribution) or ())  # five std


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


def pick(space: Space, place: int) -> dict[str, Any]:
    return space.choose(lambda name: extremes(space.distributions[name])[place])


@pytest.mark.parametrize(
    "name",
    ["momentun", "data.name", "privacy.epsilon", "privacy.delta", "privacy.stated", "training.view", "search.trials"],
)
def test_what_is_no_setting_or_must_not_be_varied_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"key of \[search.space\]"):
        Space.read({name: [1, 2]})


def test_dotted_keys_may_be_quoted_or_not() -> None:
    assert Space.read({"method": {"clip_norm": [1, 2]}}) == Space.read({"method.clip_norm": [1, 2]})


def test_settings_are_varied_only_where_they_mean_something() -> None:
    space = Space.read(dict(reversed(ALL.items())))
    assert list(space.distributions) == list(WORDS)  # what decides comes first, whatever the order of the file
    assert {"adaptive_learning_rate", "dampening", "views"} & pick(space, 0).keys() == set()
    assert {"learning_rate", "momentum", "dampening"} & pick(space, -1).keys() == set()
    alone = Space.read({"optimizer": ["adam"], "learning_rate": [0.1]})  # serves every optimizer
    assert pick(alone, 0) == {"optimizer": "adam", "learning_rate": 0.1}


def test_every_combination_is_listed_once() -> None:
    space = Space.read({key: ALL[key] for key in ("optimizer", "momentum", "dampening", "augmentation", "views")})
    found = space.combinations()
    # three of SGD (no momentum; momentum with either dampening) and one of Adam, each with three kinds of views
    assert len(found) == 12
    assert len({str(sorted(one.items())) for one in found}) == 12
    with pytest.raises(InvalidValue, match="learning_rate"):  # a range without steps
        Space.read(ALL).combinations()


def test_tables_are_stored_as_text_and_read_back() -> None:
    table = {"network": "small_cnn", "image_side": 8}
    space = Space.read({"network": [table, "small_cnn"], "momentum": [0.5, 0.6]})
    first, last = pick(space, 0), pick(space, -1)
    assert isinstance(first["network"], str)
    assert space.settings(first) == {"network": table, "momentum": 0.5}
    assert space.settings(last) == {"network": "small_cnn", "momentum": 0.6}


PRIVACY = {"noise_multiplier": 2.0, "expected_batch_size": 64, "steps": 400, "delta": 1e-4}
BASE = RunConfig.of(privacy=PRIVACY, method={"learning_rate": 0.5, "clip_norm": 0.3})
METHOD, PLAN = method_and_plan(BASE)
SCHEDULE = {"kind": "cosine", "total_steps": 400, "final_fraction": 0.1}


def with_settings(configuration: RunConfig = BASE, **settings: Any) -> RunConfig:
    return apply_settings(configuration, settings, plan=PLAN)


def test_another_optimizer_has_its_own_arguments_and_rate() -> None:
    configuration = with_settings(optimizer="adam", adaptive_learning_rate=0.01)
    update = configuration.method["update"]
    assert (update["optimizer"], update["learning_rate"], update["arguments"]) == ("adam", 0.01, {})
    method, _ = method_and_plan(configuration)
    assert method.update.to_json()["optimizer"] == "adam"
    assert method.settings["clip_norm"] == 0.3


def test_dampening_belongs_to_momentum_and_a_schedule_is_kept() -> None:
    update = with_settings(momentum=0.9, dampening=0.9).method["update"]
    assert update["arguments"]["momentum"] == update["arguments"]["dampening"] == 0.9
    assert "update" not in with_settings(momentum=0.0).method
    base = BASE.with_values(method={"schedule": SCHEDULE})
    assert with_settings(base, learning_rate=1.0).method["schedule"] == SCHEDULE
    assert with_settings(base, optimizer="adam").method["update"]["schedule"] == SCHEDULE


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_a_batch_factor_keeps_the_total_noise_and_the_rate_follows_the_steps(factor: float) -> None:
    base = BASE.with_values(training={"evaluate_every": 40})
    changed = with_settings(base, batch_factor=factor, learning_rate=0.1)
    method, plan = method_and_plan(changed)
    assert plan.noise_multiplier == PLAN.noise_multiplier
    total = [p.sampling_probability * math.sqrt(p.steps) / p.noise_multiplier for p in (PLAN, plan)]
    assert total[0] == pytest.approx(total[1], rel=1e-12)
    assert isinstance(method.update, Update)
    assert method.update.learning_rate * plan.steps == pytest.approx(0.1 * PLAN.steps)
    assert changed.training["evaluate_every"] == max(1, round(40 / factor**2))


def test_with_an_epsilon_a_batch_factor_calibrates_the_noise_again() -> None:
    base = RunConfig.of(privacy={"epsilon": 3.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4})
    _, before = method_and_plan(base)
    _, plan = method_and_plan(apply_settings(base, {"batch_factor": 2}, plan=before))
    assert (plan.expected_batch_size, plan.steps) == (128, 4)
    assert plan.bound().epsilon <= 3.0
    assert plan.noise_multiplier == pytest.approx(before.noise_multiplier, rel=0.2)


def test_other_settings_are_put_into_their_tables() -> None:
    settings = {"ema_decay": 0.99, "augmentation": "flip_crop", "views": 4, "training.patience": 3}
    settings |= {"network": {"network": "wide_resnet", "depth": 16}, "method.clip_norm": 1.0}
    changed = apply_settings(BASE, settings, plan=PLAN)
    assert changed.training["averaging"] == {"kind": "exponential", "decay": 0.99}
    assert (changed.training["augmentation"], changed.training["views"]) == ("flip_crop", 4)
    assert changed.training["patience"] == 3
    assert changed.model == {"network": "wide_resnet", "depth": 16}
    assert changed.method["clip_norm"] == 1.0


def test_settings_undo_what_the_configuration_says() -> None:
    training = {"averaging": {"kind": "exponential", "decay": 0.9}, "views": 8}
    base = BASE.with_values(training=training, model={"network": "small_cnn", "activation": "tanh"})
    changed = with_settings(base, ema_decay=0.0, augmentation="none", network="small_cnn")
    assert changed.training["averaging"] == {"kind": "none"}
    assert changed.training.views == 1
    assert changed.model == {"network": "small_cnn", "activation": "tanh"}
    assert with_settings(base, network="paper_cnn").model == {"network": "paper_cnn"}


def test_a_method_with_its_own_optimizer_has_a_learning_rate_alone() -> None:
    base = RunConfig.of(privacy=PRIVACY, method={"name": "adadp"})
    assert not takes_update(base)
    assert with_settings(base, learning_rate=0.01).method == {"name": "adadp", "learning_rate": 0.01}
    with pytest.raises(InvalidValue, match="learning_rate"):
        with_settings(base, batch_factor=2)


def test_only_a_plan_of_equal_noisy_steps_is_scaled() -> None:
    assert why_not_scaled(PLAN, METHOD) is None
    scheduled, _ = method_and_plan(BASE.with_values(method={"schedule": SCHEDULE}))
    assert why_not_scaled(PLAN, scheduled) is not None
    plain, without_noise = method_and_plan(RunConfig.of(method={"name": "plain-sgd"}, privacy={"steps": 5}))
    assert why_not_scaled(without_noise, plain) is not None


SMALL = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def usual(privacy: dict[str, Any] = SMALL, **tables: Any) -> Search:
    configuration = RunConfig.of(privacy=privacy, data={"declared": "public"}).with_values(**tables)
    plan = Search(configuration=configuration, space=Space({})).plan
    return Search(configuration=configuration, space=usual_space(configuration, plan, searched_on=configuration.data))


def test_the_usual_space_varies_what_the_configuration_can_vary_and_every_value_can_be_tried() -> None:
    search = usual()
    assert set(search.space.distributions) == {*WORDS} - {"network"}
    check_space(search)
    assert "optimizer" not in usual(method={"name": "adadp"}).space.distributions
    assert "batch_factor" not in usual(method={"name": "sa-dpsgd", "accounting": "published"}).space.distributions
    own = {"npz": "records.npz", "records": 1000, "num_classes": 2}
    assert "augmentation" not in usual(data=own).space.distributions


@pytest.mark.parametrize("numbers", [{"expected_batch_size": 1000}, {"steps": 3}])
def test_no_batch_is_tried_that_there_are_no_records_or_no_steps_for(numbers: dict[str, int]) -> None:
    search = usual({**SMALL, **numbers})
    factors = search.space.distributions["batch_factor"]
    assert extremes(factors) == (0.5, 1)
    check_space(Search(configuration=search.configuration, space=Space({"batch_factor": factors})))

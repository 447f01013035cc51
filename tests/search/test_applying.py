from __future__ import annotations

import math
from typing import Any

import pytest

from lehr.configuration import Configuration
from lehr.errors import InvalidValue
from lehr.search.applying import applied, takes_update, why_not_scaled
from lehr.update.torch_optim import Update

PRIVACY = {"noise_multiplier": 2.0, "expected_batch_size": 64, "steps": 400, "delta": 1e-4}
BASE = Configuration(privacy=PRIVACY, method={"learning_rate": 0.5, "clip_norm": 0.3})
_, PLAN = BASE.method_and_plan()


def with_settings(configuration: Configuration = BASE, **settings: Any) -> Configuration:
    return applied(configuration, settings, plan=PLAN)


def test_without_settings_nothing_changes() -> None:
    assert with_settings() == BASE


def test_plain_sgd_is_said_in_short() -> None:
    method = with_settings(learning_rate=2.0, momentum=0.5).method
    assert method == {"clip_norm": 0.3, "learning_rate": 2.0, "momentum": 0.5}


def test_another_optimizer_has_its_own_arguments_and_rate() -> None:
    configuration = with_settings(optimizer="adam", adaptive_learning_rate=0.01)
    update = configuration.method["update"]
    assert (update["optimizer"], update["learning_rate"], update["arguments"]) == ("adam", 0.01, {})
    method, _ = configuration.method_and_plan()
    assert method.update.to_json()["optimizer"] == "adam"
    assert method.settings["clip_norm"] == 0.3


def test_dampening_goes_with_momentum() -> None:
    update = with_settings(momentum=0.9, dampening=0.9).method["update"]
    assert update["arguments"]["momentum"] == update["arguments"]["dampening"] == 0.9
    assert "update" not in with_settings(momentum=0.0).method


def test_a_schedule_of_the_learning_rate_is_kept() -> None:
    schedule = {"kind": "cosine", "total_steps": 400, "final_fraction": 0.1}
    base = BASE.with_words(method={"schedule": schedule})
    assert with_settings(base, learning_rate=1.0).method["schedule"] == schedule
    assert with_settings(base, optimizer="adam").method["update"]["schedule"] == schedule


@pytest.mark.parametrize("factor", [0.5, 2, 4])
def test_a_larger_batch_keeps_the_total_noise_and_the_rate_follows_the_steps(factor: float) -> None:
    changed = with_settings(batch_factor=factor, learning_rate=0.1)
    method, plan = changed.method_and_plan()
    assert plan.noise_multiplier == PLAN.noise_multiplier
    total = [p.sampling_probability * math.sqrt(p.steps) / p.noise_multiplier for p in (PLAN, plan)]
    assert total[0] == pytest.approx(total[1], rel=1e-12)
    assert isinstance(method.update, Update)
    assert method.update.learning_rate * plan.steps == pytest.approx(0.1 * PLAN.steps)


def test_there_are_as_many_scores_whatever_the_steps() -> None:
    base = BASE.with_words(training={"evaluate_every": 40})
    assert with_settings(base, batch_factor=2).training["evaluate_every"] == 10
    assert with_settings(base, batch_factor=100).training["evaluate_every"] == 1


def test_where_an_epsilon_is_asked_for_the_noise_is_found_so_that_it_is_kept() -> None:
    base = Configuration(privacy={"epsilon": 3.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4})
    _, before = base.method_and_plan()
    changed = applied(base, {"batch_factor": 2}, plan=before)
    _, plan = changed.method_and_plan()
    assert (plan.expected_batch_size, plan.steps) == (128, 4)
    assert plan.bound().epsilon <= 3.0
    assert plan.noise_multiplier == pytest.approx(before.noise_multiplier, rel=0.2)


def test_averages_augmentations_networks_and_any_other_key_are_put_in_their_tables() -> None:
    settings = {"ema_decay": 0.99, "augmentation": "flip_crop", "views": 4, "training.patience": 3}
    settings |= {"network": {"network": "wide_resnet", "depth": 16}, "method.clip_norm": 1.0}
    changed = applied(BASE, settings, plan=PLAN)
    assert changed.training["averaging"] == {"kind": "exponential", "decay": 0.99}
    assert (changed.training["augmentation"], changed.training["views"]) == ("flip_crop", 4)
    assert changed.training["patience"] == 3
    assert changed.model == {"network": "wide_resnet", "depth": 16}
    assert changed.method["clip_norm"] == 1.0


def test_no_average_and_no_augmentation_undo_what_the_configuration_says() -> None:
    base = BASE.with_words(training={"averaging": {"kind": "exponential", "decay": 0.9}, "views": 8})
    changed = with_settings(base, ema_decay=0.0, augmentation="none")
    assert changed.training["averaging"] == {"kind": "none"}
    assert changed.training["views"] == 1


def test_arguments_of_a_network_stay_with_that_network() -> None:
    base = BASE.with_words(model={"network": "small_cnn", "activation": "tanh"})
    assert with_settings(base, network="small_cnn").model == {"network": "small_cnn", "activation": "tanh"}
    assert with_settings(base, network="paper_cnn").model == {"network": "paper_cnn"}


def test_a_method_with_its_own_optimizer_has_a_learning_rate_alone() -> None:
    base = Configuration(privacy=PRIVACY, method={"name": "adadp"})
    assert not takes_update(base)
    assert with_settings(base, learning_rate=0.01).method == {"name": "adadp", "learning_rate": 0.01}
    with pytest.raises(InvalidValue, match="learning_rate"):
        with_settings(base, batch_factor=2)


def test_a_plan_whose_steps_are_not_alike_is_not_scaled() -> None:
    method, _ = BASE.method_and_plan()
    assert why_not_scaled(PLAN, method) is None
    scheduled, _ = BASE.with_words(
        method={"schedule": {"kind": "cosine", "total_steps": 400, "final_fraction": 0.1}}
    ).method_and_plan()
    assert "constant" in (why_not_scaled(PLAN, scheduled) or "")
    plain, without_noise = Configuration(method={"name": "plain-sgd"}, privacy={"steps": 5}).method_and_plan()
    assert why_not_scaled(without_noise, plain) is not None


def test_a_factor_that_is_no_number_is_refused() -> None:
    for factor in (0, -1, math.nan):
        with pytest.raises(InvalidValue, match="batch_factor"):
            with_settings(batch_factor=factor)

from __future__ import annotations

from typing import Any

import pytest

from lehr.configuration import Configuration
from lehr.search.asked import Search
from lehr.search.checking import refuse_what_cannot_be_tried
from lehr.search.defaults import usual_space
from lehr.search.space import Space

PRIVACY = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def names(**words: Any) -> list[str]:
    configuration = Configuration(privacy=PRIVACY).with_words(**words)
    _, plan = configuration.method_and_plan()
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
    configuration = Configuration(privacy=PRIVACY, data={"declared": "public"})
    search = Search(configuration=configuration, space=Space(()))
    space = usual_space(configuration, search.plan, searched_on=configuration.data)
    refuse_what_cannot_be_tried(Search(configuration=configuration, space=space))


@pytest.mark.parametrize("numbers", [{"expected_batch_size": 1000}, {"steps": 3}])
def test_no_batch_is_tried_that_there_are_no_records_or_no_steps_for(numbers: dict[str, int]) -> None:
    configuration = Configuration(privacy={**PRIVACY, **numbers}, data={"declared": "public"})
    search = Search(configuration=configuration, space=Space(()))
    [factor] = [
        d for d in usual_space(configuration, search.plan, searched_on={}).dimensions if d.name == "batch_factor"
    ]
    assert factor.tried == (0.5, 1)
    refuse_what_cannot_be_tried(Search(configuration=configuration, space=Space((factor,))))


def test_learning_rates_lie_around_that_of_the_configuration() -> None:
    configuration = Configuration(privacy=PRIVACY, method={"learning_rate": 4.0})
    _, plan = configuration.method_and_plan()
    [rate] = [d for d in usual_space(configuration, plan, searched_on={}).dimensions if d.name == "learning_rate"]
    assert rate.tried == (0.4, 40.0)

"""config.json: public, whole, and read back as it was written."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.certificates.certificate import Statements
from lehr.config import RunConfig
from lehr.data import InMemory, Preparation
from lehr.methods import by_name
from lehr.methods.dpsgd import dpsgd
from lehr.optim.optimizers import adam, custom
from lehr.planning.plan import Plan
from lehr.run.mechanism import Method
from lehr.schedules import Cosine
from lehr.training import describing
from lehr.training.records import RunRecords
from tests.training.tiny import HELD, PRIVATE, linear

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def config(method: Method | None = None, **changed: Any) -> dict[str, Any]:
    given = RunRecords(
        name="tiny", private=InMemory(*PRIVATE), records=40, num_classes=3, preparation=Preparation((0.5,), (0.25,))
    )
    said: dict[str, Any] = {
        "run": "first",
        "plan": PLAN,
        "data": given,
        "model": describing.model_words(linear(), cross_entropy, "small_cnn", {"num_classes": 3}),
        "options": {"views": 1},
        "recorded": RunConfig().to_json(is_recorded=True),
        "public_records": None,
        "evaluated_on": "test records, declared public",
        "stated": Statements(settings_chosen_on="fixed", treated_as_public=("the number of records",)),
        "budget": None,
        "proven": changed.get("plan", PLAN).claim(),
    }
    return describing.config(method=method or dpsgd(), **{**said, **changed})


@pytest.mark.parametrize(
    "method",
    [
        dpsgd(),
        by_name.named("dpsgd", schedule=Cosine(total_steps=5)),
        by_name.named("dpsgd", update=adam(0.1)),
        dpsgd(update=custom(lambda parameters: torch.optim.ASGD(parameters, lr=0.1))),
        by_name.named("auto-s", clip_norm=1.0),
        by_name.named("sa-dpsgd", rejection_threshold=3),
    ],
    ids=["plain", "schedule", "update", "custom", "auto-s", "sa-dpsgd"],
)
def test_it_is_json_that_reads_back_as_it_was(method: Method) -> None:
    written = config(method)
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_it_has_the_stated_number_and_not_the_true_one() -> None:
    text = json.dumps(config())
    assert '"records": 40' in text
    assert str(HELD) not in text
    assert config()["data"]["shape"] == [1, 4, 4]


def test_both_numbers_are_in_it_with_what_they_are() -> None:
    claims = config(by_name.named("sa-dpsgd", accounting="published"))["claims"]
    assert (claims["proven"]["kind"], claims["published"]["kind"]) == ("proven", "published")
    assert claims["published"]["premises"][0]["standing"] == "broken"
    assert config()["claims"]["published"] is None


def test_an_infinite_epsilon_is_a_word() -> None:
    without = config(by_name.named("plain-sgd"), plan=replace(PLAN, noise_multiplier=0.0))
    assert without["claims"]["proven"]["epsilon"] == "infinity"
    assert json.loads(json.dumps(without, allow_nan=False)) == without


def test_what_is_done_beside_the_steps_is_in_the_proven_number() -> None:
    whole = replace(PLAN, steps=6).claim()
    assert config(proven=whole)["claims"]["proven"]["epsilon"] > config()["claims"]["proven"]["epsilon"]


def test_only_a_known_data_set_is_called_known() -> None:
    assert config()["data"]["is_known"] is False


def test_the_plan_and_the_statements_can_be_made_again_from_it() -> None:
    assert Plan.from_json(config()["plan"]) == PLAN
    assert config()["stated"]["treated_as_public"] == ["the number of records"]
    assert config(stated=None)["stated"] is None


def test_what_is_frozen_is_told_apart_from_what_is_trained() -> None:
    model = linear()
    model[1].bias.requires_grad_(False)
    words = describing.model_words(model, cross_entropy, None, {})
    assert words["trained"] == {"1.weight": [3, 16]}
    assert (words["frozen"], words["parameters"], words["network"]) == (["1.bias"], 48, None)


class Loss(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    "loss_fn, name",
    [
        (partial(cross_entropy, reduction="none"), "cross_entropy(reduction='none')"),
        (Loss(), "Loss"),
        (cross_entropy, "cross_entropy"),
    ],
)
def test_a_loss_is_named_without_an_address(loss_fn: Any, name: str) -> None:
    assert describing.model_words(linear(), loss_fn, None, {})["loss"] == name


def test_the_words_of_a_method_are_as_they_are_read_back() -> None:
    words = describing.method_words(by_name.named("adadp"))
    assert json.loads(json.dumps(words)) == words
    assert words["name"] == "adadp"
    assert words != describing.method_words(by_name.named("adadp", clip_norm=0.5))

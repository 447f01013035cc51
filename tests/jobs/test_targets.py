"""Regression, several labels per record, metrics of one's own, sequences."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lehr
from lehr.errors import BadRecord, InvalidValue
from lehr.integrations.opacus import DPGRU, DPLSTM
from lehr.run.folder import read_config
from lehr.run.shape import Evaluation

RANDOM = torch.Generator().manual_seed(0)
ROWS = torch.randn(120, 4, generator=RANDOM)
PRICES = ROWS @ torch.tensor([0.5, -0.25, 0.1, 0.0])
LABELS = (ROWS[:, :3] > 0).long()
SETTINGS: dict[str, Any] = {
    "records": 100,
    "noise_multiplier": 0.5,
    "delta": 1e-3,
    "steps": 20,
    "batch_size": 50,
    "learning_rate": 0.5,
    "clip_norm": 1.0,
    "compiled": False,
    "silent": True,
}


def pair(targets: Tensor, inputs: Tensor = ROWS) -> dict[str, Any]:
    return {"data": (inputs[:100], targets[:100]), "test": (inputs[100:], targets[100:])}


def last(run: lehr.Run) -> Evaluation:
    return run.evaluations[-1]


def test_a_regression_needs_no_classes_and_minimises_the_squared_error(tmp_path: Path) -> None:
    metrics = {"mae": lambda outputs, targets: (outputs[:, 0] - targets).abs().mean()}
    run = lehr.fit(nn.Linear(4, 1), **pair(PRICES), metrics=metrics, directory=tmp_path / "run", **SETTINGS)
    assert last(run).loss < PRICES[100:].square().mean() / 2
    assert last(run).accuracy is None
    outputs = run.model(ROWS[100:]).detach()[:, 0]
    assert last(run).metrics == pytest.approx({"mae": float((outputs - PRICES[100:]).abs().mean())}, rel=1e-4)
    assert read_config(tmp_path / "run")["data"]["task"] == "regression"
    assert Evaluation.from_json(last(run).to_json()) == last(run)
    assert (tmp_path / "run/report.html").exists()


def test_a_row_of_numbers_has_a_default_network_also_for_several_targets(tmp_path: Path) -> None:
    targets = torch.stack([PRICES, -PRICES], dim=1)
    run = lehr.fit(**pair(targets), directory=tmp_path / "run", **SETTINGS)
    assert run.model(ROWS).shape == (120, 2)


def test_several_labels_have_the_share_of_correct_labels_as_accuracy(tmp_path: Path) -> None:
    run = lehr.fit(nn.Linear(4, 3), **pair(LABELS), task="multilabel", directory=tmp_path / "run", **SETTINGS)
    is_right = (run.model(ROWS[100:]) > 0) == LABELS[100:].bool()
    assert last(run).accuracy == pytest.approx(float(is_right.double().mean()))
    assert float(is_right.double().mean()) > 0.6


def test_a_private_evaluation_of_a_regression_needs_a_bound_and_returns_a_noisy_loss(tmp_path: Path) -> None:
    private = {**SETTINGS, "data": (ROWS, PRICES), "held_out_fraction": 0.2, "directory": tmp_path / "run"}
    with pytest.raises(InvalidValue, match="largest_loss"):
        lehr.fit(nn.Linear(4, 1), **private)
    run = lehr.fit(nn.Linear(4, 1), largest_loss=2.0, **private)
    assert 0 <= last(run).loss <= 2
    assert last(run).accuracy is None


def test_metrics_are_refused_without_public_test_records(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="metrics"):
        lehr.fit(nn.Linear(4, 1), (ROWS, PRICES), metrics={"mae": max}, directory=tmp_path / "run", **SETTINGS)


def test_a_metric_that_fails_is_named_before_anything_is_spent(tmp_path: Path) -> None:
    metrics = {"broken": lambda outputs, targets: outputs.nonsense}
    with pytest.raises(InvalidValue, match="broken"):
        lehr.fit(nn.Linear(4, 1), **pair(PRICES), metrics=metrics, directory=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "model, targets, options, named",
    [
        (nn.Linear(4, 2), PRICES, {}, "model"),  # two outputs for one number: no broadcast
        (nn.Linear(4, 1), LABELS[:, 0], {}, "num_classes"),  # whole numbers: say which task
        (nn.Linear(4, 1), PRICES, {"num_classes": 3, "task": "regression"}, "num_classes"),
        (nn.Linear(4, 1), LABELS[:, 0], {"task": "multilabel"}, "data"),
        (nn.Linear(4, 1), PRICES, {"task": "ranking"}, "task"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, model: nn.Module, targets: Tensor, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        lehr.fit(model, **pair(targets), directory=tmp_path / "run", **SETTINGS, **options)
    assert caught.value.name == named


def test_the_error_of_a_target_that_is_no_label_names_the_way_to_a_regression(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="regression"):
        lehr.fit(nn.Linear(4, 1), **pair(PRICES), num_classes=1, directory=tmp_path / "run", **SETTINGS)


class LastOfSequence(nn.Module):
    """Classifies a sequence of words by its last hidden state."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(9, 4), layer, nn.Linear(5, 2)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.layer(self.words(words))
        scores: Tensor = self.head(hidden[:, -1])
        return scores


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, DPLSTM, DPGRU])
def test_sequence_models_train(tmp_path: Path, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    words = torch.randint(0, 9, (120, 3), generator=torch.Generator().manual_seed(0))
    model = LastOfSequence(kind(4, 5, batch_first=True))
    weight = model.layer.get_parameter("weight_hh_l0")
    before = weight.detach().clone()
    with caplog.at_level(logging.WARNING, logger="lehr"):
        quick = {**SETTINGS, "steps": 2, "batch_size": 5, "num_classes": 2, "directory": tmp_path / "run"}
        lehr.fit(model, **pair((words[:, -1] > 4).long(), words), **quick)
    assert not torch.equal(weight, before)
    assert "Batching rule" not in caplog.text
    assert ("lehr.integrations.opacus" in caplog.text) == (kind in (nn.LSTM, nn.GRU))  # which are slower

"""Records in the forms that users have them in: arrays, tables, several inputs, data sets and loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lehr
from lehr.data import InMemory
from lehr.data.records import read_records
from lehr.data.split import split
from lehr.errors import InvalidValue
from lehr.extend import RunKey

ROWS = np.random.default_rng(0).normal(size=(60, 3))
LABELS = (ROWS[:, 0] > 0).astype(np.int64)
KINDS = np.arange(60) % 4
SETTINGS: dict[str, Any] = {
    "records": 60,
    "num_classes": 2,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "steps": 2,
    "batch_size": 20,
    "compiled": False,
    "silent": True,
}


class TwoInputs(nn.Module):
    """Numbers and a category."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.kinds = nn.Linear(3, 2), nn.Embedding(4, 2)

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        scores: Tensor = self.numbers(numbers) + self.kinds(kind)
        return scores


class Items(Dataset[Any]):
    """A map-style data set of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_arrays_train_as_tensors_do(tmp_path: Path) -> None:
    read_only = ROWS[::-1].copy()
    read_only.flags.writeable = False
    run = lehr.fit(
        "mlp", (ROWS, LABELS), test=(read_only[:20] + 1, LABELS[:20]), directory=tmp_path / "run", **SETTINGS
    )
    assert run.accuracy is not None


@pytest.mark.parametrize(
    "data",
    [
        ({"numbers": ROWS, "kind": KINDS}, LABELS),
        ((ROWS, KINDS), LABELS),
        {"kind": KINDS, "numbers": ROWS, "label": LABELS},
        TensorDataset(torch.tensor(ROWS), torch.tensor(KINDS), torch.tensor(LABELS)),
        Items(
            [
                {"numbers": row, "kind": kind, "label": label}
                for row, kind, label in zip(ROWS, KINDS, LABELS, strict=True)
            ]
        ),
        Items([((row, kind), label) for row, kind, label in zip(ROWS, KINDS, LABELS, strict=True)]),
    ],
    ids=["dictionary", "tuple", "table", "tensor data set", "items by name", "items"],
)
def test_models_with_several_inputs_train(tmp_path: Path, data: Any) -> None:
    inputs = {"numbers": ROWS[:20] + 1, "kind": KINDS[:20]}
    is_named = isinstance(read_records(data).inputs, dict)
    test = (inputs if is_named else tuple(inputs.values()), LABELS[:20])
    run = lehr.fit(TwoInputs(), data, test=test, directory=tmp_path / "run", **SETTINGS)
    assert run.accuracy is not None


def test_records_with_several_inputs_are_split_resumed_and_compared_like_others(tmp_path: Path) -> None:
    data = ({"numbers": ROWS, "kind": KINDS}, LABELS)
    held_out = {**SETTINGS, "held_out_fraction": 0.2, "directory": tmp_path / "run"}
    first = lehr.fit(TwoInputs(), data, **held_out)
    again = lehr.fit(TwoInputs(), data, resume=True, **held_out)
    assert torch.equal(*(run.model.get_parameter("numbers.weight") for run in (first, again)))
    key, reordered = RunKey.fresh(), ({"kind": KINDS, "numbers": ROWS}, LABELS)
    parts = [split(read_records(form), key=key, test_fraction=0.5).parts for form in (data, reordered)]
    assert torch.equal(*parts)
    with pytest.raises(InvalidValue, match="test"):  # the records of data
        lehr.fit(TwoInputs(), data, test=data, directory=tmp_path / "other", **SETTINGS)
    with pytest.raises(InvalidValue, match="test"):  # other inputs
        lehr.fit(TwoInputs(), data, test=((ROWS, KINDS), LABELS), directory=tmp_path / "other", **SETTINGS)


def test_a_loader_is_read_with_a_warning_that_its_batches_are_ignored(tmp_path: Path) -> None:
    records = TensorDataset(torch.tensor(ROWS), torch.tensor(LABELS))
    with pytest.warns(UserWarning, match="ignored"):
        lehr.fit("mlp", DataLoader(records, batch_size=7, shuffle=True), directory=tmp_path / "run", **SETTINGS)
    with pytest.raises(InvalidValue, match="collate_fn"):
        lehr.fit("mlp", DataLoader(records, collate_fn=lambda items: items), directory=tmp_path / "other", **SETTINGS)


def test_a_pandas_frame_names_its_target(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": ROWS[:, 0], "weight": ROWS[:, 1], "smokes": ROWS[:, 2] > 0, "ill": LABELS})
    other = frame + 1
    other["ill"] = LABELS
    run = lehr.fit("mlp", frame, test=other, target="ill", directory=tmp_path / "run", **SETTINGS)
    assert run.accuracy is not None
    whole = read_records((frame[["age", "smokes"]], frame["ill"]))
    assert whole.inputs.shape == (60, 2)
    assert whole.targets.dtype == torch.int64
    with pytest.raises(InvalidValue, match="columns"):  # the numbers would be taken for others
        lehr.fit("mlp", frame, test=other[["weight", "age", "smokes", "ill"]], target="ill", **SETTINGS)
    with pytest.raises(InvalidValue) as caught:
        lehr.fit("mlp", frame, directory=tmp_path / "other", **SETTINGS)
    assert caught.value.name == "target"


def test_text_in_a_frame_is_refused_without_quoting_it() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"name": ["Ada", "Grace"], "age": [36, 85], "label": [0, 1]})
    with pytest.raises(InvalidValue, match="'name'") as caught:
        read_records(frame)
    assert "Ada" not in str(caught.value)
    with pytest.raises(InvalidValue) as caught:
        read_records((np.array([["Ada"], ["Grace"]]), LABELS[:2]))
    assert "Ada" not in str(caught.value)


def test_a_hugging_face_data_set_is_read_by_column(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"numbers": ROWS.tolist(), "kind": KINDS.tolist(), "labels": LABELS.tolist()})
    run = lehr.fit(TwoInputs(), table, directory=tmp_path / "run", **SETTINGS)
    assert run.end.step == 2
    with pytest.raises(InvalidValue, match="split"):
        read_records(datasets.DatasetDict({"train": table}))
    with pytest.raises(InvalidValue, match="text"):
        read_records(datasets.Dataset.from_dict({"text": ["Ada"], "label": [1]}))


@pytest.mark.parametrize("given", ["nonsense.csv", ROWS, 5, (ROWS, LABELS, KINDS), ([[1.0, [2.0]]], [0])])
def test_what_cannot_be_read_is_refused(given: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        read_records(given)
    assert caught.value.name == "data"


def test_the_repr_of_several_inputs_has_no_values() -> None:
    assert repr(InMemory({"b": torch.zeros(3, 2), "a": torch.zeros(3)}, torch.zeros(3))) == (
        "InMemory(inputs a torch.float32 (), b torch.float32 (2,), on cpu)"
    )

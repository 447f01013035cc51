"""Searches on forty private records, small enough for a test."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lehr.config import RunConfig
from lehr.planning.search_cost import RepeatedSelection, SearchPrice
from lehr.privacy.rng import RunKey
from lehr.search.paid import PaidSearch, Selection, number_of_trials, paid_search
from lehr.search.request import Search
from lehr.search.space import Space
from tests.training.tiny import PRIVATE, TEST

SPACE = {"learning_rate": {"low": 0.1, "high": 2.0, "log": True}, "momentum": [0.0, 0.9]}
HOW: dict[str, Any] = {"compiled": False, "device": "cpu", "checkpoint_seconds": 0.0}
GEOMETRIC = RepeatedSelection(mean=2)


def written(folder: Path) -> dict[str, Any]:
    """The records in files, and the words about them."""
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST}.items():
        np.savez(folder / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    paths = {"npz": str(folder / "private.npz"), "test_npz": str(folder / "test.npz")}
    return {"name": "clinic", **paths, "records": 40, "num_classes": 3}


def search_in(folder: Path, *, space: dict[str, Any] | None = None, **tables: Any) -> Search:
    """A search on these records, which the tables change."""
    configuration = RunConfig.of(
        data=written(folder),
        model={"network": "small_cnn", "image_side": 4},
        privacy={"epsilon": 6.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3},
        training={"evaluate_every": 4},
    ).with_values(**tables)
    return Search(configuration=configuration, space=Space.read(SPACE if space is None else space), sampler="random")


def paid_in(folder: Path, price: SearchPrice = GEOMETRIC, **changed: Any) -> PaidSearch:
    """The same, paid for."""
    return paid_search(search_in(folder, **changed), price)


def key_for(price: RepeatedSelection, number: int) -> RunKey:
    """A key that draws so many trials."""
    keys = (RunKey(hashlib.sha256(str(place).encode()).digest()) for place in range(10_000))
    return next(key for key in keys if number_of_trials(price, key) == number)


def begun(selection: Selection, number: int) -> Selection:
    """The selection, begun, with a key by which it has so many trials."""
    selection._begin()
    selection.files.key.unlink()
    key_for(selection.price, number).save(selection.files.key)
    return selection


def selection_in(
    folder: Path, price: SearchPrice = GEOMETRIC, *, budget: Path | None = None, **changed: Any
) -> Selection:
    """A selection that is not begun yet."""
    paid = paid_in(folder, price, **changed)
    return Selection(paid=paid, directory=folder / "search", name="our search", budget=budget, options=HOW)


def with_price(selection: Selection, price: SearchPrice) -> Selection:
    """The same selection at another price."""
    return replace(selection, paid=replace(selection.paid, price=price))

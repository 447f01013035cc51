"""Searches on a few made-up images, free and paid for, small enough for a test."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from lehr.config import RunConfig
from lehr.files import toml_text
from lehr.planning.search_cost import RepeatedSelection, SearchPrice
from lehr.privacy.rng import RunKey
from lehr.search.paid import PaidSearch, Selection, number_of_trials, paid_search
from lehr.search.request import Search
from lehr.search.space import Space
from tests.training.tiny import PRIVATE, TEST

MODEL = {"network": "small_cnn", "image_side": 4, "in_channels": 1}
PRIVACY = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3}
SPACE = {"optimizer": ["sgd", "adam"], "learning_rate": {"low": 0.01, "high": 1.0, "log": True}, "momentum": [0.0, 0.9]}
HOW: dict[str, Any] = {"compiled": False, "device": "cpu", "checkpoint_seconds": 0.0}
GEOMETRIC = RepeatedSelection(mean=2)


def write_records(folder: Path) -> dict[str, Any]:
    """The records in files, and the table [data] for them."""
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST}.items():
        np.savez(folder / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    paths = {"npz": str(folder / "private.npz"), "test_npz": str(folder / "test.npz")}
    return {"name": "clinic", **paths, "records": 40, "num_classes": 3}


def free_search(folder: Path, *, space: dict[str, Any] | None = None, **words: Any) -> Search:
    """A search of a few short runs on records that are declared synthetic."""
    tables: dict[str, Any] = {"privacy": PRIVACY, "training": {}, "method": {"clip_norm": 1.0}}
    tables = {table: {**before, **words.pop(table, {})} for table, before in tables.items()}
    configuration = RunConfig.of(data={**write_records(folder), "declared": "synthetic"}, model=MODEL, **tables)
    return Search(configuration=configuration, space=Space.read(space or SPACE), **{"trials": 3, "seed": 1, **words})


def private_search(folder: Path, *, space: dict[str, Any] | None = None, **tables: Any) -> Search:
    """A search on private records, with an ε of 6 for all of it."""
    privacy = {"epsilon": 6.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3}
    configuration = RunConfig.of(
        data=write_records(folder), model=MODEL, privacy=privacy, training={"evaluate_every": 4}
    ).with_values(**tables)
    chosen = Space.read(space or {key: SPACE[key] for key in ("learning_rate", "momentum")})
    return Search(configuration=configuration, space=chosen, sampler="random")


def paid_in(folder: Path, price: SearchPrice = GEOMETRIC, **changed: Any) -> PaidSearch:
    """The same, paid for."""
    return paid_search(private_search(folder, **changed), price)


def selection_in(
    folder: Path, price: SearchPrice = GEOMETRIC, *, budget: Path | None = None, **changed: Any
) -> Selection:
    """A selection that is not begun yet."""
    paid = paid_in(folder, price, **changed)
    return Selection(paid=paid, directory=folder / "search", name="our search", budget=budget, options=HOW)


def key_for(price: RepeatedSelection, number: int) -> RunKey:
    """A key that draws so many trials."""
    keys = (RunKey(hashlib.sha256(str(place).encode()).digest()) for place in range(10_000))
    return next(key for key in keys if number_of_trials(price, key) == number)


def begin(selection: Selection, number: int) -> Selection:
    """The selection, begun, with a key by which it has so many trials."""
    selection._begin()
    selection.files.key.unlink()
    key_for(selection.price, number).save(selection.files.key)
    return selection


def as_toml(search: Search) -> str:
    """A free search as a file that asks for it."""
    tables: dict[str, Any] = {t: getattr(search.configuration, t) for t in ("data", "model", "method", "privacy")}
    return toml_text.written(tables | {"search": {"trials": search.trials, "seed": search.seed, "space": SPACE}})

"""A tiny task of made-up images, and a search on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lehr.config import RunConfig
from lehr.search.request import Search
from lehr.search.space import Space

RECORDS = 48
MODEL = {"network": "small_cnn", "image_side": 4, "in_channels": 1}
PRIVACY = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 12, "delta": 1e-3}
SPACE = {"optimizer": ["sgd", "adam"], "learning_rate": {"low": 0.01, "high": 1.0, "log": True}, "momentum": [0.0, 0.9]}


def written(folder: Path, *, declared: str = "synthetic") -> dict[str, Any]:
    """Files of records, a bright pixel for each class, and the words of [data] for them."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(RECORDS) % 3
    for part in ("train", "test"):
        inputs = 0.2 * torch.rand(RECORDS, 1, 4, 4, generator=generator)
        inputs[torch.arange(RECORDS), 0, targets, targets] += 0.8
        np.savez(folder / f"{part}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    words: dict[str, Any] = {"npz": str(folder / "train.npz"), "test_npz": str(folder / "test.npz")}
    return words | {"records": RECORDS, "num_classes": 3, "declared": declared}


def a_search(folder: Path, *, space: dict[str, Any] | None = None, **words: Any) -> Search:
    """A search of a few short runs."""
    said: dict[str, Any] = {"privacy": PRIVACY, "training": {}, "method": {"clip_norm": 1.0}}
    tables: dict[str, Any] = {table: {**before, **words.pop(table, {})} for table, before in said.items()}
    configuration = RunConfig.of(data=written(folder), model=MODEL, **tables)
    return Search(configuration=configuration, space=Space.read(space or SPACE), **{"trials": 3, "seed": 1, **words})


def as_toml(search: Search) -> str:
    """The search as a file that asks for it."""
    from lehr.files import toml_text

    tables: dict[str, Any] = {t: getattr(search.configuration, t) for t in ("data", "model", "method", "privacy")}
    return toml_text.written(tables | {"search": {"trials": search.trials, "seed": search.seed, "space": SPACE}})

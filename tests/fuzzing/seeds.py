"""Valid files of every kind that Lehr reads, written by Lehr itself into one folder."""

from __future__ import annotations

import gzip
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from experiments.store import ResultFile
from lehr.accounting.events import Adjacency, Repeated
from lehr.certificates import issuing
from lehr.certificates.certificate import Statements, write_certificate
from lehr.certificates.release import release
from lehr.config import RunConfig
from lehr.data.split import Split
from lehr.files import strict_json, toml_text
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.run.folder import read_config
from lehr.run.shape import Callback, Progress, RunFiles
from lehr.search.request import Search
from lehr.search.study import Study
from lehr.training.fit import fit
from tests import audits, predictions
from tests.training.tiny import PRIVATE, PUBLIC, TEST

WORDS: dict[str, dict[str, Any]] = {
    "data": {"npz": "private.npz", "test_npz": "test.npz", "records": 40, "num_classes": 3, "mean": [0.5], "std": [1]},
    "model": {"network": "small_cnn", "image_side": 4, "activation": "relu"},
    "method": {"name": "dpsgd", "learning_rate": 0.25, "clip_norm": 0.5, "schedule": {"kind": "constant"}},
    "privacy": {
        "noise_multiplier": 2.0,
        "steps": 4,
        "expected_batch_size": 8,
        "delta": 1e-3,
        "settings_chosen_on": "fixed",
    },
    "training": {"averaging": {"kind": "exponential", "decay": 0.9}, "evaluate_every": 2, "augmentation": "flip_crop"},
}
SEARCH = {"trials": 1, "seed": 1, "sampler": "random", "space": {"learning_rate": {"low": 0.1, "high": 1.0}}}


def write(folder: Path) -> None:
    """All of them. The current folder must be this one: the words of a run name their files as seen from there."""
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST, "public": PUBLIC}.items():
        np.savez(folder / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    _write_images(folder)
    (folder / "run.toml").write_text(toml_text.written(WORDS), encoding="utf-8")
    searched = {**WORDS, "data": {**WORDS["data"], "declared": "synthetic"}, "search": SEARCH}
    (folder / "search.toml").write_text(toml_text.written(searched), encoding="utf-8")
    (folder / "nothing").mkdir()
    said = RunConfig.read(folder / "run.toml")
    how: dict[str, Any] = {"quiet": True, "compiled": False, "seed": 1}
    fit(config=said, directory=folder / "run", **how)
    files = RunFiles(folder / "run")
    files.report.unlink()  # large, and never read
    strict_json.write(files.audit, audits.HOLDING.to_json())
    with suppress(KeyboardInterrupt):
        fit(config=said, directory=folder / "interrupted", callbacks=[_StopAtTwo()], diagnostics=True, **how)
    shutil.copytree(folder / "run", folder / "released")
    release(folder / "released", folder / "model")
    shutil.rmtree(folder / "released")
    _write_budgets(folder)
    plan = Plan.from_json(read_config(files.directory)["plan"])
    predicted = replace(predictions.PREDICTION, reference=plan, runs=predictions.simulated(b2=0.9, b4=0.8, b6=0.85))
    strict_json.write(folder / "prediction.json", replace(predicted, setting={}).to_json())
    asked = Search.read(folder / "search.toml")
    Study(search=asked, directory=folder / "search-search", name="search-search", options={"compiled": False}).run()
    ResultFile(what="what", paper="paper", name="name", entries={}).write(folder / "kept.json")


def _write_images(folder: Path) -> None:
    pictures = (PRIVATE[0] * 255).byte()
    axes = (0, 0, 8, 3, *b"".join(length.to_bytes(4, "big") for length in (48, 4, 4)))
    (folder / "images.idx").write_bytes(bytes(axes) + pictures.numpy().tobytes())
    (folder / "images.idx.gz").write_bytes(gzip.compress((folder / "images.idx").read_bytes()))
    for label, place in (("a", 0), ("b", 1)):
        (folder / "images" / label).mkdir(parents=True)
        for ending in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm"):
            Image.fromarray(pictures[place, 0].numpy()).save(folder / "images" / label / f"image.{ending}")
    rows = np.arange(2 * 3073, dtype=np.uint32).astype(np.uint8)
    (folder / "cifar.bin").write_bytes(rows.tobytes())
    (folder / "known" / "MNIST" / "raw").mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
            shutil.copy(folder / "images.idx", folder / "known" / "MNIST" / "raw" / name)
    Split(torch.tensor([0, 1, 2] * 16, dtype=torch.uint8)).save(folder / "split.npy")


def _write_budgets(folder: Path) -> None:
    plan = Plan(noise_multiplier=2.0, steps=100, expected_batch_size=16, records=1000, delta=1e-5)
    strict_json.write(folder / "plan.json", plan.to_json())
    with Budget.create(folder / "data.budget", dataset="made up", epsilon=9, delta=1e-5) as budget:
        for run in ("search", "first"):
            budget.reserve(plan.event, run=run)
            budget.spend(run, Repeated(plan.step_event, 60))
        budget.settle("search")
        budget.settle("first")
        stated = Statements(settings_chosen_on="private", records=1000)
        paid = issuing.shared_budget(budget.status(), run="first")
        charged = Repeated(plan.step_event, 60)
        certificate = issuing.issue(
            plan.event, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, stated=stated, charged=charged, budget=paid
        )
        budget.reserve(plan.event, run="second")
    write_certificate(folder / "paid.json", certificate)


class _StopAtTwo(Callback):
    def stepped(self, progress: Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

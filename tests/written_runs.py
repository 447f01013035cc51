"""The directory of a run as training leaves it, written through the real parts and without training anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from lehr.accounting.events import Repeated
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import Certificate, Statements, write_certificate
from lehr.certificates.issuing import issue
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.run.shape import Evaluation, RunFiles

PLAN = Plan(noise_multiplier=2.0, expected_batch_size=16.0, records=1000, steps=40, delta=1e-5)
STATEMENTS = Statements(
    settings_chosen_on="public",
    unit_of_privacy="one image",
    records=PLAN.records,
    treated_as_public=("the number of records",),
)
STATED = {
    **asdict(STATEMENTS),
    "treated_as_public": list(STATEMENTS.treated_as_public),
    "released": list(STATEMENTS.released),
}


def small_model(*, seed: int = 3) -> nn.Sequential:
    """A network of a few weights for images of one channel, 8 × 8, and three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def configuration(*, run: str = "first try", **sections: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of a run; a section given by name is put over the usual one."""
    usual: dict[str, Any] = {
        "format": "lehr-run",
        "format_version": 1,
        "run": run,
        "library_version": "0.1.0",
        "created_on": "2026-01-31",
        "method": {"name": "sa-dpsgd", "learning_rate": 0.5, "clip_norm": 0.1},
        "plan": PLAN.to_json(),
        "data": {
            "name": "digits",
            "num_classes": 3,
            "shape": [1, 8, 8],
            "preparation": {"mean": [], "std": []},
            "public_records": None,
            "evaluated_on": "test",
        },
        "model": {"network": None, "arguments": {}, "parameters": 195},
        "training": {"precision": "float32", "views": 1, "averaging": None, "physical_batch": 32},
        "stated": STATED,
    }
    for name, section in sections.items():
        usual[name] = None if section is None else {**(usual[name] or {}), **section}
    return usual


def evaluations(
    steps: Sequence[int] = (10, 20, 30, 40), *, on: str = "test", accepted: float = 1.0
) -> list[Evaluation]:
    """Rows that get better and better."""
    return [
        Evaluation(
            step=step,
            accepted=int(step * accepted),
            epsilon_spent=step / 100,
            loss=2 / step,
            accuracy=1 - 2 / step,
            on=on,
            learning_rate=0.5,
        )
        for step in steps
    ]


@cache
def certificate(*, steps_taken: int) -> Certificate:
    """What the plan of these runs promises."""
    return issue(PLAN.event, delta=PLAN.delta, stated=STATEMENTS, charged=Repeated(PLAN.step_event, steps_taken))


def write_run(
    directory: Path,
    *,
    config: Mapping[str, Any] | None = None,
    steps_taken: int = 40,
    is_over: bool = True,
    rows: Sequence[Evaluation] | None = None,
    model: nn.Module | None = None,
) -> RunFiles:
    """A run that took so many of its forty steps. One that is not over has neither weights nor a certificate."""
    files = RunFiles(directory)
    shape = configuration() if config is None else dict(config)
    files.private.mkdir(parents=True, mode=0o700)
    files.checkpoints.mkdir()
    RunKey(bytes(range(32))).save(files.key)
    files.fingerprint.write_text("ab" * 32)
    for row in evaluations() if rows is None else rows:
        strict_json.append_line(files.metrics, row.to_json())
    strict_json.write(files.config, shape)
    if is_over:
        save_file((small_model() if model is None else model).state_dict(), files.model)
    if shape["plan"] is not None:
        _charge(files, run=shape["run"], steps=steps_taken)
        if is_over:
            write_certificate(files.certificate, certificate(steps_taken=steps_taken))
    return files


def _charge(files: RunFiles, *, run: str, steps: int) -> None:
    with Ledger.create(
        files.ledger, run=run, plan_event=PLAN.event, delta=PLAN.delta, adjacency=PLAN.adjacency
    ) as ledger:
        ledger.record(Repeated(PLAN.step_event, steps))
        ledger.accepted(steps)

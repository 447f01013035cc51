"""What the step game certifies: ``python -m benchmarks.audits [--device cuda] --save FILE``.

Every method at a claim of ε = 3, and DPSGD once more at several claims and numbers of canaries. With ``--faults`` the
tight ones are also played with half the noise, which must be refuted on every device. Figures are certified ones at
95 % confidence, of one audit each, with fresh coins.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.methods import machine
from lehr.auditing import Audit
from lehr.games import step_game
from lehr.games.every_method import Contender, contenders
from lehr.rng import StepRandomness

CLAIMS, CANARIES = (1.0, 3.0, 8.0), (256, 1024, 4096, 16_384, 65_536)


def row(audit: Audit, seconds: float, **asked: object) -> dict[str, Any]:
    """The figures of an audit."""
    return {
        "subject": audit.subject,
        **asked,
        "claimed": audit.claimed_epsilon,
        "certified": {bound.by: round(bound.epsilon, 4) for bound in audit.bounds},
        "verdict": audit.verdict.value,
        "p_value_of_the_noise": audit.checks[0].p_value,
        "members": audit.members,
        "others": audit.others,
        "runs": audit.runs,
        "steps": audit.steps,
        "seconds": round(seconds, 1),
    }


def played(name: str, contender: Contender, *, epsilon: float, num_canaries: int, device: str) -> dict[str, Any]:
    """One audit, at 400 steps and a sampling probability of 0.1."""
    plan = contender.plan(epsilon=epsilon)
    begun = time.monotonic()
    audit = step_game.attack(
        contender.build(),
        plan,
        subject=name,
        num_canaries=num_canaries,
        host=contender.host(),
        device=device,
    )
    return row(audit, time.monotonic() - begun, num_canaries=num_canaries)


def every_method(device: str) -> Iterator[dict[str, Any]]:
    for name, contender in contenders().items():
        yield played(name, contender, epsilon=3.0, num_canaries=16_384, device=device)


def by_canaries(device: str) -> Iterator[dict[str, Any]]:
    for epsilon in CLAIMS:
        for num_canaries in CANARIES:
            yield played("dpsgd", contenders()["dpsgd"], epsilon=epsilon, num_canaries=num_canaries, device=device)


def with_half_the_noise(device: str) -> Iterator[dict[str, Any]]:
    drawn = StepRandomness.normals

    def half(self: StepRandomness, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value / 2 for name, value in drawn(self, purpose, like).items()}

    StepRandomness.normals = half  # type: ignore[method-assign]
    try:
        for name in ("dpsgd", "dpsgd-per-layer", "auto-s", "adadp", "dpopt", "sa-dpsgd"):
            yield played(name, contenders()[name], epsilon=3.0, num_canaries=2048, device=device)
    finally:
        StepRandomness.normals = drawn  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--save", type=Path, required=True)
    asked = parser.parse_args()
    parts = {"every method": every_method, "by number of canaries": by_canaries}
    if asked.faults:
        parts["half the noise"] = with_half_the_noise
    found: dict[str, Any] = {"machine": machine(asked.device, commit=asked.commit)}
    for name, part in parts.items():
        found[name] = []
        for one in part(asked.device):
            found[name].append(one)
            print(name, one, flush=True)
            asked.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What the step attack certifies: ``python -m benchmarks.audits [--device cuda] --save FILE``.

Every method at a claim of ε = 3; DPSGD at several claims and numbers of canaries, five audits each; and the attack on
neighbours, with a record as loud as the clip allows. With ``--faults`` methods are also attacked with half the noise,
which must be refuted on every device. Figures are certified ones at 95 % confidence, with fresh coins.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import parse_options, save
from lehr import make_plan
from lehr.attacks import neighbours, step_attack
from lehr.attacks.subjects import private_methods, subject_named
from lehr.auditing import Audit
from lehr.data import InMemory
from lehr.methods import by_name
from lehr.privacy.rng import StepRandomness

CLAIMS, CANARIES, AUDITS = (1.0, 3.0, 8.0), (512, 2048, 8192, 32_768), 5
STEPS = ((1.0, 1.0), (0.1, 1.0), (0.1, 0.6))  # a sampling probability and a noise multiplier


def row(audit: Audit, seconds: float, **asked: object) -> dict[str, Any]:
    """The figures of an audit."""
    return {
        "subject": audit.subject,
        **asked,
        "claimed": audit.claimed_epsilon,
        "certified": {bound.by: round(bound.epsilon, 4) for bound in audit.bounds},
        "verdict": audit.verdict.value,
        "p_values": {check.statement: check.p_value for check in audit.checks},
        "members": audit.members,
        "others": audit.others,
        "runs": audit.runs,
        "steps": audit.steps,
        "seconds": round(seconds, 1),
    }


def attacked(name: str, *, epsilon: float, num_canaries: int, device: str) -> dict[str, Any]:
    """One audit, at 400 steps and a sampling probability of 0.1."""
    subject = subject_named(name, epsilon=epsilon)
    begun = time.monotonic()
    audit = step_attack.attack(subject.method, subject.plan, subject=name, num_canaries=num_canaries, device=device)
    return row(audit, time.monotonic() - begun, num_canaries=num_canaries)


def every_method(device: str) -> Iterator[dict[str, Any]]:
    for name in private_methods():
        yield attacked(name, epsilon=3.0, num_canaries=16_384, device=device)


def by_canaries(device: str) -> Iterator[dict[str, Any]]:
    for epsilon in CLAIMS:
        for num_canaries in CANARIES:
            audits = [
                attacked("dpsgd", epsilon=epsilon, num_canaries=num_canaries, device=device) for _ in range(AUDITS)
            ]
            yield {
                "claimed": epsilon,
                "num_canaries": num_canaries,
                "audits": AUDITS,
                **{
                    f"median {by}": statistics.median(audit["certified"][by] for audit in audits)
                    for by in audits[0]["certified"]
                },
                "spread": [f(audit["certified"]["Gaussian trade-off"] for audit in audits) for f in (min, max)],
                "not refuted": sum(audit["verdict"] == "not refuted" for audit in audits),
            }


def one_step(device: str) -> Iterator[dict[str, Any]]:
    """The attack on neighbours: a linear model, 400 records with two classes, and one that is far louder than they."""
    made = torch.Generator().manual_seed(0)
    private = InMemory(torch.randn(400, 20, generator=made), torch.randint(0, 2, (400,), generator=made))
    loud = (1000 * torch.ones(20), torch.tensor(1))
    for probability, noise_multiplier in STEPS:
        plan = make_plan(
            records=400, expected_batch_size=400 * probability, noise_multiplier=noise_multiplier, steps=1, delta=1e-5
        )
        model = nn.Linear(20, 2).to(device)
        nn.init.zeros_(model.weight)  # or the loss of so loud a record may be zero
        nn.init.zeros_(model.bias)
        begun = time.monotonic()
        audit = neighbours.attack(
            model,
            private,
            loud,
            method=by_name.named("dpsgd"),
            plan=plan,
            loss_fn=partial(cross_entropy, reduction="none"),
        )
        asked = {"sampling_probability": probability, "noise_multiplier": noise_multiplier}
        yield row(audit, time.monotonic() - begun, **asked)


def with_half_the_noise(device: str) -> Iterator[dict[str, Any]]:
    drawn = StepRandomness.normals

    def half(self: StepRandomness, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value / 2 for name, value in drawn(self, purpose, like).items()}

    StepRandomness.normals = half  # type: ignore[method-assign]
    try:
        for name in ("dpsgd", "dpsgd-per-layer", "auto-s", "adadp", "dpopt", "sa-dpsgd"):
            yield attacked(name, epsilon=3.0, num_canaries=2048, device=device)
    finally:
        StepRandomness.normals = drawn  # type: ignore[method-assign]


def main() -> None:
    given = parse_options(__doc__, faults={"action": "store_true", "help": "also play with half the noise"})
    parts = {"every method": every_method, "by number of canaries": by_canaries, "one step": one_step}
    if given.faults:
        parts["half the noise"] = with_half_the_noise
    found: dict[str, list[dict[str, Any]]] = {}
    for name, part in parts.items():
        found[name] = []
        for one in part(given.device):
            found[name].append(one)
            print(name, one, flush=True)
            save(given, **found)


if __name__ == "__main__":
    main()

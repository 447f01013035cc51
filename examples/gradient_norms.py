"""Norms of records' gradients before clipping, while networks train: ReLU against tempered sigmoids.

    python -m examples.gradient_norms
    python -m examples.gradient_norms --data mnist --steps 600

After Figure 4 of Papernot et al. (2021); ``python -m experiments tempered-sigmoids figure4`` runs it at full length.
A gradient norm is a private value, and this example looks at it: it can, because the digits that ship with it and MNIST
are public. On records that must be protected, never do this; the ε that is printed covers the weights and not the
norms. It needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from examples import pictures
from experiments.gradient_norms import WATCHED, norms_of_training

ACTIVATIONS = ("relu", "tanh", "tempered_sigmoid(mnist)")
BATCH = 256
# The same step for both: the noise-free mean of gradients, or that of clipped ones with noise.
LEARNING_RATE, CLIP_NORM = 0.15, 1.0
Seen = Mapping[tuple[str, bool], Mapping[str, Any]]  # by the activation, and whether it was trained privately


def seen(given: argparse.Namespace) -> Seen:
    return {
        (activation, private): norms_of_training(
            device="cpu",
            data_dir=given.data_dir,
            data=given.data,
            activation=activation,
            batch=BATCH,
            steps=given.steps,
            learning_rate=LEARNING_RATE,
            clip_norm=CLIP_NORM,
            noise_multiplier=given.noise_multiplier if private else None,
            seed=0,
            looks=20,
        )
        for private in (False, True)
        for activation in ACTIVATIONS
    }


def drawn(found: Seen, title: str) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, private in zip(both, (False, True), strict=True):
        for (activation, is_private), one in found.items():
            if is_private is private:
                axes.plot(one["step"], one["gradient_norm"], label=activation, linewidth=1.3)
        axes.set(yscale="log", xlabel="step", title="DPSGD" if private else "SGD")
        axes.axhline(CLIP_NORM, color="black", linestyle=":", linewidth=1, label="clip norm")
        axes.grid(alpha=0.3)
    both[0].set_ylabel("mean norm of a record's gradient")
    both[1].legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


def report(found: Seen) -> None:
    print(
        f"{'activation':26}{'trained with':14}{'first':>8}{'largest':>9}{'last':>8}{'cut':>6}{'accuracy':>10}{'ε':>8}"
    )
    for (activation, private), one in found.items():
        means, method = one["gradient_norm"], "DPSGD" if private else "SGD"
        epsilon = f"{one['epsilon_proven']:.4g}" if private else "infinity"
        numbers = f"{means[0]:8.2f}{max(means):9.2f}{means[-1]:8.2f}{one['share_cut'][-1]:6.0%}"
        print(f"{activation:26}{method:14}{numbers}{one['accuracy']:10.1%}{epsilon:>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", choices=("digits", "mnist"), help="(default: digits)")
    parser.add_argument("--data-dir", type=Path, help="where MNIST is, if not in one of the usual places")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--noise-multiplier", type=float, default=1.1)
    parser.add_argument("--picture", type=Path, default=Path("gradient_norms.svg"), help="where it is written")
    given = parser.parse_args()
    found = seen(given)
    report(found)
    title = f"{given.data}: gradients of {WATCHED} records before clipping (public records: these are private values)"
    pictures.save(drawn(found, title), given.picture)


if __name__ == "__main__":
    main()

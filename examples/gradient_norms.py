"""Norms of records' gradients before clipping, while networks train: ReLU against tempered sigmoids.

    python examples/gradient_norms.py
    python examples/gradient_norms.py --data mnist --steps 600

After Figure 4 of Papernot et al. (2021). A gradient norm is a private value, and this example looks at it: it can,
because the digits of scikit-learn and MNIST are public. On records that must be protected, never do this; the ε that is
printed covers the weights and not the norms. It needs matplotlib.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lehr
from lehr.data import DataSet, load
from lehr.gradients.ghost import GhostEngine
from lehr.methods.by_name import named
from lehr.networks import build
from lehr.networks.by_name import default_for
from lehr.reports.rounding import at_most
from lehr.run_shape import Callback, Progress

mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lehr", "font.size": 9})
ACTIVATIONS = ("relu", "tanh", "tempered_sigmoid(mnist)")
BATCH = 256
WATCHED = 256
# The same step for both: the noise-free mean of gradients, or that of clipped ones with noise.
LEARNING_RATE, CLIP_NORM = 0.15, 1.0
losses = partial(cross_entropy, reduction="none")


@dataclass
class Watch(Callback):
    """The norms of some records' gradients at the weights that a model has now and then."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    every: int
    norms: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._engine = GhostEngine(self.model, losses, compiled=False)
        self.look(0)

    def look(self, step: int) -> None:
        if step % self.every == 0:
            self.norms[step] = self._engine.gradients(self.inputs, self.targets).norms()

    def stepped(self, progress: Progress) -> None:
        self.look(progress.step)

    def means(self) -> list[float]:
        return [norms.mean().item() for norms in self.norms.values()]

    def share_above(self, norm: float) -> float:
        return list(self.norms.values())[-1].gt(norm).float().mean().item()


@dataclass(frozen=True)
class Watched:
    """One network that was trained, and what was seen on the way."""

    watch: Watch
    accuracy: float
    epsilon: float


def trained(data: DataSet, activation: str, *, steps: int, noise_multiplier: float | None) -> Watched:
    """Without noise it is plain SGD."""
    torch.manual_seed(0)  # of the first weights and of plain SGD; the noise has no seed
    name, arguments = default_for(data.shape, num_classes=data.num_classes)
    model = build(name, **arguments, activation=activation)
    inputs, targets = data.preparation.prepared(data.train.inputs), data.train.targets
    watch = Watch(model, inputs[:WATCHED], targets[:WATCHED], every=max(1, steps // 20))
    if noise_multiplier is None:
        _plain(model, inputs, targets, steps, watch.look)
        return Watched(watch, _accuracy(model, data), float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        run = lehr.fit(
            model,
            data,
            method=named("dpsgd", learning_rate=LEARNING_RATE, clip_norm=CLIP_NORM, momentum=0.0),
            noise_multiplier=noise_multiplier,
            expected_batch_size=BATCH,
            steps=steps,
            delta=1e-5,
            settings_chosen_on="fixed",
            directory=Path(folder) / "run",
            callbacks=[watch],
            compiled=False,
            quiet=True,
        )
    assert run.certificate is not None
    return Watched(watch, _accuracy(model, data), run.certificate.epsilon)


def _plain(model: nn.Module, inputs: Tensor, targets: Tensor, steps: int, look: Callable[[int], None]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for step in range(1, steps + 1):
        rows = torch.randint(len(targets), (BATCH,))
        optimizer.zero_grad()
        torch.autograd.backward(losses(model(inputs[rows]), targets[rows]).mean())
        optimizer.step()
        look(step)


def _accuracy(model: nn.Module, data: DataSet) -> float:
    with torch.no_grad():
        scores: Tensor = model(data.preparation.prepared(data.test.inputs))
    return scores.argmax(1).eq(data.test.targets).float().mean().item()


def drawn(found: Mapping[tuple[str, bool], Watched], title: str) -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, private in zip(both, (False, True), strict=True):
        for (activation, is_private), one in found.items():
            if is_private is private:
                axes.plot(list(one.watch.norms), one.watch.means(), label=activation, linewidth=1.3)
        axes.set(yscale="log", xlabel="step", title="DPSGD" if private else "SGD")
        axes.axhline(CLIP_NORM, color="black", linestyle=":", linewidth=1, label="clip norm")
        axes.grid(alpha=0.3)
    both[0].set_ylabel("mean norm of a record's gradient")
    both[1].legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


def report(found: Mapping[tuple[str, bool], Watched]) -> None:
    print(
        f"{'activation':26}{'trained with':14}{'first':>8}{'largest':>9}{'last':>8}{'cut':>6}{'accuracy':>10}{'ε':>8}"
    )
    for (activation, private), one in found.items():
        means, method = one.watch.means(), "DPSGD" if private else "SGD"
        numbers = f"{means[0]:8.2f}{max(means):9.2f}{means[-1]:8.2f}{one.watch.share_above(CLIP_NORM):6.0%}"
        print(f"{activation:26}{method:14}{numbers}{one.accuracy:10.1%}{at_most(one.epsilon):>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", choices=("digits", "mnist"), help="(default: digits)")
    parser.add_argument("--data-dir", type=Path, help="where MNIST is, if not in one of the usual places")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--noise-multiplier", type=float, default=1.1)
    parser.add_argument("--picture", type=Path, default=Path("gradient_norms.svg"), help="where it is written")
    given = parser.parse_args()
    data = load(given.data, given.data_dir)
    found = {
        (activation, private): trained(
            data, activation, steps=given.steps, noise_multiplier=given.noise_multiplier if private else None
        )
        for private in (False, True)
        for activation in ACTIVATIONS
    }
    report(found)
    title = f"{given.data}: gradients of {WATCHED} records before clipping (public records: these are private values)"
    drawn(found, title).savefig(given.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()

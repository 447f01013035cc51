"""What the recipes reach at a proven ε, and what their parts are worth.

- ``accuracy``: MNIST, FashionMNIST and CIFAR-10 at ε = 1, 2, 3 and 8
- ``auto``: ``recipe="auto"`` beside the default network and plan, on records that no rule was fitted to
- ``clip-norms``: a clip norm that follows the median of gradient norms, beside fixed ones
- ``levers``: normalisations, optimizers and averages for a linear layer on scattering features, on a hold-out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments.experiment import (
    Job,
    Measurement,
    Outcomes,
    Report,
    Row,
    Size,
    Table,
    Training,
    chart,
    experiment,
    report,
    statistic,
    table,
    training,
)
from experiments.settings import DELTA
from experiments.training import fit_silently, load_data
from lehr.config import RunConfig
from lehr.data import InMemory, Preparation
from lehr.data.catalogue import CATALOGUE
from lehr.data.random_images import pink_noise
from lehr.networks.scattering import Scattering, scatter, whitening_of
from lehr.planning.plan import make_plan
from lehr.planning.recommendation import recommended_batch_size
from lehr.recipes import AUTO, with_recipe
from lehr.reports.chart import Line

EPSILONS = (1, 2, 3, 8)
PRIOR: Mapping[str, Any] = {
    "network": "resnet9",
    "arguments": {},
    "image_side": 32,
    "channels": 3,
    "kinds": ["oriented", "oriented", "oriented", "dead-leaves"],
    "images": 60_000,
    "steps": 8_000,
    "batch_size": 512,
    "seed": 0,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set, the recipe for each ε, the number of seeds, and what others reach."""

    title: str
    data: str
    recipes: tuple[str, str, str, str]
    seeds: int
    others: tuple[str, str, str, str]
    prior: Mapping[str, Any] | None = None

    def runs(self, epsilon: float, size: Size) -> list[Training]:
        """A run for each seed."""
        recipe = self.recipes[EPSILONS.index(int(epsilon))]
        return [self._run(recipe, epsilon, seed, size) for seed in size.seed_range(self.seeds)]

    def _run(self, recipe: str, epsilon: float, seed: int, size: Size) -> Training:
        data = "digits" if size.is_quick else self.data
        return by_recipe(data, "scattering-linear" if size.is_quick else recipe, epsilon, seed, prior=self.prior)


LINEAR, CNN, RESIDUAL = "scattering-linear", "scattering-cnn", "resnet9"
SETTINGS = (
    Setting(
        title="MNIST",
        data="mnist",
        recipes=(CNN, CNN, CNN, CNN),
        seeds=5,
        others=("–", "–", "98.7 (scattering features, linear: Tramèr & Boneh 2021)", "–"),
    ),
    Setting(
        title="FashionMNIST",
        data="fashion-mnist",
        recipes=(LINEAR, LINEAR, LINEAR, LINEAR),
        seeds=5,
        others=("–", "–", "89.7 (scattering features, linear: Tramèr & Boneh 2021)", "–"),
    ),
    Setting(
        title="CIFAR-10",
        data="cifar-10",
        recipes=(LINEAR, LINEAR, LINEAR, LINEAR),
        seeds=3,
        others=("–", "–", "69.3 (Tramèr & Boneh 2021), 70.5 (Park et al. 2023, one run)", "81.4 (De et al. 2022)"),
    ),
    Setting(
        title="CIFAR-10, residual network",
        data="cifar-10",
        recipes=(RESIDUAL, RESIDUAL, RESIDUAL, RESIDUAL),
        seeds=3,
        others=("–", "–", "69.3 (Tramèr & Boneh 2021), 70.5 (Park et al. 2023, one run)", "81.4 (De et al. 2022)"),
    ),
    Setting(
        title="CIFAR-10, with a prior from random images",
        data="cifar-10",
        recipes=(RESIDUAL, RESIDUAL, RESIDUAL, RESIDUAL),
        seeds=3,
        others=("72.3 (Tang et al. 2023)", "–", "–", "–"),
        prior=PRIOR,
    ),
)


def by_recipe(
    data: str, recipe: str, epsilon: float, seed: int, *, prior: Mapping[str, Any] | None = None, **options: Any
) -> Training:
    """A run with everything that a recipe decides for a GPU. ``options`` are others of ``fit``."""
    known = CATALOGUE[data]
    given = RunConfig().with_options(
        dataset=data, recipe=recipe, epsilon=epsilon, delta=DELTA, seed=seed, evaluate_every=None, **options
    )
    records = given.data.records or known.records
    made, _ = with_recipe(given, shape=known.shape, records=records, is_on_gpu=True, has_prior=prior is not None)
    return Training(config=made, prior=prior)


@experiment("recipes", "accuracy", "Accuracy at a proven ε with recipes")
def accuracy(outcomes: Outcomes, size: Size) -> Report:
    """Settings were chosen on hold-outs of the training records, which is not charged: these are public benchmarks.
    Test records are used once, after the last step, for the averaged weights.
    """
    settings = SETTINGS[1:2] if size.is_quick else SETTINGS
    tables = [_accuracy_table(setting, outcomes, size) for setting in settings]
    lines = []
    for setting in settings:
        means = [outcomes.statistic(setting.runs(epsilon, size)).mean for epsilon in EPSILONS]
        points = [(epsilon, 100 * mean) for epsilon, mean in zip(EPSILONS, means, strict=True) if mean is not None]
        lines.append(Line(name=setting.title, x=tuple(x for x, _ in points), y=tuple(y for _, y in points)))
    drawn = chart(
        title="Accuracy at a proven ε", x_title="ε", y_title="accuracy (%)", lines=tuple(lines), has_markers=True
    )
    return report(*tables, drawn)


def _accuracy_table(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    def row(epsilon: int, recipe: str, others: str) -> Row:
        runs = outcomes.get_all(setting.runs(epsilon, size))
        proven = max((run["epsilon_proven"] for run in runs), default=None)
        return (epsilon, statistic(run["accuracy"] for run in runs), proven, recipe, others)

    return table(
        f"{'Quick: ' if size.is_quick else ''}{setting.title}",
        "ε asked for [count] | accuracy [percent] | proven ε [epsilon] | recipe | others (%)",
        [row(*each) for each in zip(EPSILONS, setting.recipes, setting.others, strict=True)],
        "Means and standard deviations between runs; in brackets the number of runs.",
    )


# --- auto beside the default ----------------------------------------------------------------------------------------

CUT = {"digits": None, "mnist": 6_000, "fashion-mnist": 6_000, "cifar-10": 10_000}
TABLES = ("breast_cancer", "wine")  # of scikit-learn
EPSILON = 3.0


@experiment("recipes", "auto", "recipe='auto' beside the default network and plan, at ε = 3")
def auto(outcomes: Outcomes, size: Size) -> Report:
    """None of these records was used to choose the rules of ``auto``: smaller cuts have other batches, steps and rates.
    The default is ``small_cnn`` for images and ``mlp`` for rows, with the default plan of ``dpsgd``.
    """

    def row(title: str, jobs: list[list[Any]]) -> Row:
        found = [outcomes.statistic(each) for each in jobs]
        return (title, *found)

    seeds = size.seed_range(5)
    data = {"digits": None} if size.is_quick else CUT
    short = {"steps": 20} if size.is_quick else {}
    rows = [
        row(
            name if count is None else f"{name}, {count:,} records",
            [_cut(name, count, kind, seeds, **short) for kind in KINDS],
        )
        for name, count in data.items()
    ]
    splits = size.seed_range(20)  # a split tests 35 to 113 rows, so that one row is a point or more
    rows += [row(name, [_rows(name, kind, splits) for kind in KINDS]) for name in TABLES]
    return report(table("Accuracy at ε = 3", "records | default [percent] | auto [percent]", rows))


KINDS = ("default", AUTO)


def _cut(data: str, count: int | None, kind: str, seeds: range, **options: Any) -> list[Training]:
    delta = 1e-4 if (count or 60_000) < 10_000 or data == "digits" else DELTA
    options |= {"epsilon": EPSILON, "delta": delta, **({} if count is None else {"records": count})}
    if kind == AUTO:
        known = CATALOGUE[data]
        given = [RunConfig().with_options(dataset=data, recipe=AUTO, seed=seed, **options) for seed in seeds]
        records = count or known.records
        return [Training(config=with_recipe(each, shape=known.shape, records=records)[0]) for each in given]
    channels, side, _ = CATALOGUE[data].shape
    network = ("small_cnn", {"in_channels": channels, "image_side": side})
    return [training(data=data, network=network, method="dpsgd", seed=seed, **options) for seed in seeds]


def _rows(data: str, kind: str, seeds: range) -> list[Measurement]:
    return [
        Measurement(function="recipes:rows", arguments={"data": data, "kind": kind, "seed": seed}) for seed in seeds
    ]


def rows(*, device: str, data_dir: str | None, data: str, kind: str, seed: int) -> dict[str, Any]:
    """The accuracy on a fifth of a table of scikit-learn. Its means and deviations are treated as public."""
    from sklearn import datasets  # type: ignore[import-untyped]

    inputs, targets = getattr(datasets, f"load_{data}")(return_X_y=True)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    values, labels = torch.tensor(inputs, dtype=torch.float32)[order], torch.tensor(targets)[order]
    values = (values - values.mean(0)) / values.std(0)
    held = len(values) // 5
    options: dict[str, Any] = {"recipe": AUTO} if kind == AUTO else {}
    network = None if kind == AUTO else "mlp"
    given = RunConfig.of(model={"network": network, "inputs": values.shape[1]} if network else {})
    run = fit_silently(
        network,
        InMemory(values[held:], labels[held:]),
        test=InMemory(values[:held], labels[:held]),
        config=given,
        records=len(values) - held,
        num_classes=int(labels.max()) + 1,
        preparation=Preparation(),
        epsilon=EPSILON,
        delta=1e-3,
        seed=seed,
        device=device,
        compiled=False,
        **options,
    )
    return {"accuracy": run.accuracy, "epsilon_proven": run.proven.epsilon}


# --- Clip norms -----------------------------------------------------------------------------------------------------

CLIP_NORMS = (0.01, 0.1, 1.0, 10.0)
STEP_LENGTHS, RATES = (0.2, 0.5), (0.05, 0.1)  # of a fixed clip norm times its learning rate, and of learning rates
CLIP_PLAN: Mapping[str, Any] = {"epsilon": EPSILON, "delta": 1e-4, "batch_size": 256}


@experiment("recipes", "clip-norms", "Clip norms, fixed and following the median of gradient norms, at ε = 3")
def clip_norms(outcomes: Outcomes, size: Size) -> Report:
    """DP-SGD in 120 steps of 256 expected records: every run of a table has the same noise multiplier. A fixed clip
    norm has a learning rate in inverse proportion to it. Accuracy on the test records.
    """
    steps, seeds = (10 if size.is_quick else 120), size.seed_range(3)

    def digits(**settings: Any) -> list[Training]:
        given: dict[str, Any] = {
            "data": "digits",
            "network": ("small_cnn", {"in_channels": 1, "image_side": 8}),
            "method": "dpsgd",
        }
        return [training(**given, settings=settings, seed=seed, steps=steps, **CLIP_PLAN) for seed in seeds]

    def fashion(**settings: Any) -> list[Measurement]:
        every = [{**settings, "seed": seed, "steps": steps} for seed in seeds]
        return [Measurement(function="recipes:clipped", arguments=each) for each in every]

    def row(jobs: Callable[..., Sequence[Job]], clip_norm: float) -> Row:
        settings: list[dict[str, Any]] = [{"learning_rate": length / clip_norm} for length in STEP_LENGTHS]
        settings += [{"learning_rate": rate, "clip": "quantile"} for rate in RATES]
        return (f"{clip_norm:g}", *(outcomes.statistic(jobs(clip_norm=clip_norm, **each)) for each in settings))

    columns = "clip norm C, fixed or of the first step"
    columns += "".join(f" | fixed, rate {length:g}/C [percent]" for length in STEP_LENGTHS)
    columns += "".join(f" | median, rate {rate:g} [percent]" for rate in RATES)
    tables = [table("digits, small_cnn", columns, [row(digits, norm) for norm in CLIP_NORMS])]
    if not size.is_quick:
        title = "FashionMNIST, 6,000 records of 14 × 14 pixels, mlp"
        tables.append(table(title, columns, [row(fashion, norm) for norm in CLIP_NORMS]))
    return report(*tables)


def clipped(*, device: str, data_dir: str | None, seed: int, steps: int, **settings: Any) -> dict[str, Any]:
    """The accuracy of a perceptron on the means over 2 × 2 pixels of the first 6,000 records of FashionMNIST."""
    known = load_data("fashion-mnist", data_dir)

    def pooled(records: InMemory) -> InMemory:
        images = known.preparation.prepared(records.inputs)
        return InMemory(functional.avg_pool2d(images, 2).flatten(1), records.targets)

    run = fit_silently(
        "mlp",
        pooled(known.train.at(torch.arange(6_000))),
        test=pooled(known.test),
        config=RunConfig.of(model={"network": "mlp", "inputs": 196}),
        records=6_000,
        num_classes=10,
        preparation=Preparation(),
        seed=seed,
        steps=steps,
        device=device,
        compiled=False,
        evaluate_every=None,
        **CLIP_PLAN,
        **settings,
    )
    return {"accuracy": run.accuracy, "epsilon_proven": run.proven.epsilon}


# --- What the parts are worth ---------------------------------------------------------------------------------------

HELD_OUT, SIMULATED_BATCH, LEVER_STEPS, LEVER_CLIP = 5_000, 1_024, 400, 0.1
MOMENTUM = 0.9

# The title of a row, and the arguments of ``lever``.
LEVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("features normalised by 27 groups of channels", {"features": "groups", "rate": 0.8}),
    ("whitened on pink noise, as the input factor of DP-KFC is", {"features": "pink-noise"}),
    ("whitened on dead leaves (the recipe)", {}),
    ("the same, without momentum, at ten times the rate", {"momentum": 0.0, "rate": 4.0}),
    ("the same, without an average of weights", {"decay": 0.0}),
    ("the same, averaged over 200 steps", {"decay": 0.995}),
    ("gradients at weights moved by 0.1 along the last update (Park et al. 2023)", {"sharpness": 0.1}),
    ("gradients at weights moved by 0.5 along the last update", {"sharpness": 0.5}),
    ("low-pass filter of released gradients (first order)", {"optimizer": "low-pass", "rate": 4.0}),
    ("Adam, rate 0.002", {"optimizer": "adam", "rate": 0.002}),
    ("Adam, rate 0.005", {"optimizer": "adam", "rate": 0.005}),
    ("DP-AdamBC, rate 0.0005, floor 1e-8", {"optimizer": "adam-bc", "rate": 0.0005, "floor": 1e-8}),
    ("DP-AdamBC, rate 0.001, floor 3e-8", {"optimizer": "adam-bc", "rate": 0.001, "floor": 3e-8}),
    ("DP-AdamBC, rate 0.002, floor 1e-7", {"optimizer": "adam-bc", "rate": 0.002, "floor": 1e-7}),
)


@experiment("recipes", "levers", "What the parts of a recipe are worth: FashionMNIST, ε = 3, hold-out")
def levers(outcomes: Outcomes, size: Size) -> Report:
    """A linear layer on scattering features, with noise of ε = 3 and small simulated batches, scored on 5,000 training
    records that it was not trained on. Everything after the noise is post-processing and costs nothing.
    """
    data = "digits" if size.is_quick else "fashion-mnist"

    def jobs(arguments: Mapping[str, Any]) -> list[Measurement]:
        every = [{"data": data, "seed": seed, **arguments} for seed in size.seed_range(3)]
        return [Measurement(function="recipes:lever", arguments=each) for each in every]

    rows = [(title, outcomes.statistic(jobs(arguments))) for title, arguments in LEVERS]
    return report(table("Accuracy on the hold-out", "what is done | accuracy [percent]", rows))


def lever(
    *,
    device: str,
    data_dir: str | None,
    data: str,
    seed: int,
    features: str = "dead-leaves",
    optimizer: str = "sgd",
    rate: float = 0.4,
    momentum: float = MOMENTUM,
    decay: float = 0.99,
    sharpness: float = 0.0,
    floor: float = 0.0,
) -> dict[str, Any]:
    """The accuracy of a linear layer that is trained with noise, on held-out training records."""
    inputs, labels = scattering_features(data, features, data_dir)
    held = min(HELD_OUT, len(inputs) // 5)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    tested, trained = order[:held], order[held:]
    plan = make_plan(
        records=len(inputs),
        delta=DELTA,
        epsilon=EPSILON,
        expected_batch_size=recommended_batch_size(len(inputs)),
        steps=LEVER_STEPS,
    )
    noise = plan.noise_multiplier / plan.expected_batch_size
    batch = min(SIMULATED_BATCH, len(trained) // 4)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.zeros(inputs.shape[1] + 1, int(labels.max()) + 1)
    average, before, first, second, last = (torch.zeros_like(weights) for _ in range(5))
    for step in range(LEVER_STEPS):
        drawn = trained[torch.rand(len(trained), generator=generator) < batch / len(trained)]
        rows = functional.pad(inputs[drawn].float(), (0, 1), value=1.0)
        moved = before - weights
        at = weights + sharpness * moved / moved.norm().clamp_min(1e-12)
        errors = (rows @ at).softmax(1) - functional.one_hot(labels[drawn], weights.shape[1])
        norms = errors.norm(dim=1) * rows.norm(dim=1)
        gradient = rows.T @ (errors / norms.clamp_min(LEVER_CLIP)[:, None]) / batch
        gradient = gradient + noise * torch.randn(weights.shape, generator=generator)
        before = weights
        match optimizer:
            case "sgd":
                first = momentum * first + gradient
                update = first
            case "low-pass":  # a pole at 0.9 and a zero at -1
                first, last = MOMENTUM * first + (1 - MOMENTUM) / 2 * (gradient + last), gradient
                update = first / (1 - MOMENTUM ** (step + 1))
            case _:  # Adam, and Tang et al. (2024), who subtract the known variance of the noise
                first, second = torch.lerp(gradient, first, 0.9), torch.lerp(gradient.square(), second, 0.999)
                squares = second / (1 - 0.999 ** (step + 1)) - (noise**2 if optimizer == "adam-bc" else 0)
                update = first / (1 - 0.9 ** (step + 1)) / squares.clamp_min(floor or 1e-24).sqrt()
        weights = weights - rate * update
        average = torch.lerp(weights, average, min(decay, (1 + step) / (10 + step)))
    scores = functional.pad(inputs[tested].float(), (0, 1), value=1.0) @ average
    return {"accuracy": float((scores.argmax(1) == labels[tested]).double().mean())}


@cache
def scattering_features(
    data: str, kind: str, data_dir: str | None, *, device: str = "cpu", pool: int = 1
) -> tuple[Tensor, Tensor]:
    """Scattering features of the training records, normalised in one of several ways."""
    known = load_data(data, data_dir)
    channels, side, _ = CATALOGUE[data].shape
    layer = Scattering(image_side=side, in_channels=channels, pool=pool)
    if kind == "pink-noise":
        images = pink_noise(1_000, side, channels, torch.Generator().manual_seed(0))
        layer.means, layer.whitening = (torch.tensor(each, dtype=torch.float32) for each in whitening_of(images))
    layer, parts = layer.to(device), []
    for some in torch.arange(len(known.train)).split(256):  # type: ignore[no-untyped-call]
        images = known.preparation.prepared(known.train.inputs[some].to(device))
        parts.append(functional.group_norm(scatter(images), 27) if kind == "groups" else layer(images))
    return torch.cat([part.flatten(1).half() for part in parts]), known.train.targets


EXPERIMENTS = (accuracy, auto, clip_norms, levers)

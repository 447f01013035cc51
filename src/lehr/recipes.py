"""Recipes: everything that decides accuracy, as a function of public numbers only.

A recipe returns tables of a ``RunConfig``: network, method, batch, steps, rate, views, phases and averaging. It sees
the shape of a record, the numbers of records and classes, ε and the device, and never a record, so choosing one costs
no privacy.

>>> task = Task(shape=(1, 28, 28), records=60_000, epsilon=3.0)
>>> name, why = choose(task)
>>> name, RECIPES[name].build(task)["privacy"]["expected_batch_size"]
('scattering-linear', 8192)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lehr import validate
from lehr.config import CLIP_NORM, MOMENTUM, RunConfig
from lehr.errors import InvalidValue
from lehr.networks.scattering import SHRINKS_BY
from lehr.planning.recommendation import (
    STEPS,
    TRAVEL,
    recommended_batch_size,
    recommended_learning_rate,
    signal_of,
)

AUTO = "auto"
DECAY = 0.99
LARGEST_SCATTERED = 64  # the side of an image; larger ones give too many features
SMALLEST_RESIDUAL = 16
HIDDEN = 64  # of the network for tables

# The learning rate times the steps, in place of TRAVEL, from hold-outs of MNIST and CIFAR-10; for tables, from those of
# iris, digits as rows, and seven synthetic tables.
CNN_TRAVEL = 1600.0
RESIDUAL_TRAVEL, PRIOR_TRAVEL = 8800.0, 3500.0
TABULAR_TRAVEL = 8800.0

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The public facts that a recipe may use."""

    shape: tuple[int, ...]
    records: int
    epsilon: float
    is_on_gpu: bool = False
    has_prior: bool = False
    has_own_network: bool = False
    steps: int | None = None  # if the user has chosen their number

    @property
    def signal(self) -> float:
        """ε times the number of records, over that of MNIST at ε = 3: how little noise a step has."""
        return signal_of(self.epsilon, self.records)

    @property
    def side(self) -> int | None:
        """The side of a square image, if a record is one."""
        match self.shape:
            case (_, height, width) if height == width:
                return height
        return None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``why_not`` returns why a task is unfit, or None; ``build`` returns tables of a ``RunConfig``.

    ``auto`` takes the first recipe that suits the task and whose ``is_best`` returns a reason.
    """

    name: str
    summary: str
    public: str  # what it uses beyond the private records
    why_not: Callable[[Task], str | None]
    is_best: Callable[[Task], str | None]
    build: Callable[[Task], Tables]


def _tables(task: Task, *, steps: int, travel: float = TRAVEL, **model: Any) -> dict[str, dict[str, Any]]:
    longer = max(steps, task.steps or 0)  # a longer run needs a lower rate; a higher one may diverge
    rate = recommended_learning_rate(epsilon=task.epsilon, records=task.records, steps=longer, travel=travel)
    return {
        "model": model,
        "method": {
            "name": "dpsgd",
            "learning_rate": rate,
            "clip_norm": CLIP_NORM,
            "momentum": MOMENTUM,
        },
        "privacy": {"expected_batch_size": recommended_batch_size(task.records), "steps": steps},
        "training": {"averaging": {"kind": "exponential", "decay": DECAY}},
    }


# Scattering features: small images of any kind.


def _not_scattered(task: Task) -> str | None:
    if task.side is not None and 8 <= task.side <= LARGEST_SCATTERED and task.side % SHRINKS_BY == 0:
        return None
    return f"records must be square images whose side is a multiple of {SHRINKS_BY}, from 8 to {LARGEST_SCATTERED}"


def _scattering(network: str, task: Task, **arguments: Any) -> Tables:
    channels, side, _ = task.shape
    steps = 400 if task.signal < 0.5 else 800
    return _tables(task, steps=steps, network=network, in_channels=channels, image_side=side, **arguments)


def _linear(task: Task) -> Tables:
    channels, side, _ = task.shape
    has_many_features = channels > 1 and side >= 32 and side % (2 * SHRINKS_BY) == 0
    return _scattering("scattering_linear", task, **({"pool": 2} if has_many_features else {}))


def _cnn(task: Task) -> Tables:
    return _scattering("scattering_cnn", task, travel=CNN_TRAVEL)


# A residual network: photographs, on a GPU.


def _not_residual(task: Task) -> str | None:
    if task.side is not None and task.side >= SMALLEST_RESIDUAL:
        return None
    return f"records must be square images whose side is at least {SMALLEST_RESIDUAL}"


def _is_residual_best(task: Task) -> str | None:
    if not task.is_on_gpu or task.shape[0] != 3:
        return None
    if task.has_prior:
        return "there is a prior, colour images and a GPU"
    return "there are colour images, a GPU, and enough records for this ε" if task.signal >= 0.5 else None


def _residual(task: Task) -> Tables:
    steps = 250 if task.signal < 0.5 else 500 if task.signal < 1.5 else 1000
    travel = PRIOR_TRAVEL * task.signal**0.375 if task.has_prior else RESIDUAL_TRAVEL
    network = {"network": "resnet9", "in_channels": task.shape[0], "mirrored": True}
    tables = _tables(task, steps=steps, travel=travel, **network, **({"shift": 1} if task.has_prior else {}))
    batch = 4096 if steps < 1000 else 8192  # of 50,000 records
    tables["privacy"]["expected_batch_size"] = max(1.0, round(batch / 50_000 * task.records))
    tables["training"] |= {"augmentation": "flip_crop", "views": 8, "precision": "bfloat16"}
    head_first = (task.steps or steps) // 10
    if task.has_prior and head_first:
        tables["training"]["phases"] = [{"steps": head_first, "trained": ["head"], "learning_rate": 10.0}, {}]
    return tables


# Tables: one number per column.


def _not_tabular(task: Task) -> str | None:
    return None if len(task.shape) == 1 else "records must be rows of numbers"


def _tabular(task: Task) -> Tables:
    hidden = HIDDEN if task.signal >= 0.5 else 0
    return _tables(task, steps=400, travel=TABULAR_TRAVEL, network="mlp", inputs=task.shape[0], hidden=hidden)


RECIPES = {
    each.name: each
    for each in (
        Recipe(
            name="own-network",
            summary="Plan, rate and averaging for a network of your own.",
            public="nothing",
            why_not=lambda task: None if task.has_own_network else "there must be a network of your own",
            is_best=lambda task: "the network is your own",
            build=lambda task: _tables(task, steps=STEPS),
        ),
        Recipe(
            name="resnet9",
            summary="A small residual network with augmented views: photographs, minutes on a GPU.",
            public="filters that whiten patches of random images; a prior, if one is given",
            why_not=_not_residual,
            is_best=_is_residual_best,
            build=_residual,
        ),
        Recipe(
            name="scattering-linear",
            summary="Scattering features and a linear layer: small images of any kind, minutes on a CPU.",
            public="a fixed scattering transform, whitened on random images",
            why_not=_not_scattered,
            is_best=lambda task: "records are small square images",
            build=_linear,
        ),
        Recipe(
            name="scattering-cnn",
            summary="Scattering features and two convolutions: digits and other line drawings.",
            public="a fixed scattering transform, whitened on random images",
            why_not=_not_scattered,
            is_best=lambda task: None,
            build=_cnn,
        ),
        Recipe(
            name="tabular",
            summary="A linear model or a small network: rows of numbers, standardised by public constants.",
            public="nothing",
            why_not=_not_tabular,
            is_best=lambda task: "records are rows of numbers",
            build=_tabular,
        ),
    )
}


def choose(task: Task) -> tuple[str, str]:
    """The recipe that ``auto`` stands for, and why."""
    refusals = {}
    for name, recipe in RECIPES.items():
        refusals[name] = recipe.why_not(task)
        if refusals[name] is None and (why := recipe.is_best(task)) is not None:
            return name, why
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items() if reason is not None)
    raise InvalidValue("recipe", allowed=f"omitted for these records ({reasons})", given=AUTO)


def with_recipe(config: RunConfig, *, shape: tuple[int, ...], records: int, **facts: bool) -> tuple[RunConfig, str]:
    """The configuration with what its recipe decides, and why ``auto`` chose it. What is given in it stays.

    ``facts`` are the other public facts of a ``Task``. A finished plan, as that of a run to resume, leaves nothing to
    decide.
    """
    asked = config.training.recipe
    if asked is None or config.privacy.plan is not None:
        return config, ""
    validate.one_of((AUTO, *RECIPES), recipe=asked)
    if config.privacy.epsilon is None:
        raise InvalidValue("epsilon", allowed="given together with a recipe, which follows from it", given=None)
    task = Task(shape=shape, records=records, epsilon=config.privacy.epsilon, steps=_steps(config, records), **facts)
    name, why = choose(task) if asked == AUTO else (asked, "")
    if (reason := RECIPES[name].why_not(task)) is not None:
        raise InvalidValue("recipe", allowed=f"one that suits the records ({reason})", given=name)
    made = RunConfig.of(**RECIPES[name].build(task))
    if config.model.network not in (None, made.model.network):  # its arguments belong to another network
        made = made.with_tables(model={})
    if config.privacy.epochs is not None or config.privacy.noise_multiplier is not None:
        made = made.with_tables(privacy={key: made.privacy[key] for key in made.privacy if key != "steps"})
    own = {table: dict(getattr(config, table)) for table in ("data", "model", "method", "privacy", "training", "run")}
    return made.with_values(**own).with_values(training={"recipe": name}), why


def _steps(config: RunConfig, records: int) -> int | None:
    """The number of steps, if the configuration has it, or passes over the records."""
    privacy = config.privacy
    if privacy.epochs is None:
        return privacy.steps
    batch = privacy.expected_batch_size or recommended_batch_size(records)
    return max(1, round(privacy.epochs * records / batch))

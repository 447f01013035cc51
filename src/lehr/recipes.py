"""Recipes: everything that decides accuracy, as a function of public numbers only.

A recipe returns tables of a ``RunConfig``: network, method, batch, steps, rate and averaging. It sees the shape of a
record, the number of records, and ε, and never a record, so choosing one costs no privacy.

>>> task = Task(shape=(1, 28, 28), records=60_000, epsilon=3.0)
>>> name = choose(task)
>>> name, RECIPES[name].build(task)["privacy"]["expected_batch_size"]
('scattering-linear', 8192)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lehr import validate
from lehr.config import RunConfig
from lehr.errors import InvalidValue
from lehr.networks.scattering import SHRINKS_BY

AUTO = "auto"
SHARE = 8192 / 60_000  # of the records, in a batch
_CLIP_NORM, _MOMENTUM, _DECAY = 0.1, 0.9, 0.99

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The public facts that a recipe may use."""

    shape: tuple[int, ...]
    records: int
    epsilon: float

    @property
    def signal(self) -> float:
        """ε times the number of records, over that of MNIST at ε = 3: how little noise a step has."""
        return self.epsilon * self.records / (3 * 60_000)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``why_not`` returns why a task is unfit, or None; ``build`` returns tables of a ``RunConfig``."""

    name: str
    summary: str
    public: str  # what it uses beyond the private records
    why_not: Callable[[Task], str | None]
    build: Callable[[Task], Tables]


def _not_scattered(task: Task) -> str | None:
    match task.shape:
        case (_, height, width) if height == width and height >= 8 and height % SHRINKS_BY == 0:
            return None
    return f"records must be square images whose side is a multiple of {SHRINKS_BY} and at least 8"


def _scattering(network: str, task: Task, *, travel: float) -> Tables:
    """``travel`` is the learning rate times the steps.

    At one ε, noise per step grows with the root of the steps, so that this product alone decides how much noise the
    weights collect. It is proportional to the signal.
    """
    channels, side, _ = task.shape
    steps = 400 if task.signal < 0.5 else 800
    return {
        "model": {"network": network, "in_channels": channels, "image_side": side},
        "method": {
            "name": "dpsgd",
            "learning_rate": float(f"{travel / steps:.3g}"),
            "clip_norm": _CLIP_NORM,
            "momentum": _MOMENTUM,
        },
        "privacy": {"expected_batch_size": max(1.0, round(SHARE * task.records)), "steps": steps},
        "training": {"averaging": {"kind": "exponential", "decay": _DECAY}},
    }


def _linear(task: Task) -> Tables:
    return _scattering("scattering_linear", task, travel=4500 * min(2.0, task.signal))


def _cnn(task: Task) -> Tables:
    return _scattering("scattering_cnn", task, travel=3200 * min(2.0, task.signal))


_FIXED = "a fixed scattering transform, which uses no data"
RECIPES = {
    each.name: each
    for each in (
        Recipe(
            name="scattering-linear",
            summary="Scattering features and a linear layer: small images of any kind, minutes on a CPU.",
            public=_FIXED,
            why_not=_not_scattered,
            build=_linear,
        ),
        Recipe(
            name="scattering-cnn",
            summary="Scattering features and two convolutions: a larger network, and slower.",
            public=_FIXED,
            why_not=_not_scattered,
            build=_cnn,
        ),
    )
}


def choose(task: Task) -> str:
    """The recipe that ``auto`` stands for: the first that suits the records."""
    refusals = {recipe.name: recipe.why_not(task) for recipe in RECIPES.values()}
    for name, reason in refusals.items():
        if reason is None:
            return name
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
    raise InvalidValue("recipe", allowed=f"omitted for these records ({reasons})", given=AUTO)


def reason(shape: tuple[int, ...]) -> str:
    """Why ``auto`` chose a recipe."""
    return f"records are square images, {' × '.join(map(str, shape))}"


def with_recipe(config: RunConfig, *, shape: tuple[int, ...], records: int) -> RunConfig:
    """The configuration with what its recipe decides. What is given in the configuration itself stays."""
    asked = config.training.recipe
    if asked is None or config.privacy.plan is not None:  # a finished plan, as that of a run to resume
        return config
    validate.one_of((AUTO, *RECIPES), recipe=asked)
    if config.privacy.epsilon is None:
        raise InvalidValue("epsilon", allowed="given together with a recipe, which follows from it", given=None)
    task = Task(shape=shape, records=records, epsilon=config.privacy.epsilon)
    name = choose(task) if asked == AUTO else asked
    if (reason := RECIPES[name].why_not(task)) is not None:
        raise InvalidValue("recipe", allowed=f"one that suits the records ({reason})", given=name)
    made = RunConfig.of(**RECIPES[name].build(task))
    if config.model.network not in (None, made.model.network):  # its arguments belong to another network
        made = made.with_tables(model={})
    if config.privacy.epochs is not None or config.privacy.noise_multiplier is not None:
        made = made.with_tables(privacy={key: made.privacy[key] for key in made.privacy if key != "steps"})
    own = {table: dict(getattr(config, table)) for table in ("data", "model", "method", "privacy", "training", "run")}
    return made.with_values(**own).with_values(training={"recipe": name})

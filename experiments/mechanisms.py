"""Units, samplers and noises beside plain DP-SGD, at one proven ε.

The model is a linear layer on scattering features, which are computed once. Settings and scores are of training
records: 10,000 of them are held out, and no test record is used.

- ``rates``: the learning rate for each
- ``mechanisms``: noises, samplers and the quantile clip, over a few passes and over many
- ``users``: one user with 10 records as the unit, with 1 to 10 records of each in a step
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from experiments.experiment import Measurement, Outcomes, Report, Row, Size, experiment, report, statistic, table
from experiments.recipes import scattering_features
from experiments.settings import DELTA
from experiments.training import fit_silently
from lehr.data import InMemory, Preparation
from lehr.planning.recommendation import recommended_learning_rate

HELD_OUT, RECORDS_OF_A_USER, SEEDS = 10_000, 10, 3
DATA = {"fashion-mnist": "FashionMNIST", "cifar-10": "CIFAR-10"}
FEW, MANY = {"bins": 100, "passes": 4}, {"bins": 20, "passes": 20}  # batches of a hundredth and a twentieth
# The title of a table, its data sets, and its plan.
PLANS: tuple[tuple[str, tuple[str, ...], Mapping[str, Any]], ...] = (
    ("4 passes in 400 steps, ε = 3", ("fashion-mnist", "cifar-10"), {**FEW, "epsilon": 3.0}),
    ("4 passes in 400 steps, ε = 8", ("fashion-mnist",), {**FEW, "epsilon": 8.0}),
    ("20 passes in 400 steps, ε = 3", ("fashion-mnist",), {**MANY, "epsilon": 3.0}),
)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # relative to the rate that is recommended for so many steps

# The title of a row, and options of ``fit``. Rows with an equal third word share a rate.
PLAIN, FOUR, SIXTEEN, QUANTILE = "plain", "4 bands", "16 bands", "quantile"
MECHANISMS: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    ("Poisson sampling, Gaussian noise (DP-SGD)", {}, PLAIN),
    ("discrete noise", {"noise": "discrete"}, PLAIN),
    ("truncated Poisson sampling", {"sampling": "truncated-poisson"}, PLAIN),
    ("balls-in-bins sampling", {"sampling": "balls-in-bins"}, PLAIN),
    ("correlated noise, 4 bands", {"bands": 4}, FOUR),
    ("correlated noise, 16 bands", {"bands": 16}, SIXTEEN),
    ("clip norm at the median", {"clip": "quantile"}, QUANTILE),
)
# The best of ``RATES`` in the experiment of that name, for each plan and data set.
BEST: Mapping[tuple[str, str], Mapping[str, float]] = {
    (PLANS[0][0], "fashion-mnist"): {PLAIN: 0.5, FOUR: 0.5, SIXTEEN: 1.0, QUANTILE: 1.0},
    (PLANS[0][0], "cifar-10"): {PLAIN: 0.5, FOUR: 0.5, SIXTEEN: 0.5, QUANTILE: 1.0},
    (PLANS[1][0], "fashion-mnist"): {PLAIN: 0.25, FOUR: 0.5, SIXTEEN: 1.0, QUANTILE: 0.5},
    (PLANS[2][0], "fashion-mnist"): {PLAIN: 1.0, FOUR: 1.0, SIXTEEN: 1.0, QUANTILE: 4.0},
}


@experiment("mechanisms", "rates", "The learning rate for each noise and clip norm")
def rates(outcomes: Outcomes, size: Size) -> Report:
    """One run for each rate, relative to the one that is recommended, scored on held-out training records."""
    tables = []
    for title, every, plan in PLANS:
        for data in ("digits",) if size.is_quick else every:
            rows: list[Row] = []
            for name, options, group in MECHANISMS:
                if group != PLAIN or not options:
                    jobs = [[_job({"data": data, **plan, **options}, rate, 0)] for rate in RATES]
                    rows.append((name, *map(outcomes.statistic, jobs)))
            columns = ["mechanism", *(f"{rate:g} × [percent]" for rate in RATES)]
            tables.append(table(f"{DATA.get(data, data)}, {title}", columns, rows))
    return report(*tables)


@experiment("mechanisms", "mechanisms", "Noises, samplers and clip norms at one proven ε")
def mechanisms(outcomes: Outcomes, size: Size) -> Report:
    """A linear layer on scattering features, scored on 10,000 held-out training records, on which the learning rates
    were chosen as well.
    """
    tables = []
    for title, every, plan in PLANS:
        every = ("digits",) if size.is_quick else every
        rows: list[Row] = []
        for name, options, group in MECHANISMS:
            cells: list[Any] = [name]
            for data in every:
                rate = 1.0 if size.is_quick else BEST[title, data][group]
                jobs = [_job({"data": data, **plan, **options}, rate, seed) for seed in size.seed_range(SEEDS)]
                found = outcomes.get_all(jobs)
                noise = found[0]["noise_multiplier"] if found else None
                cells += [statistic(each["accuracy"] for each in found), f"{rate:g} ×", noise]
            rows.append(tuple(cells))
        columns = [f"{DATA.get(data, data)} [percent] | its rate | its noise multiplier [number 3]" for data in every]
        tables.append(table(title, ["mechanism", *columns], rows))
    return report(*tables)


def _job(arguments: Mapping[str, Any], rate: float, seed: int) -> Measurement:
    return Measurement(function="mechanisms:trained", arguments={**arguments, "rate": rate, "seed": seed})


OF_USERS = {"one is kept": None, "up to 1 in a step": 1, "up to 3 in a step": 3, "all 10 in a step": 10}


@experiment("mechanisms", "users", "One user with 10 records as the unit of privacy")
def users(outcomes: Outcomes, size: Size) -> Report:
    """The same features. Each user has 10 records, and a step draws a twentieth of the users, over 200 steps. The first
    row keeps one record of each user and protects that record, which protects the user as well.
    """
    rows: list[Row] = []
    every = ("digits",) if size.is_quick else tuple(DATA)
    for title, most in OF_USERS.items():
        cells: list[Any] = [title]
        for data in every:
            for epsilon in (3.0, 8.0):
                arguments = {"data": data, "epsilon": epsilon, "of_users": most}
                jobs = [
                    Measurement(function="mechanisms:trained_on_users", arguments={"seed": seed, **arguments})
                    for seed in size.seed_range(SEEDS)
                ]
                cells.append(outcomes.statistic(jobs))
        rows.append(tuple(cells))
    columns = [f"{DATA.get(each, each)}, ε = {epsilon} [percent]" for each in every for epsilon in (3, 8)]
    return report(table("Users with 10 records", ["records of a user", *columns], rows))


def trained(
    *,
    device: str,
    data_dir: str | None,
    data: str,
    seed: int,
    epsilon: float,
    bins: int,
    passes: int,
    rate: float,
    **options: Any,
) -> dict[str, Any]:
    """The accuracy on held-out records, and the noise multiplier, of a plan with ``bins`` steps in each pass."""
    train, held = _records(data, data_dir, device)
    count = len(train) // bins * bins
    return _outcome(
        train.at(torch.arange(count, device=device)),
        held,
        steps=bins * passes,
        rate=rate,
        seed=seed,
        epsilon=epsilon,
        device=device,
        batch_size=count / bins,
        records=count,
        **options,
    )


def trained_on_users(
    *, device: str, data_dir: str | None, data: str, seed: int, epsilon: float, of_users: int | None
) -> dict[str, Any]:
    """The same with users of 10 records each; without ``of_users``, with the first record of each as the unit."""
    train, held = _records(data, data_dir, device)
    number = len(train) // RECORDS_OF_A_USER
    own = torch.arange(number * RECORDS_OF_A_USER) % number
    unit: dict[str, Any] = {"owners": own, "users": number, "records_per_user": of_users}
    if of_users is None:
        own, unit = own[:number], {"records": number}
    options: dict[str, Any] = {"epsilon": epsilon, "device": device, "batch_size": number / 20, **unit}
    return _outcome(
        train.at(torch.arange(len(own), device=device)), held, steps=200, rate=1.0, seed=seed, units=number, **options
    )


def _outcome(
    train: InMemory,
    held: InMemory,
    *,
    steps: int,
    rate: float,
    epsilon: float,
    units: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    learning_rate = rate * recommended_learning_rate(epsilon=epsilon, records=units or len(train), steps=steps)
    clip_norm = 0.1
    if options.get("clip") == "quantile":  # its clip norm is about that of the gradients, which begin at norms near 5
        clip_norm, learning_rate = 1.0, 0.1 * learning_rate
    model = nn.Linear(train.inputs.shape[1], int(train.targets.max()) + 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    run = fit_silently(
        model,
        train,
        test=held,
        epsilon=epsilon,
        delta=DELTA if len(train) > 10_000 else 1e-4,
        steps=steps,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        averaging={"kind": "exponential", "decay": 0.98},
        num_classes=model.out_features,
        preparation=Preparation(),
        compiled=False,
        evaluate_every=None,
        **options,
    )
    return {
        "accuracy": run.accuracy,
        "epsilon_proven": run.proven.epsilon,
        "noise_multiplier": run.plan.noise_multiplier,
    }


@cache
def _records(data: str, data_dir: str | None, device: str) -> tuple[InMemory, InMemory]:
    """Training records and those held out, as features in a fixed random order."""
    pool = 2 if data == "cifar-10" else 1  # a quarter of the features, about as many as of FashionMNIST
    inputs, targets = scattering_features(data, "dead-leaves", data_dir, device=device, pool=pool)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0)).to(device)
    held, targets = min(HELD_OUT, len(inputs) // 5), targets.to(device)
    trained, tested = order[held:], order[:held]
    return InMemory(inputs[trained].float(), targets[trained]), InMemory(inputs[tested].float(), targets[tested])


EXPERIMENTS = (rates, mechanisms, users)

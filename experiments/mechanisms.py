"""Units, samplers and noises beside plain DP-SGD, at one proven ε.

The model is a linear layer on scattering features, which are computed once. Settings and scores are of training
records: 10,000 of them are held out, and no test record is used.

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
RATES = (1.0, 2.0, 4.0)  # relative to the rate that is recommended for so many steps

# The title of a row, options of ``fit``, and whether the best of several rates is taken.
MECHANISMS: tuple[tuple[str, Mapping[str, Any], bool], ...] = (
    ("Poisson sampling, Gaussian noise (DP-SGD)", {}, True),
    ("discrete noise", {"noise": "discrete"}, False),
    ("truncated Poisson sampling", {"sampling": "truncated-poisson"}, False),
    ("balls-in-bins sampling", {"sampling": "balls-in-bins"}, False),
    ("correlated noise, 4 bands", {"bands": 4}, True),
    ("correlated noise, 16 bands", {"bands": 16}, True),
    ("clip norm at the median", {"clip": "quantile"}, True),
)


@experiment("mechanisms", "mechanisms", "Noises, samplers and clip norms at one proven ε of 3 and of 8")
def mechanisms(outcomes: Outcomes, size: Size) -> Report:
    """A linear layer on scattering features, scored on 10,000 held-out training records. Rows whose noise or clip norm
    changes the best learning rate show the best of three rates; the others have that of the first row.
    """
    tables = []
    for title, plan in (("4 passes in 400 steps", FEW), ("20 passes in 400 steps", MANY)):
        for epsilon in (3.0, 8.0):
            rows = [_row(outcomes, size, plan | {"epsilon": epsilon}, *each) for each in MECHANISMS]
            columns = " | ".join(
                f"{each} [percent] | rate, {each} | noise multiplier, {each} [number 3]" for each in _data(size)
            )
            tables.append(table(f"{title}, ε = {epsilon:g}", f"mechanism | {columns}", rows))
    return report(*tables)


def _data(size: Size) -> list[str]:
    return ["digits"] if size.is_quick else [*DATA.values()]


def _row(
    outcomes: Outcomes, size: Size, plan: Mapping[str, Any], title: str, options: Mapping[str, Any], is_tuned: bool
) -> Row:
    cells: list[Any] = []
    for data in ["digits"] if size.is_quick else DATA:
        if options.get("bands", 0) > plan["bins"]:
            cells += [None, None, None]
            continue
        first = _best(outcomes, size, {**plan, "data": data}, RATES)
        rate = _best(outcomes, size, {**plan, **options, "data": data}, RATES) if is_tuned else first
        found = outcomes.get_all(_jobs(size, {**plan, **options, "data": data, "rate": rate}))
        noise = found[0]["noise_multiplier"] if found else None
        cells += [statistic(each["accuracy"] for each in found), f"{rate:g} ×", noise]
    return (title, *cells)


def _best(outcomes: Outcomes, size: Size, arguments: Mapping[str, Any], rates: tuple[float, ...]) -> float:
    """The rate whose runs have the best mean so far."""
    means = {rate: outcomes.statistic(_jobs(size, {**arguments, "rate": rate})).mean for rate in rates}
    return max(rates, key=lambda rate: means[rate] or 0.0)


def _jobs(size: Size, arguments: Mapping[str, Any]) -> list[Measurement]:
    every = [{"seed": seed, **arguments} for seed in size.seed_range(SEEDS)]
    return [Measurement(function="mechanisms:trained", arguments=each) for each in every]


@experiment("mechanisms", "users", "One user with 10 records as the unit of privacy")
def users(outcomes: Outcomes, size: Size) -> Report:
    """The same features. Each user has 10 records, and a step draws a twentieth of the users, over 200 steps. The first
    row keeps one record of each user and protects that record, which protects the user as well.
    """
    rows: list[Row] = []
    for title, most in (("one record of each user is kept", None), *((f"up to {n} in a step", n) for n in (1, 3, 10))):
        cells: list[Any] = [title]
        for data in ["digits"] if size.is_quick else DATA:
            for epsilon in (3.0, 8.0):
                arguments = {"data": data, "epsilon": epsilon, "of_users": most}
                jobs = [
                    Measurement(function="mechanisms:trained_on_users", arguments={"seed": seed, **arguments})
                    for seed in size.seed_range(SEEDS)
                ]
                cells.append(outcomes.statistic(jobs))
        rows.append(tuple(cells))
    columns = " | ".join(f"{each}, ε = {epsilon} [percent]" for each in _data(size) for epsilon in (3, 8))
    return report(table("Users with 10 records", f"records of a user | {columns}", rows))


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
    train, held = _records(data, data_dir)
    count = len(train) // bins * bins
    return _outcome(
        train.at(torch.arange(count)),
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
    train, held = _records(data, data_dir)
    number = len(train) // RECORDS_OF_A_USER
    own = torch.arange(number * RECORDS_OF_A_USER) % number
    unit: dict[str, Any] = {"owners": own, "users": number, "records_per_user": of_users}
    if of_users is None:
        own, unit = own[:number], {"records": number}
    options: dict[str, Any] = {"epsilon": epsilon, "device": device, "batch_size": number / 20, **unit}
    return _outcome(train.at(torch.arange(len(own))), held, steps=200, rate=1.0, seed=seed, units=number, **options)


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
def _records(data: str, data_dir: str | None) -> tuple[InMemory, InMemory]:
    """Training records and those held out, as features in a fixed random order."""
    inputs, targets = scattering_features(data, "dead-leaves", data_dir)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    held = min(HELD_OUT, len(inputs) // 5)
    return tuple(InMemory(inputs[some].float(), targets[some]) for some in (order[held:], order[:held]))


EXPERIMENTS = (mechanisms, users)

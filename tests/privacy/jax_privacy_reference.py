"""Reference values of jax_privacy: ``python -m tests.privacy.jax_privacy_reference``.

It needs jax_privacy, with jax and dp_accounting, and writes ``jax_privacy_reference.json``; the tests need only that.
At 50 random settings each, for ``test_correlated.py``: the banded coefficients and their error, what a record moves
with a banded inverse (cut off after some bands) and its error on sums with momentum, and ε of the event of the
amplified banded mechanism. For ``test_users.py``: how many users are drawn, how many different records of each enter,
and ε of the event.
"""

from __future__ import annotations

import json
import math
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
SETTINGS = 50
DELTA = 1e-5


def strategies() -> list[dict[str, Any]]:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    toeplitz = import_module("jax_privacy.matrix_factorization.toeplitz")
    drawn, rows = np.random.default_rng(17), list[dict[str, Any]]()
    for _ in range(SETTINGS):
        steps = int(drawn.integers(2, 300))
        bands, groups = int(drawn.integers(2, min(steps, 20) + 1)), int(drawn.integers(1, steps + 1))
        momentum = float(np.round(drawn.uniform(0, 0.95), 3))
        coefficients = toeplitz.optimize_banded_toeplitz(n=steps, bands=bands)
        error = toeplitz.per_query_error(strategy_coef=coefficients, n=steps)
        # The inverse of the square root of the matrix of sums, by jax_privacy's own coefficients, cut off.
        cut_off = toeplitz.optimal_max_error_noising_coefs(bands)
        matrix = toeplitz.inverse_coef(toeplitz.pad_coefs_to_n(cut_off, steps))
        moved = toeplitz.minsep_sensitivity_squared(matrix, min_sep=groups, n=steps, skip_checks=True)
        workload = np.cumsum(momentum ** np.arange(steps))
        inverse_error = toeplitz.per_query_error(noising_coef=cut_off, n=steps, workload_coef=workload)
        rows.append(
            {
                "steps": steps,
                "bands": bands,
                "groups": groups,
                "momentum": momentum,
                "coefficients": [float(value) for value in coefficients[:4]],
                "error": math.sqrt(float(error.mean())),
                "moved": math.sqrt(float(moved)),
                "inverse_error": math.sqrt(float(inverse_error.mean())),
            }
        )
    return rows


def events() -> list[dict[str, Any]]:
    accounting = import_module("jax_privacy.experimental.accounting")
    drawn, rows = np.random.default_rng(18), []
    for _ in range(SETTINGS):
        bands, steps = int(drawn.integers(2, 40)), int(drawn.integers(2, 400))
        probability, sigma = (float(np.round(drawn.uniform(*limits), 3)) for limits in ((0.02, 1), (0.8, 6)))
        event = accounting.amplified_bandmf_event(
            noise_multiplier=sigma, iterations=steps, num_bands=bands, sampling_prob=probability
        )
        epsilon = epsilon_of(event)
        rows.append(
            {"steps": steps, "bands": bands, "probability": probability, "noise_multiplier": sigma, "epsilon": epsilon}
        )
    return rows


def epsilon_of(event: Any) -> float:
    accountant = import_module("dp_accounting.pld").PLDAccountant(value_discretization_interval=1e-3)
    return float(accountant.compose(event).get_epsilon(DELTA))


def users() -> list[dict[str, Any]]:
    """Users by Poisson sampling, of whom the i-th has 1 + i % ``most`` records, and K of them a place in each step."""
    accounting = import_module("jax_privacy.experimental.accounting")
    selection = import_module("jax_privacy.batch_selection")
    drawn, rows = np.random.default_rng(19), []
    for seed in range(SETTINGS):
        held, most, per_user = (int(drawn.integers(*limits)) for limits in ((20, 80), (1, 12), (1, 9)))
        batch, steps = int(drawn.integers(1, held)), int(drawn.integers(20, 120))
        sigma = float(np.round(drawn.uniform(1.5, 8), 3))
        counts = 1 + np.arange(held) % most
        owners = np.repeat(np.arange(held), counts)
        base = selection.CyclicPoissonSampling(sampling_prob=batch / held, iterations=steps)
        strategy = selection.UserSelectionStrategy(base, per_user)
        num_drawn, different = 0, dict[int, int]()  # of a user by the number of records held
        for chosen in strategy.batch_iterator(owners, seed):
            num_drawn += len(chosen)
            for row in chosen:
                entered = len(set(row.tolist()))
                assert different.setdefault(int(counts[owners[row[0]]]), entered) == entered
        event = accounting.dpsgd_event(noise_multiplier=sigma, iterations=steps, sampling_prob=batch / held)
        rows.append(
            {
                "users": held,
                "most": most,
                "records_per_user": per_user,
                "batch": batch,
                "steps": steps,
                "noise_multiplier": sigma,
                "drawn": num_drawn,
                "different": [different.get(count + 1, 0) for count in range(most)],
                "epsilon": epsilon_of(event),
            }
        )
    return rows


def main() -> None:
    versions = {name: metadata.version(name) for name in ("jax-privacy", "jax", "dp-accounting", "numpy")}
    found = {"versions": versions, "delta": DELTA, "strategies": strategies(), "events": events(), "users": users()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

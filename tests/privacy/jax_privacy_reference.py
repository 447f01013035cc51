"""Reference values of jax_privacy for ``test_correlated.py``: ``python -m tests.privacy.jax_privacy_reference``.

It needs jax_privacy, with jax and dp_accounting, and writes ``jax_privacy_reference.json``; the tests need only that.
At 50 random settings each: the banded coefficients and their error, what a record moves with a banded inverse (cut off
after some bands) and its error on sums with momentum, and ε of the event of the amplified banded mechanism.
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
    pld = import_module("dp_accounting.pld")
    drawn, rows = np.random.default_rng(18), []
    for _ in range(SETTINGS):
        bands, steps = int(drawn.integers(2, 40)), int(drawn.integers(2, 400))
        probability, sigma = (float(np.round(drawn.uniform(*limits), 3)) for limits in ((0.02, 1), (0.8, 6)))
        accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
        accountant.compose(
            accounting.amplified_bandmf_event(
                noise_multiplier=sigma, iterations=steps, num_bands=bands, sampling_prob=probability
            )
        )
        epsilon = float(accountant.get_epsilon(DELTA))
        rows.append(
            {"steps": steps, "bands": bands, "probability": probability, "noise_multiplier": sigma, "epsilon": epsilon}
        )
    return rows


def main() -> None:
    versions = {name: metadata.version(name) for name in ("jax-privacy", "jax", "dp-accounting", "numpy")}
    found = {"versions": versions, "delta": DELTA, "strategies": strategies(), "events": events()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

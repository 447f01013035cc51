"""A first private training run, on MNIST where it is on this machine and otherwise on the digits that ship with it.

``make demo`` runs this. It takes about a minute, and leaves a run folder with a report that any browser opens.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

import lehr
from lehr.data import catalogue, load
from lehr.data.catalogue import CATALOGUE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo/run"), help="made anew (default: demo/run)")
    parser.add_argument("--data-dir", type=Path, help="where MNIST is, if not in one of the usual places")
    given = parser.parse_args()
    shutil.rmtree(given.directory, ignore_errors=True)
    has_mnist = catalogue.find_copy(CATALOGUE["mnist"], given.data_dir) is not None
    torch.manual_seed(0)  # of the first weights; the noise has no seed
    if has_mnist:
        network, data, epsilon, delta = "paper_cnn", load("mnist", given.data_dir), 3.0, 1e-5
        batch, steps = 512, 300
    else:
        network, data, epsilon, delta = "small_cnn", load("digits"), 8.0, 1e-4
        batch, steps = 128, 300
    run = lehr.fit(
        network,
        data,
        method="dpsgd",
        epsilon=epsilon,
        delta=delta,
        expected_batch_size=batch,
        steps=steps,
        settings_chosen_on="fixed",
        directory=given.directory,
    )
    assert run.certificate is not None
    print(f"{data.name}: {run.accuracy:.1%} of the test images, at a proven ε of {run.certificate.epsilon:.3g}")
    print(f"The report, for a browser: {(given.directory / 'report.html').resolve()}")


if __name__ == "__main__":
    main()

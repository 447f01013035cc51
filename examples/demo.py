"""A first private training run, on the digits that ship with Lehr.

``make demo`` runs this. It takes about a minute, and leaves a run folder with a report that any browser opens.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import lehr
from lehr.data import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo/run"), help="made anew (default: demo/run)")
    given = parser.parse_args()
    shutil.rmtree(given.directory, ignore_errors=True)
    data = load("digits")
    run = lehr.fit(
        None,
        data,
        recipe="auto",
        epsilon=3.0,
        delta=1e-4,
        settings_chosen_on="fixed",
        directory=given.directory,
        seed=0,  # of the first weights; the noise has no seed
    )
    network = {"network": "scattering_linear", "in_channels": 1, "image_side": 8}
    with tempfile.TemporaryDirectory() as folder:
        plain = lehr.fit(
            data=data,
            config=lehr.RunConfig.of(model=network),
            method="plain-sgd",
            batch_size=128,
            steps=400,
            directory=Path(folder) / "run",
            quiet=True,
        )
        run.write_report(baseline=plain)  # the digits are public: their accuracy without privacy may be shown
    assert run.certificate is not None
    print(f"{data.name}: {run.accuracy:.1%} of the test images, at a proven ε of {run.certificate.epsilon:.3g}")
    print(f"Without privacy, the same network: {plain.accuracy:.1%}")
    print(f"The report, for a browser: {(given.directory / 'report.html').resolve()}")


if __name__ == "__main__":
    main()

"""Figure 4 of ADADP (Xu et al. 2020), on MNIST: what each part does, and what the bounds learn.

Figure 4c compares √E′, from which ADADP takes its bounds, with the gradients that it stands for; Figure 4d shows how
the noise of the coordinates falls. Both look at a run of the published form, at gradients without noise: nobody could
be promised anything for that, and MNIST needs no promise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lehr.papers.adadp_curves import DELTA, NOISES, STEPS, ways_on_mnist
from lehr.papers.adadp_runs import (
    PAPER,
    RECORDS,
    Setting,
    Way,
    mean_curve,
    on_digits,
    on_mnist,
    seeds_of,
)
from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job, Measurement, Training
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.reports.chart import Chart, Line

QUANTILES = (0.1, 0.5, 0.9, 0.99)
BOUND_SCALE = 1.2  # the paper's β
PARTS = ("ADADP, published", "ADADP, proven", "ADAL", "ADAN")


# Looking at a run


def learnt(*, device: str | None, data_dir: str | None, job: Mapping[str, Any], at: Sequence[int]) -> dict[str, Any]:
    """What a run of the published form knows after so many steps, in quantiles over the coordinates."""
    import torch

    from lehr import data, networks
    from lehr.data import Preparation
    from lehr.games.overheard import overheard
    from lehr.methods import by_name
    from lehr.training.fit import fit

    known = data.load(job["data"], data_dir=data_dir)
    name, arguments = job["network"]
    watching = _Watching(at=at, noise_multiplier=job["noise_multiplier"], batch=job["expected_batch_size"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = networks.build(name, **arguments)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            model,
            known,
            preparation=Preparation(),
            method=overheard(by_name.named("adadp", accounting="published"), watching),
            noise_multiplier=job["noise_multiplier"],
            expected_batch_size=job["expected_batch_size"],
            steps=max(at),
            delta=DELTA,
            private_pca=job["private_pca"],
            device=device,
            evaluate_every=max(at),
            directory=Path(folder) / "run",
            silent=True,
            checkpoint_seconds=3600,
        )
    return {"at": watching.found}


class _Watching:
    """Hears every sum before and after its noise, and keeps quantiles of some."""

    def __init__(self, *, at: Sequence[int], noise_multiplier: float, batch: float) -> None:
        self._at, self._noise_multiplier, self._batch = frozenset(at), noise_multiplier, batch
        self._step = 0
        self.found: dict[str, Any] = {}

    def __call__(self, private: Any, released: Any) -> None:
        self._step += 1
        if self._step in self._at:
            self.found[str(self._step)] = self._told(private, released)

    def _told(self, private: Any, released: Any) -> dict[str, Any]:
        import torch

        whole = torch.cat([value.flatten().double() / self._batch for value in private.values.values()]).abs()
        stds = [torch.zeros_like(value).double() + released.std_of(name) for name, value in released.values.items()]
        noise = torch.cat([std.flatten() for std in stds])
        roots = noise / (BOUND_SCALE * self._noise_multiplier * noise.numel() ** 0.5)
        levels = torch.tensor(QUANTILES, dtype=torch.float64, device=noise.device)
        is_local = bool(noise.min() < noise.max())
        together = torch.stack([whole, roots])
        return {
            "is_local": is_local,  # otherwise the flat clip is in use, and the roots mean nothing
            "gradients": torch.quantile(whole, levels).tolist(),
            "roots": torch.quantile(roots, levels).tolist(),
            "noise": torch.quantile(noise, levels).tolist(),
            "correlation": float(torch.corrcoef(together)[0, 1]) if is_local else None,
            "share_below_ten": float((noise < 10).double().mean()),
        }


# The figure


def _setting(size: Size) -> Setting:
    noise, components = NOISES[0]
    made = on_digits if size.is_quick else on_mnist
    return made(noise=noise, components=components, delta=DELTA)


def _ways(size: Size) -> list[Way]:
    return [way for way in ways_on_mnist(60 if size.is_quick else STEPS) if way.name in PARTS]


def _runs(way: Way, size: Size) -> list[Training]:
    every = way.steps // 20
    return [_setting(size).job(way, seed, evaluate_every=every) for seed in seeds_of(size, usual=3)]


def _look(size: Size) -> Measurement:
    setting = _setting(size)
    job = {
        "data": setting.data,
        "network": setting.network,
        "noise_multiplier": setting.noise_multiplier,
        "expected_batch_size": setting.batch,
        "private_pca": setting.components,
    }
    at = [10, 40] if size.is_quick else [100, 1_000]
    return Measurement(function="adadp_prior:learnt", arguments={"job": job, "at": at})


def _figure4_jobs(size: Size) -> list[Job]:
    return [_look(size), *(job for way in _ways(size) for job in _runs(way, size))]


def _figure4(outcomes: Outcomes, size: Size) -> Shown:
    found = {way.name: outcomes.of_all([*_runs(way, size)]) for way in _ways(size)}
    look = _look(size)
    return Shown(
        tables=(_parts(found, size), _what_is_learnt(outcomes.of(look), look.arguments["at"])),
        charts=(_chart(found, size),) if any(found.values()) else (),
    )


def _parts(found: Mapping[str, list[Outcome]], size: Size) -> Table:
    setting, steps = _setting(size), _ways(size)[0].steps
    return Table(
        title=f"Figure 4a, {setting.title}: accuracy after {steps:,} steps, σ* {setting.noise_multiplier:g}",
        columns=(Column(title="method"), Column(title="ours", kind="percent"), Column(title="what differs")),
        rows=tuple(
            (way.name, measured([run["accuracy"] for run in found[way.name]]), way.differs or None)
            for way in _ways(size)
        ),
        notes=("In the paper ADAN is above ADAL, and ADADP above both. The figure's numbers are not printed.",),
    )


def _what_is_learnt(found: Outcome | None, at: Sequence[int]) -> Table:
    """Figures 4c and 4d in numbers."""
    rows = [row for steps in at for row in _learnt_rows(steps, None if found is None else found["at"].get(str(steps)))]
    return Table(
        title="Figures 4c and 4d: gradients, √E′ and the noise of the coordinates, ADADP as published",
        columns=(
            Column(title="after", kind="count"),
            Column(title="what"),
            *(Column(title=f"{100 * level:g} %", kind="number", digits=5) for level in QUANTILES),
        ),
        rows=tuple(rows),
        notes=() if found is None else tuple(_said(steps, told) for steps, told in found["at"].items()),
    )


_KINDS = {"gradients": "mean of the clipped gradients, absolute", "roots": "√E′", "noise": "noise σᵢ"}


def _learnt_rows(steps: int, told: Mapping[str, Any] | None) -> list[tuple[Cell, ...]]:
    nothing = (None,) * len(QUANTILES)
    return [(steps, words, *(nothing if told is None else told[kind])) for kind, words in _KINDS.items()]


def _said(steps: str, told: Mapping[str, Any]) -> str:
    if not told["is_local"]:
        return f"After {steps} steps the flat clip is still in use, and √E′ is not."
    share, correlation = told["share_below_ten"], told["correlation"]
    return (
        f"After {steps} steps {share:.0%} of the σᵢ are below 10; √E′ and the gradients correlate by {correlation:.2f}."
    )


def _chart(found: Mapping[str, list[Outcome]], size: Size) -> Chart:
    setting = _setting(size)
    passes = setting.batch / RECORDS[setting.data]
    curves = {name: mean_curve(runs) for name, runs in found.items() if runs}
    return Chart(
        element="figure4-1",
        x_title="passes over the records",
        y_title="accuracy",
        x_format="",
        y_format=".0%",
        point="%{y:.2%}",
        has_markers=False,
        from_zero=False,
        lines=tuple(
            Line(name=name, x=[steps * passes for steps, _ in curve], y=[value for _, value in curve])
            for name, curve in curves.items()
        ),
    )


FIGURE4 = Experiment(
    paper=PAPER,
    name="figure4",
    title="What each part of ADADP does on MNIST, and what its bounds learn",
    about=(
        "ADAL has the learning rate of ADADP alone, and ADAN its noise alone, in the proven form. Figures 4c and 4d "
        "look at the published form, after 100 and 1,000 steps. Figure 4b, on CIFAR-10, stands by itself."
    ),
    jobs=_figure4_jobs,
    shown=_figure4,
)

"""One training run of a table, and what is kept of it.

The seed decides the first weights and which half of the test records acceptance looks at, so that jobs of one seed
form a pair. Draws and noise have keys of their own in every run.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import accounting, data, networks
from lehr.acceptance.energy import PublicEnergy
from lehr.data import DataSet, InMemory, Preparation
from lehr.data.private_pca import PrivatePCA
from lehr.errors import Diverged, InvalidValue
from lehr.events import NOTHING, Event, NonPrivate, composed, counted, together
from lehr.mechanism import Method
from lehr.methods import by_name
from lehr.papers import pretrained
from lehr.papers.job import Training
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.run_shape import PRIVATE, PUBLIC, Callback, End, Progress
from lehr.scoring import RECORDS_AT_ONCE, PublicScore
from lehr.trainee import diverged, evaluating
from lehr.training.ending import Run
from lehr.training.fit import a_device, fit

_AT_THE_END = 10**9  # steps: no run is as long, and its end is always scored


def train(job: Training, *, device: str | None, data_dir: str | None) -> dict[str, Any]:
    """What a run gave, as JSON. A run that diverges raises ``Diverged``."""
    begun = time.perf_counter()
    known, where = _loaded(job.data, data_dir), a_device(device)
    method = by_name.named(job.method, **job.settings)
    looks = isinstance(method.acceptance.energy, PublicEnergy)
    parts = parts_of(job, known, looks=looks)
    preparation = Preparation() if job.is_plain else known.preparation
    model = _built(job)
    if job.pretrained is not None:
        pretrained.fill(model, job.pretrained, seed=job.seed, device=where, data_dir=data_dir)
    scored = _Scored(parts.scored.to(where), partial(_prepared, preparation, where), known.num_classes)
    watching = _Watching(model, scored, every=job.evaluate_every)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(
            model,
            _first(known.train, job.records),
            records=job.records or known.records,
            num_classes=known.num_classes,
            preparation=preparation,
            data_name=known.name,
            test=parts.test,
            public=parts.public,
            declared=PRIVATE if job.simulated_batch_size is None else PUBLIC,
            method=method,
            **_planned(job, known),
            evaluate_every=None if parts.test is None else job.evaluate_every or _AT_THE_END,
            averaging=job.averaging,
            augmentation=job.augmentation,
            views=job.views,
            precision=job.precision,
            private_pca=job.private_pca,
            physical_batch=job.physical_batch,
            device=where,
            directory=Path(folder) / "run",
            network=(job.network[0], dict(job.network[1])),
            callbacks=(watching,) if parts.test is None else (),
            silent=True,
            checkpoint_seconds=3600,
        )
    told = watching.rows if parts.test is None else _rows(run)
    return {
        "accuracy": told[-1][2],
        "loss": told[-1][3],
        "per_class": scored.by_class(run.model),
        "candidates": run.end.step,
        "accepted": run.end.accepted,
        "ended": run.end.reason,
        "trajectory": told,
        **epsilons(run, method, job.private_pca),
        "parameters": sum(value.numel() for value in run.model.parameters() if value.requires_grad),
        "seconds": round(time.perf_counter() - begun, 1),
    }


class Parts(NamedTuple):
    """The test records of a run: for acceptance, for ``fit`` to score on, and those that the outcome is about."""

    public: InMemory | None
    test: InMemory | None  # none where acceptance saw what is scored on, which ``fit`` refuses to score
    scored: InMemory


def parts_of(job: Training, known: DataSet, *, looks: bool) -> Parts:
    """Which test records are for what; ``looks`` says whether acceptance looks at any."""
    whole = known.test
    if job.scored_on == "half":
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(job.seed))
        seen, scored = whole.at(order[: len(whole) // 2]), whole.at(order[len(whole) // 2 :])
        return Parts(seen if looks else None, scored, scored)
    if not looks:
        return Parts(None, whole, whole)
    if job.scored_on == "all":
        allowed = f"half or seen for {job.method}, whose acceptance looks at test records"
        raise InvalidValue("scored_on", allowed=allowed, given=job.scored_on)
    return Parts(whole, None, whole)


@cache
def _loaded(name: str, data_dir: str | None) -> DataSet:
    """Read once in a process."""
    return data.load(name, data_dir=data_dir)


def _first(records: InMemory, count: int | None) -> InMemory:
    return records if count is None else records.at(torch.arange(count))


def _built(job: Training) -> nn.Module:
    """The network with the first weights of the seed; torch's own generator is left as it was."""
    name, arguments = job.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        return networks.build(name, **arguments)


def _planned(job: Training, known: DataSet) -> dict[str, Any]:
    """The plan in its numbers; or one that stands in for it."""
    numbers = {
        "noise_multiplier": job.noise_multiplier,
        "expected_batch_size": job.expected_batch_size,
        "steps": job.steps,
        "delta": job.delta,
    }
    if job.simulated_batch_size is None:
        return numbers
    if job.noise_multiplier is None:
        raise InvalidValue("noise_multiplier", allowed="given where a plan is simulated", given=None)
    plan = Plan(
        noise_multiplier=job.noise_multiplier,
        expected_batch_size=job.expected_batch_size,
        records=job.records or known.records,
        steps=job.steps,
        delta=job.delta,
    )
    return {"plan": simulate(plan, expected_batch_size=job.simulated_batch_size)}


def _prepared(preparation: Preparation, device: torch.device, inputs: Any) -> Tensor:
    return preparation.prepared(inputs.to(device))


# --- How good it is -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Scored:
    """The records that an outcome is about, on the device, and how a network sees them."""

    records: InMemory
    prepare: Callable[[Any], Tensor]
    num_classes: int

    def row(self, model: nn.Module, *, step: int, accepted: int) -> list[Any]:
        """A row of a trajectory."""
        loss_fn = partial(cross_entropy, reduction="none")
        with evaluating(model):
            found = PublicScore(records=self.records, loss_fn=loss_fn, prepare=self.prepare).score(model)
        return _row(step, accepted, found.accuracy, found.loss)

    def by_class(self, model: nn.Module) -> list[float | None]:
        """The share of each class that is classified rightly; nothing where there is no record of it."""
        targets = self.records.targets
        right = (self._labels(model) == targets).double()
        every, found = (
            torch.bincount(targets, weights=weights, minlength=self.num_classes).tolist()
            for weights in (torch.ones_like(right), right)
        )
        return [share / count if count else None for share, count in zip(found, every, strict=True)]

    def _labels(self, model: nn.Module) -> Tensor:
        with evaluating(model), torch.no_grad():
            parts = torch.split(self.records.inputs, RECORDS_AT_ONCE)
            return torch.cat([model(self.prepare(part)).argmax(dim=1) for part in parts])


class _Watching(Callback):
    """Scores the model as it trains, on records that acceptance sees too: nobody's fair score, but a paper's."""

    def __init__(self, model: nn.Module, scored: _Scored, *, every: int | None) -> None:
        self._model, self._scored, self._every = model, scored, every or _AT_THE_END
        self.rows: list[list[Any]] = []

    def stepped(self, progress: Progress) -> None:
        """Score where it is due."""
        if progress.step % self._every == 0:
            self._score(progress)

    def ended(self, end: End) -> None:
        """Score the end, unless that was done."""
        if not self.rows or self.rows[-1][0] != end.step:
            self._score(end)

    def _score(self, at: Progress | End) -> None:
        row = self._scored.row(self._model, step=at.step, accepted=at.accepted)
        if not math.isfinite(row[-1]):
            raise Diverged(diverged(f"the loss is {row[-1]}", at.step))
        self.rows.append(row)


def _rows(run: Run) -> list[list[Any]]:
    return [_row(row.step, row.accepted, row.accuracy, row.loss) for row in run.evaluations]


def _row(step: int, accepted: int, accuracy: float, loss: float) -> list[Any]:
    """Few digits: a table has tens of thousands of rows."""
    return [step, accepted, round(accuracy, 6), round(loss, 6)]


# --- What it costs --------------------------------------------------------------------------------------------------


def epsilons(run: Run, method: Method, private_pca: Mapping[str, Any] | None) -> dict[str, float | None]:
    """What is proven for all that the plan allowed, what the paper's rule says, and what was drawn, ex post.

    A simulation protects nobody, so that nothing is proven; what its own noise would be worth has a name of its own.
    """
    names = ("epsilon_proven", "epsilon_published", "epsilon_of_candidates_drawn")
    if not method.is_private:
        return dict.fromkeys(names)
    if run.promises_nothing is not None:
        return {**dict.fromkeys(names), "epsilon_simulated": _or_none(run.proven.epsilon)}
    plan = run.plan
    beforehand = PrivatePCA.from_json(private_pca).event() if private_pca else NOTHING
    drawn = together(beforehand, plan.events(0, run.end.step))
    seen = _without_unproven(together(beforehand, plan.events(0, plan.stops_at_accepted or plan.steps)))
    about: dict[str, Any] = {"delta": plan.delta, "adjacency": plan.adjacency}
    is_proven = math.isfinite(run.proven.epsilon)
    found = (
        run.proven.epsilon,
        accounting.ACCOUNTANTS["rdp-mironov17"].epsilon(seen, **about),
        accounting.claim(drawn, **about).epsilon if is_proven else math.inf,
    )
    return {name: _or_none(value) for name, value in zip(names, found, strict=True)}


def _or_none(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _without_unproven(event: Event) -> Event:
    """What a paper counts: not what it looked at without noise."""
    return composed({atom: count for atom, count in counted(event).items() if not isinstance(atom, NonPrivate)})

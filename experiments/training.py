"""One training run of a table, and what is kept of it.

The seed decides the first weights and which half of the test records acceptance looks at, so that jobs of one seed
form a pair. Draws and noise have keys of their own in every run.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.experiment import Training
from experiments.networks import build
from lehr import accounting, data, validate
from lehr.acceptance.proposal import PublicEnergy
from lehr.accounting.events import NOTHING, Event, NonPrivate, composed, counted, together
from lehr.data import DataSet, InMemory, Preparation, catalogue
from lehr.data.private_pca import PrivatePCA
from lehr.errors import Diverged, InvalidValue
from lehr.files import atomic
from lehr.methods.dpsgd import plain_sgd
from lehr.planning.plan import PRIVATE, PUBLIC
from lehr.run.evaluation import RECORDS_AT_ONCE, PublicScore
from lehr.run.mechanism import Method
from lehr.run.shape import Callback, End, Progress
from lehr.run.train_state import diverged, evaluating
from lehr.schedules import Cosine
from lehr.training.ending import Run
from lehr.training.fit import fit
from lehr.training.prepare import build_method, check_device

_AT_THE_END = 10**9  # steps: no run is as long, and its end is always scored


def train(job: Training, *, device: str | None, data_dir: str | None) -> dict[str, Any]:
    """What a run gave, as JSON. A run that diverges raises ``Diverged``."""
    began, config = time.perf_counter(), job.config
    known, where = _loaded(str(config.data.name), data_dir), check_device(device)
    method = build_method(config)
    parts = parts_of(job, known, looks=isinstance(method.acceptance.energy, PublicEnergy))
    preparation = Preparation() if job.is_plain else known.preparation
    model = _seeded(str(config.model.network), {k: v for k, v in config.model.items() if k != "network"}, job.seed)
    if job.pretrained is not None:
        fill(model, job.pretrained, seed=job.seed, device=where, data_dir=data_dir)
    scored = _Scored(parts.scored.to(where), partial(_prepared, preparation, where), known.num_classes)
    every = config.training.evaluate_every or _AT_THE_END
    watching = _Watching(model, scored, every=every)
    evaluated = {"evaluate_every": None if parts.test is None else every}
    count = config.data.records
    with tempfile.TemporaryDirectory() as folder:
        run = fit(
            model,
            known.train if count is None else known.train.at(torch.arange(count)),
            config=config.with_tables(training={**config.training, **evaluated}),
            records=count or known.records,
            num_classes=known.num_classes,
            preparation=preparation,
            test=parts.test,
            public=parts.public,
            declared=PRIVATE if config.privacy.simulated_batch_size is None else PUBLIC,
            device=where,
            directory=Path(folder) / "run",
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
        **epsilons(run, method, config.privacy.private_pca),
        "parameters": sum(value.numel() for value in run.model.parameters() if value.requires_grad),
        "seconds": round(time.perf_counter() - began, 1),
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
        allowed = f"half or seen for {job.config.method.name}, whose acceptance looks at test records"
        raise InvalidValue("scored_on", allowed=allowed, given=job.scored_on)
    return Parts(whole, None, whole)


@cache
def _loaded(name: str, data_dir: str | None) -> DataSet:
    """Read once in a process."""
    return data.load(name, data_dir=data_dir)


def _seeded(network: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """The network with the first weights of the seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(network, **arguments)


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

    def __init__(self, model: nn.Module, scored: _Scored, *, every: int) -> None:
        self._model, self._scored, self._every = model, scored, every
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


FOLDER = "pretrained"


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the part was trained: the network that it is a part of, public records, and plain SGD with a cosine."""

    part: str
    network: str
    arguments: Mapping[str, Any]
    data: str
    steps: int
    expected_batch_size: int
    learning_rate: float
    augmentation: str = "flip_crop"

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        validate.count(expected_batch_size=self.expected_batch_size)
        validate.positive(learning_rate=self.learning_rate)

    @classmethod
    def from_json(cls, shape: Mapping[str, Any]) -> Self:
        """The same from its words."""
        try:
            return cls(**shape)
        except TypeError as error:
            allowed = "an object with " + ", ".join(cls.__dataclass_fields__)
            raise InvalidValue("pretrained", allowed=allowed, given=sorted(shape)) from error

    def place(self, seed: int) -> Path:
        """Where the weights of one seed are kept."""
        said = json.dumps({**asdict(self), "seed": seed}, sort_keys=True)
        return catalogue.cache_folder() / FOLDER / f"{hashlib.sha256(said.encode()).hexdigest()[:24]}.safetensors"


def fill(
    model: nn.Module, pretrained: Mapping[str, Any], *, seed: int, device: torch.device, data_dir: str | None
) -> None:
    """Give the part of ``model`` its weights, and train them first where that was not done yet."""
    how = Pretraining.from_json(pretrained)
    taking, place = _part(model, how), how.place(seed)
    weights = _kept(place)
    if weights is None:
        weights = _trained(how, seed=seed, device=device, data_dir=data_dir)
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(place, save(weights))
    try:
        taking.load_state_dict(weights)
    except RuntimeError as error:
        allowed = f"a part of the same shape in both networks ({error})"
        raise InvalidValue("pretrained", allowed=allowed, given=how.part) from error


def _part(model: nn.Module, how: Pretraining) -> nn.Module:
    try:
        return model.get_submodule(how.part)
    except AttributeError as error:
        raise InvalidValue("pretrained", allowed="a part that the network has", given=how.part) from error


def _kept(place: Path) -> dict[str, Tensor] | None:
    """What is in the cache; a file that is damaged is as good as none."""
    try:
        return load(place.read_bytes())
    except (OSError, SafetensorError):
        return None


def _trained(how: Pretraining, *, seed: int, device: torch.device, data_dir: str | None) -> dict[str, Tensor]:
    """The weights of the part after plain training."""
    donor = _seeded(how.network, how.arguments, seed)
    schedule = Cosine(total_steps=how.steps)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            donor,
            data.load(how.data, data_dir=data_dir),
            declared=PUBLIC,
            method=plain_sgd(learning_rate=how.learning_rate, schedule=schedule),
            steps=how.steps,
            expected_batch_size=how.expected_batch_size,
            augmentation=how.augmentation,
            device=device,
            directory=Path(folder) / "run",
            evaluate_every=how.steps,
            silent=True,
            checkpoint_seconds=3600,
        )
    weights = _part(donor, how).state_dict()
    return {name: value.detach().cpu().contiguous() for name, value in weights.items()}

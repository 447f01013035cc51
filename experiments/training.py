"""One training run of a table, and its outcome.

The seed decides the initial weights and which half of the test records acceptance uses, so that jobs of one seed form a
pair. Sampling and noise have keys of their own in every run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.experiment import Training
from experiments.networks import build
from lehr import accounting, data
from lehr.acceptance.proposal import PublicEnergy
from lehr.accounting.events import NOTHING, NonPrivate, composed, counted, together
from lehr.data import DataSet, InMemory, Preparation, catalogue
from lehr.data.private_pca import PrivatePCA
from lehr.errors import Diverged, InvalidValue
from lehr.files import atomic
from lehr.methods.dpsgd import plain_sgd
from lehr.planning.plan import PRIVATE, PUBLIC
from lehr.run.evaluation import PublicScore, Score
from lehr.run.mechanism import Method
from lehr.run.shape import Callback, End, Evaluation, Progress
from lehr.run.train_state import diverged, evaluating
from lehr.schedules import Cosine
from lehr.training.ending import Run
from lehr.training.fit import fit
from lehr.training.prepare import build_method, check_device
from lehr.training.prior import DESCRIPTION, PriorSettings, make_prior

_NEVER = 10**9  # steps: no run is as long, and its end is always scored
load_data = cache(data.load)


def train(job: Training, *, device: str | None, data_dir: str | None) -> dict[str, Any]:
    """The outcome of a run, as JSON. A run that diverges raises ``Diverged``."""
    began, config = time.perf_counter(), job.config
    known, where, method = load_data(str(config.data.name), data_dir), check_device(device), build_method(config)
    parts = split_test_records(job, known, looks=isinstance(method.acceptance.energy, PublicEnergy))
    preparation = Preparation() if job.is_plain else known.preparation
    arguments = dict(config.model)
    model = build_seeded(arguments.pop("network"), arguments, job.seed)
    if job.pretrained is not None:
        load_pretrained(model, **job.pretrained, seed=job.seed, device=where, data_dir=data_dir)
    scorer = PublicScore(
        records=parts.scored.to(where),
        loss_fn=partial(cross_entropy, reduction="none"),
        prepare=lambda inputs: preparation.prepared(inputs.to(where)),  # type: ignore[union-attr]
        tells_classes=True,
    )
    every = config.training.evaluate_every or _NEVER
    watch = None if parts.test is not None else _ScoreWatch(model, scorer, every=every)
    evaluate_every = None if parts.test is None else every
    count = config.data.records
    prior = {} if job.prior is None else {"prior": prior_folder(job.prior, device=where)}
    run = fit_silently(
        model,
        known.train if count is None else known.train.at(torch.arange(count)),
        config=config.with_tables(training={**config.training, "evaluate_every": evaluate_every}),
        records=count or known.records,
        num_classes=known.num_classes,
        preparation=preparation,
        test=parts.test,
        public=parts.public,
        declared=PRIVATE if config.privacy.simulated_batch_size is None else PUBLIC,
        device=where,
        callbacks=() if watch is None else (watch,),
        **prior,
    )
    rows = [_row(each.step, each.accepted, each) for each in run.evaluations] if watch is None else watch.rows
    with evaluating(run.model):
        per_class = scorer.score(run.model).accuracy_by_class or ()
    return {
        "accuracy": rows[-1][2],
        "loss": rows[-1][3],
        "per_class": [*per_class],
        "candidates": run.end.step,
        "accepted": run.end.accepted,
        "ended": run.end.reason,
        "trajectory": rows,
        **epsilons(run, method, config.privacy.private_pca),
        "parameters": sum(value.numel() for value in run.model.parameters() if value.requires_grad),
        "seconds": round(time.perf_counter() - began, 1),
    }


def fit_silently(*arguments: Any, **options: Any) -> Run:
    """``fit`` without output, in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return fit(*arguments, directory=Path(folder) / "run", silent=True, checkpoint_seconds=3600, **options)


class Parts(NamedTuple):
    """The test records of a run: for acceptance, for ``fit`` to score on, and those that the outcome is about."""

    public: InMemory | None
    test: InMemory | None  # None where acceptance saw what is scored on, which ``fit`` refuses to score
    scored: InMemory


def split_test_records(job: Training, known: DataSet, *, looks: bool) -> Parts:
    """Divide the test records; ``looks`` says whether acceptance uses any."""
    whole = known.test
    if job.scored_on == "half":
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(job.seed))
        seen, scored = whole.at(order[: len(whole) // 2]), whole.at(order[len(whole) // 2 :])
        return Parts(seen if looks else None, scored, scored)
    if not looks:
        return Parts(None, whole, whole)
    if job.scored_on == "all":
        allowed = f"half or seen for {job.config.method.name}, whose acceptance uses test records"
        raise InvalidValue("scored_on", allowed=allowed, given=job.scored_on)
    return Parts(whole, None, whole)


def build_seeded(network: str, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """A network with the initial weights of a seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(network, **arguments)


class _ScoreWatch(Callback):
    """Scores the model as it trains, on records that acceptance sees too: not a fair score, but a paper's."""

    def __init__(self, model: nn.Module, scorer: PublicScore, *, every: int) -> None:
        self._model, self._scorer, self._every = model, scorer, every
        self.rows: list[list[Any]] = []

    def stepped(self, progress: Progress) -> None:
        if progress.step % self._every == 0:
            self._score(progress)

    def ended(self, end: End) -> None:
        if not self.rows or self.rows[-1][0] != end.step:
            self._score(end)

    def _score(self, at: Progress | End) -> None:
        with evaluating(self._model):
            score = self._scorer.score(self._model)
        if not math.isfinite(score.loss):
            raise Diverged(diverged(f"the loss is {score.loss}", at.step))
        self.rows.append(_row(at.step, at.accepted, score))


def _row(step: int, accepted: int, score: Score | Evaluation) -> list[Any]:
    """A row of a trajectory, in few digits: a table has tens of thousands of rows."""
    return [step, accepted, round(score.accuracy or 0.0, 6), round(score.loss, 6)]


def epsilons(run: Run, method: Method, private_pca: Mapping[str, Any] | None) -> dict[str, float | None]:
    """The proven ε of all that the plan allowed, the paper's rule, and the ε of the candidates drawn, ex post.

    A simulation protects nobody, so nothing is proven; the ε of its own noise has a name of its own.
    """
    names = ("epsilon_proven", "epsilon_published", "epsilon_of_candidates_drawn")
    if not method.is_private:
        return dict.fromkeys(names)
    if run.promises_nothing is not None:
        return {**dict.fromkeys(names), "epsilon_simulated": _finite(run.proven.epsilon)}
    plan = run.plan
    setup = PrivatePCA.from_json(private_pca).event() if private_pca else NOTHING
    drawn = together(setup, plan.events(0, run.end.step))
    counts = counted(together(setup, plan.events(0, plan.stops_at_accepted or plan.steps)))
    # Papers do not count what they look at without noise.
    noisy = composed({atom: count for atom, count in counts.items() if not isinstance(atom, NonPrivate)})
    about: dict[str, Any] = {"delta": plan.delta, "adjacency": plan.adjacency}
    is_proven = math.isfinite(run.proven.epsilon)
    values = (
        run.proven.epsilon,
        accounting.ACCOUNTANTS["rdp-mironov17"].epsilon(noisy, **about),
        accounting.claim(drawn, **about).epsilon if is_proven else math.inf,
    )
    return {name: _finite(value) for name, value in zip(names, values, strict=True)}


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


# --- Pretrained parts -----------------------------------------------------------------------------------------------


def load_pretrained(
    model: nn.Module, *, part: str, seed: int, device: torch.device, data_dir: str | None, **how: Any
) -> None:
    """Give a part of ``model`` weights trained on public records; they are trained once and then cached.

    ``how`` has the arguments of ``pretrain``.
    """
    text = json.dumps({"part": part, **how, "seed": seed}, sort_keys=True)
    path = catalogue.cache_folder() / "pretrained" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.safetensors"
    try:
        target = model.get_submodule(part)
    except AttributeError as error:
        raise InvalidValue("pretrained", allowed="a part that the network has", given=part) from error
    try:
        weights = load(path.read_bytes())
    except (OSError, SafetensorError):  # not there, or damaged
        weights = pretrain(part=part, seed=seed, device=device, data_dir=data_dir, **how)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, save(weights))
    try:
        target.load_state_dict(weights)
    except RuntimeError as error:
        allowed = f"a part of the same shape in both networks ({error})"
        raise InvalidValue("pretrained", allowed=allowed, given=part) from error


def prior_folder(settings: Mapping[str, Any], *, device: torch.device) -> Path:
    """The folder of a prior with these settings. It is made once and then cached."""
    name = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:24]
    folder = catalogue.cache_folder() / "priors" / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for a process that is making it
        if not (folder / DESCRIPTION).exists():
            make_prior(PriorSettings(**settings), to=folder, device=device)
    return folder


def pretrain(
    *,
    part: str,
    network: str,
    arguments: Mapping[str, Any],
    data: str,
    steps: int,
    expected_batch_size: int,
    learning_rate: float,
    augmentation: str = "flip_crop",
    seed: int,
    device: torch.device,
    data_dir: str | None,
) -> dict[str, Tensor]:
    """The weights of the part of a network after plain SGD with a cosine schedule."""
    donor = build_seeded(network, arguments, seed)
    fit_silently(
        donor,
        load_data(data, data_dir),
        declared=PUBLIC,
        method=plain_sgd(learning_rate=learning_rate, schedule=Cosine(total_steps=steps)),
        steps=steps,
        expected_batch_size=expected_batch_size,
        augmentation=augmentation,
        device=device,
        evaluate_every=steps,
    )
    weights = donor.get_submodule(part).state_dict()
    return {name: value.detach().cpu().contiguous() for name, value in weights.items()}

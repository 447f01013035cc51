"""The final model alone: whether its losses are smaller on training records than on others.

Anybody who is given a model and some records can do this. It is by far the weakest attack: a privately trained model
shows next to nothing here. Where it certifies much, something is badly wrong.

If the run held out records, each by a coin, guesses about them certify ε with nothing assumed. Records from elsewhere,
such as test records, may differ from the training records for other reasons, and the bound says so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import networks, validate
from lehr.attacks.harness import best_number_of_guesses, bounds_from_guesses, joined
from lehr.auditing import Audit, Scores, bounds
from lehr.auditing.audit import roc_points
from lehr.auditing.bounds import check_confidence
from lehr.auditing.scores import Floats
from lehr.certificates.guarantee import claim_from_json
from lehr.certificates.released_model import read_weights
from lehr.data import InMemory, Preparation
from lehr.data.records import RecordSet
from lehr.data.split import Split
from lehr.errors import InvalidValue, StoreError
from lehr.gradients.batches import LossFn, call, each, one_each
from lehr.interfaces import Inputs
from lehr.planning.plan import RECORD, Plan
from lehr.privacy.rng import RunKey
from lehr.run.folder import RunFolder, read_config
from lehr.run.shape import RunFiles
from lehr.run.train_state import evaluating
from lehr.training.prepare import default_loss
from lehr.training.records import RunRecords, check_records

DESCRIPTION = "the final model alone: its losses on records that it was trained on, and on others"
INDEPENDENT = "scores of different records are as good as independent, though one model gave them all"
ONE_POPULATION = "the records trained on and the others are draws from one population"
SMALLEST_SIDE = 2

_AT_ONCE = 1000
_NO_NUMBER = 1e30  # for a loss that is not finite

Prepare: TypeAlias = Callable[[Inputs], Inputs]


def attack(
    model: nn.Module,
    members: InMemory,
    others: InMemory,
    *,
    claimed_epsilon: float,
    delta: float,
    loss_fn: LossFn | None = None,
    prepare: Prepare | None = None,
    reference: nn.Module | None = None,
    confidence: float = 0.95,
    subject: str = "a model",
) -> Audit:
    """Compare a claimed ε with the losses of a model on ``members``, which it was trained on, and on ``others``.

    A small loss speaks for a member; with a ``reference``, a model trained on neither, a loss that is small compared
    with the reference's. ``prepare`` maps inputs to what the model sees. The result depends on the members without
    noise, and is for their owner.
    """
    check_confidence(confidence=confidence)
    for name, side in (("members", members), ("others", others)):
        if len(side) < SMALLEST_SIDE:
            raise InvalidValue(name, allowed=f"{SMALLEST_SIDE} records or more", given=len(side))
    return _audit(
        Sides(members=members, others=others),
        partial(scores_of, model, reference=reference, loss_fn=loss_fn, prepare=prepare),
        subject=subject,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        confidence=confidence,
    )


def attack_run(
    directory: str | os.PathLike[str],
    data: object,
    *,
    test: object = None,
    public: object = None,
    model: nn.Module | None = None,
    loss_fn: LossFn | None = None,
    reference: nn.Module | None = None,
    confidence: float = 0.95,
    key: RunKey | None = None,
) -> Audit:
    """Attack the model of a finished run with the very records that it was given; others are refused.

    ``data``, ``test`` and ``public`` are what ``lehr.fit`` was given. If the run held out records, those are the
    others, and guesses decide; otherwise its test records are. ``model`` is needed if the run trained a network of your
    own; its weights are replaced, and it is left in evaluation mode. ``key`` makes a test repeatable.
    """
    check_confidence(confidence=confidence)
    config = read_config(Path(directory))
    if config["plan"] is not None and (unit := Plan.from_json(config["plan"]).unit) != RECORD:
        allowed = f"a run whose unit of privacy is a {RECORD}; an audit of its steps takes other units too"
        raise InvalidValue("run", allowed=allowed, given=f"a run whose unit is a {unit}")
    network = _load_model(Path(directory), config, model)
    records = check_records(
        data,
        records=config["data"]["records"],
        test=test,
        public=public,
        num_classes=config["data"]["num_classes"],
        task=config["data"].get("task"),
        preparation=Preparation.from_json(config["data"]["preparation"]),
        name=config["data"]["name"],
        dtype=next(network.parameters()).dtype,
    )
    claimed = claim_from_json("proven", config["claims"]["proven"])
    prepare = partial(each, records.preparation.prepared)
    return _audit(
        _sides_of_run(Path(directory), config, records),
        partial(scores_of, network, reference=reference, loss_fn=default_loss(loss_fn, records.task), prepare=prepare),
        subject=config["run"],
        claimed_epsilon=claimed.epsilon,
        delta=claimed.delta,
        confidence=confidence,
        key=key,
    )


def losses(model: nn.Module, records: InMemory, *, loss_fn: LossFn | None, prepare: Prepare | None) -> Floats:
    """The loss of each record in evaluation mode; cross entropy by default."""
    loss_fn = loss_fn or partial(cross_entropy, reduction="none")
    device = next(model.parameters()).device
    parts = []
    with evaluating(model), torch.no_grad():
        for first in range(0, len(records), _AT_ONCE):
            inputs, targets = records.batch(torch.arange(first, min(first + _AT_ONCE, len(records))))
            prepared = inputs if prepare is None else prepare(inputs)
            outputs = call(model, each(lambda leaf: leaf.to(device), prepared))
            parts.append(one_each(loss_fn(outputs, targets.to(device)), num_records=len(targets)).double().cpu())
    values: Floats = torch.cat(parts).nan_to_num(nan=_NO_NUMBER).clamp(-_NO_NUMBER, _NO_NUMBER).numpy()
    return values


def scores_of(
    model: nn.Module,
    records: InMemory,
    *,
    reference: nn.Module | None,
    loss_fn: LossFn | None,
    prepare: Prepare | None,
) -> Floats:
    """The negative loss of each record, relative to that of the ``reference``."""
    own = -losses(model, records, loss_fn=loss_fn, prepare=prepare)
    return own if reference is None else own + losses(reference, records, loss_fn=loss_fn, prepare=prepare)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """Records that were trained on, others, and, where a coin decided that, its probability of holding one out."""

    members: InMemory
    others: InMemory
    held_out_fraction: float = 0.0

    def fair(self, key: RunKey) -> tuple[InMemory, NDArray[np.bool_]]:
        """Records of both sides, and which are members: so many of the larger side are dropped that coins become fair.

        Duplicate records go to the same side together, and are left out: they have no coin of their own. The order of
        the others says nothing about their side.
        """
        is_member = np.repeat([True, False], [len(self.members), len(self.others)])
        whole = joined(self.members, self.others)
        contents = [bytes(content) for content in whole.contents()]
        # By content, so that neither the order nor what stays says where a record came from.
        order = np.array(sorted(range(len(contents)), key=contents.__getitem__))
        coins = key.uniforms_of((contents[index] for index in order), "canaries").numpy()
        odds = self.held_out_fraction / (1 - self.held_out_fraction)
        stays = coins < np.where(is_member[order], min(1.0, odds), min(1.0, 1 / odds))
        counts = Counter(contents)
        indices = order[stays & [counts[contents[index]] == 1 for index in order]]
        return whole.at(torch.from_numpy(indices)), is_member[indices]


def _audit(
    sides: Sides,
    score: Callable[[InMemory], Floats],
    *,
    subject: str,
    claimed_epsilon: float,
    delta: float,
    confidence: float,
    key: RunKey | None = None,
) -> Audit:
    scores = Scores(score(sides.members), score(sides.others))
    stated = {"delta": delta, "confidence": confidence}
    assumes = (INDEPENDENT,) if sides.held_out_fraction else (INDEPENDENT, ONE_POPULATION)
    by_rates = (bounds.clopper_pearson(scores, **stated), bounds.gaussian_tradeoff(scores, **stated))
    shown = tuple(replace(bound, assumes=(*bound.assumes, *assumes)) for bound in by_rates)
    if sides.held_out_fraction:
        records, is_member = sides.fair(key or RunKey.fresh())
        guesses = best_number_of_guesses(claimed_epsilon=claimed_epsilon, canaries=len(records), **stated)
        shown = (*bounds_from_guesses(score(records), is_member, guesses=guesses, **stated), *shown)
    return Audit(
        subject=subject,
        attack=DESCRIPTION,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        bounds=shown,
        members=len(scores.members),
        others=len(scores.others),
        runs=1,
        steps=0,  # none was observed
        roc=roc_points(scores),
        is_private=True,
    )


def _load_model(directory: Path, config: dict[str, Any], model: nn.Module | None) -> nn.Module:
    """The network of a run with its final weights."""
    described, files = config["model"], RunFiles(directory)
    if model is None and described["network"] is None:
        allowed = "given: the run trained a network of your own, whose code is not in its folder"
        raise InvalidValue("model", allowed=allowed, given=None)
    if not files.model.exists():
        raise StoreError(f"cannot attack the model of {directory}: the run has not finished")
    if model is None:
        with torch.random.fork_rng(devices=[]):  # its first weights are replaced
            model = networks.build(described["network"], **described["arguments"])
    try:
        model.load_state_dict(read_weights(files.model))
    except RuntimeError as error:
        raise InvalidValue("model", allowed="the network that the run trained", given=str(error)) from error
    return model.eval()


def _sides_of_run(directory: Path, config: dict[str, Any], records: RunRecords) -> Sides:
    """Which records were trained on, as the run's own folder has it."""
    files, training = RunFiles(directory), config["training"]
    if not files.key.exists():
        reason = "its key is gone, as it is after a release; use lehr.attacks.final_model.attack"
        raise StoreError(f"cannot tell which records were trained on in {directory}: {reason}")
    with RunFolder.open(directory) as folder:
        folder.check_same(config=folder.config, fingerprint=records.fingerprint)
    fraction = validate.non_negative(held_out_fraction=training["held_out_fraction"])
    if fraction:
        parts = records.with_held_out(Split.load(files.split))
        assert parts.held_out is not None
        return Sides(members=_in_memory(parts.private), others=_in_memory(parts.held_out), held_out_fraction=fraction)
    if records.test is None:
        raise InvalidValue("test", allowed="given, as to the run, where no records were held out", given=None)
    others = records.test
    if training["acceptance_fraction"] is not None:  # acceptance has seen the other part
        others = others.at(Split.load(files.split).private)
    return Sides(members=_in_memory(records.private), others=_in_memory(others))


def _in_memory(records: RecordSet) -> InMemory:
    if not isinstance(records, InMemory):
        raise InvalidValue("data", allowed="records that are held in memory", given=type(records).__name__)
    return records

"""The final model alone: whether it has smaller losses on the records that it was trained on than on others.

This is what anybody can do who is given a model and some records, and by far the weakest of the games: a model that was
trained privately shows next to nothing here. Where it certifies much, something is badly wrong.

A run that held out a part of its records is the better case: who was held out was decided by a coin for every record,
so that guesses about them certify ε with nothing assumed. Records from elsewhere, such as test records, may differ from
those trained on for other reasons than training, and then the bound says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import networks, validate
from lehr.auditing import Audit, LowerBound, Scores, clopper_pearson, gaussian_tradeoff
from lehr.auditing.audit import roc_points
from lehr.auditing.lower_bound import a_confidence
from lehr.auditing.scores import Floats
from lehr.data import InMemory, Preparation
from lehr.data.record_set import RecordSet
from lehr.data.split import Split
from lehr.errors import InvalidValue, StoreError
from lehr.games import guessing
from lehr.gradients.batches import LossFn, call, each, one_each
from lehr.interfaces import Inputs
from lehr.released_model import read_weights
from lehr.reports import run_claims
from lehr.rng import RunKey
from lehr.run_folder import RunFolder, read_config
from lehr.run_shape import RunFiles
from lehr.trainee import evaluating
from lehr.training.given_records import GivenRecords, given_records

GAME = "the final model alone: its losses on records that it was trained on, and on others"
INDEPENDENT = "scores of different records are as good as independent, though one model gave them all"
ONE_POPULATION = "the records trained on and the others are draws from one population"
SMALLEST_SIDE = 2

_AT_ONCE = 1000
_NO_NUMBER = 1e30  # for a loss that is not finite

Prepare: TypeAlias = Callable[[Inputs], Inputs]
Flags: TypeAlias = NDArray[np.bool_]


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
    """Hold a claimed ε against the losses of a model on ``members``, which it was trained on, and on ``others``.

    A small loss speaks for a member; with a ``reference``, a model that saw neither, a loss that is small beside the
    reference's. ``prepare`` is what the model sees of inputs. The result says something about the members, without
    noise, and is for their owner.
    """
    a_confidence(confidence=confidence)
    for name, side in (("members", members), ("others", others)):
        if len(side) < SMALLEST_SIDE:
            raise InvalidValue(name, allowed=f"{SMALLEST_SIDE} records or more", given=len(side))
    told = partial(_scores, model, reference=reference, loss_fn=loss_fn, prepare=prepare)
    scores = Scores(told(members), told(others))
    return _audit(
        scores,
        bounds=_by_rates(scores, assumes=(INDEPENDENT, ONE_POPULATION), delta=delta, confidence=confidence),
        subject=subject,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
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
    """Attack the model of a finished run with the very records that it was given: other ones are refused.

    ``data``, ``test`` and ``public`` are what ``lehr.fit`` was given. Where the run held out a part of its records,
    those are the others, and guesses decide; otherwise its test records are. ``model`` is needed where the run trained
    a network of your own; it is filled and left in evaluation. ``key`` is for tests.
    """
    a_confidence(confidence=confidence)
    config = read_config(Path(directory))
    network = _loaded(Path(directory), config, model)
    given = given_records(
        data,
        records=config["data"]["records"],
        test=test,
        public=public,
        num_classes=config["data"]["num_classes"],
        preparation=Preparation.from_json(config["data"]["preparation"]),
        name=config["data"]["name"],
        dtype=next(network.parameters()).dtype,
    )
    sides = _sides(Path(directory), config, given)
    claimed = run_claims.from_json("proven", config["claims"]["proven"])
    prepare = partial(each, given.preparation.prepared)
    told = partial(_scores, network, reference=reference, loss_fn=loss_fn, prepare=prepare)
    scores = Scores(told(sides.members), told(sides.others))
    stated = {"delta": claimed.delta, "confidence": confidence}
    if sides.held_out_fraction:
        pooled = sides.fair(key or RunKey.fresh())
        bounds: tuple[LowerBound, ...] = (
            *_by_guesses(pooled, told(pooled.records), claimed_epsilon=claimed.epsilon, **stated),
            *_by_rates(scores, assumes=(INDEPENDENT,), **stated),
        )
    else:
        bounds = _by_rates(scores, assumes=(INDEPENDENT, ONE_POPULATION), **stated)
    return _audit(scores, bounds=bounds, subject=config["run"], claimed_epsilon=claimed.epsilon, delta=claimed.delta)


def losses(model: nn.Module, records: InMemory, *, loss_fn: LossFn | None, prepare: Prepare | None) -> Floats:
    """The loss of each record, of the model as it is used; cross entropy where no other is given."""
    loss_fn = loss_fn or partial(cross_entropy, reduction="none")
    device = next(model.parameters()).device
    found = []
    with evaluating(model), torch.no_grad():
        for first in range(0, len(records), _AT_ONCE):
            inputs, targets = records.batch(torch.arange(first, min(first + _AT_ONCE, len(records))))
            seen = inputs if prepare is None else prepare(inputs)
            outputs = call(model, each(lambda leaf: leaf.to(device), seen))
            found.append(one_each(loss_fn(outputs, targets.to(device)), num_records=len(targets)).double().cpu())
    values: Floats = torch.cat(found).nan_to_num(nan=_NO_NUMBER).clamp(-_NO_NUMBER, _NO_NUMBER).numpy()
    return values


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """Records of which each was trained on by a fair coin of its own, in an order that says nothing about it."""

    records: InMemory
    is_member: Flags


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """Who was trained on, who was not, and, where a coin decided that, with which probability it was not."""

    members: InMemory
    others: InMemory
    held_out_fraction: float = 0.0

    def fair(self, key: RunKey) -> Pooled:
        """As many of the larger side as make it a fair coin for everybody who stays.

        Records that are there twice go the same way together, and are left out: they have no coin of their own.
        """
        is_member = np.repeat([True, False], [len(self.members), len(self.others)])
        whole = InMemory(
            torch.cat([self.members.inputs, self.others.inputs]), torch.cat([self.members.targets, self.others.targets])
        )
        contents = [bytes(content) for content in whole.contents()]
        # By content, so that neither the order nor what stays says where a record came from.
        order = np.array(sorted(range(len(contents)), key=contents.__getitem__))
        coins = key.uniforms_of((contents[place] for place in order), "canaries").numpy()
        odds = self.held_out_fraction / (1 - self.held_out_fraction)
        kept = coins < np.where(is_member[order], min(1.0, odds), min(1.0, 1 / odds))
        places = order[kept & _is_single([contents[place] for place in order])]
        return Pooled(records=whole.at(torch.from_numpy(places)), is_member=is_member[places])


def _is_single(ordered: list[bytes]) -> Flags:
    """Which of the ordered contents are there once."""
    same = np.array([one == other for one, other in pairwise(ordered)], dtype=bool)
    is_double: Flags = np.append(same, False) | np.append(False, same)
    return ~is_double


def _scores(
    model: nn.Module,
    records: InMemory,
    *,
    reference: nn.Module | None,
    loss_fn: LossFn | None,
    prepare: Prepare | None,
) -> Floats:
    own = -losses(model, records, loss_fn=loss_fn, prepare=prepare)
    return own if reference is None else own + losses(reference, records, loss_fn=loss_fn, prepare=prepare)


def _by_rates(
    scores: Scores, *, assumes: tuple[str, ...], delta: float, confidence: float
) -> tuple[LowerBound, LowerBound]:
    stated = {"delta": delta, "confidence": confidence}
    alone, gaussian = clopper_pearson.lower_bound(scores, **stated), gaussian_tradeoff.lower_bound(scores, **stated)
    return replace(alone, assumes=(*alone.assumes, *assumes)), replace(gaussian, assumes=(*gaussian.assumes, *assumes))


def _by_guesses(
    pooled: Pooled, scores: Floats, *, claimed_epsilon: float, delta: float, confidence: float
) -> tuple[LowerBound, LowerBound]:
    stated = {"delta": delta, "confidence": confidence}
    guesses = guessing.most_telling(claimed_epsilon=claimed_epsilon, canaries=len(scores), **stated)
    return guessing.bounds(scores, pooled.is_member, guesses=guesses, **stated)


def _audit(
    scores: Scores, *, bounds: tuple[LowerBound, ...], subject: str, claimed_epsilon: float, delta: float
) -> Audit:
    return Audit(
        subject=subject,
        game=GAME,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        bounds=bounds,
        members=len(scores.members),
        others=len(scores.others),
        runs=1,
        steps=0,  # of none was anything seen
        roc=roc_points(scores),
        is_private=True,
    )


def _loaded(directory: Path, config: dict[str, Any], model: nn.Module | None) -> nn.Module:
    """The network of a run with its last weights."""
    described = config["model"]
    if model is None and described["network"] is None:
        raise InvalidValue("model", allowed="given: the run trained a network of your own", given=None)
    files = RunFiles(directory)
    if not files.model.exists():
        raise StoreError(f"cannot attack the model of {directory}: the run has not finished")
    if model is None:
        with torch.random.fork_rng(devices=[]):  # its first weights are written over
            model = networks.build(described["network"], **described["arguments"])
    try:
        model.load_state_dict(read_weights(files.model))
    except RuntimeError as error:
        raise InvalidValue("model", allowed="the network that the run trained", given=str(error)) from error
    return model.eval()


def _sides(directory: Path, config: dict[str, Any], given: GivenRecords) -> Sides:
    """Who was trained on, as the run's own folder has it."""
    files, training = RunFiles(directory), config["training"]
    if not files.key.exists():
        reason = "its key is gone, as it is after a release; use lehr.games.final_model.attack"
        raise StoreError(f"cannot tell who was trained on in {directory}: {reason}")
    with RunFolder.open(directory) as folder:
        folder.refuse_other(config=folder.config, fingerprint=given.fingerprint)
    fraction = validate.non_negative(held_out_fraction=training["held_out_fraction"])
    if fraction:
        parts = given.with_held_out(Split.load(files.split))
        assert parts.held_out is not None
        return Sides(members=_held(parts.private), others=_held(parts.held_out), held_out_fraction=fraction)
    if given.test is None:
        allowed = "given, as to the run, where no records were held out: somebody must be compared with"
        raise InvalidValue("test", allowed=allowed, given=None)
    if training["acceptance_fraction"] is None:
        return Sides(members=_held(given.private), others=_held(given.test))
    kept = Split.load(files.split)  # what acceptance looked at has been of influence too
    return Sides(members=_held(given.private), others=_held(given.test.at(kept.private)))


def _held(records: RecordSet) -> InMemory:
    if not isinstance(records, InMemory):
        allowed = "records that are held in memory: all of them are looked at"
        raise InvalidValue("data", allowed=allowed, given=type(records).__name__)
    return records

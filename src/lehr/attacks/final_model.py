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
from lehr.privacy.rng import RunKey
from lehr.run.folder import RunFolder, read_config
from lehr.run.shape import RunFiles
from lehr.run.train_state import evaluating
from lehr.training.records import RunRecords, check_records

DESCRIPTION = "the final model alone: its losses on records that it was trained on, and on others"
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
    check_confidence(confidence=confidence)
    for name, side in (("members", members), ("others", others)):
        if len(side) < SMALLEST_SIDE:
            raise InvalidValue(name, allowed=f"{SMALLEST_SIDE} records or more", given=len(side))
    return _audit(
        Sides(members=members, others=others),
        partial(_scores, model, reference=reference, loss_fn=loss_fn, prepare=prepare),
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
    """Attack the model of a finished run with the very records that it was given: other ones are refused.

    ``data``, ``test`` and ``public`` are what ``lehr.fit`` was given. Where the run held out a part of its records,
    those are the others, and guesses decide; otherwise its test records are. ``model`` is needed where the run trained
    a network of your own; it is filled and left in evaluation. ``key`` is for tests.
    """
    check_confidence(confidence=confidence)
    config = read_config(Path(directory))
    network = _loaded(Path(directory), config, model)
    given = check_records(
        data,
        records=config["data"]["records"],
        test=test,
        public=public,
        num_classes=config["data"]["num_classes"],
        preparation=Preparation.from_json(config["data"]["preparation"]),
        name=config["data"]["name"],
        dtype=next(network.parameters()).dtype,
    )
    claimed = claim_from_json("proven", config["claims"]["proven"])
    prepare = partial(each, given.preparation.prepared)
    return _audit(
        _sides(Path(directory), config, given),
        partial(_scores, network, reference=reference, loss_fn=loss_fn, prepare=prepare),
        subject=config["run"],
        claimed_epsilon=claimed.epsilon,
        delta=claimed.delta,
        confidence=confidence,
        key=key,
    )


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
class Sides:
    """Who was trained on, who was not, and, where a coin decided that, with which probability it was not."""

    members: InMemory
    others: InMemory
    held_out_fraction: float = 0.0

    def fair(self, key: RunKey) -> tuple[InMemory, Flags]:
        """Records of both sides, and which are members: so many of the larger side that the coins become fair.

        Records that are there twice go the same way together, and are left out: they have no coin of their own. The
        order of the others says nothing about their side.
        """
        is_member = np.repeat([True, False], [len(self.members), len(self.others)])
        whole = joined(self.members, self.others)
        contents = [bytes(content) for content in whole.contents()]
        # By content, so that neither the order nor what stays says where a record came from.
        order = np.array(sorted(range(len(contents)), key=contents.__getitem__))
        coins = key.uniforms_of((contents[index] for index in order), "canaries").numpy()
        odds = self.held_out_fraction / (1 - self.held_out_fraction)
        kept = coins < np.where(is_member[order], min(1.0, odds), min(1.0, 1 / odds))
        counts = Counter(contents)
        indices = order[kept & [counts[contents[index]] == 1 for index in order]]
        return whole.at(torch.from_numpy(indices)), is_member[indices]


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


def _audit(
    sides: Sides,
    scores_of: Callable[[InMemory], Floats],
    *,
    subject: str,
    claimed_epsilon: float,
    delta: float,
    confidence: float,
    key: RunKey | None = None,
) -> Audit:
    scores = Scores(scores_of(sides.members), scores_of(sides.others))
    stated = {"delta": delta, "confidence": confidence}
    assumes = (INDEPENDENT,) if sides.held_out_fraction else (INDEPENDENT, ONE_POPULATION)
    by_rates = (bounds.clopper_pearson(scores, **stated), bounds.gaussian_tradeoff(scores, **stated))
    found = tuple(replace(bound, assumes=(*bound.assumes, *assumes)) for bound in by_rates)
    if sides.held_out_fraction:
        records, is_member = sides.fair(key or RunKey.fresh())
        guesses = best_number_of_guesses(claimed_epsilon=claimed_epsilon, canaries=len(records), **stated)
        found = (*bounds_from_guesses(scores_of(records), is_member, guesses=guesses, **stated), *found)
    return Audit(
        subject=subject,
        attack=DESCRIPTION,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        bounds=found,
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


def _sides(directory: Path, config: dict[str, Any], given: RunRecords) -> Sides:
    """Who was trained on, as the run's own folder has it."""
    files, training = RunFiles(directory), config["training"]
    if not files.key.exists():
        reason = "its key is gone, as it is after a release; use lehr.attacks.final_model.attack"
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

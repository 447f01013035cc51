"""A planned run, trained by this process alone, by the first of several, or by one that follows the first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lehr.clipping.unclipped import Unclipped
from lehr.distributed import Order, kind
from lehr.errors import InvalidValue
from lehr.loop import Share
from lehr.mechanism import added
from lehr.reports import certificate_file
from lehr.rng import RunKey
from lehr.run_shape import Callback, End, Evaluation
from lehr.training.ending import Run
from lehr.training.planned import Planned

_SPREAD = "spread"  # all are alike: whoever shards may do so now
NOT_COMPARED = ("budget", "claims", "created_on")  # the first rank's own, what follows from the rest, and the clock's


def trained(run: Planned, where: Path, *, resume: bool, callbacks: Sequence[Callback]) -> Run:
    """Train to the end, in a new folder or in that of a run that is resumed."""
    if run.ranks.total > 1 and run.trial_of is not None:
        allowed = "left out on several ranks: the trials of a search run on one process each"
        raise InvalidValue("trial_of", allowed=allowed, given=run.trial_of)
    if run.ranks.number:
        return _following(run)
    with run.ranks.leading():
        if run.ranks.total > 1:
            key = RunKey.fresh()
            run.ranks.refuse_others_than(_identity(run, key), key)
            run.ranks.tell(_SPREAD)
        _ = run.shards
        with run.resumed(where) if resume else run.begun(where) as folder:
            run.ranks.hand_out(folder.key)
            done = run.trained(folder, callbacks)
        run.ranks.finish(_outcome(done), {} if run.is_sharded else run.model.state_dict())
        return done


def _following(run: Planned) -> Run:
    ranks = run.ranks
    with ranks.following():
        ranks.answer(_identity(run, ranks.comparing_key()))
        ranks.told(_SPREAD)
        _ = run.shards
        key = ranks.key()
        share, told = run.share(key)
        ranks.answer(told)
        with torch.random.fork_rng(devices=[run.how.device] if run.how.device.type == "cuda" else []):
            if run.is_sharded:
                return _ended(run, run.follower(share, key).to_the_end())
            outcome = _followed_to_the_end(run, share, key)
        run.model.load_state_dict(ranks.final_weights(run.model.state_dict()))
        return _ended(run, outcome)


def _followed_to_the_end(run: Planned, share: Share, key: RunKey) -> dict[str, Any]:
    """Sum whatever the first rank asks for. Nothing is kept from one sum to the next, and no noise is ever drawn."""
    clipping = run.scored.method.clipping
    while isinstance(order := run.ranks.next_order(run.model), Order):
        randomness = key.at(order.step, order.attempt)
        places = run.mechanism.draw(len(share.private), randomness)
        clip = Unclipped() if order.is_raw else clipping.rule(order.clipping, order.step)
        run.ranks.give_back(added(share.parts(places, clip, randomness)))
    return order


def _identity(run: Planned, key: RunKey) -> dict[str, str]:
    """What must be the same on every rank, as keyed hashes: all that is written down about the run, and its records."""
    said = {name: value for name, value in run.config.items() if name not in NOT_COMPARED}
    said["is_sharded"] = run.is_sharded
    words: dict[str, object] = {"settings": said, "model": _in_order(run.model)}
    if run.is_sharded:  # each batch is gathered for by all ranks, who would wait for one another in vain
        words["physical_batch"] = run.physical_batch
    hashed = {name: key.fingerprint(json.dumps(value, sort_keys=True).encode()) for name, value in words.items()}
    return {**hashed, "records": run.scored.given.fingerprint(key)}


def _in_order(model: nn.Module) -> list[list[object]]:
    """Its layers and what they hold, in their order: tensors are sent without names, and places of noise follow it."""
    layers = [[name, type(layer).__name__, layer.training] for name, layer in model.named_modules()]
    held = [*model.named_parameters(), *model.named_buffers()]
    return [*layers, *([name, kind(value), list(value.shape), value.requires_grad] for name, value in held)]


def _outcome(done: Run) -> dict[str, Any]:
    """What the other ranks return. All of it is public."""
    certificate = None if done.certificate is None else certificate_file.to_json(done.certificate)
    end = {"step": done.end.step, "accepted": done.end.accepted, "reason": done.end.reason}
    return {
        "directory": str(done.directory),
        "end": {**end, "epsilon_spent": repr(done.end.epsilon_spent)},  # which may be infinite
        "evaluations": [row.to_json() for row in done.evaluations],
        "certificate": certificate,
    }


def _ended(run: Planned, outcome: dict[str, Any]) -> Run:
    end, certificate = outcome["end"], outcome["certificate"]
    return Run(
        directory=Path(outcome["directory"]),
        model=run.model,
        plan=run.plan,
        end=End(**{**end, "epsilon_spent": float(end["epsilon_spent"])}),
        evaluations=tuple(map(Evaluation.from_json, outcome["evaluations"])),
        certificate=None if certificate is None else certificate_file.from_json(certificate),
        proven=run.proven_claim,
        published=run.published_claim,
        promises_nothing=run.promises_nothing,
    )

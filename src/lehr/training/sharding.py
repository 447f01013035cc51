"""What can be trained with weights that are spread over the ranks, and how a rank that is not the first takes part."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lehr.acceptance.always import Always
from lehr.distributed import Ranks
from lehr.errors import Diverged, InvalidValue
from lehr.gradients.sharded import ShardedEngine
from lehr.interfaces import ClipRule, Taken
from lehr.loop import Share
from lehr.mechanism import Mechanism, Method, added
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.none import NoNoise
from lehr.rng import RunKey
from lehr.scoring import Scorer
from lehr.sharded import CHECKPOINT, FINITE, GATHER, SCORE, STATE, STEP, Shards, checkpoint_of
from lehr.trainee import Trainee
from lehr.training.how import How
from lehr.update.averaging import Averaging
from lehr.update.optimizers import OPTIMIZERS
from lehr.update.torch_optim import Update

AS_A_WHOLE = ("adafactor", "normalised-sgd")  # optimizers that look at a weight, or at all of them, as a whole
_A_WEIGHT = {"weight": torch.zeros(1)}
COORDINATE_BY_COORDINATE = tuple(name for name in OPTIMIZERS if name not in AS_A_WHOLE)


def refuse_unfit(method: Method, how: How, **left_out: object) -> None:
    """Refuse, before anything is spent, what needs more of the weights than a rank has, or of the records."""
    if not dist.is_available() or not dist.is_initialized():
        allowed = "left out in one process: weights are spread over those that torchrun starts"
        raise InvalidValue("sharded", allowed=allowed, given=True)
    if how.device.type == "cuda" and "nccl" not in dist.get_backend_config():
        raise InvalidValue("sharded", allowed="left out on GPUs without NCCL", given=dist.get_backend_config())
    _refuse_method(method)
    if how.precision != "as_model":
        raise InvalidValue("precision", allowed="as_model where weights are sharded", given=how.precision)
    if how.compiled:
        raise InvalidValue("compiled", allowed="left out where weights are sharded", given=how.compiled)
    for name, value in {"diagnostics": how.diagnostics, **left_out}.items():
        if value:
            raise InvalidValue(name, allowed="left out where weights are sharded", given=value)


def _refuse_method(method: Method) -> None:
    clipping, update = method.clipping, method.update
    if not isinstance(method.acceptance, Always):
        allowed = "one that takes every step where weights are sharded: no rank can go back alone"
        raise InvalidValue("method", allowed=allowed, given=method.name)
    if clipping.needs_coordinates or clipping.unproven is not None or clipping.start(_A_WEIGHT):
        allowed = "one that clips by norms and learns nothing where weights are sharded"
        raise InvalidValue("method", allowed=allowed, given=method.name)
    if type(method.noise) not in (IsotropicNoise, NoNoise):
        allowed = "one with the same noise on every coordinate where weights are sharded"
        raise InvalidValue("method", allowed=allowed, given=method.name)
    if not isinstance(update, Update) or update.optimizer not in COORDINATE_BY_COORDINATE:
        allowed = f"one of {', '.join(COORDINATE_BY_COORDINATE)} where weights are sharded"
        given = update.optimizer if isinstance(update, Update) else type(update).__name__
        raise InvalidValue("optimizer", allowed=allowed, given=given)


def spread_out(
    model: nn.Module, engine: ShardedEngine, ranks: Ranks, device: torch.device, *, clip: ClipRule, padding: Any
) -> Shards:
    """Leave each rank its rows of the weights, and run once on nobody. All ranks must do this at the same moment."""
    with ranks.side_by_side():
        shards = Shards(model, engine, ranks, device)
        gc.collect()  # what tried the whole model refers to itself, and would keep all of it until some later day
        engine.private_sum(clip, *padding)
        shards.bind()
    return shards


class Follower:
    """A rank that is not the first: it takes every step with it, and charges, writes and says nothing."""

    def __init__(
        self,
        shards: Shards,
        share: Share,
        mechanism: Mechanism,
        method: Method,
        averaging: Averaging,
        *,
        scorer: Scorer | None,
        key: RunKey,
    ) -> None:
        self._shards, self._share, self._mechanism, self._method = shards, share, mechanism, method
        self._scorer, self._key = scorer, key
        self._trainee = Trainee(shards.held, method, averaging)

    def to_the_end(self) -> dict[str, Any]:
        """Do as rank 0 says until it says how the run ended."""
        does: dict[str, Callable[[dict[str, Any]], None]] = {
            STATE: lambda told: self._trainee.go_on_from(self._shards.state(told)),
            STEP: self._step,
            SCORE: self._score,
            GATHER: self._give,
            FINITE: lambda told: self._shards.ranks.answer({"finite": self._is_finite()}),
        }
        while (told := self._shards.ranks.told(*does))["kind"] in does:
            does[told["kind"]](told)
        self._shards.put(self._trainee.weights())
        outcome: dict[str, Any] = told["outcome"]
        return outcome

    def _step(self, told: dict[str, Any]) -> None:
        """The step of ``Loop``, of which this rank moves its own rows."""
        trainee, mechanism, step = self._trainee, self._mechanism, told["step"]
        with self._shards.ranks.side_by_side():  # rank 0 is at work too, and would not hear what goes wrong
            clip = trainee.clip_rule(step)
            if clip.sensitivity != told["sensitivity"]:
                allowed = f"clipped to {told['sensitivity']} on every rank"
                raise InvalidValue("sum", allowed=allowed, given=clip.sensitivity)
            randomness = self._shards.at(self._key, step, told["attempt"])
            places = mechanism.draw(len(self._share.private), randomness)
            private = added(self._share.parts(places, clip, randomness))
            planned = told["planned_step"]
            released = mechanism.release(private, trainee.noise, planned_step=planned, randomness=randomness)
            trainee.propose(trainee.combined(released), divisor=mechanism.divisor, step=step)
            trainee.end_step(Taken(released=released, divisor=mechanism.divisor, is_accepted=True))

    def _score(self, told: dict[str, Any]) -> None:
        """Run the model on what rank 0 runs it on, so that it can gather its weights. The score is rank 0's to tell."""
        assert self._scorer is not None
        with self._shards.showing(self._trainee) as model:
            self._scorer.score(model, self._key.at(told["step"], told["attempt"]))

    def _give(self, told: dict[str, Any]) -> None:
        is_checkpoint = told["what"] == CHECKPOINT
        weights = checkpoint_of(self._trainee.weights())
        self._shards.give(self._trainee.checkpoint().tensors if is_checkpoint else weights)

    def _is_finite(self) -> bool:
        try:
            self._trainee.refuse_divergence()
        except Diverged:
            return False
        return True

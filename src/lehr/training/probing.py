"""What a step does to made-up records, as a hash: two programs that give other bits there are not one run."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lehr.acceptance.energy import PrivateChoice, PrivateEnergy
from lehr.asking import losses_of_each
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, call, leaves
from lehr.interfaces import ReleasedSum
from lehr.loop import Engine
from lehr.mechanism import Method
from lehr.trainee import evaluating
from lehr.training.given_records import GivenRecords
from lehr.training.looks import Look
from lehr.update.torch_optim import Updater


def probe(
    model: nn.Module,
    engine: Engine,
    method: Method,
    loss_fn: LossFn,
    *,
    look: Look,
    given: GivenRecords,
    size: int,
    held: nn.Module | None = None,
) -> str:
    """The bits of a clipped sum, of two updates and of a score, all at made-up weights.

    They follow the code of model, loss, views and optimizer, their settings, and every switch that rounds differently.
    ``held`` has the weights that this process holds, where that is not the model itself.
    """
    with torch.random.fork_rng(devices=[look.device] if look.device.type == "cuda" else []):
        found = _tried(model, engine, method, loss_fn, look=look, given=given, size=size, held=held or model)
    hashed = hashlib.blake2b(digest_size=16)
    for value in leaves(found):
        hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def is_known(method: Method) -> bool:
    """Whether every filling of a slot is Lehr's own, so that its settings are all written down.

    One that is not may have settings that nobody sees. A run with it repeats nothing: what it takes again, it pays for.
    """
    return all(map(_is_own, (method.clipping, method.noise, method.acceptance)))


def _is_own(filling: Any) -> bool:
    if not type(filling).__module__.startswith("lehr.") or not is_dataclass(filling):
        return False
    inner = [getattr(filling, field.name) for field in fields(filling)]
    return all(_is_own(part) for part in inner if is_dataclass(part))


def _tried(
    model: nn.Module,
    engine: Engine,
    method: Method,
    loss_fn: LossFn,
    *,
    look: Look,
    given: GivenRecords,
    size: int,
    held: nn.Module,
) -> list[Tensor]:
    like, made = given.like, torch.Generator().manual_seed(0)
    inputs = _made_up(like[0], size, 2, made).to(look.device)
    targets = _made_up(like[1], size, given.num_classes, made).to(look.device)
    before = {name: value.clone() for name, value in held.state_dict().items()}
    try:
        with torch.no_grad():
            for value in held.state_dict().values():
                if value.is_floating_point():
                    value.copy_(0.1 + torch.rand(value.shape, generator=made) / 2)
        torch.manual_seed(0)  # dropout, and whatever else draws by itself
        views = look.trained(inputs, torch.Generator(look.device).manual_seed(0))
        clip = method.clipping.rule(method.clipping.start(batches.trainable(held)), 0)
        total = engine.private_sum(clip, views, targets, torch.ones(size, dtype=torch.bool)).values
        updater = Updater(method.update, held)
        for step in range(2):
            updater.step(ReleasedSum(values=total), divisor=1.0, step=step)  # nobody's sum
        found = [*total.values(), *(parameter.detach().clone() for parameter in held.parameters())]
        with evaluating(model), torch.no_grad():
            found += [loss_fn(call(model, look.seen(inputs)), targets)]
            if isinstance(method.acceptance.energy, PrivateEnergy | PrivateChoice):
                weights = {name: value.detach() for name, value in model.named_parameters()}
                found += [losses_of_each(model, weights, loss_fn, look.seen(inputs), targets)]
    finally:
        held.load_state_dict(before)
    return found


def _made_up(like: Tensor, size: int, below: int, made: torch.Generator) -> Tensor:
    shape = (size, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=made).to(like.dtype)
    return torch.randint(256 if like.dtype == torch.uint8 else below, shape, generator=made).to(like.dtype)

"""The engine of a run, and what can be found out before anything is spent.

- ``engine_for``, ``sharded_engine_for``: compiled where that pays and works, and tried
- ``physical_batch_for``: the size of physical batches with the least work
- ``try_model``: refuse a model that does not take the records; it is run on zeros
- ``probe``: a hash of what a step does to made-up records; two programs that give other bits there are not one run
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor, nn

from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.data import InMemory
from lehr.errors import InvalidValue, LehrError
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, call, each, leaves
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import ShardedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.gradients.precision import PRECISIONS
from lehr.gradients.synthetic import SyntheticRecords
from lehr.interfaces import Clipping, ClipRule, Inputs, ReleasedSum
from lehr.optim.optimizers import Updater
from lehr.planning.plan import Plan
from lehr.privacy.clipping import ScheduledClip
from lehr.run.evaluation import PublicScore
from lehr.run.loop import Engine
from lehr.run.loss_oracle import losses_of_each
from lehr.run.mechanism import Method
from lehr.run.train_state import evaluating
from lehr.training.input_pipeline import InputPipeline
from lehr.training.public_plan import expected_steps
from lehr.training.records import RunRecords

AnyEngine = TypeVar("AnyEngine", GhostEngine, MaterialisedEngine, ShardedEngine)
RECORDS_WORTH_COMPILING = 500_000  # compiling takes about a minute
LARGEST_PHYSICAL_BATCH = 1024
MOST_COMPILED_RULES = 4
OWN_COST = (90.0, 128.0)  # of one physical batch, in records: on a CPU, on a GPU


def physical_batch_for(plan: Plan, device: torch.device, *, ranks: int = 1) -> int:
    """The size with the least work in it: padding on the one hand, what each batch costs by itself on the other.

    Of several ranks each has its share of a draw.

    >>> cpu = torch.device("cpu")
    >>> small = Plan(noise_multiplier=1.0, expected_batch_size=64, records=1464, steps=60, delta=1e-4)
    >>> large = Plan(noise_multiplier=1.0, expected_batch_size=2048, records=60_000, steps=1000, delta=1e-5)
    >>> physical_batch_for(small, cpu), physical_batch_for(large, cpu)
    (80, 712)
    """
    share = plan.expected_batch_size / ranks
    most = share + 4 * math.sqrt(share)
    sizes = range(8, min(LARGEST_PHYSICAL_BATCH, 8 * math.ceil(most / 8)) + 8, 8)
    return min(sizes, key=lambda size: _work(share, size, own_cost=OWN_COST[device.type == "cuda"]))


def _work(expected: float, size: int, *, own_cost: float) -> float:
    """The records run for one draw on average, each physical batch counted as so many more."""
    draws = poisson(expected)  # close to the law of a draw, and an upper bound on its spread
    fewest, most = int(draws.ppf(1e-6)), int(draws.ppf(1 - 1e-6)) + 1
    sizes = np.arange(fewest, most + 1)
    batches = np.maximum(1, np.ceil(sizes / size))
    return float((draws.pmf(sizes) * batches).sum() * (size + own_cost))


def is_worth_compiling(plan: Plan, clipping: Clipping) -> bool:
    """Whether a run is long enough, and its clip does not change too often to be compiled."""
    if rules_of(clipping, plan.steps) > MOST_COMPILED_RULES:
        return False
    return expected_steps(plan) * plan.expected_batch_size >= RECORDS_WORTH_COMPILING


def engine_for(
    model: nn.Module,
    loss_fn: LossFn,
    *,
    views: int,
    precision: str,
    compiled: bool,
    clipping: Clipping,
    padding: tuple[Inputs, Any, Tensor],
) -> tuple[Engine, str]:
    """An engine that has run once, on a batch of padding, before anything is charged; and how it runs, in words.

    Where torch cannot compile the step, it is run as it is, with a warning that says why.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    if clipping.needs_coordinates:
        if PRECISIONS[precision] is not None:
            allowed = "as_model for a clip that looks at coordinates"
            raise InvalidValue("precision", allowed=allowed, given=precision)
        return _try_engine(MaterialisedEngine(model, loss_fn, views=views), clip, padding), "in full, not compiled"
    settings: dict[str, Any] = {"views": views, "precision": precision}
    if compiled:
        try:
            engine = _try_engine(GhostEngine(model, loss_fn, **settings), clip, padding)
            return engine, "in full, not compiled" if engine.is_in_full else "compiled"
        except LehrError:
            raise
        except Exception as error:  # whatever a compiler, or the lack of one, may raise
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(f"the step is not compiled, and slower: {why[0]}", stacklevel=2)
    engine = _try_engine(GhostEngine(model, loss_fn, compiled=False, **settings), clip, padding)
    return engine, "in full, not compiled" if engine.is_in_full else "not compiled"


def sharded_engine_for(
    model: nn.Module, loss_fn: LossFn, *, views: int, clipping: Clipping, padding: tuple[Inputs, Any, Tensor]
) -> tuple[ShardedEngine, str]:
    """An engine for weights that will be spread out, tried while they are whole, on the CPU and on two records or more.

    The other engine is tried first: it looks closer at whether model and loss keep records apart.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    _try_engine(GhostEngine(model, loss_fn, views=views, compiled=False), clip, padding)
    return _try_engine(ShardedEngine(model, loss_fn, views=views), clip, padding), "sharded, not compiled"


def try_every_rule(clipping: Clipping, steps: int) -> None:
    """Refuse a schedule of the clip norm that leaves what a clip norm can be, before anything is spent."""
    if isinstance(clipping, ScheduledClip):
        for step in range(steps):
            clipping.rule({}, step)


def rules_of(clipping: Clipping, steps: int) -> int:
    """How many rules a schedule goes through, as far as that matters: each would be compiled by itself."""
    if not isinstance(clipping, ScheduledClip):
        return 1
    found = {clipping.rule({}, 0)}
    for step in range(1, steps):
        found.add(clipping.rule({}, step))
        if len(found) > MOST_COMPILED_RULES:
            break
    return len(found)


def _try_engine(engine: AnyEngine, clip: ClipRule, padding: tuple[Inputs, Any, Tensor]) -> AnyEngine:
    engine.private_sum(clip, *padding)
    inputs, targets, nobody = padding
    rows = [place % 2 for place in range(len(nobody))]
    records = SyntheticRecords(is_positive=True, is_wide=False).batch(inputs, num_images=len(nobody), rows=rows)
    made_up = engine.private_sum(clip, records, targets, torch.ones_like(nobody)).values
    if not any(bool(value.any()) for value in made_up.values()):
        reason = "the gradients of made-up records are all zero or not finite: a run would learn nothing but its noise"
        warnings.warn(reason, stacklevel=2)
    return engine


def nobody(given: RunRecords, size: int, device: torch.device) -> InMemory:
    """Records of the same shapes and types, with nothing of any record in them."""
    inputs, targets = (torch.zeros((size, *like.shape[1:]), dtype=like.dtype, device=device) for like in given.like)
    return InMemory(inputs, targets)


def padding(given: RunRecords, pipeline: InputPipeline, size: int) -> tuple[Inputs, Any, Tensor]:
    """A physical batch in which nobody is."""
    records = nobody(given, size, pipeline.device)
    views = pipeline.trained(each(torch.zeros_like, records.inputs), torch.Generator(pipeline.device))
    return views, records.targets, torch.zeros(size, dtype=torch.bool)


def try_model(
    model: nn.Module,
    *,
    loss_fn: LossFn,
    pipeline: InputPipeline,
    given: RunRecords,
    is_scored: bool,
    is_asked: bool = False,
) -> None:
    """Refuse a model that does not take the records, has too few outputs, or cannot be scored where it is to be."""
    _warn_about(model)
    records = nobody(given, 2, pipeline.device)
    with evaluating(model), torch.no_grad():
        shape = tuple(records.inputs.shape[1:])
        with _naming_errors("model", allowed=f"one that takes records of shape {shape}"):
            outputs = call(model, pipeline.seen(records.inputs))
        # A label without an output would stop the run at the first record that has it.
        has_labels = isinstance(outputs, Tensor) and outputs.ndim == 2 and records.targets.ndim == 1
        if has_labels and outputs.shape[1] < given.num_classes:
            allowed = f"one with {given.num_classes} outputs, one a class"
            raise InvalidValue("model", allowed=allowed, given=outputs.shape[1])
        with _naming_errors("loss_fn", allowed="one for the outputs of the model and the targets"):
            loss_fn(outputs, records.targets)
        if is_asked:
            weights = {name: value.detach() for name, value in model.named_parameters()}
            with _naming_errors("model", allowed="one whose losses can be computed record by record"):
                losses_of_each(model, weights, loss_fn, pipeline.seen(records.inputs), records.targets)
        if is_scored:
            PublicScore(records=records, loss_fn=loss_fn, prepare=pipeline.seen).score(model)


def _warn_about(model: nn.Module) -> None:
    """Warn about dropout layers in evaluation mode, and about weights in half precision."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 and not layer.training:
            warnings.warn(f"{name} drops nothing, for it is in evaluation mode: call model.train() first", stacklevel=3)
            break
    for name, value in model.named_parameters():
        if value.requires_grad and value.dtype in (torch.bfloat16, torch.float16):
            smallest = f"{torch.finfo(value.dtype).eps / 4:.1g}"
            lost = f"{name} is in {value.dtype}, which rounds steps below {smallest} of a weight to nothing"
            warnings.warn(f'{lost}: train model.float(), with precision="bfloat16" to be as fast', stacklevel=3)
            break


@contextmanager
def _naming_errors(name: str, *, allowed: str) -> Iterator[None]:
    try:
        yield
    except LehrError:
        raise
    except Exception as error:  # models and losses are the user's own code
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidValue(name, allowed=allowed, given=why[0]) from error


def probe(
    model: nn.Module,
    engine: Engine,
    method: Method,
    loss_fn: LossFn,
    *,
    pipeline: InputPipeline,
    given: RunRecords,
    size: int,
    local: nn.Module | None = None,
) -> str:
    """A hash of the bits of a clipped sum, of two updates and of a score, all at made-up weights.

    They follow the code of model, loss, views and optimizer, their settings, and every switch that rounds differently.
    ``local`` has the weights that this process holds, where that is not the model itself.
    """
    with torch.random.fork_rng(devices=[pipeline.device] if pipeline.device.type == "cuda" else []):
        found = _probe_values(model, engine, method, loss_fn, pipeline, given, size, local or model)
    hashed = hashlib.blake2b(digest_size=16)
    for value in leaves(found):
        hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def is_known(method: Method) -> bool:
    """Whether every component of the method is Lehr's own, so that its settings are all written down.

    One that is not may have settings that nobody sees. A run with it repeats nothing: what it takes again, it pays for.
    """
    return all(map(_is_own, (method.clipping, method.noise, method.acceptance)))


def _is_own(component: Any) -> bool:
    if not type(component).__module__.startswith("lehr.") or not is_dataclass(component):
        return False
    inner = [getattr(component, field.name) for field in fields(component)]
    return all(_is_own(part) for part in inner if is_dataclass(part))


def _probe_values(
    model: nn.Module,
    engine: Engine,
    method: Method,
    loss_fn: LossFn,
    pipeline: InputPipeline,
    given: RunRecords,
    size: int,
    local: nn.Module,
) -> list[Tensor]:
    like, made = given.like, torch.Generator().manual_seed(0)
    inputs = _made_up(like[0], size, 2, made).to(pipeline.device)
    targets = _made_up(like[1], size, given.num_classes, made).to(pipeline.device)
    before = {name: value.clone() for name, value in local.state_dict().items()}
    try:
        with torch.no_grad():
            for value in local.state_dict().values():
                if value.is_floating_point():
                    value.copy_(0.1 + torch.rand(value.shape, generator=made) / 2)
        torch.manual_seed(0)  # dropout, and whatever else draws by itself
        views = pipeline.trained(inputs, torch.Generator(pipeline.device).manual_seed(0))
        clip = method.clipping.rule(method.clipping.start(batches.trainable(local)), 0)
        total = engine.private_sum(clip, views, targets, torch.ones(size, dtype=torch.bool)).values
        updater = Updater(method.update, local)
        for step in range(2):
            updater.step(ReleasedSum(values=total), divisor=1.0, step=step)  # nobody's sum
        found = [*total.values(), *(parameter.detach().clone() for parameter in local.parameters())]
        with evaluating(model), torch.no_grad():
            found += [loss_fn(call(model, pipeline.seen(inputs)), targets)]
            if isinstance(method.acceptance.energy, PrivateEnergy | PrivateChoice):
                weights = {name: value.detach() for name, value in model.named_parameters()}
                found += [losses_of_each(model, weights, loss_fn, pipeline.seen(inputs), targets)]
    finally:
        local.load_state_dict(before)
    return found


def _made_up(like: Tensor, size: int, below: int, made: torch.Generator) -> Tensor:
    shape = (size, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=made).to(like.dtype)
    return torch.randint(256 if like.dtype == torch.uint8 else below, shape, generator=made).to(like.dtype)

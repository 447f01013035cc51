"""The gradient engine of a run, and checks of the model before anything is spent.

- ``physical_batch_for``: the cheapest size of physical batches
- ``engine_for``, ``sharded_engine_for``: the engine, compiled if that pays, after one run on synthetic records
- ``try_model``: raise an error for a model that does not take the records; it is run on zeros
- ``probe``: a hash of what a step does to synthetic records, to detect programs that round differently
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
import torch.distributed as dist
from scipy.stats import poisson
from torch import Tensor, nn

from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.data import InMemory
from lehr.errors import InvalidValue, LehrError
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, call, each, leaves
from lehr.gradients.execution import is_out_of_memory
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import ShardedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.gradients.precision import PRECISIONS
from lehr.gradients.synthetic import SyntheticRecords
from lehr.interfaces import Clipping, ClipRule, Inputs, ReleasedSum
from lehr.optim.optimizers import Updater
from lehr.planning.plan import Plan
from lehr.privacy.clipping import ScheduledClip
from lehr.privacy.users import by_user
from lehr.run.evaluation import Metrics, PublicScore
from lehr.run.loop import Engine
from lehr.run.loss_oracle import losses_of_each
from lehr.run.mechanism import Method
from lehr.run.train_state import evaluating
from lehr.training.public_plan import expected_steps
from lehr.training.records import InputPipeline, RunRecords

AnyEngine = TypeVar("AnyEngine", GhostEngine, MaterialisedEngine, ShardedEngine)
RECORDS_WORTH_COMPILING = 500_000  # compiling takes about a minute
LARGEST_PHYSICAL_BATCH = 1024
LARGEST_ON_GPU = 16 * LARGEST_PHYSICAL_BATCH  # of networks whose records take little memory
MEMORY_SHARE = 1 / 16  # of a GPU's memory, for the outputs of layers in a batch of more than LARGEST_PHYSICAL_BATCH
MOST_COMPILED_RULES = 4
BATCH_OVERHEAD = (90.0, 512.0)  # cost of a physical batch itself, in records: on a CPU, on a GPU
LEAST_OVERHEAD, SMALL_RECORD = 32.0, 100_000  # on a GPU a record of more bytes takes as much more time


def physical_batch_for(plan: Plan, device: torch.device, *, ranks: int = 1, record_bytes: int | None = None) -> int:
    """The cheapest size of physical batches: large ones have more padding, small ones more overhead.

    With several ranks, each one computes its share of a draw. ``record_bytes`` is what a record's outputs of layers
    take; on a GPU, batches of small records are larger.

    >>> cpu = torch.device("cpu")
    >>> small = Plan(noise_multiplier=1.0, expected_batch_size=64, records=1464, steps=60, delta=1e-4)
    >>> large = Plan(noise_multiplier=1.0, expected_batch_size=2048, records=60_000, steps=1000, delta=1e-5)
    >>> physical_batch_for(small, cpu), physical_batch_for(large, cpu)
    (80, 712)
    >>> physical_batch_for(large, torch.device("cuda"), record_bytes=100_000)
    2176
    """
    is_gpu = device.type == "cuda"
    largest, overhead = LARGEST_PHYSICAL_BATCH, BATCH_OVERHEAD[is_gpu]
    if is_gpu and record_bytes is not None:
        overhead = max(LEAST_OVERHEAD, overhead * min(1.0, SMALL_RECORD / max(1, record_bytes)))
        total = torch.cuda.get_device_properties(device).total_memory if torch.cuda.is_available() else 16 * 2**30
        fitting = int(MEMORY_SHARE * total / max(1, record_bytes))
        largest = max(largest, min(LARGEST_ON_GPU, fitting))
    if plan.largest_batch is not None and ranks == 1 and plan.largest_batch <= largest:
        return plan.largest_batch  # one batch of one shape for every draw
    share = plan.expected_batch_size / ranks
    most = share + 4 * math.sqrt(share)
    # On a GPU sums are taken over 64 records at a time.
    unit = 64 if is_gpu and share > 256 else 8
    sizes = range(unit, min(largest, unit * math.ceil(most / unit)) + unit, unit)
    return min(sizes, key=lambda size: _work(share, size, overhead=overhead))


def record_bytes(model: nn.Module, records: RunRecords, pipeline: InputPipeline) -> int:
    """What the outputs of all layers take for one record, with all its views, in a run on zeros."""
    inputs = batches.flat_views(padding(records, pipeline, 1)[0], views=pipeline.total_views)
    total = 0

    def count(layer: nn.Module, given: object, output: object) -> None:
        nonlocal total
        total += sum(leaf.numel() * leaf.element_size() for leaf in leaves(output))

    handles = [layer.register_forward_hook(count) for layer in model.modules() if not any(layer.children())]
    try:
        with torch.no_grad(), evaluating(model):
            call(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return total


def _work(expected: float, size: int, *, overhead: float) -> float:
    """The expected cost of a draw, in records."""
    draws = poisson(expected)  # close to the distribution of a draw's size, with a larger variance
    fewest, most = int(draws.ppf(1e-6)), int(draws.ppf(1 - 1e-6)) + 1
    sizes = np.arange(fewest, most + 1)
    batches = np.maximum(1, np.ceil(sizes / size))
    return float((draws.pmf(sizes) * batches).sum() * (size + overhead))


def is_worth_compiling(plan: Plan, clipping: Clipping) -> bool:
    """Whether the run is long enough, and its clip rule changes rarely enough, to compile the step."""
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
    """An engine that has run once on padding, before anything is charged, and how it runs.

    If torch cannot compile the step, it is not compiled, and a warning gives the reason.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    if clipping.needs_coordinates:
        if PRECISIONS[precision] is not None:
            allowed = "as_model for a clip rule by coordinate"
            raise InvalidValue("precision", allowed=allowed, given=precision)
        return _try_engine(MaterialisedEngine(model, loss_fn, views=views), clip, padding), "in full, not compiled"
    settings: dict[str, Any] = {"views": views, "precision": precision}
    if compiled and not has_state(clipping):
        try:
            engine = _try_engine(GhostEngine(model, loss_fn, **settings), clip, padding)
            return engine, _way(engine, "compiled")
        except LehrError:
            raise
        except Exception as error:  # whatever a compiler, or the lack of one, may raise
            if is_out_of_memory(error):
                raise
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(f"the step is not compiled, and slower: {why[0]}", stacklevel=2)
    engine = _try_engine(GhostEngine(model, loss_fn, compiled=False, **settings), clip, padding)
    return engine, _way(engine, "not compiled")


def _way(engine: GhostEngine, usual: str) -> str:
    """How an engine runs. Each way rounds differently, so that a step of one is never repeated by another."""
    if engine.is_in_full:
        return "in full, not compiled"
    return "in two passes, not compiled" if engine.is_in_two_passes else usual


def sharded_engine_for(
    model: nn.Module, loss_fn: LossFn, *, views: int, clipping: Clipping, padding: tuple[Inputs, Any, Tensor]
) -> tuple[ShardedEngine, str]:
    """An engine for sharded weights. It is tried before they are sharded, on the CPU and on at least two records.

    ``GhostEngine`` is tried first, because it checks more strictly that records are independent.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    _try_engine(GhostEngine(model, loss_fn, views=views, compiled=False), clip, padding)
    return _try_engine(ShardedEngine(model, loss_fn, views=views), clip, padding), "sharded, not compiled"


def check_processes(device: torch.device) -> None:
    """Raise an error unless there are processes that can share the weights of a model."""
    if not dist.is_available() or not dist.is_initialized():
        allowed = "omitted in one process: torchrun starts the processes that share the weights"
        raise InvalidValue("sharded", allowed=allowed, given=True)
    if device.type == "cuda" and "nccl" not in dist.get_backend_config():
        raise InvalidValue("sharded", allowed="omitted on GPUs without NCCL", given=dist.get_backend_config())


def is_shardable(clipping: Clipping) -> bool:
    """Whether a clip rule needs neither whole gradients nor whole sums."""
    return not clipping.needs_coordinates and clipping.unproven is None and not has_state(clipping)


def check_clip_schedule(clipping: Clipping, steps: int) -> None:
    """Raise an error for a schedule that reaches an invalid clip norm, before anything is spent."""
    if isinstance(clipping, ScheduledClip):
        for step in range(steps):
            clipping.rule({}, step)


def has_state(clipping: Clipping) -> bool:
    """Whether the clip rule follows released values, so that it is another one at every step."""
    return bool(clipping.start({"weight": torch.zeros(1)}))


def rules_of(clipping: Clipping, steps: int) -> int:
    """The number of clip rules, each of which is compiled; counted up to the limit only."""
    if has_state(clipping):
        return steps
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
    inputs, targets, mask_P = padding
    rows = [index % 2 for index in range(len(mask_P))]
    records = SyntheticRecords(is_positive=True, is_wide=False).batch(inputs, num_images=len(mask_P), rows=rows)
    synthetic = engine.private_sum(clip, records, targets, torch.ones_like(mask_P)).values
    if not any(bool(value.any()) for value in synthetic.values()):
        reason = "the gradients of synthetic records are all zero or not finite: a run would learn only noise"
        warnings.warn(reason, stacklevel=2)
    return engine


def zeros_like(records: RunRecords, size: int, device: torch.device) -> InMemory:
    """Zeros with the shapes and types of the records."""

    def zeros(like: Tensor) -> Tensor:
        return torch.zeros((size, *like.shape[1:]), dtype=like.dtype, device=device)

    return InMemory(*each(zeros, records.like))


def padding(records: RunRecords, pipeline: InputPipeline, size: int) -> tuple[Inputs, Any, Tensor]:
    """A physical batch that is all padding: inputs, targets and mask."""
    zeros = zeros_like(records, size * (pipeline.records_per_user or 1), pipeline.device)
    inputs, targets = _by_user(zeros.inputs, zeros.targets, pipeline.records_per_user)
    return pipeline.trained(inputs, torch.Generator(pipeline.device)), targets, torch.zeros(size, dtype=torch.bool)


def _by_user(inputs: Inputs, targets: Tensor, records_per_user: int | None) -> tuple[Inputs, Any]:
    """The same records as those of users who have so many each; as they are, where records have no owners."""
    if records_per_user is None:
        return inputs, targets

    return by_user(inputs, targets, torch.ones(len(targets) // records_per_user, records_per_user))


def try_model(
    model: nn.Module,
    *,
    loss_fn: LossFn,
    pipeline: InputPipeline,
    records: RunRecords,
    is_scored: bool,
    has_private_queries: bool = False,
    metrics: Metrics | None = None,
) -> None:
    """Raise an error for a model that does not take the records, has too few outputs, or cannot be evaluated."""
    _warn_about(model)
    zeros = zeros_like(records, 2, pipeline.device)
    with evaluating(model), torch.no_grad():
        with _naming_errors("model", allowed=f"one that takes records of shape {records.input_shapes}"):
            outputs = call(model, pipeline.seen(zeros.inputs))
        # A label without an output would stop the run at the first record with that label.
        has_labels = isinstance(outputs, Tensor) and outputs.ndim == 2 and zeros.targets.ndim == 1
        if has_labels and outputs.shape[1] < records.num_classes:
            allowed = f"one with {records.num_classes} outputs, one per class"
            raise InvalidValue("model", allowed=allowed, given=outputs.shape[1])
        with _naming_errors("loss_fn", allowed="one for the outputs of the model and the targets"):
            loss_fn(outputs, zeros.targets)
        if has_private_queries:
            weights = {name: value.detach() for name, value in model.named_parameters()}
            with _naming_errors("model", allowed="one whose losses can be computed per record"):
                losses_of_each(model, weights, loss_fn, pipeline.seen(zeros.inputs), zeros.targets)
        if is_scored:
            score = PublicScore(
                records=zeros, loss_fn=loss_fn, prepare=pipeline.seen, task=records.task, metrics=metrics or {}
            )
            score.score(model)


def _warn_about(model: nn.Module) -> None:
    """Warn about dropout layers in evaluation mode, and about weights in half precision."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 and not layer.training:
            warnings.warn(f"{name} has no effect in evaluation mode: call model.train() first", stacklevel=3)
            break
    for name, value in model.named_parameters():
        if value.requires_grad and value.dtype in (torch.bfloat16, torch.float16):
            smallest = f"{torch.finfo(value.dtype).eps / 4:.1g}"
            reason = f"{name} is in {value.dtype}, which rounds updates below {smallest} of a weight to zero"
            warnings.warn(f'{reason}: train model.float(), with precision="bfloat16" for the same speed', stacklevel=3)
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
    records: RunRecords,
    size: int,
    local: nn.Module | None = None,
) -> str:
    """A hash of a clipped sum, two updates and a score, all computed from synthetic weights and records.

    It changes with the code of model, loss, augmentation and optimizer, and with everything that changes rounding.
    ``local`` is the module with this rank's weights, if that is not the model itself.
    """
    local, device = local or model, pipeline.device
    generator = torch.Generator().manual_seed(0)
    size_in_records = size * (pipeline.records_per_user or 1)
    inputs = each(lambda like: _synthetic(like, size_in_records, 2, generator).to(device), records.like[0])
    targets = _synthetic(records.like[1], size_in_records, records.num_classes, generator).to(device)
    of_step = _by_user(inputs, targets, pipeline.records_per_user)
    before = {name: value.clone() for name, value in local.state_dict().items()}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            with torch.no_grad():
                for value in local.state_dict().values():
                    if value.is_floating_point():
                        value.copy_(0.1 + torch.rand(value.shape, generator=generator) / 2)
            torch.manual_seed(0)  # for dropout and other layers that draw random numbers
            views = pipeline.trained(of_step[0], torch.Generator(device).manual_seed(0))
            clip = method.clipping.rule(method.clipping.start(batches.trainable(local)), 0)
            total = engine.private_sum(clip, views, of_step[1], torch.ones(size, dtype=torch.bool)).values
            updater = Updater(method.update, local)
            for step in range(2):
                updater.step(ReleasedSum(values=total), divisor=1.0, step=step)  # of synthetic records: not private
            values = [*total.values(), *(parameter.detach().clone() for parameter in local.parameters())]
            with evaluating(model), torch.no_grad():
                values.append(loss_fn(call(model, pipeline.seen(inputs)), targets))
                if isinstance(method.acceptance.energy, PrivateEnergy | PrivateChoice):
                    weights = {name: value.detach() for name, value in model.named_parameters()}
                    values.append(losses_of_each(model, weights, loss_fn, pipeline.seen(inputs), targets))
        finally:
            local.load_state_dict(before)
    hashed = hashlib.blake2b(digest_size=16)
    for value in leaves(values):
        hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _synthetic(like: Tensor, size: int, below: int, generator: torch.Generator) -> Tensor:
    shape = (size, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, generator=generator).to(like.dtype)
    return torch.randint(256 if like.dtype == torch.uint8 else below, shape, generator=generator).to(like.dtype)


def is_known(method: Method) -> bool:
    """Whether every component of the method is part of Lehr, so that config.json records all its settings.

    A run with another component replays nothing: repeated steps are charged again.
    """
    return all(map(_is_own, (method.clipping, method.noise, method.acceptance)))


def _is_own(component: Any) -> bool:
    if not type(component).__module__.startswith("lehr.") or not is_dataclass(component):
        return False
    inner = [getattr(component, field.name) for field in fields(component)]
    return all(_is_own(part) for part in inner if is_dataclass(part))

"""Evaluation: on public records without noise, on held-out private records with noise that is charged.

Records that acceptance or a search has used are never evaluated on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lehr import validate
from lehr.accounting.events import NOTHING, Event
from lehr.config import CLASSIFICATION, MULTILABEL, REGRESSION
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn, call, leaves, one_each
from lehr.interfaces import Inputs, PrivateSum, Records, StreamedRecords, Tensors, batches
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness

RECORDS_AT_ONCE = 1000
VALUES_AT_ONCE_ON_GPU = 8_000_000  # of inputs: many small kernels are slower than one large one
LARGEST_LOSS = 4.0
Prepare = Callable[[Inputs], Inputs]
Metrics = Mapping[str, Callable[[Tensor, Tensor], Any]]  # functions of all outputs and targets


class Score(NamedTuple):
    """The mean loss and the accuracy; on public records also the accuracy of each class, and the user's metrics.

    The accuracy of a multi-label model is the share of correct labels. A regression has none.
    """

    loss: float
    accuracy: float | None
    accuracy_by_class: tuple[float | None, ...] | None = None  # None for a class without records
    metrics: Mapping[str, float | None] | None = None  # None for a metric that is not finite


class Scorer(Protocol):
    """Evaluates a model, and states the event of one evaluation."""

    @property
    def on(self) -> str:
        """A description of the records."""

    @property
    def event(self) -> Event:
        """The event of one evaluation."""

    def score(self, model: nn.Module, randomness: StepRandomness) -> Score:
        """The score of a model that is in evaluation mode."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicScore:
    """A score on records that are declared public."""

    records: Records
    loss_fn: LossFn
    prepare: Prepare
    on: str = "test"
    task: str = CLASSIFICATION
    tells_classes: bool = False  # not needed for acceptance
    metrics: Metrics = field(default_factory=dict)
    event: Event = field(default=NOTHING, init=False)

    def score(self, model: nn.Module, randomness: StepRandomness | None = None) -> Score:
        """The mean over all records."""
        at_once, kept = _portion(model, self.records), []
        sums = []
        for answer in _answers(model, self.records, self.loss_fn, self.prepare, self.task, at_once=at_once):
            sums.append(self._summed(answer))
            if self.metrics:
                kept.append((answer.outputs, answer.targets))
        # On a GPU, reading a number waits for all earlier kernels: read once, at the end.
        loss, right, *classes = torch.stack(sums).sum(0).tolist()
        return Score(
            loss / len(self.records),
            None if self.task == REGRESSION else right / len(self.records),
            _shares(classes) if classes else None,
            compute_metrics(self.metrics, kept) if self.metrics else None,
        )

    def _summed(self, answer: _Answer) -> Tensor:
        whole = torch.stack([answer.losses.sum(), answer.right.sum()])
        tells_classes = self.tells_classes and self.task == CLASSIFICATION
        return torch.cat([whole, _by_class(answer).flatten()]) if tells_classes else whole


def compute_metrics(metrics: Metrics, parts: list[tuple[Any, Any]]) -> dict[str, float | None]:
    """The metrics of outputs and targets of public records, on the CPU. None where a value is not finite."""
    if not all(isinstance(value, Tensor) for part in parts for value in part):
        raise InvalidValue("metrics", allowed="omitted unless outputs and targets are tensors", given=sorted(metrics))
    outputs, targets = (torch.cat(values).cpu() for values in zip(*parts, strict=True))
    found: dict[str, float | None] = {}
    for name, function in metrics.items():
        try:
            value = float(function(outputs, targets))
        except Exception as error:  # the user's own code; its message may be about a record
            allowed = f"functions of outputs and targets that return a number; {name} fails"
            raise InvalidValue("metrics", allowed=allowed, given=f"{type(error).__name__}: {error}") from error
        found[name] = value if math.isfinite(value) else None
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyScore:
    """A score on held-out private records, released with Gaussian noise and charged every time.

    A record adds its loss, clipped to ``largest_loss`` and divided by it, to one sum and, except in a regression, its
    accuracy to another: 1 if it is classified correctly, or its share of correct labels. Both are in [0, 1], so one
    record moves k sums by at most √k. ``stated_records`` is the public divisor.
    """

    records: Records
    loss_fn: LossFn
    prepare: Prepare
    noise_multiplier: float
    stated_records: float
    largest_loss: float = LARGEST_LOSS
    task: str = CLASSIFICATION

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.positive(stated_records=self.stated_records)
        validate.positive(largest_loss=self.largest_loss)

    @property
    def on(self) -> str:
        noise = math.sqrt(self._num_sums) * self.noise_multiplier / self.stated_records
        size = f"{noise * self.largest_loss:.2g}" if self.task == REGRESSION else f"{noise:.1%}"
        return f"held-out records, noised (± {size})"

    @property
    def event(self) -> Event:
        return IsotropicNoise().event(self.noise_multiplier)

    def score(self, model: nn.Module, randomness: StepRandomness) -> Score:
        """The noisy sums divided by a public number, clipped to their range."""
        total = torch.zeros(self._num_sums, dtype=torch.float64)
        # One record at a time: a model or loss that mixes its batch would let one record change the others.
        for answer in _answers(model, self.records, self.loss_fn, self.prepare, self.task, at_once=1):
            shares = answer.losses.nan_to_num(nan=math.inf).clamp(0, self.largest_loss) / self.largest_loss
            total += torch.stack([shares.sum(), answer.right.sum()]).cpu()[: self._num_sums]
        private = PrivateSum(values={"score": total}, sensitivity=math.sqrt(self._num_sums))
        released = IsotropicNoise().release(
            private, noise_multiplier=self.noise_multiplier, randomness=randomness, purpose="score"
        )
        loss, *accuracy = (released.values["score"] / self.stated_records).clamp(0, 1).tolist()
        return Score(loss * self.largest_loss, accuracy[0] if accuracy else None)

    @property
    def _num_sums(self) -> int:
        return 1 if self.task == REGRESSION else 2


def _portion(model: nn.Module, records: Records) -> int:
    """The batch size: large enough to keep a GPU busy."""
    parameter = next(model.parameters(), None)
    is_on_cpu = parameter is None or parameter.device.type == "cpu"
    if is_on_cpu or isinstance(records, StreamedRecords) or not len(records):
        return RECORDS_AT_ONCE
    inputs, _ = records.batch(torch.zeros(1, dtype=torch.int64))
    size = sum(leaf.numel() for leaf in leaves(inputs))
    return max(RECORDS_AT_ONCE, VALUES_AT_ONCE_ON_GPU // max(1, size))


class _Answer(NamedTuple):
    """Losses and accuracies in float64, outputs and targets of some records."""

    losses: Tensor
    right: Tensor
    targets: Any
    outputs: Any


def _answers(
    model: nn.Module, records: Records, loss_fn: LossFn, prepare: Prepare, task: str, *, at_once: int
) -> Iterator[_Answer]:
    parts = torch.split(torch.arange(len(records)), at_once) if len(records) else ()
    with torch.no_grad():
        for indices, (inputs, targets, _) in zip(parts, batches(records, parts), strict=True):
            outputs = call(leaving_no_trace(model) if at_once == 1 else model, prepare(inputs))
            losses = one_each(loss_fn(outputs, targets), num_records=len(indices))
            yield _Answer(losses.double(), _accuracies(outputs, targets, task, losses), targets, outputs)


def _by_class(answer: _Answer) -> Tensor:
    """For each class, the number of correctly classified records and of all records. Other labels are ignored."""
    classes, labels = answer.outputs.shape[1], answer.targets
    counts = ((labels >= 0) & (labels < classes)).to(answer.right)
    found = torch.zeros(2, classes, dtype=counts.dtype, device=counts.device)
    return found.index_add_(1, labels.long().clamp(0, classes - 1), torch.stack([answer.right * counts, counts]))


def _shares(counted: list[float]) -> tuple[float | None, ...]:
    """The accuracy of each class, from the correct counts of all classes followed by their sizes."""
    half = len(counted) // 2
    pairs = zip(counted[:half], counted[half:], strict=True)
    return tuple(right / number if number else None for right, number in pairs)


def leaving_no_trace(model: nn.Module, weights: Tensors | None = None) -> Callable[..., Any]:
    """The model, optionally with other weights, with a fresh copy of its buffers for every call.

    Otherwise, buffers that the model updates would carry values from one record to the next, and out of the run.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        return functional_call(model, {**buffers, **(weights or {})}, args, kwargs)

    return called


def _accuracies(outputs: Any, targets: Any, task: str, losses: Tensor) -> Tensor:
    """The accuracy of each record, in [0, 1]; zeros for a regression."""
    if task == REGRESSION:
        return torch.zeros_like(losses, dtype=torch.float64)
    if task == MULTILABEL:
        if not isinstance(outputs, Tensor) or outputs.shape != targets.shape:
            raise InvalidValue("model", allowed="one with an output per label, to be evaluated", given=type(outputs))
        is_right: Tensor = (outputs > 0) == (targets > 0.5)
        return is_right.double().flatten(1).mean(1)
    return _is_right(outputs, targets).double()


def _is_right(outputs: Any, targets: Any) -> Tensor:
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.dim() == 2):
        raise InvalidValue("model", allowed="one with an output per class, to be evaluated", given=type(outputs))
    if targets.shape != outputs.shape[:1]:  # a broadcast would compare every record with every other
        raise InvalidValue("targets", allowed="one label per record, to be evaluated", given=tuple(targets.shape))
    return outputs.argmax(dim=1) == targets

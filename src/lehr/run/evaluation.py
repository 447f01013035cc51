"""Evaluation: on public records without noise, on held-out private records with noise that is charged.

Records that acceptance or a search has used are never evaluated on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lehr import validate
from lehr.accounting.events import NOTHING, Event
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn, call, leaves, one_each
from lehr.interfaces import Inputs, PrivateSum, Records, StreamedRecords, Tensors, batches
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness

RECORDS_AT_ONCE = 1000
VALUES_AT_ONCE_ON_GPU = 8_000_000  # of inputs: many small kernels are slower than one large one
Prepare = Callable[[Inputs], Inputs]


class Score(NamedTuple):
    """The mean loss and the accuracy; on public records also the accuracy of each class."""

    loss: float
    accuracy: float
    accuracy_by_class: tuple[float | None, ...] | None = None  # None for a class without records


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
    tells_classes: bool = False  # not needed for acceptance
    event: Event = field(default=NOTHING, init=False)

    def score(self, model: nn.Module, randomness: StepRandomness | None = None) -> Score:
        """The mean over all records."""
        answers = _answers(model, self.records, self.loss_fn, self.prepare, at_once=_portion(model, self.records))
        # On a GPU, reading a number waits for all earlier kernels: read once, at the end.
        sums = torch.stack([self._summed(answer) for answer in answers]).sum(0)
        loss, right, *classes = sums.tolist()
        return Score(loss / len(self.records), right / len(self.records), _shares(classes) if classes else None)

    def _summed(self, answer: _Answer) -> Tensor:
        whole = torch.stack([answer.losses.sum(), answer.right.sum()])
        return torch.cat([whole, _by_class(answer).flatten()]) if self.tells_classes else whole


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyScore:
    """A score on held-out private records, released with Gaussian noise and charged every time.

    A record adds to two sums: 1 if it is classified correctly, and its loss, clipped to ``largest_loss`` and divided by
    it. Both are in [0, 1], so that one record moves the pair by at most √2. ``stated_records`` is the public divisor.
    """

    records: Records
    loss_fn: LossFn
    prepare: Prepare
    noise_multiplier: float
    stated_records: float
    largest_loss: float = 4.0

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.positive(stated_records=self.stated_records)
        validate.positive(largest_loss=self.largest_loss)

    @property
    def on(self) -> str:
        noise = math.sqrt(2) * self.noise_multiplier / self.stated_records
        return f"held-out records, noised (± {noise:.1%})"

    @property
    def event(self) -> Event:
        return IsotropicNoise().event(self.noise_multiplier)

    def score(self, model: nn.Module, randomness: StepRandomness) -> Score:
        """The noisy sums divided by a public number, clipped to their range."""
        total = torch.zeros(2, dtype=torch.float64)
        # One record at a time: a model or loss that mixes its batch would let one record change the others.
        for answer in _answers(model, self.records, self.loss_fn, self.prepare, at_once=1):
            shares = answer.losses.nan_to_num(nan=math.inf).clamp(0, self.largest_loss) / self.largest_loss
            total += torch.stack([shares.sum(), answer.right.sum()]).cpu()
        private = PrivateSum(values={"score": total}, sensitivity=math.sqrt(2))
        released = IsotropicNoise().release(
            private, noise_multiplier=self.noise_multiplier, randomness=randomness, purpose="score"
        )
        loss, accuracy = (released.values["score"] / self.stated_records).clamp(0, 1).tolist()
        return Score(loss * self.largest_loss, accuracy)


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
    """Losses and whether the largest output is correct, in float64, and the labels of some records."""

    losses: Tensor
    right: Tensor
    labels: Tensor
    num_classes: int


def _answers(
    model: nn.Module, records: Records, loss_fn: LossFn, prepare: Prepare, *, at_once: int
) -> Iterator[_Answer]:
    parts = torch.split(torch.arange(len(records)), at_once) if len(records) else ()
    with torch.no_grad():
        for indices, (inputs, targets, _) in zip(parts, batches(records, parts), strict=True):
            outputs = call(leaving_no_trace(model) if at_once == 1 else model, prepare(inputs))
            losses = one_each(loss_fn(outputs, targets), num_records=len(indices))
            right = _is_right(outputs, targets).double()
            yield _Answer(losses.double(), right, targets, outputs.shape[1])


def _by_class(answer: _Answer) -> Tensor:
    """For each class, the number of correctly classified records and of all records. Other labels are ignored."""
    classes = answer.num_classes
    counts = ((answer.labels >= 0) & (answer.labels < classes)).to(answer.right)
    found = torch.zeros(2, classes, dtype=counts.dtype, device=counts.device)
    return found.index_add_(1, answer.labels.long().clamp(0, classes - 1), torch.stack([answer.right * counts, counts]))


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


def _is_right(outputs: Any, targets: Any) -> Tensor:
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.dim() == 2):
        raise InvalidValue("model", allowed="one with an output per class, to be evaluated", given=type(outputs))
    if targets.shape != outputs.shape[:1]:  # a broadcast would compare every record with every other
        raise InvalidValue("targets", allowed="one label per record, to be evaluated", given=tuple(targets.shape))
    return outputs.argmax(dim=1) == targets

"""Opacus's utilities: ``BatchMemoryManager``, ``UniformWithReplacementSampler`` and ``DPLossFastGradientClipping``.

>>> import torch
>>> criterion = DPLossFastGradientClipping(None, None, torch.nn.CrossEntropyLoss())
>>> logits, words = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
>>> criterion(logits.view(-1, 5), words.view(-1), shape=(2, 3)).shape
torch.Size([])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from lehr import validate
from lehr.errors import InvalidValue
from lehr.integrations.external_loop import loader_options
from lehr.integrations.opacus.data_loader import PhysicalBatchSampler, PrivateLoader
from lehr.integrations.opacus.optimizers import DPOptimizer
from lehr.privacy.sampling import PoissonSampling


class BatchMemoryManager:
    """Splits every draw of the loader into physical batches of at most ``max_physical_batch_size`` records.

    Call ``optimizer.step()`` for every physical batch; a step is charged, and noise added, once per draw.
    """

    def __init__(self, *, data_loader: DataLoader[Any], max_physical_batch_size: int, optimizer: DPOptimizer) -> None:
        if not isinstance(data_loader, PrivateLoader):
            allowed = "the one that make_private returned"
            raise InvalidValue("data_loader", allowed=allowed, given=type(data_loader).__name__)
        self.split_loader = wrap_data_loader(
            data_loader=data_loader, max_batch_size=max_physical_batch_size, optimizer=optimizer
        )

    def __enter__(self) -> DataLoader[Any]:
        return self.split_loader

    def __exit__(self, *_: object) -> None:
        pass


def wrap_data_loader(*, data_loader: PrivateLoader, max_batch_size: int, optimizer: DPOptimizer) -> PrivateLoader:
    """A loader over the same draws, split into physical batches."""
    batches = data_loader.batch_sampler.split(max_batch_size)
    return PrivateLoader(data_loader.dataset, batches, **loader_options(data_loader))


class UniformWithReplacementSampler(PhysicalBatchSampler):
    """Opacus's name for Poisson sampling: each record is in a batch with probability ``sample_rate``, independently.

    >>> len(UniformWithReplacementSampler(num_samples=100, sample_rate=0.1))
    10
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, generator: None = None, steps: int | None = None
    ) -> None:
        if generator is not None:
            raise InvalidValue("generator", allowed="None: sampling is keyed by a secret key", given=generator)
        self.sample_rate = rate = validate.probability(sample_rate=sample_rate)
        sampling = PoissonSampling(expected_batch_size=rate * num_samples, records=num_samples)
        super().__init__(sampling, steps=int(1 / rate) if steps is None else steps)


class DPLossFastGradientClipping:
    """The criterion of ``grad_sample_mode="ghost"``: its loss is an ordinary tensor, and one backward pass is enough.

    ``shape`` is ``[records, positions]`` for inputs that were flattened; then every record has the same weight in the
    loss, however many of its positions count.
    """

    def __init__(self, module: object, optimizer: object, criterion: Any, loss_reduction: str = "mean") -> None:
        self.module, self.optimizer, self.criterion = module, optimizer, criterion
        self.loss_reduction = validate.one_of(("mean", "sum"), loss_reduction=loss_reduction)
        reduction = getattr(criterion, "reduction", loss_reduction)
        if reduction != loss_reduction:
            allowed = f"one with reduction={loss_reduction!r}, the loss_reduction of make_private"
            raise InvalidValue("criterion", allowed=allowed, given=reduction)

    def __call__(self, *args: Any, shape: Sequence[int] | None = None, **kwargs: Any) -> Tensor:
        targets = kwargs["target"] if "target" in kwargs else args[1] if len(args) > 1 else None
        if shape is None:
            self._refuse_unequal_weights(targets)
            loss: Tensor = self.criterion(*args, **kwargs)
            return loss
        reduction, self.criterion.reduction = self.criterion.reduction, "none"
        try:
            losses: Tensor = self.criterion(*args, **kwargs).view(shape[0], shape[1])
        finally:
            self.criterion.reduction = reduction
        if self.loss_reduction == "sum":
            return losses.sum()
        ignored = getattr(self.criterion, "ignore_index", None)
        if ignored is None or targets is None:
            return losses.mean()
        counted: Tensor = targets.view(shape[0], shape[1]) != ignored
        return (losses.sum(1) / counted.sum(1).clamp_min(1)).mean()

    def _refuse_unequal_weights(self, targets: Any) -> None:
        """A mean by class weights, or over targets that are not ignored, weighs a record by what the others are."""
        if self.loss_reduction != "mean" or not isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return
        if targets.is_floating_point():  # class probabilities, whose mean is over records
            return
        has_ignored = bool((targets == self.criterion.ignore_index).any())
        if self.criterion.weight is not None or has_ignored:
            allowed = 'one that weighs all records equally: pass shape=[records, positions], or use reduction="sum"'
            given = "ignored targets" if has_ignored else "a mean by class weights"
            raise InvalidValue("criterion", allowed=allowed, given=given)

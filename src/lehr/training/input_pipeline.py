"""What the network sees of a record: bytes as numbers, augmented while it trains, normalised with public constants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.data import Preparation
from lehr.data.augmentation import Augmentation
from lehr.errors import InvalidValue
from lehr.gradients.batches import each
from lehr.interfaces import Inputs


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """How inputs become what the model is called with. ``views`` copies of a record are averaged before clipping."""

    preparation: Preparation
    augmentation: Augmentation
    views: int
    device: torch.device

    def seen(self, inputs: Inputs) -> Inputs:
        """As the model sees records that are scored."""
        prepared: Inputs = each(lambda leaf: self.preparation.prepared(self._there(leaf)), inputs)
        return prepared

    def trained(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """As the model sees records that it is trained on."""
        if not self.augmentation.operations and self.views == 1:
            return self.seen(inputs)
        if not isinstance(inputs, Tensor):
            raise InvalidValue("augmentation", allowed="none where a record is not one image", given=type(inputs))
        images = self.augmentation(self.preparation.unit(self._there(inputs)), views=self.views, generator=generator)
        return self.preparation.normalised(images if self.views > 1 else images.squeeze(1))

    def _there(self, leaf: Tensor) -> Tensor:
        return leaf.to(self.device, non_blocking=True)

"""How to train, as far as it is not the method's: none of it changes what is charged."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lehr import validate
from lehr.data import Preparation
from lehr.data.augmentation import Augmentation
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.gradients.precision import PRECISIONS
from lehr.interfaces import Clipping
from lehr.planning.plan import Plan
from lehr.training import engines
from lehr.training.looks import Look
from lehr.update.averaging import Averaging


@dataclass(frozen=True, kw_only=True, eq=False)
class How:
    """Settings that are not the plan's and not the method's."""

    loss_fn: LossFn
    augmentation: Augmentation
    views: int
    averaging: Averaging
    precision: str
    patience: int | None
    device: torch.device
    physical_batch: int | None
    compiled: bool | None
    checkpoint_seconds: float
    diagnostics: bool
    cryptographic_on_gpu: bool

    def __post_init__(self) -> None:
        validate.count(views=self.views)
        validate.one_of(PRECISIONS, precision=self.precision)
        validate.non_negative(checkpoint_seconds=self.checkpoint_seconds)
        for name in ("patience", "physical_batch"):
            if getattr(self, name) is not None:
                validate.count(**{name: getattr(self, name)})

    def look(self, preparation: Preparation) -> Look:
        """What the model sees of a record."""
        return Look(preparation=preparation, augmentation=self.augmentation, views=self.views, device=self.device)

    def physical_batch_for(self, plan: Plan, *, ranks: int = 1) -> int:
        """The records that are run at once."""
        return self.physical_batch or engines.physical_batch_for(plan, self.device, ranks=ranks)

    def is_compiled_for(self, plan: Plan, clipping: Clipping) -> bool:
        """Whether the step is compiled."""
        if self.compiled and clipping.needs_coordinates:
            allowed = "left out for a clip that looks at coordinates: those gradients are formed in full"
            raise InvalidValue("compiled", allowed=allowed, given=self.compiled)
        return engines.is_worth_compiling(plan, clipping) if self.compiled is None else self.compiled

    def to_json(self) -> dict[str, object]:
        """What is written down: all but where and in which portions it is computed."""
        return {
            "augmentation": self.augmentation.to_json(),
            "views": self.views,
            "averaging": self.averaging.to_json(),
            "precision": self.precision,
            "patience": self.patience,
            "cryptographic_on_gpu": self.cryptographic_on_gpu,
        }

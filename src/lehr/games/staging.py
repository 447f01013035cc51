"""A run of the real loop over the records of a game, first charge to last step, in a folder that is thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from lehr.data import InMemory
from lehr.data.augmentation import named as augmentation_named
from lehr.gradients.batches import LossFn
from lehr.mechanism import Method
from lehr.planning.plan import Plan
from lehr.rng import RunKey
from lehr.run_shape import Callback
from lehr.training.ending import Run
from lehr.training.given_records import given_records
from lehr.training.how import How
from lehr.training.planned import Planned
from lehr.training.scored import Scored
from lehr.update.averaging import NoAverage


def staged(run: Planned, *, key: RunKey | None = None, callbacks: Sequence[Callback] = ()) -> Run:
    """Train, as ``lehr.fit`` does. With a ``key`` of its own, a run can be repeated draw by draw and noise by noise."""
    with tempfile.TemporaryDirectory(prefix="lehr-game-") as folder, run.begun(Path(folder) / "run") as begun:
        if key is not None:
            begun.key = key
        return run.trained(begun, callbacks)


def planned(
    model: nn.Module,
    private: InMemory,
    *,
    method: Method,
    plan: Plan,
    loss_fn: LossFn,
    num_classes: int,
    public: InMemory | None = None,
    physical_batch: int | None = None,
) -> Planned:
    """The run, decided and tried, and not begun."""
    given = given_records(
        private,
        records=plan.records,
        test=None,
        public=public,
        num_classes=num_classes,
        preparation=None,
        name="canaries",
    )
    how = How(
        loss_fn=loss_fn,
        augmentation=augmentation_named("none"),
        views=1,
        averaging=NoAverage(),
        precision="as_model",
        patience=None,
        device=next(model.parameters()).device,
        physical_batch=physical_batch,
        compiled=False,
        checkpoint_seconds=600.0,
        diagnostics=False,
        cryptographic_on_gpu=False,
    )
    scored = Scored(
        given=given,
        method=method,
        held_out_fraction=0.0,
        noise_multiplier=0.0,
        acceptance_fraction=0.5,
        evaluate_every=None,
    )
    return Planned(name="game", model=model, network=None, how=how, scored=scored, plan=plan, stated=None, budget=None)

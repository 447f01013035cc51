"""The step attack through the integrations: canaries among the records that Lightning or transformers trains on.

The adversary sees what the optimizer of the loop is given at every step, which is all that ever leaves an integration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lehr.attacks import canaries as planting
from lehr.attacks.canaries import PRESENT, CoordinateCanaries
from lehr.attacks.step_attack import Adversary
from lehr.auditing import Scores, bounds
from lehr.auditing.audit import SUSPICIOUS_BELOW
from lehr.auditing.thresholds import Corrected
from lehr.integrations.external_loop import PrivacyConfig
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.rng import RunKey
from tests.attacks.sabotage import keys_of, noise_halved

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*does not have many workers")]

CANARIES, STEPS, DELTA = CoordinateCanaries(num_canaries=4096), 40, 1e-5
CLIP_NORM = 0.5
PRIVACY: dict[str, Any] = {"epsilon": 3.0, "delta": DELTA, "records": 2000, "expected_batch_size": 500}
PRIVACY |= {"clip_norm": CLIP_NORM, "physical_batch": 128}  # so that most draws come in several physical batches
CERTIFIED = {**PRIVACY, "settings_chosen_on": "fixed"}
Observed: TypeAlias = tuple[list[dict[str, Tensor]], float]  # the gradients of every step, and the certified ε


class RecordingSGD(torch.optim.SGD):
    """Keeps the gradients that it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.names = [name for name, _ in model.named_parameters()]
        self.seen: list[dict[str, Tensor]] = []

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        grads = [parameter.grad for parameter in self.param_groups[0]["params"]]
        self.seen.append({name: grad.clone() for name, grad in zip(self.names, grads, strict=True)})
        super().step()
        return loss


def through_lightning(rows: Tensor, folder: Path, *, steps: int) -> Observed:
    pl = pytest.importorskip("lightning.pytorch")
    from lehr.integrations.lightning import LehrCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = CANARIES.network()
            self.optimizer = RecordingSGD(self.net)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return planting.loss(self.net(batch[0]), batch[1]).mean()

        def configure_optimizers(self) -> Any:
            return self.optimizer

    records = CANARIES.records(rows, torch.full_like(rows, PRESENT))
    module, callback = Module(), LehrCallback(**CERTIFIED, directory=folder / "lightning")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_steps=steps, callbacks=[callback], accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(records.inputs, records.targets), batch_size=10))
    assert callback.certificate is not None
    return module.optimizer.seen, callback.certificate.epsilon


class CanaryDataset(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: Tensor) -> None:
        self.records = CANARIES.records(rows, torch.full_like(rows, PRESENT))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"records_B": self.records.inputs[index], "labels": self.records.targets[index]}


def through_transformers(rows: Tensor, folder: Path, *, steps: int, records_of_each: int | None = None) -> Observed:
    """With ``records_of_each``, a canary is a user with so many records, one of which too many for a step."""
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from lehr.integrations.transformers import LehrTrainer

    model = CANARIES.network()
    optimizer = RecordingSGD(model)
    quiet: dict[str, Any] = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    settings: dict[str, Any] = {"max_steps": steps, "remove_unused_columns": False, "use_cpu": True}
    privacy, owners = {**CERTIFIED}, None
    if records_of_each is not None:
        privacy |= {"users": privacy.pop("records"), "records_per_user": records_of_each - 1}
        owners = torch.arange(len(rows)).repeat(records_of_each)
        rows = rows.repeat(records_of_each)
    trainer = LehrTrainer(
        model=model,
        owners=owners,
        args=TrainingArguments(output_dir=str(folder / "out"), **settings, **quiet),
        privacy=PrivacyConfig(**privacy, directory=folder / "transformers"),
        train_dataset=CanaryDataset(rows),
        record_losses=lambda outputs, inputs: planting.loss(outputs, inputs["labels"]),
        optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)),
    )
    trainer.train()
    assert trainer.certificate is not None
    return optimizer.seen, trainer.certificate.epsilon


INTEGRATIONS: dict[str, Callable[..., Observed]] = {
    "lightning": through_lightning,
    "transformers": through_transformers,
    "transformers, users": partial(through_transformers, records_of_each=3),
}


def present_canaries(name: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Which canaries are among the records. The key makes the runs repeatable."""
    key = next(keys_of(name))
    monkeypatch.setattr(RunKey, "fresh", lambda: key)
    is_present: Tensor = key.at(0, 0).uniforms("canaries", CANARIES.num_canaries) < 0.5
    return is_present


def attacked(integration: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, float]:
    """The claimed ε, a lower bound on it, and the p-value of the noise having the claimed variance."""
    is_present = present_canaries(integration, monkeypatch)
    seen, claimed = INTEGRATIONS[integration](is_present.nonzero().squeeze(1), folder, steps=STEPS)
    assert len(seen) == STEPS
    plan = PrivacyConfig(**PRIVACY).plan(steps=STEPS)
    # A clip by the norm leaves as much of a canary in each of its layers; everything else is public.
    size = torch.tensor(CLIP_NORM / CANARIES.num_layers**0.5)
    clipped = PrivateSum(values=dict.fromkeys(seen[0], size), sensitivity=CLIP_NORM)
    adversary = Adversary(CANARIES, clipped, plan, is_present.double())
    for grads in seen:
        values = {name: plan.expected_batch_size * grad for name, grad in grads.items()}
        adversary.observe(clipped, ReleasedSum(values=values, noise_std=plan.noise_multiplier * CLIP_NORM))
    by_likelihood, by_mean = (_scores(one, is_present) for one in (adversary.likelihoods, adversary.means()))
    shown = bounds.gaussian_tradeoff(by_likelihood, threshold=Corrected(tried=4), delta=DELTA, confidence=0.95)
    return claimed, shown.epsilon, bounds.variance_p_value(by_mean.others, std=1.0)


def _scores(scores: Tensor, is_present: Tensor) -> Scores:
    values, present = scores.numpy().astype(np.float64), is_present.numpy()
    return Scores(values[present], values[~present])


def test_all_integrations_release_the_same_with_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users whose records are all the same too."""
    rows = present_canaries("both integrations", monkeypatch).nonzero().squeeze(1)
    (first, claimed), *others = (through(rows, tmp_path / name, steps=8) for name, through in INTEGRATIONS.items())
    assert len(first) == 8
    for other, also_claimed in others:
        assert claimed == also_claimed
        for one, also_one in zip(first, other, strict=True):
            torch.testing.assert_close(one, also_one)


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_the_attack_comes_close_to_the_claim_and_does_not_exceed_it(
    integration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, shown, p_value = attacked(integration, tmp_path, monkeypatch)
    assert 2.99 <= claimed <= 3.001
    assert 1.8 <= shown <= claimed
    assert p_value >= SUSPICIOUS_BELOW


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_half_the_noise_is_refuted(integration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_halved(dpsgd(), monkeypatch)  # of every method
    claimed, shown, p_value = attacked(integration, tmp_path, monkeypatch)
    assert shown > claimed
    assert claimed <= 3.001
    assert p_value < SUSPICIOUS_BELOW

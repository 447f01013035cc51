"""The step game through the integrations: canaries among the records that Lightning or transformers trains on.

The adversary sees what the optimizer of the loop finds at every step, which is all that ever leaves an integration.
"""

from __future__ import annotations

from collections.abc import Callable
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
from lehr.auditing import Audit, Scores, Verdict, bounds
from lehr.auditing.audit import NOISE_AS_STATED, Check, roc_points
from lehr.auditing.thresholds import Corrected
from lehr.integrations.external_loop import PrivacyConfig
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.dpsgd import dpsgd
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from tests.attacks.sabotage import keys_of, noise_halved

CANARIES, STEPS, DELTA = CoordinateCanaries(num_canaries=4096), 40, 1e-5
CLIP_NORM = 0.5
PRIVACY: dict[str, Any] = {"epsilon": 3.0, "delta": DELTA, "records": 2000, "expected_batch_size": 500}
PRIVACY |= {"clip_norm": CLIP_NORM, "physical_batch": 128}  # so that most draws come in several physical batches


class Heard(torch.optim.SGD):
    """An optimizer that keeps what it was given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.names = [name for name, _ in model.named_parameters()]
        self.found: list[dict[str, Tensor]] = []

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        grads = [parameter.grad for parameter in self.param_groups[0]["params"]]
        self.found.append({name: grad.clone() for name, grad in zip(self.names, grads, strict=True)})
        super().step()
        return loss


Seen: TypeAlias = tuple[list[dict[str, Tensor]], float]  # what the optimizer was given, and the ε of the certificate


def through_lightning(rows: Tensor, folder: Path, *, steps: int) -> Seen:
    pl = pytest.importorskip("lightning.pytorch")
    from lehr.integrations.lightning import LehrCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = CANARIES.network()
            self.heard = Heard(self.net)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return planting.loss(self.net(batch[0]), batch[1]).mean()

        def configure_optimizers(self) -> Any:
            return self.heard

    records = CANARIES.records(rows, torch.full_like(rows, PRESENT))
    module, callback = Module(), LehrCallback(**PRIVACY, directory=folder / "lightning", settings_chosen_on="fixed")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_steps=steps, callbacks=[callback], accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(records.inputs, records.targets), batch_size=10))
    assert callback.certificate is not None
    return module.heard.found, callback.certificate.epsilon


class Canaries(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: Tensor) -> None:
        self.records = CANARIES.records(rows, torch.full_like(rows, PRESENT))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"records_B": self.records.inputs[place], "labels": self.records.targets[place]}


def through_transformers(rows: Tensor, folder: Path, *, steps: int) -> Seen:
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from lehr.integrations.transformers import LehrTrainer

    model = CANARIES.network()
    heard = Heard(model)
    trainer = LehrTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=steps,
            report_to=[],
            save_strategy="no",
            remove_unused_columns=False,
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        privacy=PrivacyConfig(**PRIVACY, directory=folder / "transformers", settings_chosen_on="fixed"),
        train_dataset=Canaries(rows),
        record_losses=lambda outputs, inputs: planting.loss(outputs, inputs["labels"]),
        optimizers=(heard, torch.optim.lr_scheduler.ConstantLR(heard)),
    )
    trainer.train()
    assert trainer.certificate is not None
    return heard.found, trainer.certificate.epsilon


INTEGRATIONS: dict[str, Callable[..., Seen]] = {"lightning": through_lightning, "transformers": through_transformers}


def present_canaries(name: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Who is there; and runs that can be repeated."""
    key = next(keys_of(name))
    monkeypatch.setattr(RunKey, "fresh", lambda: key)
    is_present: Tensor = key.at(0, 0).uniforms("canaries", CANARIES.num_canaries) < 0.5
    return is_present


def audited(integration: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Audit:
    is_present = present_canaries(integration, monkeypatch)
    found, claimed = INTEGRATIONS[integration](is_present.nonzero().squeeze(1), folder, steps=STEPS)
    plan = PrivacyConfig(**PRIVACY).plan(steps=STEPS)
    adversary = _heard(found, plan, is_present)
    by_likelihood, by_mean = (_scores(one, is_present) for one in (adversary.likelihoods, adversary.means()))
    stated: dict[str, float] = {"delta": DELTA, "confidence": 0.95}
    return Audit(
        subject=integration,
        attack="every gradient that the optimizer of the loop is given",
        claimed_epsilon=claimed,
        delta=DELTA,
        bounds=(
            bounds.gaussian_tradeoff(by_likelihood, threshold=Corrected(tried=4), **stated),
            bounds.known_variance(by_mean, std=adversary.member_std(), **stated),
        ),
        members=len(by_mean.members),
        others=len(by_mean.others),
        runs=1,
        steps=len(found),
        roc=roc_points(by_likelihood),
        checks=(Check(statement=NOISE_AS_STATED, p_value=bounds.variance_p_value(by_mean.others, std=1.0)),),
    )


def _heard(found: list[dict[str, Tensor]], plan: Plan, is_present: Tensor) -> Adversary:
    """What a clip on the norm leaves of a canary is as much in each of its layers; all else is public."""
    size = torch.tensor(CLIP_NORM / CANARIES.num_layers**0.5)
    clipped = PrivateSum(values=dict.fromkeys(found[0], size), sensitivity=CLIP_NORM)
    adversary = Adversary(CANARIES, clipped, plan, is_present.double())
    for grads in found:
        values = {name: plan.expected_batch_size * grad for name, grad in grads.items()}
        adversary.observe(clipped, ReleasedSum(values=values, noise_std=plan.noise_multiplier * CLIP_NORM))
    return adversary


def _scores(scores: Tensor, is_present: Tensor) -> Scores:
    values, present = scores.numpy().astype(np.float64), is_present.numpy()
    return Scores(values[present], values[~present])


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*does not have many workers")]


def test_with_one_key_both_integrations_release_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = present_canaries("both integrations", monkeypatch).nonzero().squeeze(1)
    (first, claimed), (second, also_claimed) = (through(rows, tmp_path, steps=8) for through in INTEGRATIONS.values())
    assert len(first) == len(second) == 8
    assert claimed == also_claimed
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_a_claim_of_three_holds_and_the_game_comes_close_to_it(
    integration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audited(integration, tmp_path, monkeypatch)
    assert 2.99 <= audit.claimed_epsilon <= 3.001
    assert audit.steps == STEPS
    assert audit.verdict is Verdict.NOT_REFUTED
    assert 1.8 <= audit.decisive.epsilon <= audit.claimed_epsilon


@pytest.mark.parametrize("integration", INTEGRATIONS)
def test_half_the_noise_is_refuted(integration: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_halved(dpsgd(), monkeypatch)  # of every method
    audit = audited(integration, tmp_path, monkeypatch)
    assert audit.claimed_epsilon <= 3.001
    assert audit.verdict is Verdict.REFUTED
    assert not audit.checks[0].passed

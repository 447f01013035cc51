"""Ways in which a claimed ε could be untrue for methods that ask, learn and choose. Each of these once worked."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from lehr import fit
from lehr.acceptance.proposal import PrivateEnergy
from lehr.accounting.claims import PublishedRule
from lehr.accounting.events import Adjacency
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.by_name import named
from lehr.planning.plan import Plan
from lehr.privacy.clipping import AdaptiveClip, RawPrior
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import NoisyScore
from lehr.run.loss_oracle import LossOracle, event_of, losses_of_each
from lehr.run.shape import Callback, Progress
from lehr.training.ending import Run

LOSS = partial(cross_entropy, reduction="none")


def records(num_records: int = 120, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(num_records, 6, generator=drawn), torch.randint(0, 2, (num_records,), generator=drawn)


def trained(directory: Path, model: nn.Module, method: Any, **changed: Any) -> Run:
    settings = {"epsilon": 8.0, "delta": 1e-4, "steps": 4, "expected_batch_size": 40, "settings_chosen_on": "fixed"}
    stated = {"records": 120, "num_classes": 2, "quiet": True, "compiled": False, "device": "cpu"}
    return fit(model, records(), method=method, directory=directory, **{**settings, **stated, **changed})


class Noting(nn.Module):
    """Adds up what passes when it is used and not trained."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training:
            self.seen.add_(inputs.detach().reshape(-1, 6).mean(0))
        return inputs - 0.1 * self.seen


@pytest.mark.parametrize("method", ["agd", "dpsur"])
def test_a_model_that_notes_what_it_sees_takes_nothing_out_of_a_question(method: str, tmp_path: Path) -> None:
    settings = {"test_batch_size": 40, "clipped": "records"} if method == "dpsur" else {}
    trained(tmp_path / "run", nn.Sequential(Noting(), nn.Linear(6, 2)), named(method, **settings))
    assert load_file(tmp_path / "run" / "model.safetensors")["0.seen"].abs().max() == 0


def test_what_a_model_notes_of_one_record_does_not_reach_the_loss_of_another() -> None:
    model = nn.Sequential(Noting(), nn.Linear(6, 2)).eval()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    inputs, targets = records(20)
    inputs[0] = 1e3
    with torch.no_grad():
        together = losses_of_each(model, weights, LOSS, inputs, targets)
        without_first = losses_of_each(model, weights, LOSS, inputs[1:], targets[1:])
    torch.testing.assert_close(together[1:], without_first)


def test_what_a_model_notes_of_one_record_does_not_reach_the_score_of_another() -> None:
    model = nn.Sequential(Noting(), nn.Linear(6, 2)).eval()

    def scored(inputs: Tensor, targets: Tensor) -> float:
        held_out = InMemory(inputs, targets)
        judge = NoisyScore(
            records=held_out, loss_fn=LOSS, prepare=lambda seen: seen, noise_multiplier=1e-9, stated_records=100
        )
        return judge.score(model, RunKey(bytes(32)).at(0, 0)).loss * 100 / judge.largest_loss

    inputs, targets = records(60)
    inputs[0] = 1e3
    assert abs(scored(inputs, targets) - scored(inputs[1:], targets[1:])) <= 1 + 1e-6


class Killed(Exception):
    pass


class KilledAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise Killed


class Forgetful(nn.Module):
    """Drops out also when it is used: its public energy is another one every time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(dropout(inputs))
        return outputs


def test_a_resumed_run_does_not_ask_again_for_an_energy_that_it_knew(tmp_path: Path) -> None:
    method = named("sa-dpsgd", initial_inverse_temperature=1e4, cooling="floored", learning_rate=4.0)
    asked = partial(trained, method=method, public=records(30, seed=1), steps=12, checkpoint_seconds=0.0)

    def life(where: str, **changed: Any) -> Run:
        torch.manual_seed(0)
        return asked(tmp_path / where, Forgetful(), **changed)

    decided = []
    for where in ("first", "second"):  # one key for both, so that only the death in between is different
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RunKey, "fresh", lambda **_: RunKey(bytes(range(32))))
            if where == "second":
                with pytest.raises(Killed):
                    life(where, callbacks=[KilledAt(6)])
                life(where, resume=True)
            else:
                life(where)
        decided.append(load_file(tmp_path / where / "model.safetensors")["linear.weight"])
    assert torch.equal(*decided)


def test_a_rule_that_leaves_out_candidates_cannot_pass_for_a_proven_one() -> None:
    with pytest.raises(InvalidValue, match="because must be given where candidates"):
        PublishedRule(paper="nobody", theorem="none", counts_accepted_only=True)


def test_a_rule_that_leaves_out_what_has_no_noise_is_not_proven(tmp_path: Path) -> None:
    raw = AdaptiveClip(clip_norm=1.0, prior=RawPrior(), bound_scale=1.2)
    rule = PublishedRule(paper="nobody", theorem="all is well", accountant="pld")
    method = replace(named("adadp"), clipping=raw, published=rule)
    run = trained(tmp_path / "run", nn.Linear(6, 2), method)
    assert run.published is not None
    assert not run.published.is_proven
    assert run.certificate is None
    claims = json.loads((tmp_path / "run" / "config.json").read_text())["claims"]
    assert claims["published"]["kind"] == "published"


class Hidden(IsotropicNoise):
    """Has a setting that no file shows: what it adds is honest noise of that much more."""

    def __init__(self, more: float) -> None:
        object.__setattr__(self, "more", more)

    def release(self, private: PrivateSum, **given: Any) -> ReleasedSum:
        given["noise_multiplier"] *= self.more  # type: ignore[attr-defined]
        return super().release(private, **given)


def test_a_filling_that_is_not_ours_repeats_nothing(tmp_path: Path) -> None:
    """Noise that was drawn once, under another scale, would be taken off by a subtraction."""
    begun = partial(trained, tmp_path / "run", nn.Linear(6, 2), steps=8, checkpoint_seconds=1e9)
    with pytest.raises(Killed):
        begun(replace(named("dpsgd"), noise=Hidden(1.0)), callbacks=[KilledAt(3)])
    run = begun(replace(named("dpsgd"), noise=Hidden(2.0)), resume=True)
    assert "steps early" in run.end.reason
    attempts = (tmp_path / "run" / "private" / "attempts.jsonl").read_text().splitlines()
    assert len({json.loads(line)["number"] for line in attempts}) == 2


def test_the_energy_that_answers_is_the_one_that_is_charged() -> None:
    energy = PrivateEnergy(loss_clip=0.1, noise_multiplier=50.0, expected_batch_size=40)
    asked = event_of(energy, records=120, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    plan = Plan(noise_multiplier=1.0, expected_batch_size=40, records=120, steps=2, delta=1e-4, asked=asked)
    judge = partial(LossOracle, plan=plan, model=nn.Linear(6, 2), loss_fn=LOSS, prepare=lambda seen: seen, public=None)
    judge(energy=energy, private=InMemory(*records()))
    with pytest.raises(InvalidValue, match="planned event"):
        judge(energy=replace(energy, noise_multiplier=1e-6), private=InMemory(*records()))


def test_an_energy_of_which_nobody_knows_the_cost_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^energy must be"):
        event_of(object(), records=10, adjacency=Adjacency.ADD_OR_REMOVE_ONE)  # type: ignore[arg-type]

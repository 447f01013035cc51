"""A private PCA in front of a network: charged once, before it is computed, and part of what is released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lehr.accounting.events import Atom, Gaussian, PoissonSampled, SampledWithoutReplacement, counted
from lehr.accounting.ledger import Entry, Ledger
from lehr.data.private_pca import PrivatePCA
from lehr.data.records import InMemory
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.interfaces import ReleasedSum
from lehr.networks.layers import Projection
from lehr.networks.small import projected_mlp
from lehr.optim.averaging import ExponentialAverage
from lehr.privacy.rng import RunKey
from lehr.run.shape import Callback, Progress
from lehr.training.training_run import fill_projection, projection_of
from tests.training.tiny import HELD, PRIVATE, SIDE, fit_tiny

INPUTS, DIMENSIONS, HIDDEN = SIDE * SIDE, 3, 5
PCA = PrivatePCA(dimensions=DIMENSIONS, noise_multiplier=2.5)
STEP: Atom = PoissonSampled(0.2, Gaussian(1.0))
KEY = RunKey(bytes(range(32)))
RECORDS = InMemory(PRIVATE[0].clone(), PRIVATE[1])


def projected() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return projected_mlp(inputs=INPUTS, dimensions=DIMENSIONS, hidden=HIDDEN, num_classes=3)


def run_with_pca(where: Path, **changed: Any) -> Any:
    return fit_tiny(where, **{"model": projected(), "private_pca": PCA, **changed})


def entries(where: Path) -> tuple[Entry, ...]:
    with Ledger.open(where / "ledger.db") as ledger:
        return ledger.entries()


def charges(where: Path) -> dict[Atom, int]:
    with Ledger.open(where / "ledger.db") as ledger:
        return counted(ledger.charged())


def components(where: Path) -> Tensor:
    return load_file(where / "model.safetensors")["projection.components"]


def expected(noise_std: float, *, attempt: int = 0) -> Tensor:
    """The components by hand: the moment, normal numbers of the run's key, eigenvectors."""
    private = PCA.private_moment(RECORDS, lambda seen: seen, INPUTS)
    normals = KEY.at(0, attempt).normals("private PCA", private.values)
    values = {name: value + noise_std * normals[name] for name, value in private.values.items()}
    return PCA.components(ReleasedSum(values=values), INPUTS).float()


@pytest.fixture
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)


def test_projection_of_a_model() -> None:
    model = projected()
    assert projection_of(model, PCA) is model.projection
    assert projection_of(nn.Sequential(nn.Linear(2, 2)), None) is None


@pytest.mark.parametrize(
    "model, pca, reason",
    [
        (projected, None, "private_pca must be given for a network with a projection"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 3)), PCA, "model must be one with a single Projection"),
        (lambda: nn.Sequential(Projection(INPUTS, 3), Projection(3, 3)), PCA, "model must be one with a single Proj"),
        (projected, PrivatePCA(dimensions=2, noise_multiplier=1.0), "private_pca must be 3 dimensions"),
    ],
    ids=["no pca", "no projection", "two projections", "other dimensions"],
)
def test_pca_and_projection_need_each_other(
    model: Callable[[], nn.Module], pca: PrivatePCA | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match=reason):
        projection_of(model(), pca)
    with pytest.raises(InvalidValue, match=reason):
        fit_tiny(tmp_path / "run", model=model(), private_pca=pca)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sensitivity_factor", [1.0, 2.0])
def test_noise_is_scaled_by_the_sensitivity(sensitivity_factor: float) -> None:
    layer = Projection(INPUTS, DIMENSIONS)
    fill_projection(
        layer, PCA, KEY.at(0, 7), private=RECORDS, prepare=lambda seen: seen, sensitivity_factor=sensitivity_factor
    )
    torch.testing.assert_close(layer.components, expected(2.5 * sensitivity_factor, attempt=7))
    assert not torch.allclose(layer.components, expected(2.5 * sensitivity_factor * 1.5, attempt=7), atol=1e-3)


@pytest.mark.usefixtures("known_key")
def test_pca_is_charged_first_and_released(tmp_path: Path) -> None:
    run = run_with_pca(tmp_path / "run", settings_chosen_on="fixed", averaging=ExponentialAverage(decay=0.9))
    first, *others = entries(tmp_path / "run")
    assert (first.event, first.note) == (Gaussian(2.5), "before the first step")
    assert all(Gaussian(2.5) not in counted(entry.event) for entry in others)
    assert run.certificate is not None
    assert counted(run.certificate.event) == charges(tmp_path / "run") == {Gaussian(2.5): 1, STEP: 5}
    torch.testing.assert_close(components(tmp_path / "run"), expected(2.5))
    assert torch.equal(run.model.projection.components, components(tmp_path / "run"))


@pytest.mark.usefixtures("known_key")
def test_pca_has_twice_the_noise_under_replace_one(tmp_path: Path) -> None:
    run_with_pca(tmp_path / "run", sampling="without-replacement", records=HELD, steps=2)
    step = SampledWithoutReplacement(HELD, 8, Gaussian(1.0))
    assert charges(tmp_path / "run") == {Gaussian(2.5): 1, step: 2}
    torch.testing.assert_close(components(tmp_path / "run"), expected(5.0))


def test_epsilon_includes_the_pca(tmp_path: Path) -> None:
    plain = fit_tiny(tmp_path / "plain", epsilon=5.0, noise_multiplier=None, steps=2)
    run = run_with_pca(tmp_path / "run", epsilon=5.0, noise_multiplier=None, steps=2)
    assert 0.99 * 5.0 < run.proven.epsilon <= 5.0
    assert run.plan.noise_multiplier > plain.plan.noise_multiplier


def test_evaluations_include_the_pca_in_epsilon(tmp_path: Path) -> None:
    run = run_with_pca(tmp_path / "run", evaluate_every=1)
    plain = fit_tiny(tmp_path / "plain", evaluate_every=1)
    assert all(a.epsilon_spent > b.epsilon_spent for a, b in zip(run.evaluations, plain.evaluations, strict=True))
    assert run.evaluations[-1].epsilon_spent == pytest.approx(run.proven.epsilon, rel=0.1)


class StopsAt(Callback):
    """Ends the process, as far as the run can tell, once so many steps were taken."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("known_key")
def test_resumed_run_pays_for_the_pca_once(tmp_path: Path) -> None:
    run_with_pca(tmp_path / "whole")
    where = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run_with_pca(where, callbacks=[StopsAt(2)], checkpoint_seconds=0.0)
    run_with_pca(where, resume=True)
    assert (where / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert charges(where) == charges(tmp_path / "whole")


@pytest.mark.usefixtures("known_key")
def test_new_attempt_keeps_the_projection_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_with_pca(tmp_path / "run", callbacks=[StopsAt(2)], checkpoint_seconds=0.0)
    monkeypatch.setenv("OMP_SOMETHING", "else")  # a bit may depend on it
    run_with_pca(tmp_path / "run", resume=True)
    torch.testing.assert_close(components(tmp_path / "run"), expected(2.5))
    assert charges(tmp_path / "run") == {Gaussian(2.5): 1, STEP: 5}


def kill_during_pca(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that charged its PCA and was killed before a checkpoint had it."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PrivatePCA, "components", killed)
        with pytest.raises(KeyboardInterrupt):
            run_with_pca(where)


@pytest.mark.usefixtures("known_key")
def test_pca_is_charged_before_it_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "run"
    kill_during_pca(where, monkeypatch)
    assert charges(where) == {Gaussian(2.5): 1}
    run_with_pca(where, resume=True)
    torch.testing.assert_close(components(where), expected(2.5))
    assert charges(where) == {Gaussian(2.5): 1, STEP: 5}


def test_pca_is_not_drawn_again_for_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "run"
    kill_during_pca(where, monkeypatch)
    monkeypatch.setenv("OMP_SOMETHING", "else")  # a bit may depend on it
    for _ in range(3):
        with pytest.raises(BudgetExceeded):
            run_with_pca(where, resume=True)
    assert charges(where) == {Gaussian(2.5): 1}

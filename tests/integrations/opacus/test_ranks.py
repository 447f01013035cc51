"""Opacus loops on two processes, as Opacus users write them: the same training as on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from lehr.integrations.opacus import BatchMemoryManager, PrivacyEngine, distributed
from tests.integrations.ranks import alone, in_turn

pytestmark = pytest.mark.slow
RECORDS = 40
WRAPPERS: dict[str, Any] = {
    "DPDDP": distributed.DifferentiallyPrivateDistributedDataParallel,
    "DDP": DistributedDataParallel,
}


def records(*, is_turned: bool = False) -> TensorDataset:
    inputs = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(3))
    return TensorDataset(inputs.flip(0) if is_turned else inputs, torch.arange(RECORDS) % 3)


def train(folder: Path, rank: int, **job: Any) -> dict[str, Any]:
    """One process's part of two epochs."""
    job = {**job}
    of_rank = job.pop("of_rank", {}).get(rank, {})
    torch.manual_seed(rank)  # the first weights are those of rank 0, whatever the others have
    plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    wrapped = WRAPPERS[job.pop("wrapper", "DPDDP")](plain)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5, momentum=0.9)
    kept = {name: job.pop(name) for name in ("settings_chosen_on", "delta") if name in job}
    engine = PrivacyEngine(**kept, directory=folder if "delta" in kept else None)
    loader = DataLoader(of_rank.get("data", records()), batch_size=job.pop("batch_size", 8))
    at_once, noise, epochs = job.pop("at_once", 3), job.pop("noise", 1.0), 2
    settings = {"max_grad_norm": 1.0, **job, **of_rank.get("settings", {})}
    if "target_epsilon" in settings:
        model, private, draws = engine.make_private_with_epsilon(
            module=wrapped, optimizer=optimizer, data_loader=loader, target_delta=1e-3, epochs=epochs, **settings
        )
    else:
        model, private, draws = engine.make_private(
            module=wrapped, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, epochs=epochs, **settings
        )
    steps = 0
    for _ in range(epochs):
        with BatchMemoryManager(data_loader=draws, max_physical_batch_size=at_once, optimizer=private) as batches:
            for inputs, targets in batches:
                private.noise_multiplier = of_rank.get("noise", private.noise_multiplier)
                private.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
                private.step()
                steps += 1
    certificate = engine.finish()
    return {
        "weights": torch.cat([value.detach().flatten() for value in plain.parameters()]).tolist(),
        "steps": sum(count for *_, count in engine.accountant.history),
        "epsilon": engine.get_epsilon(1e-3),
        "clip_norm": private.max_grad_norm,
        "batches": steps,
        "certificate": None if certificate is None else certificate.epsilon,
        "names": sorted(model.state_dict()),
    }


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}
EQUAL: dict[str, dict[str, Any]] = {
    "DPDDP": {"delta": 1e-3, "settings_chosen_on": "fixed"},
    "DDP": {"wrapper": "DDP", "loss_reduction": "mean"},
    "epsilon": {"target_epsilon": 4.0},
    "adaptive": ADAPTIVE,
    "most shares are empty": {"batch_size": 1},
}
REFUSED: dict[str, dict[str, Any]] = {
    "a record": {"of_rank": {1: {"data": records(is_turned=True)}}},
    "settings": {"of_rank": {1: {"settings": {"max_grad_norm": 2.0}}}},
    "noise_multiplier": {"of_rank": {1: {"noise": 2.0}}},
    "wrap_model": {"wrapper": "DDP", "wrap_model": False},
    "poisson_sampling": {"poisson_sampling": False, "accept_unproven": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def by_rank(folder: Path) -> list[dict[str, Any]]:
    return in_turn(2, folder / "two", train, [*EQUAL.items(), *REFUSED.items()])


@pytest.mark.parametrize("name", EQUAL)
def test_two_ranks_equal_one_process(name: str, folder: Path, by_rank: list[dict[str, Any]]) -> None:
    first, second = (said[name] for said in by_rank)
    expected = alone(folder / "one" / name, train, **{**EQUAL[name], "wrapper": "DPDDP"})
    assert first["weights"] == second["weights"]
    torch.testing.assert_close(torch.tensor(first["weights"]), torch.tensor(expected["weights"]), rtol=1e-4, atol=1e-6)
    assert first["clip_norm"] == second["clip_norm"] == pytest.approx(expected["clip_norm"], rel=1e-4)
    for what in ("steps", "epsilon", "names"):
        assert first[what] == second[what] == expected[what], what
    assert first["certificate"] == expected["certificate"]
    assert second["certificate"] is None
    one, two = (sorted(path.name for path in (folder / part / name).rglob("*")) for part in ("one", "two"))
    assert one == two
    assert bool(one) == ("delta" in EQUAL[name])


@pytest.mark.parametrize("name", REFUSED)
def test_ranks_that_differ_are_refused(name: str, by_rank: list[dict[str, Any]]) -> None:
    first, second = (said[name] for said in by_rank)
    assert first == second
    assert first["error"].startswith(f"InvalidValue: {name} must be")

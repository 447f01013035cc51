"""Every engine on every network of the zoo: right for each record, or refused by name; never wrong, never a raw error.

What is right is said by a loop over records, ``tests/gradients/one_by_one.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lehr.errors import LehrError, NotPrivate
from lehr.gradients import batches
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.integrations.opacus import PrivacyEngine
from tests.contracts.zoo import COINS, RECORDS, ROW, ZOO, Network, reals, whole_batch_depth, with_coin
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import assert_close

TARGETS = torch.arange(RECORDS)


def losses(outputs: Any, targets: Tensor) -> Tensor:
    """One loss for each record, whatever the outputs look like."""
    scores = next(leaf for leaf in batches.leaves(outputs) if leaf.is_floating_point()).flatten(1)
    return functional.cross_entropy(scores, targets % scores.shape[1], reduction="none")


def ghost(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    return GhostEngine(model, losses, compiled=False).gradients(inputs, targets)


def materialised(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    return MaterialisedEngine(model, losses).gradients(inputs, targets)


def hooked(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    with HookedEngine(model) as engine:
        torch.autograd.backward(losses(batches.call(model, inputs), targets).mean())
        return engine.gradients()


ENGINES: dict[str, Callable[..., Any]] = {"ghost": ghost, "materialised": materialised, "hooked": hooked}


def built(network: Network) -> tuple[nn.Module, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return network.build().double(), network.inputs()


def norms_and_sums(gradients: Any) -> tuple[Tensor, dict[str, Tensor]]:
    weights = torch.linspace(0.5, 1.5, RECORDS, dtype=torch.float64)
    return gradients.norms(), gradients.weighted_sum(weights)


def assert_right_or_refused(engine: str, network: Network) -> None:
    model, inputs = built(network)
    if engine in network.refused_by:
        with pytest.raises(LehrError, match=r"Instead: |allowed|must be "):
            norms_and_sums(ENGINES[engine](model, inputs, TARGETS))
        return
    expected_norms, expected = norms_and_sums(OneByOneEngine(model, losses).gradients(inputs, TARGETS))
    norms, sums = norms_and_sums(ENGINES[engine](model, inputs, TARGETS))
    assert_close(norms, expected_norms, 1e-6)
    assert sums.keys() == expected.keys()
    scale = float(torch.stack([value.norm() for value in expected.values()]).norm())
    for name, value in sums.items():
        assert float((value - expected[name]).norm()) <= 1e-6 * max(scale, 1e-3), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ZOO)
def test_a_network_is_differentiated_record_by_record_or_refused_by_name(name: str, engine: str) -> None:
    assert_right_or_refused(engine, ZOO[name])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("coin", COINS)
def test_a_layer_that_is_dropped_by_a_coin_gives_gradients_with_or_without_it(coin: str, engine: str) -> None:
    inputs = reals(*ROW)()
    model = with_coin(COINS[coin]).double()
    possible = []
    for is_kept in (True, False):
        model.coin = lambda is_kept=is_kept: is_kept
        possible.append(OneByOneEngine(model, losses).gradients(inputs, TARGETS).norms())
    model.coin = COINS[coin]
    if engine == "hooked":  # which cannot loop over records, and one coin for all would tie them together
        with pytest.raises(NotPrivate, match="all records that are run together"):
            hooked(model, inputs, TARGETS)
        return
    seen = set()
    for _ in range(12):
        norms = ENGINES[engine](model, inputs, TARGETS).norms()
        is_kept, is_dropped = (((norms - one).abs() < 1e-9).tolist() for one in possible)
        assert all(map(any, zip(is_kept, is_dropped, strict=True)))
        seen.add(tuple(is_kept))
    assert any(len(set(is_kept)) == 2 for is_kept in seen)  # a coin for each record


@pytest.mark.parametrize("engine", ["ghost", "hooked"])
def test_a_coin_for_all_records_of_a_batch_does_not_move_other_records(engine: str) -> None:
    """Stochastic depth for a whole batch: two records that are alike would add the same for certain, and must not."""
    model = whole_batch_depth().double()
    inputs = reals(*ROW)()[:1].expand(8, -1).clone()
    draws = [ENGINES[engine](model, inputs, torch.zeros(8, dtype=torch.long)).norms() for _ in range(4)]
    assert any(float(norms.max() - norms.min()) > 1e-6 for norms in draws)


def opacus_step(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """The noisy mean that a loop for Opacus writes, of a draw that has every record in it and hardly any noise."""
    parts = batches.leaves(inputs)
    loader = DataLoader(TensorDataset(*parts, TARGETS), batch_size=RECORDS)
    private, optimizer, drawn = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        data_loader=loader,
        noise_multiplier=1e-9,
        max_grad_norm=1.0,
    )
    for *found, targets in drawn:
        arguments = dict(zip(inputs, found, strict=True)) if isinstance(inputs, dict) else tuple(found)
        torch.autograd.backward(losses(batches.call(private, arguments), targets).mean())
        optimizer.step()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_a_loop_for_opacus_is_right_or_refused_by_name(name: str) -> None:
    model, inputs = built(ZOO[name])
    has_cells = any(isinstance(layer, nn.RNNBase) for layer in model.modules())
    if "hooked" in ZOO[name].refused_by or has_cells:  # as Opacus does, which has recurrent layers of its own
        with pytest.raises(LehrError, match=r"Instead: |must be |use DP"):
            opacus_step(model, inputs)
        return
    gradients = OneByOneEngine(model, losses).gradients(inputs, TARGETS)
    expected = gradients.weighted_sum(1 / gradients.norms().clamp_min(1) / RECORDS)
    for parameter, value in opacus_step(model, inputs).items():
        assert_close(value, expected[parameter], 1e-5)

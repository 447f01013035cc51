"""The same program gives the same bits, and leaves no trace. What a probe notices is attacked in tests/privacy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.data import InMemory, Preparation
from lehr.data.augmentation import augmentation_by_name
from lehr.gradients.ghost import GhostEngine
from lehr.methods.dpsgd import dpsgd
from lehr.networks import build
from lehr.training.engines import probe
from lehr.training.input_pipeline import InputPipeline
from lehr.training.records import RunRecords


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def probed(model: nn.Module, *, learning_rate: float = 0.5, inputs: Tensor | None = None) -> str:
    held = torch.zeros(4, 1, 4, 4) if inputs is None else inputs
    given = RunRecords(
        name="made up",
        private=InMemory(held, torch.zeros(4, dtype=torch.int64)),
        records=4,
        num_classes=3,
        preparation=Preparation(),
    )
    look = InputPipeline(
        preparation=Preparation(), augmentation=augmentation_by_name("none"), views=1, device=torch.device("cpu")
    )
    engine = GhostEngine(model, loss, compiled=False)
    method = dpsgd(learning_rate=learning_rate)
    return probe(model, engine, method, loss, pipeline=look, given=given, size=8)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def test_the_same_program_gives_the_same_answer_whatever_its_weights_and_records() -> None:
    first = probed(network())
    assert probed(network()) == first
    assert probed(network(seed=1)) == first
    assert probed(network(), inputs=torch.rand(4, 1, 4, 4)) == first


def test_another_update_gives_another_answer() -> None:
    assert probed(network(), learning_rate=0.4) != probed(network())


def test_weights_gradients_and_generators_are_left_as_they_were() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    probed(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_network_with_numbers_and_convolutions_of_one_pixel_is_answered_for() -> None:
    def residual() -> nn.Module:
        torch.manual_seed(0)
        return build("nf_resnet", num_blocks=[1], stem_channels=2, stem="small", in_channels=1, num_classes=3)

    assert probed(residual()) == probed(residual())

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate

from lehr.compat.opacus import PrivacyEngine
from lehr.compat.opacus.collation import Found, tried
from lehr.errors import NotPrivate
from tests.compat.opacus.loops import Loop, network, records, sgd, take_steps

RECORDS = [(torch.full((3,), float(value)), value) for value in range(4)]
SENTENCES = [torch.arange(1, length + 1) for length in (3, 5, 3, 4)]


def mixed_up(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    share = torch.rand(1, dtype=inputs.dtype)
    return share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))], targets


def sometimes_mixed_up(batch: list[Any]) -> Any:
    return mixed_up(batch) if torch.rand(()) < 0.7 else default_collate(batch)


def centred(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs - inputs.mean(0), targets


def seeded_elsewhere(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + random.random() * inputs.flip(0), targets


def noised(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + torch.randn(inputs.shape), targets


def noised_elsewhere(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + random.random(), targets


class Encoded:
    """A batch of a tokenizer, which is no dictionary and has the items of one."""

    def __init__(self, batch: list[Any]) -> None:
        self.data = {"inputs": torch.stack([inputs for inputs, _ in batch]).cumsum(0)}

    def items(self) -> Any:
        return self.data.items()


@pytest.mark.parametrize("collate", [mixed_up, sometimes_mixed_up, centred, Encoded])
def test_a_collation_that_mixes_records_is_refused(collate: Any) -> None:
    with pytest.raises(NotPrivate, match=r"collate_fn.*other records"):
        tried(collate, RECORDS)


@pytest.mark.parametrize("collate", [default_collate, noised])
def test_one_that_looks_at_records_one_by_one_is_accepted(collate: Any) -> None:
    assert tried(collate, RECORDS) is Found.APART


@pytest.mark.parametrize("collate", [noised_elsewhere, seeded_elsewhere])
def test_randomness_that_is_not_torchs_shows_nothing(collate: Any) -> None:
    assert tried(collate, RECORDS) is Found.NOTHING


def test_a_record_that_is_not_finite_is_no_mixing() -> None:
    assert tried(default_collate, [torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, 1.0])]) is Found.APART


def test_padding_to_the_longest_is_seen_and_that_to_a_fixed_length_is_none() -> None:
    def fixed(batch: list[Tensor]) -> Tensor:
        return pad_sequence([*batch, torch.zeros(8)], batch_first=True)[:-1]

    assert tried(lambda batch: pad_sequence(batch, batch_first=True), SENTENCES) is Found.PADDED
    assert tried(fixed, SENTENCES) is Found.APART


@pytest.mark.parametrize("few", [[], RECORDS[:1], [RECORDS[0], RECORDS[0]]])
def test_records_that_are_alike_show_nothing(few: list[Any]) -> None:
    assert tried(mixed_up, few) is Found.NOTHING


def looped(collate: Any, dataset: Any = None) -> Loop:
    engine, model = PrivacyEngine(), network()
    made = engine.make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(dataset or records(), batch_size=8, collate_fn=collate),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return Loop(engine, *made)


def test_a_loop_with_mixup_in_its_loader_is_never_made() -> None:
    with pytest.raises(NotPrivate, match="collate_fn"):
        looped(mixed_up)
    take_steps(looped(default_collate), 1)


def test_a_loop_that_pads_is_told_what_that_asks_for() -> None:
    with pytest.warns(UserWarning, match="ignore what is padded"):
        loop = looped(lambda batch: pad_sequence(batch, batch_first=True), SENTENCES)
    assert any("longest" in note for note in loop.engine.notes)


def test_records_that_only_a_worker_can_read_are_not_tried_and_that_is_noted() -> None:
    class OfWorkers:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, place: int) -> Any:
            raise OSError("this file is opened by workers")

    assert any("not tried" in note for note in looped(None, OfWorkers()).engine.notes)

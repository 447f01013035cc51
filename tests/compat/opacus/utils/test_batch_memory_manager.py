from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from lehr.compat.opacus import BatchMemoryManager
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import Loop, private, records, take_step


def managed(loop: Loop, size: int) -> BatchMemoryManager:
    return BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=size, optimizer=loop.optimizer)


def test_noise_is_added_once_for_each_draw_whatever_its_parts() -> None:
    loop = private(batch_size=16)
    parts = 0
    with managed(loop, 5) as loader:
        for batch in loader:
            parts += 1
            take_step(loop, batch)
    assert len(loop.engine.accountant) == 3 < parts


def test_weights_move_only_where_a_draw_is_complete() -> None:
    loop = private(batch_size=30)
    with managed(loop, 4) as loader:
        for batch in loader:
            before = loop.model.state_dict()["_module.0.weight"].clone()
            charged = len(loop.engine.accountant)
            take_step(loop, batch)
            moved = bool((loop.model.state_dict()["_module.0.weight"] != before).any())
            assert moved == (len(loop.engine.accountant) > charged)


def test_a_pass_that_is_broken_off_leaves_nothing_behind() -> None:
    loop = private(batch_size=20)
    with managed(loop, 3) as loader:
        for batch in loader:
            take_step(loop, batch)
            break
    for batch in loop.loader:
        take_step(loop, batch)
    assert len(loop.engine.accountant) == 2


def test_a_loader_that_is_not_private_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="make_private"):
        BatchMemoryManager(data_loader=DataLoader(records()), max_physical_batch_size=2, optimizer=loop.optimizer)
    with pytest.raises(InvalidValue, match="max_physical_batch_size"):
        managed(loop, 0)

"""What cannot be sharded is refused by name. Whole runs of several processes are in tests/run/test_sharded.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from lehr import fit
from lehr.data.private_pca import PrivatePCA
from lehr.errors import InvalidValue
from lehr.methods.by_name import named
from lehr.optim.optimizers import Update, custom
from lehr.training.training_run import COORDINATE_BY_COORDINATE, _refuse_method
from tests.several_ranks import copied, prepared, records, train


def asked(**changed: Any) -> None:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 12, "delta": 1e-3, **changed}
    model = given.pop("model", None) or nn.Linear(4, 3)
    fit(model, records(0, 60), records=60, num_classes=3, quiet=True, sharded=True, **given)


def test_in_one_process_there_is_nobody_to_share_with() -> None:
    with pytest.raises(InvalidValue, match="torchrun"):
        asked()


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize(
    "name, changed",
    [
        ("method", {"method": "sa-dpsgd", "public": records(2, 20)}),
        ("method", {"method": named("dpsur", test_batch_size=30)}),
        ("method", {"method": "adadp"}),
        ("method", {"method": "dpopt"}),
        ("optimizer", {"method": named("dpsgd", update=Update(optimizer="adafactor", learning_rate=0.1))}),
        ("optimizer", {"method": named("dpsgd", update=custom(lambda parameters: optim.ASGD(parameters, lr=0.1)))}),
        ("precision", {"precision": "bfloat16"}),
        ("compiled", {"compiled": True}),
        ("diagnostics", {"diagnostics": True}),
        ("held_out_fraction", {"held_out_fraction": 0.2, "evaluate_every": 2}),
        ("private_pca", {"private_pca": PrivatePCA(dimensions=2, noise_multiplier=8.0)}),
    ],
)
def test_what_needs_more_than_a_share_is_refused_before_there_is_a_folder(
    name: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        asked(directory=tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


class Learning:
    """A clip that remembers something of every parameter, and of nothing where there is none."""

    needs_coordinates, unproven = False, None

    def start(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros(()) for name in parameters}


def test_a_clip_that_learns_from_each_parameter_is_refused() -> None:
    method: Any = SimpleNamespace(**{**vars(named("dpsgd")), "clipping": Learning(), "name": "own"})
    with pytest.raises(InvalidValue, match="learns nothing"):
        _refuse_method(method)


def test_optimizers_that_look_at_a_weight_as_a_whole_are_not_on_the_list() -> None:
    assert {"sgd", "adam", "adamw"} <= set(COORDINATE_BY_COORDINATE)
    assert not {"adafactor", "normalised-sgd"} & set(COORDINATE_BY_COORDINATE)


@pytest.mark.usefixtures("met")
def test_a_single_rank_holds_everything_and_trains_what_one_process_trains(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    found = train(copied(run, "spread"), sharded=True)
    expected = train(run)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-4, abs=1e-6)
    assert found["held"] == [20, 5, 15, 3]

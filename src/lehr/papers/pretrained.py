"""A part of a network whose weights come from plain training on public records, before a private run begins.

ADADP (Xu et al. 2020) takes the convolutions of its network for CIFAR-10 from CIFAR-100. No ε is paid for them, since
CIFAR-100 is taken as public. What was trained lies in Lehr's cache, so that runs of one seed share it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from lehr import data, networks, validate
from lehr.data import finding
from lehr.errors import InvalidValue
from lehr.files import whole_file
from lehr.methods.plain_sgd import plain_sgd
from lehr.run_shape import PUBLIC
from lehr.schedules import Cosine
from lehr.training.fit import fit

FOLDER = "pretrained"


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the part was trained: the network that it is a part of, public records, and plain SGD with a cosine."""

    part: str
    network: str
    arguments: Mapping[str, Any]
    data: str
    steps: int
    expected_batch_size: int
    learning_rate: float
    augmentation: str = "flip_crop"

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        validate.count(expected_batch_size=self.expected_batch_size)
        validate.positive(learning_rate=self.learning_rate)

    @classmethod
    def from_json(cls, shape: Mapping[str, Any]) -> Self:
        """The same from its words."""
        try:
            return cls(**shape)
        except TypeError as error:
            allowed = "an object with " + ", ".join(cls.__dataclass_fields__)
            raise InvalidValue("pretrained", allowed=allowed, given=sorted(shape)) from error

    def place(self, seed: int) -> Path:
        """Where the weights of one seed are kept."""
        said = json.dumps({**asdict(self), "seed": seed}, sort_keys=True)
        return finding.cache() / FOLDER / f"{hashlib.sha256(said.encode()).hexdigest()[:24]}.safetensors"


def fill(
    model: nn.Module, pretrained: Mapping[str, Any], *, seed: int, device: torch.device, data_dir: str | None
) -> None:
    """Give the part of ``model`` its weights, and train them first where that was not done yet."""
    how = Pretraining.from_json(pretrained)
    taking, place = _part(model, how), how.place(seed)
    weights = _kept(place)
    if weights is None:
        weights = _trained(how, seed=seed, device=device, data_dir=data_dir)
        place.parent.mkdir(parents=True, exist_ok=True)
        whole_file.write_bytes(place, save(weights))
    try:
        taking.load_state_dict(weights)
    except RuntimeError as error:
        allowed = f"a part of the same shape in both networks ({error})"
        raise InvalidValue("pretrained", allowed=allowed, given=how.part) from error


def _part(model: nn.Module, how: Pretraining) -> nn.Module:
    try:
        return model.get_submodule(how.part)
    except AttributeError as error:
        raise InvalidValue("pretrained", allowed="a part that the network has", given=how.part) from error


def _kept(place: Path) -> dict[str, Tensor] | None:
    """What is in the cache; a file that is damaged is as good as none."""
    try:
        return load(place.read_bytes())
    except (OSError, SafetensorError):
        return None


def _trained(how: Pretraining, *, seed: int, device: torch.device, data_dir: str | None) -> dict[str, Tensor]:
    """The weights of the part after plain training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        donor = networks.build(how.network, **how.arguments)
    schedule = Cosine(total_steps=how.steps)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            donor,
            data.load(how.data, data_dir=data_dir),
            declared=PUBLIC,
            method=plain_sgd(learning_rate=how.learning_rate, schedule=schedule),
            steps=how.steps,
            expected_batch_size=how.expected_batch_size,
            augmentation=how.augmentation,
            device=device,
            directory=Path(folder) / "run",
            evaluate_every=how.steps,
            silent=True,
            checkpoint_seconds=3600,
        )
    weights = _part(donor, how).state_dict()
    return {name: value.detach().cpu().contiguous() for name, value in weights.items()}

"""Priors: weights trained on images from random processes, before any record is seen. They cost no privacy.

Tang, Panda et al. (2023), "Differentially Private Image Classification by Learning Priors from Random Processes",
train all but the last layer of a network so that two augmented views of one image have similar features, and different
images have different ones (Wang & Isola 2020: alignment and uniformity). Private training then starts from there.

    prior = make_prior(PriorSettings(network="resnet9"), to=Path("prior"))
    lehr.fit("resnet9", data, prior="prior", recipe="auto", ...)

A prior is a folder: ``prior.safetensors`` has the weights, ``prior.json`` says how to make them again. The same
settings on the same machine give the same weights.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

import lehr
from lehr import networks, validate
from lehr.certificates.released_model import read_weights
from lehr.data.augmentation import Augmentation, ColourJitter, Grayscale, HorizontalFlip, RandomResizedCrop
from lehr.data.random_images import KINDS, draw
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic, strict_json

FORMAT, FORMAT_VERSION = "lehr-prior", 1
WEIGHTS, DESCRIPTION, CHECKPOINT = "prior.safetensors", "prior.json", "checkpoint.safetensors"
DRAWN_AT_ONCE = 500  # images
LARGER_BY = 2  # the side of random images over that of the network's: crops of them are not blurred
HIDDEN, OUTPUTS, GROUPS = 1024, 128, 16  # of the layers that are trained in place of the last, and thrown away
MOMENTUM, WEIGHT_DECAY, RATE_PER_IMAGE = 0.9, 1e-4, 0.12 / 256
WARM_UP, LARGEST_GRADIENT = 100, 5.0
CHECKPOINT_SECONDS = 30.0

# Two views of a random image: crops of it, which are then made as small as the network's images.
CROP = Augmentation(name="crop", operations=(RandomResizedCrop(), HorizontalFlip()))
JITTER = ColourJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2, probability=1.0)
COLOUR = Augmentation(name="colour", operations=(JITTER, Grayscale()))


@dataclass(frozen=True, kw_only=True)
class PriorSettings:
    """Everything that decides a prior. ``kinds`` are those of ``lehr.data.random_images``, in equal shares."""

    network: str = "resnet9"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    image_side: int = 32
    channels: int = 3
    kinds: tuple[str, ...] = ("oriented", "oriented", "oriented", "dead-leaves")
    images: int = 60_000
    steps: int = 8_000
    batch_size: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", tuple(self.kinds))
        for kind in self.kinds:
            validate.one_of(KINDS, kinds=kind)
        for name in ("image_side", "channels", "images", "steps"):
            validate.count(**{name: getattr(self, name)})
        validate.count(minimum=2, batch_size=self.batch_size)
        validate.count(minimum=0, seed=self.seed)
        if not self.kinds:
            raise InvalidValue("kinds", allowed="one or more of " + ", ".join(KINDS), given=self.kinds)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": dict(self.arguments), "kinds": list(self.kinds)}

    @property
    def random_side(self) -> int:
        """The side of the random images: a power of two, as ``oriented`` needs."""
        return int(2 ** math.ceil(math.log2(LARGER_BY * self.image_side)))


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The weights of all layers but the last, and how they were made."""

    weights: Mapping[str, Tensor]
    description: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a prior. The weights must be those that the description is about."""
        folder = Path(folder)
        description = strict_json.read(folder / DESCRIPTION, _description)
        weights = read_weights(folder / WEIGHTS)
        if _hash(weights) != description["weights"]:
            raise DamagedFile(f"{folder / WEIGHTS} has other weights than {DESCRIPTION} says")
        return cls(weights=weights, description=description)

    def put_into(self, model: nn.Module) -> None:
        """Copy the weights into a model, which must have all of them and one more layer."""
        own = model.state_dict()
        for name, value in self.weights.items():
            if name not in own or own[name].shape != value.shape:
                network = {key: self.description["settings"][key] for key in ("network", "arguments")}
                allowed = f"one for this model; it was made for {strict_json.dumps(network)}"
                raise InvalidValue("prior", allowed=allowed, given=f"{name} {tuple(value.shape)}")
        model.load_state_dict({**own, **self.weights})

    def __str__(self) -> str:
        settings = self.description["settings"]
        kinds = " and ".join(dict.fromkeys(settings["kinds"]))
        counted = f"{settings['images']:,} images from random processes ({kinds})"
        return f"{counted}, seed {settings['seed']}; weights {self.description['weights'][:12]}"


Report = Callable[[int, int, float], None]  # the step, the number of steps and the loss


def make_prior(
    settings: PriorSettings,
    *,
    to: str | Path,
    device: str | torch.device | None = None,
    report: Report = lambda step, steps, loss: None,
) -> Prior:
    """Train a prior and write it to a folder. If an earlier call was stopped, it continues from its checkpoint."""
    folder, where = Path(to), torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    trainer = _Trainer(settings, where)
    done = trainer.resume(folder) if folder.exists() else 0
    if (folder / DESCRIPTION).exists():
        raise StoreError(f"{folder} has a prior already: remove it, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    saved_at = time.monotonic()
    for step in range(done, settings.steps):
        loss = trainer.step(step)
        if time.monotonic() - saved_at >= CHECKPOINT_SECONDS:
            trainer.save(folder, step + 1)
            saved_at = time.monotonic()
        report(step + 1, settings.steps, loss)
    if not math.isfinite(trainer.last_loss):
        raise InvalidValue("loss", allowed="finite at the end; a smaller batch_size may help", given=trainer.last_loss)
    weights = trainer.weights()
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "settings": settings.to_json(),
        "weights": _hash(weights),
        "loss": round(trainer.last_loss, 6),
        "library_version": lehr.__version__,
        "made_with": {"torch": str(torch.__version__), "device": where.type},
    }
    atomic.write_bytes(folder / WEIGHTS, save(dict(weights)))
    strict_json.write(folder / DESCRIPTION, description)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    return Prior(weights=weights, description=description)


class _Trainer:
    """The network with other layers in place of its last one, the random images, and the optimizer."""

    def __init__(self, settings: PriorSettings, device: torch.device) -> None:
        self.settings, self.device, self.last_loss = settings, device, 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            network = networks.build(settings.network, **settings.arguments)
            self._body, features = _body(network, settings)
            self._projection = _projection(features)
        self._names = {name for name in network.state_dict() if name in self._body.state_dict()}
        self._both = nn.ModuleList([self._body, self._projection]).to(device)
        self._optimizer = torch.optim.SGD(
            self._both.parameters(),
            lr=RATE_PER_IMAGE * settings.batch_size,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            nesterov=True,
        )
        self._images: Tensor | None = None
        self._loss = torch.compile(self._loss_of) if device.type == "cuda" else self._loss_of

    def _loss_of(self, views: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            outputs = self._projection(self._body(views))
        return _loss(*functional.normalize(outputs.float(), dim=1).chunk(2))

    def step(self, step: int) -> float:
        """One step. Its random numbers follow from the seed and its number, so that a resumed run is the same."""
        settings = self.settings
        generator = torch.Generator(self.device).manual_seed(_seed(settings.seed, step))
        if self._images is None:
            self._images = torch.cat(list(self._drawn()))
        chosen = torch.randint(len(self._images), (settings.batch_size,), generator=generator, device=self.device)
        crops = CROP(self._images[chosen].float() / 255, views=2, generator=generator).transpose(0, 1).flatten(0, 1)
        small = functional.interpolate(crops, [settings.image_side] * 2, mode="area")
        views = COLOUR(small, views=1, generator=generator).squeeze(1)
        rate = min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / settings.steps)) / 2
        for group in self._optimizer.param_groups:
            group["lr"] = rate * RATE_PER_IMAGE * settings.batch_size
        loss = self._loss(4 * views - 2)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._both.parameters(), LARGEST_GRADIENT)
        self._optimizer.step()
        self.last_loss = float(loss.detach())
        return self.last_loss

    def weights(self) -> dict[str, Tensor]:
        """The weights of the network, without its last layer."""
        found = self._body.state_dict().items()
        return {name: value.detach().cpu().contiguous() for name, value in found if name in self._names}

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint."""
        state = {f"model/{name}": value for name, value in self._both.state_dict().items()}
        for index, parameter in enumerate(self._both.parameters()):
            state[f"momentum/{index}"] = self._optimizer.state[parameter]["momentum_buffer"]
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        settings = torch.frombuffer(bytearray(self._identity()), dtype=torch.uint8)
        atomic.write_bytes(
            folder / CHECKPOINT, save({**tensors, "done": torch.tensor(done), "settings": settings.clone()})
        )

    def resume(self, folder: Path) -> int:
        """Load the checkpoint in the folder, if there is one, and return the number of steps that it has."""
        if not (folder / CHECKPOINT).exists():
            return 0
        found = read_weights(folder / CHECKPOINT)
        if bytes(found["settings"].tolist()) != self._identity():
            raise InvalidValue("settings", allowed=f"those of the prior begun in {folder}", given=self.settings.network)
        self._both.load_state_dict({name[6:]: value for name, value in found.items() if name.startswith("model/")})
        for index, parameter in enumerate(self._both.parameters()):
            self._optimizer.state[parameter]["momentum_buffer"] = found[f"momentum/{index}"].to(self.device)
        return int(found["done"])

    def _identity(self) -> bytes:
        return strict_json.dumps(self.settings.to_json()).encode()

    def _drawn(self) -> Iterator[Tensor]:
        settings, generator = self.settings, torch.Generator(self.device).manual_seed(_seed(self.settings.seed, -1))
        for first in range(0, settings.images, DRAWN_AT_ONCE):
            count, kind = min(DRAWN_AT_ONCE, settings.images - first), first // DRAWN_AT_ONCE % len(settings.kinds)
            sizes = {"side": settings.random_side, "channels": settings.channels}
            images = draw(settings.kinds[kind], count, **sizes, generator=generator)
            yield (255 * images).to(torch.uint8)


def _body(network: nn.Module, settings: PriorSettings) -> tuple[nn.Module, int]:
    """All layers but the last, and the number of features that they give."""
    children = list(network.named_children())
    if not isinstance(network, nn.Sequential) or not children or not isinstance(children[-1][1], nn.Linear):
        raise InvalidValue("network", allowed="one whose last layer is linear, as resnet9", given=settings.network)
    body = copy.deepcopy(network)
    setattr(body, children[-1][0], nn.Identity())
    images = torch.zeros(1, settings.channels, settings.image_side, settings.image_side)
    try:
        with torch.no_grad():
            return body, body(images).shape[1]
    except (RuntimeError, InvalidValue) as error:
        allowed = f"such that the network takes images of {settings.channels} × {settings.image_side}²"
        raise InvalidValue("arguments", allowed=allowed, given=str(error)) from error


def _projection(features: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (features, HIDDEN):
        layers += [nn.Linear(before, HIDDEN, bias=False), nn.GroupNorm(GROUPS, HIDDEN), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, OUTPUTS))


def _loss(one: Tensor, other: Tensor) -> Tensor:
    """Alignment of both views, and uniformity over the images of a batch."""

    def uniformity(points: Tensor) -> Tensor:
        squares = 2 - 2 * points @ points.T
        pairs = len(points) * (len(points) - 1)
        return ((-2 * squares).exp().sum() - len(points)).div(pairs).log()

    return (one - other).square().sum(1).mean() + (uniformity(one) + uniformity(other)) / 2


def _seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"prior {seed} {step}".encode(), digest_size=8).digest()[:7], "little")


def _hash(weights: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, value in sorted(weights.items()):
        hashed.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        hashed.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _description(shape: object) -> dict[str, Any]:
    keys = ("format", "format_version", "settings", "weights", "loss", "library_version", "made_with")
    found: dict[str, Any] = strict_json.fields("prior", shape, keys)
    if (found["format"], found["format_version"]) != (FORMAT, FORMAT_VERSION):
        raise InvalidValue("prior", allowed=f"one of format {FORMAT}, version {FORMAT_VERSION}", given=found["format"])
    PriorSettings(**strict_json.check_object("settings", found["settings"]))
    validate.text(weights=found["weights"])
    return found

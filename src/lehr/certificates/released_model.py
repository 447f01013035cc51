"""A released model: read strictly from its folder, scored and predictor. No code in the folder is ever run.

    MODEL/
        config.json         which network, what it takes, how it was trained
        model.safetensors   the weights
        certificate.json    what the model promises; missing where it promises nothing
        model_card.md       all of it, for people

Axes: B records, C classes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lehr import networks, validate
from lehr.data import Preparation
from lehr.data.augmentation import Augmentation, AugmentedPrediction, VoteResult, augmentation_by_name, majority_vote
from lehr.data.records import check_trainable
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.interfaces import Records
from lehr.run import shape

FORMAT = "lehr-model"
FORMAT_VERSION = 1
FIELDS = ("format", "format_version", "run", "library_version", "method", "plan", "data", "model", "training")
RECORDS_AT_ONCE = 500


@dataclass(frozen=True)
class ReleasedFiles:
    """Where the files of a released model are."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "config.json"

    @property
    def model(self) -> Path:
        return self.directory / "model.safetensors"

    @property
    def certificate(self) -> Path:
        return self.directory / "certificate.json"

    @property
    def card(self) -> Path:
        return self.directory / "model_card.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How a model does on some records. A score on private records is private itself.

    The accuracy of a class is None where no record is of that class.
    """

    records: int
    loss: float
    accuracy: float
    accuracy_by_class: tuple[float | None, ...]


class Predictions(NamedTuple):
    """The class of each record, ``classes_B``, and the probability of every class, ``probabilities_BC``.

    Where several views voted, a probability is the mean of theirs, and the class need not be the most probable one.
    """

    classes: Tensor
    probabilities: Tensor


def load(directory: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """The model with its weights, ready to be predictor.

    ``model`` is needed where it is a network of the trainer's own: the folder has its weights and not its code. It is
    filled and returned.
    """
    files = _files(directory)
    described, weights = read_config(files)["model"], read_weights(files.model)
    if model is None:
        with torch.device("meta"):  # which takes no memory: a network is made only where the weights are its own
            _refuse_other_weights(_network(described), weights)
        model = _network(described)
    _refuse_other_weights(model, weights)
    model.load_state_dict(weights)
    return model.eval()


def evaluate(
    directory: str | os.PathLike[str],
    records: Records,
    model: nn.Module | None = None,
    *,
    augmentation: str | Augmentation | None = None,
    votes: int = 1,
) -> Scores:
    """Loss and accuracy on records, over all of them and class by class.

    With ``votes``, so many augmented views of each record vote on its class, and the loss is that of their mean
    probability; see ``augmented_prediction``.
    """
    num_classes = validate.count(num_classes=read_config(_files(directory))["data"]["num_classes"])
    check_trainable(records, num_classes=num_classes)
    predictor = _Predictor.open(directory, model, augmentation, votes)
    indices = torch.arange(len(records))
    results = [_losses_of(predictor, *records.batch(indices[part])) for part in predictor.parts(len(records))]
    losses, right, targets = (torch.cat(parts) for parts in zip(*results, strict=True))
    return Scores(
        records=len(targets),
        loss=float(losses.mean()),
        accuracy=float(right.mean()),
        accuracy_by_class=tuple(_share(right[targets == label]) for label in range(num_classes)),
    )


def predict(
    directory: str | os.PathLike[str],
    inputs: Tensor,
    model: nn.Module | None = None,
    *,
    augmentation: str | Augmentation | None = None,
    votes: int = 1,
) -> Predictions:
    """The class of each input, and how probable the model holds every class. Inputs begin with the record axis.

    With ``votes``, so many augmented views of each input vote on its class; see ``augmented_prediction``.
    """
    predictor = _Predictor.open(directory, model, augmentation, votes)
    predictor.refuse_other_inputs(inputs)
    answers = [predictor.answers(inputs[part]) for part in predictor.parts(len(inputs))]
    classes, scores = (torch.cat(parts) for parts in zip(*answers, strict=True))
    return Predictions(classes, scores.softmax(dim=1))


def augmented_prediction(
    directory: str | os.PathLike[str], *, augmentation: str | Augmentation | None = None, votes: int = 1
) -> AugmentedPrediction:
    """Who votes on a record. Without an ``augmentation``, several votes are by that which the model was trained with.

    One vote without an augmentation is the model's own answer.
    """
    if augmentation is None and validate.count(votes=votes) > 1:
        augmentation = _trained_with(read_config(_files(directory)))
    if not isinstance(augmentation, Augmentation):
        augmentation = augmentation_by_name("none" if augmentation is None else augmentation)
    return AugmentedPrediction(augmentation=augmentation, votes=votes)


def read_config(files: ReleasedFiles) -> dict[str, Any]:
    """The configuration of a released model; ``StoreError`` where it is not one."""
    if not files.config.is_file():
        raise StoreError(f"cannot use {files.directory}: it is not a released model (there is no {files.config.name})")
    return strict_json.read(files.config, config_from_json)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, all of them finite."""
    try:
        with atomic.opened(path, at_most=atomic.LARGEST_TENSORS):
            weights = load_file(path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DamagedFile(f"{path} is damaged, or holds no weights: {error}") from error
    for name, value in weights.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise DamagedFile(f"{path}: {name} has values that are not finite")
    return weights


@dataclass(frozen=True, kw_only=True)
class _Predictor:
    """A loaded model, and what to do with records before it sees them."""

    model: nn.Module
    preparation: Preparation
    shape: tuple[int, ...]
    num_classes: int
    test_time: AugmentedPrediction

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        model: nn.Module | None,
        augmentation: str | Augmentation | None,
        votes: int,
    ) -> _Predictor:
        test_time = augmented_prediction(directory, augmentation=augmentation, votes=votes)
        data = read_config(_files(directory))["data"]
        return cls(
            model=load(directory, model),
            preparation=Preparation.from_json(data["preparation"]),
            shape=tuple(data["shape"]),
            num_classes=data["num_classes"],
            test_time=test_time,
        )

    def parts(self, records: int) -> list[slice]:
        """As many records at a time as have so many views together; no record at all is one part."""
        at_once = RECORDS_AT_ONCE if self.test_time.is_identity else max(1, RECORDS_AT_ONCE // self.test_time.votes)
        return [slice(first, first + at_once) for first in range(0, max(records, 1), at_once)]

    def refuse_other_inputs(self, inputs: object) -> None:
        """An error for what the model cannot be asked about."""
        if not isinstance(inputs, Tensor) or inputs.ndim == 0 or tuple(inputs.shape[1:]) != self.shape:
            given = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs)
            raise InvalidValue("inputs", allowed=f"records of the shape {self.shape}, one after another", given=given)
        if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            raise InvalidValue("inputs", allowed="bytes, or floating point numbers", given=inputs.dtype)

    def answers(self, inputs: Tensor) -> VoteResult:
        """The class of each record and its scores, in double precision."""
        self.refuse_other_inputs(inputs)
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        if self.test_time.is_identity:
            return majority_vote(self._scores(self.preparation.prepared(inputs.to(device))).unsqueeze(1))
        views = self.test_time.views(self.preparation.unit(inputs.cpu()))
        scores = self._scores(self.preparation.normalised(views.flatten(0, 1).to(device)))
        return majority_vote(scores.view(*views.shape[:2], self.num_classes))

    @torch.no_grad()
    def _scores(self, prepared: Tensor) -> Tensor:
        """The model's output for each view and class."""
        outputs = self.model(prepared.to(_kind(self.model)))
        if tuple(outputs.shape) != (len(prepared), self.num_classes):
            allowed = f"one with a score for each of the {self.num_classes} classes"
            raise InvalidValue("model", allowed=allowed, given=tuple(outputs.shape))
        scores: Tensor = outputs.double().cpu()
        return scores


def _losses_of(predictor: _Predictor, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each record, whether it is classified rightly, and its class."""
    answer, labels = predictor.answers(inputs), targets.cpu().long()
    losses = nn.functional.cross_entropy(answer.scores, labels, reduction="none")
    return losses, (answer.classes == labels).double(), labels


def _trained_with(config: Mapping[str, Any]) -> Augmentation:
    """The augmentation that the model was trained with; an error where there was none."""
    training = config["training"] if isinstance(config["training"], dict) else {}
    shape = training.get("augmentation")
    found = augmentation_by_name("none") if shape is None else Augmentation.from_json(shape)
    if not found.operations:
        allowed = "named where there are several votes and the model was trained without one"
        raise InvalidValue("augmentation", allowed=allowed, given=None)
    return found


def _share(right: Tensor) -> float | None:
    return float(right.mean()) if len(right) else None


def _kind(model: nn.Module) -> torch.dtype:
    return next((value.dtype for value in model.parameters() if value.is_floating_point()), torch.float32)


def _files(directory: str | os.PathLike[str]) -> ReleasedFiles:
    return ReleasedFiles(Path(directory))


def config_from_json(value: object) -> dict[str, Any]:
    """What config.json of a released model holds, checked as far as the model is built and fed by it."""
    if isinstance(value, dict) and value.get("format") == shape.FORMAT:
        raise InvalidValue("model", allowed="a released one", given="a run, which `lehr release` makes a model of")
    given = strict_json.fields("configuration", value, FIELDS)
    if given["format"] != FORMAT:
        raise InvalidValue("format", allowed=FORMAT, given=given["format"])
    version = given["format_version"]
    if type(version) is not int or version != FORMAT_VERSION:
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION}; another one needs another Lehr", given=version)
    data, model = strict_json.check_object("data", given["data"]), strict_json.check_object("model", given["model"])
    validate.count(num_classes=data.get("num_classes"))
    strict_json.list_of("shape", data.get("shape"), lambda length: validate.count(length=length))
    Preparation.from_json(data.get("preparation"))
    if model.get("network") is not None:
        validate.text(network=model["network"])
        strict_json.check_object("arguments", model.get("arguments"))
    return given


def _network(described: Mapping[str, Any]) -> nn.Module:
    if described.get("network") is None:
        raise InvalidValue("model", allowed="given: the weights are of a network of the trainer's own", given=None)
    try:
        with torch.random.fork_rng(devices=[]):  # its first weights are written over, and nobody's generator moves
            return networks.build(described["network"], **described["arguments"])
    except (TypeError, RuntimeError) as error:  # from torch, for an argument of another kind
        raise InvalidValue("arguments", allowed=f"those of {described['network']}", given=str(error)) from error


def _refuse_other_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    wrong = list(_differences(model.state_dict(), weights))
    if wrong:
        raise InvalidValue("model", allowed="the network that the weights are of", given="; ".join(wrong[:5]))


def _differences(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    for name in sorted({*expected, *given}):
        if name not in given:
            yield f"no weights for {name}"
        elif name not in expected:
            yield f"weights for {name}, which it has not"
        elif expected[name].shape != given[name].shape:
            yield f"{name} of the shape {tuple(given[name].shape)} for {tuple(expected[name].shape)}"

"""A released model: read strictly from its folder, evaluated and used. No code in the folder is ever run.

    MODEL/
        config.json         which network, what it takes, how it was trained
        model.safetensors   the weights
        certificate.json    what the model promises; missing where it promises nothing
        README.md           all of it, for people; its front matter is for Hugging Face's hub

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
from lehr.config import CLASSIFICATION
from lehr.data import Preparation
from lehr.data.augmentation import Augmentation, AugmentedPrediction, VoteResult, augmentation_by_name, majority_vote
from lehr.data.records import check_trainable
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.interfaces import Records
from lehr.run import shape

CONFIG, MODEL, CERTIFICATE, CARD = "config.json", "model.safetensors", "certificate.json", "README.md"
FORMAT, FORMAT_VERSION = "lehr-model", 1
FIELDS = ("format", "format_version", "run", "library_version", "method", "plan", "data", "model", "training")
RECORDS_AT_ONCE = 500


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


class PreparedModel(nn.Module):
    """A model that takes records as they are, bytes or numbers in [0, 1], and prepares them itself."""

    def __init__(self, model: nn.Module, preparation: Preparation) -> None:
        super().__init__()
        self.model, self.preparation = model, preparation

    def forward(self, inputs: Tensor) -> Tensor:
        """The scores of the classes."""
        scores: Tensor = self.model(self.preparation.prepared(inputs))
        return scores


def load(directory: str | os.PathLike[str], model: nn.Module | None = None, *, prepares: bool = False) -> nn.Module:
    """The model with its weights, in evaluation mode. With ``prepares`` it normalises its inputs, as to export it.

    ``model`` is needed where it is a network of the trainer's own: the folder has its weights and not its code. It is
    filled and returned.
    """
    config, weights = read_config(directory), read_weights(Path(directory) / MODEL)
    described = config["model"]
    if model is None:
        with torch.device("meta"):  # which takes no memory: a network is made only where the weights are its own
            _refuse_other_weights(_network(described), weights)
        model = _network(described)
    _refuse_other_weights(model, weights)
    model.load_state_dict(weights)
    if prepares:
        model = PreparedModel(model, Preparation.from_json(config["data"]["preparation"]))
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
    predictor = _Predictor(directory, model, augmentation, votes)
    check_trainable(records, num_classes=predictor.num_classes)
    losses, is_right, labels = [], [], []
    for indices in torch.split(torch.arange(len(records)), RECORDS_AT_ONCE):
        inputs, targets = records.batch(indices)
        answer, labels_B = predictor(inputs), targets.cpu().long()
        losses.append(nn.functional.cross_entropy(answer.scores, labels_B, reduction="none"))
        is_right.append((answer.classes == labels_B).double())
        labels.append(labels_B)
    loss_B, right_B, label_B = (torch.cat(parts) for parts in (losses, is_right, labels))
    by_class = [right_B[label_B == label] for label in range(predictor.num_classes)]
    return Scores(
        records=len(label_B),
        loss=float(loss_B.mean()),
        accuracy=float(right_B.mean()),
        accuracy_by_class=tuple(float(right.mean()) if len(right) else None for right in by_class),
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
    answer = _Predictor(directory, model, augmentation, votes)(inputs)
    return Predictions(answer.classes, answer.scores.softmax(dim=1))


def augmented_prediction(
    directory: str | os.PathLike[str], *, augmentation: str | Augmentation | None = None, votes: int = 1
) -> AugmentedPrediction:
    """Who votes on a record. Without an ``augmentation``, several votes are by that which the model was trained with.

    One vote without an augmentation is the model's own answer.
    """
    if augmentation is None and validate.count(votes=votes) > 1:
        described = (read_config(directory)["training"] or {}).get("augmentation")
        augmentation = None if described is None else Augmentation.from_json(described)
        if augmentation is None or not augmentation.operations:
            allowed = "named where there are several votes and the model was trained without one"
            raise InvalidValue("augmentation", allowed=allowed, given=None)
    if not isinstance(augmentation, Augmentation):
        augmentation = augmentation_by_name("none" if augmentation is None else augmentation)
    return AugmentedPrediction(augmentation=augmentation, votes=votes)


def read_config(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration of a released model; ``StoreError`` where it is not one."""
    path = Path(directory) / CONFIG
    if not path.is_file():
        raise StoreError(f"cannot use {directory}: it is not a released model (there is no {CONFIG})")
    return strict_json.read(path, config_from_json)


def config_from_json(value: object) -> dict[str, Any]:
    """The configuration of a released model, checked as far as the model is built and fed by it."""
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
    if given["training"] is not None:
        strict_json.check_object("training", given["training"])
    if model.get("network") is not None:
        validate.text(network=model["network"])
        strict_json.check_object("arguments", model.get("arguments"))
    return given


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


class _Predictor:
    """A loaded model, and what is done with records before it sees them."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        model: nn.Module | None,
        augmentation: str | Augmentation | None,
        votes: int,
    ) -> None:
        data = read_config(directory)["data"]
        if data.get("task", CLASSIFICATION) != CLASSIFICATION or not data["shape"]:
            allowed = "a classifier with one input; call the module of any other, which load returns"
            raise InvalidValue("model", allowed=allowed, given=data.get("task"))
        self.num_classes: int = data["num_classes"]
        self._shape = tuple(data["shape"])
        self._preparation = Preparation.from_json(data["preparation"])
        self._test_time = augmented_prediction(directory, augmentation=augmentation, votes=votes)
        self._model = load(directory, model)
        parameters = list(self._model.parameters())
        self._device = parameters[0].device if parameters else torch.device("cpu")
        self._dtype = next((value.dtype for value in parameters if value.is_floating_point()), torch.float32)

    def __call__(self, inputs: object) -> VoteResult:
        """The class of each record and its scores, in double precision."""
        if not isinstance(inputs, Tensor) or inputs.ndim == 0 or tuple(inputs.shape[1:]) != self._shape:
            given = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs)
            raise InvalidValue("inputs", allowed=f"records of the shape {self._shape}, one after another", given=given)
        if inputs.dtype != torch.uint8 and not inputs.is_floating_point():
            raise InvalidValue("inputs", allowed="bytes, or floating point numbers", given=inputs.dtype)
        views = 1 if self._test_time.is_identity else self._test_time.votes
        answers = [self._vote(part, views) for part in torch.split(inputs, max(1, RECORDS_AT_ONCE // views))]
        return VoteResult(*(torch.cat(parts) for parts in zip(*answers, strict=True)))

    @torch.no_grad()
    def _vote(self, inputs: Tensor, num_views: int) -> VoteResult:
        if self._test_time.is_identity:
            prepared = self._preparation.prepared(inputs.to(self._device))
        else:
            views = self._test_time.views(self._preparation.unit(inputs.cpu()))
            prepared = self._preparation.normalised(views.flatten(0, 1).to(self._device))
        outputs = self._model(prepared.to(self._dtype))
        if tuple(outputs.shape) != (len(prepared), self.num_classes):
            allowed = f"one with a score for each of the {self.num_classes} classes"
            raise InvalidValue("model", allowed=allowed, given=tuple(outputs.shape))
        return majority_vote(outputs.double().cpu().view(len(inputs), num_views, self.num_classes))


def _network(described: Mapping[str, Any]) -> nn.Module:
    if described.get("network") is None:
        allowed = (
            "given: the weights are of a network of the trainer's own, whose code is not in the folder; in Python, "
            "lehr.certificates.released_model.load(folder, model=your_module)"
        )
        raise InvalidValue("model", allowed=allowed, given=None)
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

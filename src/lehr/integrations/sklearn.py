"""A private classifier and regressor with scikit-learn's interface. Install with ``pip install 'lehr[sklearn]'``."""

from __future__ import annotations

import copy
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lehr import networks
from lehr.config import CLASSIFICATION, CLIP_NORM, LEARNING_RATE, MOMENTUM, REGRESSION, RunConfig
from lehr.data import InMemory
from lehr.data.records import sketch
from lehr.errors import InvalidValue, MissingExtra
from lehr.integrations.external_loop import make_statements
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.users import user_indices
from lehr.run.mechanism import Method
from lehr.training import earlier_fits
from lehr.training.fit import fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # type: ignore[import-untyped]
    from sklearn.compose import ColumnTransformer, TransformedTargetRegressor  # type: ignore[import-untyped]
    from sklearn.frozen import FrozenEstimator  # type: ignore[import-untyped]
    from sklearn.pipeline import FeatureUnion, Pipeline  # type: ignore[import-untyped]
    from sklearn.utils import check_random_state, get_tags  # type: ignore[import-untyped]
    from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtra("scikit-learn", extra="sklearn") from error

PUBLIC = "public"
_ARRAYS: dict[str, Any] = {"dtype": "numeric", "allow_nd": True}


_STANDARDISED = 1e-4  # how close to 0 and 1 the means and deviations of columns are that a scaler was fitted on


# A dataclass, since get_params and clone read arguments back from attributes of the same name.
@dataclass(kw_only=True, eq=False, repr=False)
class _LehrEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share: the training, with ``lehr.fit``."""

    epsilon: float | None = 3.0
    delta: float | None = None
    records: int | str | None = None
    bounds: tuple[Any, Any] | None = None
    network: nn.Module | str | None = None
    hidden_layer_sizes: tuple[int, ...] = (32,)
    method: str | Method | None = None
    learning_rate: float = LEARNING_RATE
    clip_norm: float = CLIP_NORM
    momentum: float = MOMENTUM
    expected_batch_size: float | None = None
    records_per_user: int | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    random_state: Any = None
    settings_chosen_on: str | None = None
    budget: str | Path | None = None
    directory: str | Path | None = None
    name: str | None = None
    device: str | None = None

    def _fit(
        self, X: Any, targets: torch.Tensor, *, owners: Any, task: str, outputs: int, public: tuple[str, ...]
    ) -> Self:
        inputs = self._inputs(X)
        held = len(inputs) if owners is None else int(user_indices(owners, num_records=len(inputs)).max()) + 1
        records = self._resolve_records(held)
        module, network = self._module(outputs)
        method = self.method or dpsgd(
            learning_rate=self.learning_rate, clip_norm=self.clip_norm, momentum=self.momentum
        )
        dataset = InMemory(torch.from_numpy(inputs), targets)
        if len(getattr(self, "_clones", ())) > 1:  # they may have been fitted in other processes
            earlier_fits.note(earlier_fits.Fit(records=sketch(dataset), settings="those of other clones"))
        self._note_scaling(X, dataset)
        chosen_on = self.settings_chosen_on
        fitted = _fitted_transformers()
        if not fitted and self.bounds is None and _is_standardised(inputs):
            fitted = ["a scaler"]
        if fitted:
            warnings.warn(
                f"fitted on these very records: {', '.join(fitted)}. What was learnt from them leaves without noise, "
                "no ε covers it, and there is no certificate. Scale by bounds=(low, high), which you know without the "
                "records; or fit on public records, and put sklearn.frozen.FrozenEstimator around the result",
                stacklevel=3,
            )
            # As a choice on these records it is recorded in the run, so that `lehr release` cannot certify it either.
            earlier_fits.note(earlier_fits.Fit(records=sketch(dataset), settings="those of a fitted transformer"))
            chosen_on = chosen_on or "fixed"
        stated = make_statements(chosen_on, None, public, records=records)
        if stated is not None and owners is not None:
            stated = replace(stated, treated_as_public=("the number of users", *public))
        with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
            if fitted:  # it was said above
                warnings.filterwarnings("ignore", message="there is no certificate")
            run = fit(
                module,
                dataset,
                epsilon=self.epsilon,
                delta=self.delta,
                method=method,
                noise_multiplier=self.noise_multiplier,
                expected_batch_size=self.expected_batch_size,
                steps=self.steps,
                records=records if owners is None else None,
                owners=owners,
                users=None if owners is None else records,
                records_per_user=self.records_per_user,
                num_classes=outputs,
                task=task,
                directory=Path(temporary, "run") if self.directory is None else self.directory,
                name=self.name,
                config=RunConfig() if network is None else RunConfig.of(model={"network": network[0], **network[1]}),
                stated=stated,
                budget=self.budget,
                device=self.device,
                silent=True,
            )
        self.module_ = run.model
        self.plan_, self.certificate_ = run.plan, run.certificate
        self.epsilon_, self.delta_ = run.proven.epsilon, run.plan.delta
        self.n_iter_ = run.end.step
        return self

    def _note_scaling(self, X: Any, scaled: InMemory) -> None:
        """Other bounds or target ranges on the same rows are other settings, although the scaled records differ."""
        rows = sketch(InMemory(torch.from_numpy(_float32(X)), scaled.targets))
        fit = earlier_fits.Fit(
            records=frozenset(b"before scaling " + each for each in rows),
            settings=[repr(self.bounds), repr(getattr(self, "target_range", None))],
            budget=None if self.budget is None else Path(self.budget).resolve(),
        )
        if earlier_fits.is_choice(fit):
            earlier_fits.note(earlier_fits.Fit(records=sketch(scaled), settings="those of another scaling"))
        earlier_fits.note(fit)

    def _outputs(self, X: Any) -> torch.Tensor:
        """The outputs of the trained network for each row, in float64."""
        check_is_fitted(self)
        inputs = torch.from_numpy(self._inputs(validate_data(self, X, reset=False, **_ARRAYS)))
        device = next(self.module_.parameters()).device
        with torch.no_grad():
            outputs: torch.Tensor = self.module_.eval()(inputs.to(device))
        return outputs.double().cpu()

    def _inputs(self, X: Any) -> NDArray[np.float32]:
        """The rows in float32; with ``bounds``, clipped to them and scaled to [-1, 1]."""
        if self.bounds is None:
            return _float32(X)
        low, high = _check_range("bounds", self.bounds)
        try:
            return _float32(np.clip(2 * (X - low) / (high - low) - 1, -1, 1))
        except ValueError as error:  # does not broadcast
            allowed = "two numbers, or two lists with a number for each column"
            raise InvalidValue("bounds", allowed=allowed, given=self.bounds) from error

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # DP noise is never seeded
        return tags

    def __sklearn_clone__(self) -> Self:
        """A clone, which shares with this estimator and its other clones a list of all of them."""
        made: Self = super().__sklearn_clone__()
        self._clones: list[int] = getattr(self, "_clones", [])
        self._clones.append(id(made))
        made._clones = self._clones
        return made

    def _resolve_records(self, num_records: int) -> int:
        if self.records is None or (isinstance(self.records, str) and self.records != PUBLIC):
            allowed = f"the number of records, or {PUBLIC!r} if the length of X is not secret"
            raise InvalidValue("records", allowed=allowed, given=self.records)
        return num_records if isinstance(self.records, str) else self.records

    def _module(self, outputs: int) -> tuple[nn.Module, tuple[str, dict[str, Any]] | None]:
        """The network with initial weights; of a given module, a copy."""
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network), None
        seed = int(check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if isinstance(self.network, str):
                arguments = {"num_classes": outputs}
                return networks.build(self.network, **arguments), (self.network, arguments)
            sizes = (self.n_features_in_, *self.hidden_layer_sizes)
            hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
            return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs)), None


@dataclass(kw_only=True, eq=False, repr=False)
class LehrClassifier(ClassifierMixin, _LehrEstimator):  # type: ignore[misc]
    """A neural network classifier; the whole of ``fit`` costs at most ``epsilon`` at ``delta``.

    ``records`` is the number of records and ``classes`` are the possible labels, both as you know them without looking
    at the data. ``"public"`` reads them from the data; the certificate then lists them as treated as public.
    ``bounds`` are the least and largest value of the features, known in the same way: one pair of numbers, or of lists
    with a number for each column. Features are clipped to them and scaled to [-1, 1], instead of by a fitted scaler.

    With ``owners`` in ``fit``, ``records`` and ``expected_batch_size`` are about users, of whose rows at most
    ``records_per_user`` enter a step.

    Noise is calibrated to ``epsilon``, ``expected_batch_size`` and ``steps``, which have defaults; with
    ``epsilon=None`` give ``noise_multiplier`` and ``steps``, and ``epsilon_`` is the cost.

    ``network`` is a module, a name from ``lehr.networks``, or None for a multilayer perceptron with
    ``hidden_layer_sizes``. ``random_state`` seeds the initial weights only; DP noise is never seeded, so two fits
    differ. ``method`` is that of ``lehr.fit``, by default DPSGD with ``learning_rate``, ``clip_norm`` and ``momentum``.

    The run's folder is kept if ``directory`` is given. ``certificate_`` is issued if ``settings_chosen_on`` says how
    the settings were chosen; not if this process made other fits on the same records with other settings, or several
    clones, as ``GridSearchCV`` does: every fit of a search costs privacy; and not behind a transformer that the same
    pipeline fits on the records.

    After ``fit``: ``classes_``, ``n_features_in_``, ``module_``, ``epsilon_`` (proven, for the whole plan), ``delta_``,
    ``plan_``, ``certificate_`` and ``n_iter_``, the number of steps.
    """

    classes: Iterable[Any] | str | None = None

    def fit(self, X: Any, y: Any, owners: Any = None) -> Self:
        """Train on private records from new initial weights. Every call costs ``epsilon`` again.

        With ``owners``, an id for each row, a user with all their rows is protected, and not one row.
        """
        inputs, labels = validate_data(self, X, y, **_ARRAYS)
        check_classification_targets(labels)
        labels = np.asarray(labels)
        self.classes_ = self._resolve_classes(labels)
        targets = torch.from_numpy(np.searchsorted(self.classes_, labels)).long()
        public = ("the labels that there are",) if isinstance(self.classes, str) else ()
        return self._fit(inputs, targets, owners=owners, task=CLASSIFICATION, outputs=len(self.classes_), public=public)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The probability of each of ``classes_`` for each row."""
        probabilities: NDArray[Any] = torch.softmax(self._outputs(X), dim=1).numpy()
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        probabilities = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on a few dozen records the noise dominates
        return tags

    def _resolve_classes(self, labels: NDArray[Any]) -> NDArray[Any]:
        if self.classes is None or (isinstance(self.classes, str) and self.classes != PUBLIC):
            allowed = f"the possible labels, or {PUBLIC!r} if those in y are not secret"
            raise InvalidValue("classes", allowed=allowed, given=self.classes)
        if isinstance(self.classes, str):
            return np.unique(labels)
        stated = np.unique(np.asarray(list(self.classes)))
        if not np.isin(labels, stated).all():
            raise InvalidValue("y", allowed=f"labels among the stated classes {stated.tolist()}", given="another label")
        return stated


@dataclass(kw_only=True, eq=False, repr=False)
class LehrRegressor(RegressorMixin, _LehrEstimator):  # type: ignore[misc]
    """A neural network regressor; the whole of ``fit`` costs at most ``epsilon`` at ``delta``.

    ``target_range`` is the least and the largest target, as you know them without looking at the data: two numbers, or
    two lists with a number for each output. Targets are clipped to it and scaled to [-1, 1] for training, and
    predictions are scaled back and stay within it. ``"public"`` reads it from the data; the certificate then lists it
    as treated as public. The loss is the squared error. The other arguments and attributes are those of
    ``LehrClassifier``.
    """

    target_range: tuple[Any, Any] | str | None = None

    def fit(self, X: Any, y: Any, owners: Any = None) -> Self:
        """Train on private records from new initial weights. Every call costs ``epsilon`` again.

        With ``owners``, an id for each row, a user with all their rows is protected, and not one row.
        """
        inputs, targets = validate_data(self, X, y, multi_output=True, y_numeric=True, **_ARRAYS)
        targets = np.asarray(targets, dtype=np.float64)
        low, high = self._resolve_range(targets)
        self.target_range_ = (low, high)
        self._is_one_number = targets.ndim == 1
        rows = targets.reshape(len(targets), -1)
        scaled = torch.from_numpy(_float32(np.clip(2 * (rows - low) / (high - low) - 1, -1, 1)))
        public = ("the range of the targets",) if isinstance(self.target_range, str) else ()
        return self._fit(inputs, scaled, owners=owners, task=REGRESSION, outputs=scaled.shape[1], public=public)

    def predict(self, X: Any) -> NDArray[Any]:
        """The prediction for each row, within ``target_range``."""
        outputs = self._outputs(X).numpy().clip(-1, 1)
        low, high = self.target_range_
        predicted: NDArray[Any] = low + (outputs + 1) / 2 * (high - low)
        return predicted.reshape(len(predicted)) if self._is_one_number else predicted

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        tags.target_tags.single_output, tags.target_tags.multi_output = True, True
        return tags

    def _resolve_range(self, targets: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        given = self.target_range
        if given is None or (isinstance(given, str) and given != PUBLIC):
            allowed = f"the least and the largest target, or {PUBLIC!r} if those in y are not secret"
            raise InvalidValue("target_range", allowed=allowed, given=given)
        if isinstance(given, str):
            low, high = targets.min(axis=0), targets.max(axis=0)
            return np.atleast_1d(low), np.atleast_1d(np.where(high > low, high, low + 1))
        found = _check_range("target_range", given)
        outputs = 1 if targets.ndim == 1 else targets.shape[1]
        if any(each.size not in (1, outputs) for each in found):
            raise InvalidValue("target_range", allowed=f"two numbers, or two lists of {outputs}", given=given)
        return found


def _check_range(name: str, given: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays of finite numbers, the first below the second everywhere."""
    try:
        low, high = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in given)
        is_range = bool(np.isfinite([*low.ravel(), *high.ravel()]).all() and (low < high).all())
    except (TypeError, ValueError):
        is_range = False
    if not is_range:
        raise InvalidValue(name, allowed="a pair (low, high) of finite numbers, the first the smaller", given=given)
    return low, high


def _fitted_transformers() -> list[str]:
    """The transformers that were fitted on these records by pipelines that call ``fit``.

    scikit-learn does not tell an estimator which pipeline it is in. The pipelines are on the call stack.
    """
    found: list[Any] = []
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        match frame.f_locals.get("self"):
            case Pipeline() as pipeline:
                found += [step for _, step in pipeline.steps[:-1]]
            case TransformedTargetRegressor() as regressor:
                found.append(regressor.transformer_)
    return sorted({type(each).__name__ for transformer in found for each in _that_learn(transformer)})


def _that_learn(transformer: Any) -> Iterator[Any]:
    """The transformer, or those within it, if ``fit`` learns anything."""
    match transformer:
        case Pipeline():
            parts = [step for _, step in transformer.steps]
        case FeatureUnion():
            parts = [part for _, part in transformer.transformer_list]
        case ColumnTransformer():
            parts = [part for _, part, _ in transformer.transformers]
        case _:
            if not (transformer is None or isinstance(transformer, str | FrozenEstimator)):
                yield from [transformer] if get_tags(transformer).requires_fit else []
            return
    for part in parts:
        yield from _that_learn(part)


def _is_standardised(inputs: NDArray[Any]) -> bool:
    """Whether every column has mean 0 and deviation 1: a scaler was fitted on these records. Constants do not count."""
    if inputs.ndim != 2 or len(inputs) < 3:
        return False
    means, deviations = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64)
    varies = deviations > _STANDARDISED
    is_close = (abs(means) < _STANDARDISED) & (abs(deviations - 1) < _STANDARDISED)
    return bool(varies.any() and is_close[varies].all())


def _float32(values: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)

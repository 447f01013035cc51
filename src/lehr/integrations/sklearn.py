"""A private classifier with scikit-learn's interface. Install with ``pip install 'lehr[sklearn]'``."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lehr import networks
from lehr.config import CLIP_NORM, LEARNING_RATE, MOMENTUM, RunConfig
from lehr.data import InMemory
from lehr.data.records import sketch
from lehr.errors import InvalidValue, MissingExtra
from lehr.integrations.external_loop import make_statements
from lehr.methods.dpsgd import dpsgd
from lehr.run.mechanism import Method
from lehr.training import earlier_fits
from lehr.training.fit import fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils import check_random_state  # type: ignore[import-untyped]
    from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
    from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingExtra("scikit-learn", extra="sklearn") from error

PUBLIC = "public"
_ARRAYS: dict[str, Any] = {"dtype": "numeric", "allow_nd": True}


# A dataclass, since get_params and clone read arguments back from attributes of the same name.
@dataclass(kw_only=True, eq=False, repr=False)
class LehrClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network classifier; the whole of ``fit`` costs at most ``epsilon`` at ``delta``.

    ``records`` is the number of records and ``classes`` are the possible labels, both as you know them without looking
    at the data. ``"public"`` reads them from the data; the certificate then lists them as treated as public.

    Noise is calibrated to ``epsilon``, ``expected_batch_size`` and ``steps``, which have defaults; with
    ``epsilon=None`` give ``noise_multiplier`` and ``steps``, and ``epsilon_`` is the cost.

    ``network`` is a module, a name from ``lehr.networks``, or None for a multilayer perceptron with
    ``hidden_layer_sizes``. ``random_state`` seeds the initial weights only; DP noise is never seeded, so two fits
    differ. ``method`` is that of ``lehr.fit``, by default DPSGD with ``learning_rate``, ``clip_norm`` and ``momentum``.

    The run's folder is kept if ``directory`` is given. ``certificate_`` is issued if ``settings_chosen_on`` says how
    the settings were chosen; not if this process made other fits on the same records with other settings, or several
    clones, as ``GridSearchCV`` does: every fit of a search costs privacy.

    After ``fit``: ``classes_``, ``n_features_in_``, ``module_``, ``epsilon_`` (proven, for the whole plan), ``delta_``,
    ``plan_``, ``certificate_`` and ``n_iter_``, the number of steps.
    """

    epsilon: float | None = 3.0
    delta: float | None = None
    records: int | str | None = None
    classes: Iterable[Any] | str | None = None
    network: nn.Module | str | None = None
    hidden_layer_sizes: tuple[int, ...] = (32,)
    method: str | Method | None = None
    learning_rate: float = LEARNING_RATE
    clip_norm: float = CLIP_NORM
    momentum: float = MOMENTUM
    expected_batch_size: float | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    random_state: Any = None
    settings_chosen_on: str | None = None
    budget: str | Path | None = None
    directory: str | Path | None = None
    name: str | None = None
    device: str | None = None

    def fit(self, X: Any, y: Any) -> Self:
        """Train on private records from new initial weights. Every call costs ``epsilon`` again."""
        inputs, labels = validate_data(self, X, y, **_ARRAYS)
        check_classification_targets(labels)
        inputs, labels = _float32(inputs), np.asarray(labels)
        self.classes_ = self._resolve_classes(labels)
        targets = np.searchsorted(self.classes_, labels)
        records = self._resolve_records(len(inputs))
        module, network = self._module()
        method = self.method or dpsgd(
            learning_rate=self.learning_rate, clip_norm=self.clip_norm, momentum=self.momentum
        )
        dataset = InMemory(torch.from_numpy(inputs), torch.from_numpy(targets).long())
        if len(getattr(self, "_clones", ())) > 1:  # they may have been fitted in other processes
            earlier_fits.note(earlier_fits.Fit(records=sketch(dataset), settings="those of other clones"))
        public = ("the labels that there are",) if isinstance(self.classes, str) else ()
        with tempfile.TemporaryDirectory() as temporary:  # removed with the key in it, unless there is a directory
            run = fit(
                module,
                dataset,
                epsilon=self.epsilon,
                delta=self.delta,
                method=method,
                noise_multiplier=self.noise_multiplier,
                expected_batch_size=self.expected_batch_size,
                steps=self.steps,
                records=records,
                num_classes=len(self.classes_),
                directory=Path(temporary, "run") if self.directory is None else self.directory,
                name=self.name,
                config=RunConfig() if network is None else RunConfig.of(model={"network": network[0], **network[1]}),
                stated=make_statements(self.settings_chosen_on, None, public, records=records),
                budget=self.budget,
                device=self.device,
                silent=True,
            )
        self.module_ = run.model
        self.plan_, self.certificate_ = run.plan, run.certificate
        self.epsilon_, self.delta_ = run.proven.epsilon, run.plan.delta
        self.n_iter_ = run.end.step
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The probability of each of ``classes_`` for each row."""
        check_is_fitted(self)
        inputs = torch.from_numpy(_float32(validate_data(self, X, reset=False, **_ARRAYS)))
        device = next(self.module_.parameters()).device
        with torch.no_grad():
            outputs = self.module_.eval()(inputs.to(device))
        probabilities: NDArray[Any] = torch.softmax(outputs.double(), dim=1).cpu().numpy()
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each row."""
        probabilities = self.predict_proba(X)
        classes: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # DP noise is never seeded
        tags.classifier_tags.poor_score = True  # on a few dozen records the noise dominates
        return tags

    def __sklearn_clone__(self) -> Self:
        """A clone, which shares with this estimator and its other clones a list of all of them."""
        made: Self = super().__sklearn_clone__()
        self._clones: list[int] = getattr(self, "_clones", [])
        self._clones.append(id(made))
        made._clones = self._clones
        return made

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

    def _resolve_records(self, num_records: int) -> int:
        if self.records is None or (isinstance(self.records, str) and self.records != PUBLIC):
            allowed = f"the number of records, or {PUBLIC!r} if the length of X is not secret"
            raise InvalidValue("records", allowed=allowed, given=self.records)
        return num_records if isinstance(self.records, str) else self.records

    def _module(self) -> tuple[nn.Module, tuple[str, dict[str, Any]] | None]:
        """The network with initial weights; of a given module, a copy."""
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network), None
        seed = int(check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            if isinstance(self.network, str):
                arguments = {"num_classes": len(self.classes_)}
                return networks.build(self.network, **arguments), (self.network, arguments)
            sizes = (self.n_features_in_, *self.hidden_layer_sizes)
            hidden = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.Tanh())]
            return nn.Sequential(*hidden, nn.Linear(sizes[-1], len(self.classes_))), None


def _float32(values: Any) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)

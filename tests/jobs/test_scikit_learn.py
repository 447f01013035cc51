"""Private estimators in pipelines and searches of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor  # type: ignore[import-untyped]
from sklearn.decomposition import PCA  # type: ignore[import-untyped]
from sklearn.frozen import FrozenEstimator  # type: ignore[import-untyped]
from sklearn.impute import SimpleImputer  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline, make_union  # type: ignore[import-untyped]
from sklearn.preprocessing import (  # type: ignore[import-untyped]
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    RobustScaler,
    StandardScaler,
)

from lehr.certificates.release import release
from lehr.errors import InvalidValue
from lehr.integrations.sklearn import LehrClassifier, LehrRegressor
from lehr.planning.budget import Budget
from lehr.training import earlier_fits

AGES = np.random.default_rng(0).uniform(20, 80, size=(200, 2))
LABELS = (AGES[:, 0] > 50).astype(int)
HEIGHTS = 0.7 + AGES[:, 0] / 50
SETTINGS: dict[str, Any] = {
    "epsilon": None,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "records": 200,
    "expected_batch_size": 50,
    "steps": 2,
    "settings_chosen_on": "fixed",
}


def a_classifier(**changed: Any) -> LehrClassifier:
    return LehrClassifier(**{**SETTINGS, "classes": [0, 1], "bounds": (0, 100), **changed})


def test_a_search_over_a_pipeline_has_no_certificate() -> None:
    pipeline = make_pipeline(FunctionTransformer(), a_classifier())
    search = GridSearchCV(pipeline, {"lehrclassifier__learning_rate": [0.1]}, cv=2)
    with pytest.warns(UserWarning, match="there is no certificate"):
        search.fit(AGES, LABELS)
    assert search.best_estimator_[-1].certificate_ is None


FITTED = [
    StandardScaler(),
    MinMaxScaler(),
    RobustScaler(),
    PCA(2),
    SimpleImputer(),
    KBinsDiscretizer(3, encode="ordinal", quantile_method="averaged_inverted_cdf"),
    ColumnTransformer([("first", MinMaxScaler(), [0])], remainder="passthrough"),
    make_union("passthrough", MinMaxScaler()),
    make_pipeline(Normalizer(), MaxAbsScaler()),
]


@pytest.mark.parametrize("transformer", FITTED, ids=lambda each: type(each).__name__)
def test_a_transformer_fitted_on_the_records_gives_a_warning_and_no_certificate(transformer: Any) -> None:
    pipeline = make_pipeline(transformer, a_classifier())
    with pytest.warns(UserWarning, match="bounds="):
        pipeline.fit(AGES, LABELS)
    assert pipeline[-1].certificate_ is None


def test_a_scaler_is_found_without_a_pipeline() -> None:
    with pytest.warns(UserWarning, match="a scaler"):
        fitted = a_classifier(bounds=None).fit(StandardScaler().fit_transform(AGES), LABELS)
    assert fitted.certificate_ is None


def test_a_transformer_of_the_targets_is_found() -> None:
    regressor, other = (LehrRegressor(target_range=(-5, 5), **SETTINGS) for _ in range(2))
    whole = TransformedTargetRegressor(regressor=regressor, transformer=StandardScaler())
    with pytest.warns(UserWarning, match="StandardScaler"):
        whole.fit(AGES, HEIGHTS)
    assert whole.regressor_.certificate_ is None
    earlier_fits.forget()
    by_formula = TransformedTargetRegressor(regressor=other, func=np.log, inverse_func=np.exp)
    assert by_formula.fit(AGES, HEIGHTS).regressor_.certificate_ is not None


def test_transformers_that_learn_nothing_from_the_records_are_fine() -> None:
    public = np.random.default_rng(1).uniform(20, 80, size=(50, 2))
    fitted_before = FrozenEstimator(MinMaxScaler().fit(public))
    by_column = ColumnTransformer([("both", FunctionTransformer(), [0, 1])])
    pipeline = make_pipeline("passthrough", by_column, fitted_before, Normalizer(), a_classifier(bounds=(0, 1)))
    assert pipeline.fit(AGES, LABELS)[-1].certificate_ is not None


def test_other_bounds_on_the_same_records_are_other_settings() -> None:
    first = a_classifier().fit(AGES, LABELS)
    again = a_classifier().fit(AGES, LABELS)
    assert first.certificate_ is not None
    assert again.certificate_ is not None
    with pytest.warns(UserWarning, match="there is no certificate"):
        other = a_classifier(bounds=(10, 90)).fit(AGES, LABELS)
    assert other.certificate_ is None
    assert a_classifier(bounds=(10, 90)).fit(AGES + 1, LABELS).certificate_ is not None  # other records
    regressor = {**SETTINGS, "bounds": (0, 100), "steps": 3}
    earlier_fits.forget()
    assert LehrRegressor(target_range=(0, 3), **regressor).fit(AGES, HEIGHTS).certificate_ is not None
    with pytest.warns(UserWarning, match="there is no certificate"):
        LehrRegressor(target_range=(0.5, 2.5), **regressor).fit(AGES, HEIGHTS)


def test_a_budget_pays_for_fits_with_other_bounds(tmp_path: Path) -> None:
    budget = tmp_path / "clinic.budget"
    Budget.create(budget, dataset="clinic", epsilon=20.0, delta=1e-2).close()
    settings: dict[str, Any] = {"budget": budget, "epsilon": 8.0, "noise_multiplier": None}
    paid = [a_classifier(name=str(low), bounds=(low, 90), **settings).fit(AGES, LABELS) for low in (0, 10)]
    assert all(each.certificate_ is not None for each in paid)


@pytest.mark.parametrize("chosen_on", ["fixed", None])
def test_a_run_on_scaled_records_cannot_be_certified_later(chosen_on: str | None, tmp_path: Path) -> None:
    classifier = a_classifier(bounds=None, settings_chosen_on=chosen_on, directory=tmp_path / "run")
    with pytest.warns(UserWarning, match="these very records"):
        make_pipeline(StandardScaler(), classifier).fit(AGES, LABELS)
    with pytest.raises(InvalidValue, match="settings_chosen_on"):
        release(tmp_path / "run", tmp_path / "model", settings_chosen_on="fixed")


def test_known_bounds_take_the_place_of_a_scaler() -> None:
    classifier = a_classifier(steps=40, learning_rate=2.0).fit(AGES, LABELS)
    assert classifier.certificate_ is not None
    assert classifier.score(AGES, LABELS) > 0.8
    assert classifier.predict([[1e9, -1e9]]) == classifier.predict([[100, 0]])
    of_each_column = a_classifier(bounds=([0, 0], [100, 120]), settings_chosen_on=None).fit(AGES, LABELS)
    assert of_each_column.predict(AGES).shape == (200,)


@pytest.mark.parametrize("bounds", [(1, 0), (0, np.inf), 5, (0, [1, 2, 3]), ("a", "b")])
def test_bounds_must_be_a_range_of_the_columns(bounds: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        a_classifier(bounds=bounds).fit(AGES, LABELS)
    assert caught.value.name == "bounds"


def test_a_regressor_predicts_within_the_stated_range() -> None:
    settings = {**SETTINGS, "bounds": (0, 100), "steps": 60}
    regressor = LehrRegressor(target_range=(0.5, 2.5), **settings).fit(AGES, HEIGHTS)
    assert regressor.certificate_ is not None
    assert regressor.score(AGES, HEIGHTS) > 0.3
    pairs = np.stack([HEIGHTS, -AGES[:, 1] / 2], axis=1)
    both = LehrRegressor(
        target_range=([0.5, -50], [2.5, 0]), **{**settings, "steps": 2, "settings_chosen_on": None}
    ).fit(AGES, pairs)
    predicted = both.predict(AGES)
    assert predicted.shape == (200, 2)
    assert (predicted >= [0.5, -50]).all()
    assert (predicted <= [2.5, 0]).all()


def test_the_range_of_the_targets_must_be_stated_or_called_public() -> None:
    with pytest.raises(InvalidValue) as caught:
        LehrRegressor(**SETTINGS).fit(AGES, HEIGHTS)
    assert caught.value.name == "target_range"
    regressor = LehrRegressor(target_range="public", **SETTINGS).fit(AGES, HEIGHTS)
    assert regressor.certificate_ is not None
    assert "the range of the targets" in regressor.certificate_.stated.treated_as_public

"""Private estimators in pipelines and searches of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.preprocessing import FunctionTransformer, StandardScaler  # type: ignore[import-untyped]

from lehr.certificates.release import release
from lehr.errors import InvalidValue
from lehr.integrations.sklearn import LehrClassifier, LehrRegressor

AGES = np.random.default_rng(0).uniform(20, 80, size=(200, 2))
LABELS = (AGES[:, 0] > 50).astype(int)
HEIGHTS = 0.7 + AGES[:, 0] / 50
SETTINGS: dict[str, Any] = {
    "epsilon": 8.0,
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


def test_a_scaler_fitted_on_the_records_gives_a_warning_and_no_certificate() -> None:
    pipeline = make_pipeline(StandardScaler(), a_classifier(bounds=None))
    with pytest.warns(UserWarning, match="bounds="):
        pipeline.fit(AGES, LABELS)
    assert pipeline[-1].certificate_ is None


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
    of_each_column = a_classifier(bounds=([0, 0], [100, 120])).fit(AGES, LABELS)
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

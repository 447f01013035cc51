"""The classifier and the regressor have scikit-learn's interface and are private."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from sklearn.utils.estimator_checks import parametrize_with_checks  # type: ignore[import-untyped]
from torch import nn

from lehr.accounting.ledger import Ledger
from lehr.certificates.release import release
from lehr.errors import CertificateMismatch, InvalidValue, MissingExtra
from lehr.integrations.sklearn import LehrClassifier, LehrRegressor
from tests.integrations.refusals import invalid

# These ask for equal predictions after two fits, which differ in
COMPARE_TWO_FITS = {
    "check_classifier_data_not_an_array": "the type that holds X",
    "check_fit_idempotent": "nothing",
    "check_regressor_data_not_an_array": "the type that holds X",
    "check_regressors_int": "targets as whole numbers, and the same ones as floats",
    "check_supervised_y_2d": "the shape of y",
}
CHECKED: dict[str, Any] = {"records": "public", "epsilon": None, "noise_multiplier": 2.0, "steps": 2}
INPUTS = np.linspace(-1, 1, 120).reshape(60, 2)
LABELS = np.where(INPUTS[:, 0] > 0, "yes", "no")


def a_classifier(**changed: Any) -> LehrClassifier:
    settings: dict[str, Any] = {"epsilon": None, "noise_multiplier": 2.0, "steps": 2, "expected_batch_size": 8}
    return LehrClassifier(**{**settings, "records": 60, "classes": ["no", "yes"], **changed})


def fitted(**changed: Any) -> LehrClassifier:
    return a_classifier(**changed).fit(INPUTS, LABELS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the checks give unfit data on purpose, and look at warnings themselves
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [LehrClassifier(classes="public", **CHECKED), LehrRegressor(target_range="public", **CHECKED)]
)
def test_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    if check.func.__name__ in COMPARE_TWO_FITS:
        pytest.skip("two fits have different noise: the same noise would cancel between neighbours")
    check(estimator)


def test_whole_targets_are_those_of_floats() -> None:
    targets = np.arange(60) % 3
    fits = [LehrRegressor(target_range=(0, 2), **CHECKED).fit(INPUTS, targets.astype(kind)) for kind in (int, float)]
    ranges = [each.target_range_ for each in fits]
    assert ranges[0] == ranges[1]
    assert fits[0].predict(INPUTS).dtype == fits[1].predict(INPUTS).dtype == np.float64


def test_it_learns_digits_within_its_epsilon() -> None:
    inputs, labels = load_digits(return_X_y=True)
    classifier = LehrClassifier(epsilon=8.0, delta=1e-4, records=1797, classes=range(10), steps=60, learning_rate=2.0)
    classifier.fit(inputs / 16, labels)
    assert 7.5 < classifier.epsilon_ <= 8.0
    assert classifier.score(inputs / 16, labels) > 0.7


def test_a_random_state_repeats_initial_weights_and_never_the_noise() -> None:
    first, second = (fitted(random_state=3, noise_multiplier=5.0) for _ in range(2))
    begun = [classifier._module(2)[0].state_dict() for classifier in (first, second)]
    assert all(begun[0][name].equal(begun[1][name]) for name in begun[0])
    assert not first.module_.state_dict()["0.weight"].equal(second.module_.state_dict()["0.weight"])


@pytest.mark.parametrize(
    "name, public", [("records", "the number of records"), ("classes", "the labels that there are")]
)
def test_private_facts_must_be_stated_or_called_public(name: str, public: str) -> None:
    for wrong in (None, "many"):
        with invalid(name):
            fitted(**{name: wrong})
    certificate = fitted(**{name: "public", "settings_chosen_on": "fixed"}).certificate_
    assert certificate is not None
    assert public in certificate.stated.treated_as_public
    assert ("the labels that there are" in certificate.stated.treated_as_public) == (name == "classes")


@pytest.mark.parametrize("stated", [19, 181, 600])
def test_a_wrong_number_of_records_is_refused_without_revealing_the_right_one(stated: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        fitted(records=stated)
    assert caught.value.name == "records"
    assert "60" not in str(caught.value).replace(str(stated), "")


def test_a_large_delta_is_not_certified_and_gives_a_warning() -> None:
    with invalid("delta"):
        fitted(delta=0.1, settings_chosen_on="fixed")
    with pytest.warns(UserWarning, match="allows 6 of them to be published"):
        fitted(delta=0.1)


@pytest.mark.parametrize("wrong", [{"classes": ["no"]}, {"epsilon": 1.0, "delta": 2.0}])
def test_other_labels_and_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        fitted(**wrong)


NO_CERTIFICATE = pytest.warns(UserWarning, match="there is no certificate: this process has trained on these records")


def test_a_grid_search_has_no_certificate() -> None:
    search = GridSearchCV(a_classifier(settings_chosen_on="fixed"), {"learning_rate": [0.1, 0.5]}, cv=2)
    with NO_CERTIFICATE:
        search.fit(INPUTS, LABELS)
    assert search.best_estimator_.certificate_ is None


def test_several_clones_have_no_certificate() -> None:
    """They may have been fitted in other processes."""
    classifier = a_classifier(settings_chosen_on="fixed")
    assert clone(classifier).fit(INPUTS, LABELS).certificate_ is not None
    last = [clone(classifier) for _ in range(3)][-1]
    with NO_CERTIFICATE:
        assert clone(last).fit(INPUTS, LABELS).certificate_ is None


def test_settings_after_other_fits_on_the_same_records_are_not_fixed(tmp_path: Path) -> None:
    a_classifier(learning_rate=0.1).fit(INPUTS[:40], LABELS[:40])
    with NO_CERTIFICATE:
        later = fitted(settings_chosen_on="fixed", directory=tmp_path / "run")
    assert later.certificate_ is None
    with invalid("settings_chosen_on"):
        release(tmp_path / "run", tmp_path / "model", settings_chosen_on="fixed")
    with pytest.raises(CertificateMismatch):
        release(tmp_path / "run", tmp_path / "model")
    other = a_classifier(settings_chosen_on="fixed").fit(INPUTS + 5, LABELS)  # other records
    assert other.certificate_ is not None


def test_networks_are_copied_or_built_by_name() -> None:
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    trained = clone(a_classifier(network=module)).fit(INPUTS, LABELS)
    assert module.weight.equal(before)
    assert not torch.equal(trained.module_.weight, before)
    images = np.zeros((30, 1, 8, 8), dtype=np.float32)
    trained = a_classifier(network="small_cnn", classes=range(10), records=30).fit(images, np.arange(30) % 9)
    assert trained.predict_proba(images).shape == (30, 10)  # nobody has the last class
    assert trained.classes_.tolist() == list(range(10))


def test_a_run_with_a_directory_is_kept(tmp_path: Path) -> None:
    classifier = fitted(directory=tmp_path / "run", settings_chosen_on="fixed", method="auto-s", records=100)
    assert classifier.plan_.records == 100
    assert classifier.certificate_ is not None
    assert classifier.certificate_.epsilon >= classifier.epsilon_
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.count("steps") == classifier.n_iter_ == 2


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "lehr.integrations.sklearn")
    with pytest.raises(MissingExtra, check=lambda error: error.extra == "sklearn"):
        importlib.import_module("lehr.integrations.sklearn")

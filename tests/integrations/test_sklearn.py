"""The classifier is one of scikit-learn's kind, and private."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from sklearn.utils.estimator_checks import parametrize_with_checks  # type: ignore[import-untyped]
from torch import nn

from lehr.accounting.ledger import Ledger
from lehr.certificates.release import release
from lehr.errors import CertificateMismatch, InvalidValue, MissingExtra
from lehr.integrations.sklearn import LehrClassifier
from lehr.methods.dpsgd import auto_s

NOISE_IS_FRESH = "two fits have different noise, whatever the seed: the same noise would cancel between neighbours"
EXPECTED_FAILURES = {
    "check_classifier_data_not_an_array": NOISE_IS_FRESH,
    "check_fit_idempotent": NOISE_IS_FRESH,
    "check_supervised_y_2d": NOISE_IS_FRESH,
}


def a_classifier(**changed: Any) -> LehrClassifier:
    settings: dict[str, Any] = {"epsilon": None, "noise_multiplier": 2.0, "steps": 2, "expected_batch_size": 8}
    return LehrClassifier(**{**settings, "records": 60, "classes": ["no", "yes"], **changed})


def some_records() -> tuple[NDArray[Any], NDArray[Any]]:
    inputs = np.linspace(-1, 1, 120).reshape(60, 2)
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the checks give unfit data on purpose, and look at warnings themselves
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [LehrClassifier(records="public", classes="public", epsilon=None, noise_multiplier=2.0, steps=2)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
    xfail_strict=False,  # few predictions are compared, and two fits may agree in them
)
def test_scikit_learns_own_checks_hold(estimator: Any, check: Any) -> None:
    check(estimator)


def test_it_learns_digits_within_its_epsilon() -> None:
    inputs, labels = load_digits(return_X_y=True)
    classifier = LehrClassifier(epsilon=8.0, delta=1e-4, records=1797, classes=range(10), steps=60, learning_rate=2.0)
    classifier.fit(inputs / 16, labels)
    assert 7.5 < classifier.epsilon_ <= 8.0
    assert classifier.score(inputs / 16, labels) > 0.7


def test_two_fits_with_one_random_state_have_the_same_first_weights_and_other_noise() -> None:
    first, second = (a_classifier(random_state=3, noise_multiplier=5.0).fit(*some_records()) for _ in range(2))
    begun = [fitted._module()[0].state_dict() for fitted in (first, second)]
    assert all(begun[0][name].equal(begun[1][name]) for name in begun[0])
    assert not first.module_.state_dict()["0.weight"].equal(second.module_.state_dict()["0.weight"])


@pytest.mark.parametrize("left_out", ["records", "classes"])
def test_what_would_be_read_from_private_data_must_be_stated_or_said_to_be_public(left_out: str) -> None:
    inputs, labels = some_records()
    with pytest.raises(InvalidValue, match=f"{left_out} must be .*'public'"):
        a_classifier(**{left_out: None}).fit(inputs, labels)
    certificate = a_classifier(**{left_out: "public", "settings_chosen_on": "fixed"}).fit(inputs, labels).certificate_
    assert certificate is not None
    said = {"records": "the number of records", "classes": "the labels that there are"}
    assert said[left_out] in certificate.stated.treated_as_public
    assert ("the labels that there are" in certificate.stated.treated_as_public) == (left_out == "classes")


@pytest.mark.parametrize("stated", [19, 181, 600])
def test_a_number_of_records_that_is_far_from_those_held_is_refused_without_saying_how_many_they_are(
    stated: int,
) -> None:
    with pytest.raises(InvalidValue, match="records must be within a factor of 3") as caught:
        a_classifier(records=stated).fit(*some_records())
    assert "60" not in str(caught.value).replace(str(stated), "")


def test_a_delta_that_protects_nobody_is_not_certified_and_warned_of() -> None:
    with pytest.raises(InvalidValue, match=r"delta must be at most 0\.01 for a certificate"):
        a_classifier(delta=0.1, settings_chosen_on="fixed").fit(*some_records())
    with pytest.warns(UserWarning, match="allows 6 of them to be published"):
        a_classifier(delta=0.1).fit(*some_records())


NO_CERTIFICATE = pytest.warns(UserWarning, match="there is no certificate: this process has trained on these records")


def test_what_a_grid_search_chooses_has_no_certificate() -> None:
    search = GridSearchCV(a_classifier(settings_chosen_on="fixed"), {"learning_rate": [0.1, 0.5]}, cv=2)
    with NO_CERTIFICATE:
        search.fit(*some_records())
    assert search.best_estimator_.certificate_ is None


def test_clones_count_as_fitted_for_they_may_have_been_in_other_processes() -> None:
    classifier = a_classifier(settings_chosen_on="fixed")
    assert clone(classifier).fit(*some_records()).certificate_ is not None
    last = [clone(classifier) for _ in range(3)][-1]
    with NO_CERTIFICATE:
        assert clone(last).fit(*some_records()).certificate_ is None


def test_settings_that_follow_other_fits_on_the_same_records_are_not_fixed(tmp_path: Path) -> None:
    inputs, labels = some_records()
    a_classifier(learning_rate=0.1).fit(inputs[:40], labels[:40])
    with NO_CERTIFICATE:
        later = a_classifier(settings_chosen_on="fixed", directory=tmp_path / "run").fit(inputs, labels)
    assert later.certificate_ is None
    with pytest.raises(InvalidValue, match=r"what was stated for the run \(private\)"):
        release(tmp_path / "run", tmp_path / "model", settings_chosen_on="fixed")
    with pytest.raises(CertificateMismatch, match="neither an event nor a budget pays for that"):
        release(tmp_path / "run", tmp_path / "model")
    other = a_classifier(settings_chosen_on="fixed").fit(inputs + 5, labels)  # of nobody above
    assert other.certificate_ is not None


def test_a_class_that_nobody_has_is_predicted_for_all_the_same() -> None:
    inputs, labels = some_records()
    classifier = a_classifier(classes=["no", "perhaps", "yes"]).fit(inputs, labels)
    assert classifier.predict_proba(inputs).shape == (60, 3)
    assert classifier.classes_.tolist() == ["no", "perhaps", "yes"]


@pytest.mark.parametrize(
    "changed", [{"classes": ["no"]}, {"classes": "those"}, {"records": "many"}, {"epsilon": 1.0, "delta": 2.0}]
)
def test_what_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    inputs, labels = some_records()
    with pytest.raises(InvalidValue):
        a_classifier(**changed).fit(inputs, labels)


def test_a_module_that_is_given_stays_as_it_is_and_a_copy_is_trained() -> None:
    inputs, labels = some_records()
    module = nn.Linear(2, 2)
    before = module.weight.detach().clone()
    classifier = clone(a_classifier(network=module)).fit(inputs, labels)
    assert module.weight.equal(before)
    assert not torch.equal(classifier.module_.weight, before)


def test_a_network_by_name_takes_images() -> None:
    images, labels = np.zeros((30, 1, 8, 8), dtype=np.float32), np.arange(30) % 10
    classifier = a_classifier(network="small_cnn", classes=range(10), records=30).fit(images, labels)
    assert classifier.predict(images).shape == (30,)


def test_the_run_is_kept_where_it_is_asked_for_and_certified_where_that_is_stated(tmp_path: Path) -> None:
    inputs, labels = some_records()
    classifier = a_classifier(directory=tmp_path / "run", settings_chosen_on="fixed", method=auto_s(), records=100)
    classifier.fit(inputs, labels)
    assert classifier.plan_.records == 100
    assert classifier.certificate_ is not None
    assert classifier.certificate_.epsilon >= classifier.epsilon_
    assert a_classifier().fit(inputs, labels).certificate_ is None
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.count("steps") == classifier.n_iter_ == 2


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "lehr.integrations.sklearn")
    with pytest.raises(MissingExtra, match=r"lehr\[sklearn\]"):
        importlib.import_module("lehr.integrations.sklearn")

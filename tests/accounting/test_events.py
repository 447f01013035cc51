"""Events: values that are checked, counted, and written as JSON; claims about them; extreme numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting.accountant import answers, bound
from lehr.accounting.claims import IDEAL_ARITHMETIC, Claim, Premise, PublishedRule, Standing, published_rule
from lehr.accounting.events import (
    EVENT_TYPES,
    Adjacency,
    Atom,
    BallsInBins,
    Composed,
    CorrelatedSteps,
    Event,
    Gaussian,
    GroupPoissonSampled,
    InverseCorrelatedSteps,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    RoundedGaussian,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    composed,
    counted,
    from_json,
    is_part,
    rest,
    to_json,
    together,
)
from lehr.errors import InvalidValue

STEP: Atom = PoissonSampled(sampling_probability=512 / 60_000, event=Gaussian(noise_multiplier=1.23))

_not_negative = st.floats(0, allow_infinity=False)
_gaussians = st.builds(Gaussian, _not_negative)
_samples = st.integers(1, 10**9).flatmap(lambda records: st.tuples(st.just(records), st.integers(1, records)))
_simple: st.SearchStrategy[Atom] = st.one_of(
    _gaussians,
    st.builds(Laplace, _not_negative),
    st.builds(PureDP, _not_negative),
    st.builds(RenyiLimit, st.floats(1, 1e6, exclude_min=True), st.floats(1e-9, 1e9)),
    st.builds(PoissonSampled, st.floats(0, 1, exclude_min=True), _gaussians),
    st.builds(BallsInBins, st.integers(1, 10**9), _gaussians),
    st.builds(GroupPoissonSampled, st.floats(0, 1, exclude_min=True), st.integers(1, 10**6), _gaussians),
    st.builds(
        TruncatedPoissonSampled,
        st.floats(0, 1, exclude_min=True),
        st.integers(1, 10**6),
        st.integers(1, 10**6),
        _gaussians,
    ),
    st.builds(
        CorrelatedSteps,
        st.integers(1, 10**6),
        st.integers(1, 10**6),
        st.floats(0, 1, exclude_min=True),
        _gaussians,
    ),
    st.builds(InverseCorrelatedSteps, *3 * [st.integers(1, 10**6)], _gaussians),
    st.builds(lambda size, event: SampledWithoutReplacement(size[0], size[1], event), _samples, _gaussians),
    st.builds(NonPrivate, st.text(min_size=1).filter(str.strip)),
)


def _selected(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[RepeatAndSelect]:
    return st.builds(RepeatAndSelect, inner, st.floats(1, 1e6), st.none() | _not_negative)


def _nested(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.builds(Repeated, inner, st.integers(1, 1000)),
        st.builds(Composed, st.lists(inner, max_size=4).map(tuple)),
        _selected(inner),
    )


EVENTS: st.SearchStrategy[Event] = st.recursive(_simple, _nested, max_leaves=12)


@given(event=EVENTS)
def test_events_are_frozen_hashable_equal_by_value_and_survive_json(event: Event) -> None:
    text = json.dumps(to_json(event), allow_nan=False)
    for twin in (pickle.loads(pickle.dumps(event)), from_json(json.loads(text))):
        assert {twin: 1}[event] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, dataclasses.fields(event)[0].name, 1)
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(event, "price", 1)


@given(counts=st.dictionaries(_simple | _selected(EVENTS), st.integers(1, 10**6), max_size=5))
def test_counting_undoes_composing(counts: dict[Atom, int]) -> None:
    assert counted(composed(counts)) == counts


@given(event=EVENTS, times=st.integers(1, 1000))
def test_repeating_multiplies_every_count(event: Event, times: int) -> None:
    assert counted(Repeated(event, times)) == {atom: times * count for atom, count in counted(event).items()}
    assert not any(isinstance(atom, Repeated | Composed) for atom in counted(event))


@given(parts=st.lists(EVENTS, max_size=4))
def test_composing_adds_the_counts_in_any_order(parts: list[Event]) -> None:
    whole = counted(Composed(tuple(parts)))
    assert whole == counted(Composed(tuple(reversed(parts))))
    assert sum(whole.values()) == sum(sum(counted(part).values()) for part in parts)


_PARTS: list[Event] = [Gaussian(1.0), PoissonSampled(0.1, Gaussian(1.0)), Gaussian(2.0)]
_several = st.lists(st.tuples(st.sampled_from(_PARTS), st.integers(1, 5)), max_size=4).map(
    lambda parts: Composed(tuple(Repeated(atom, count) for atom, count in parts))
)


@given(_several, _several)
def test_a_part_and_the_rest_make_the_whole(part: Event, other: Event) -> None:
    whole = together(part, other)
    assert is_part(part, of=whole)
    assert counted(together(part, rest(whole, part))) == counted(whole)
    assert is_part(whole, of=part) == (counted(other) == {})


def test_counts_are_composed_in_the_shortest_way() -> None:
    both: dict[Atom, int] = {STEP: 2, Gaussian(4.0): 1}
    assert composed({}) == composed({STEP: 0}) == Composed(())
    assert composed({STEP: 1}) == STEP
    assert composed({STEP: 4698}) == Repeated(STEP, 4698)
    assert composed(both) == Composed((Repeated(STEP, 2), Gaussian(4.0)))
    with pytest.raises(InvalidValue):
        composed({STEP: -1})


def test_events_are_printed_for_people() -> None:
    printed = [
        Repeated(STEP, 4698),
        SampledWithoutReplacement(60_000, 600, Gaussian(0.9)),
        Composed((Laplace(2.0), RepeatAndSelect(Gaussian(4.0), 10.0), NonPrivate("the mean image"))),
        Composed(()),
    ]
    assert list(map(str, printed)) == [
        "4698 × PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))",
        "SampledWithoutReplacement(600 of 60000, Gaussian(noise_multiplier=0.9))",
        "Laplace(noise_multiplier=2) + RepeatAndSelect(Gaussian(noise_multiplier=4), mean=10, shape=1.0)"
        " + NonPrivate(the mean image)",
        "nothing",
    ]


NUMBER_FIELDS: dict[str, Callable[[Any], Event]] = {
    "Gaussian.noise_multiplier": Gaussian,
    "RoundedGaussian.noise_multiplier": RoundedGaussian,
    "Laplace.noise_multiplier": Laplace,
    "PureDP.epsilon": PureDP,
    "RenyiLimit.order": lambda value: RenyiLimit(value, 1.0),
    "RenyiLimit.divergence": lambda value: RenyiLimit(2.0, value),
    "PoissonSampled.sampling_probability": lambda value: PoissonSampled(value, Gaussian(1.0)),
    "TruncatedPoissonSampled.sampling_probability": lambda value: TruncatedPoissonSampled(value, 9, 5, Gaussian(1.0)),
    "TruncatedPoissonSampled.records": lambda value: TruncatedPoissonSampled(0.5, value, 5, Gaussian(1.0)),
    "TruncatedPoissonSampled.largest_batch": lambda value: TruncatedPoissonSampled(0.5, 9, value, Gaussian(1.0)),
    "GroupPoissonSampled.sampling_probability": lambda value: GroupPoissonSampled(value, 3, Gaussian(1.0)),
    "GroupPoissonSampled.group_size": lambda value: GroupPoissonSampled(0.5, value, Gaussian(1.0)),
    "BallsInBins.bins": lambda value: BallsInBins(value, Gaussian(1.0)),
    "CorrelatedSteps.steps": lambda value: CorrelatedSteps(value, 2, 0.5, Gaussian(1.0)),
    "CorrelatedSteps.bands": lambda value: CorrelatedSteps(9, value, 0.5, Gaussian(1.0)),
    "CorrelatedSteps.sampling_probability": lambda value: CorrelatedSteps(9, 2, value, Gaussian(1.0)),
    "InverseCorrelatedSteps.steps": lambda value: InverseCorrelatedSteps(value, 2, 3, Gaussian(1.0)),
    "InverseCorrelatedSteps.bands": lambda value: InverseCorrelatedSteps(9, value, 3, Gaussian(1.0)),
    "InverseCorrelatedSteps.groups": lambda value: InverseCorrelatedSteps(9, 2, value, Gaussian(1.0)),
    "SampledWithoutReplacement.records": lambda value: SampledWithoutReplacement(value, 1, Gaussian(1.0)),
    "SampledWithoutReplacement.sample_size": lambda value: SampledWithoutReplacement(9, value, Gaussian(1.0)),
    "RepeatAndSelect.mean": lambda value: RepeatAndSelect(Gaussian(1.0), value),
    "RepeatAndSelect.shape": lambda value: RepeatAndSelect(Gaussian(1.0), 2.0, value),
    "Repeated.count": lambda value: Repeated(Gaussian(1.0), value),
}
OUT_OF_RANGE: dict[str, list[float]] = {
    "RenyiLimit.order": [1.0, 0.5, 0.0],
    "RenyiLimit.divergence": [0.0],
    "PoissonSampled.sampling_probability": [0.0, 1.0 + 2**-52],
    "GroupPoissonSampled.sampling_probability": [0.0, 1.0 + 2**-52],
    "GroupPoissonSampled.group_size": [0, 2.5],
    "CorrelatedSteps.steps": [0],
    "CorrelatedSteps.bands": [0],
    "CorrelatedSteps.sampling_probability": [0.0, 1.0 + 2**-52],
    "InverseCorrelatedSteps.steps": [0],
    "InverseCorrelatedSteps.bands": [0],
    "InverseCorrelatedSteps.groups": [0],
    "SampledWithoutReplacement.sample_size": [10],
    "RepeatAndSelect.mean": [0.5],
    "Repeated.count": [0, 10**400],
}


@pytest.mark.parametrize("field", NUMBER_FIELDS)
def test_a_number_that_is_none_or_out_of_range_is_refused_by_name(field: str) -> None:
    wrong = [math.nan, math.inf, -math.inf, True, "1.0", 1j, [1.0], -1, *OUT_OF_RANGE.get(field, [])]
    for value in wrong if field == "RepeatAndSelect.shape" else [*wrong, None]:
        with pytest.raises(InvalidValue) as caught:
            NUMBER_FIELDS[field](value)
        assert caught.value.name == field.partition(".")[2]
        assert caught.value.given is value


def test_the_fields_tried_above_are_all_fields_that_hold_a_number() -> None:
    named = {f"{kind.__name__}.{field.name}" for kind in EVENT_TYPES for field in dataclasses.fields(kind)}
    assert {field for field in named if not field.endswith((".event", ".events", ".reason"))} == set(NUMBER_FIELDS)


@pytest.mark.parametrize(
    "build",
    [
        lambda: PoissonSampled(0.5, STEP),  # type: ignore[arg-type]
        lambda: SampledWithoutReplacement(9, 3, Laplace(1.0)),  # type: ignore[arg-type]
        lambda: Repeated("a step", 3),  # type: ignore[arg-type]
        lambda: RepeatAndSelect(None, 3.0),  # type: ignore[arg-type]
        lambda: Composed((STEP, 3)),  # type: ignore[arg-type]
        lambda: Composed([STEP]),  # type: ignore[arg-type]
        lambda: NonPrivate(" "),
        lambda: NonPrivate(3),  # type: ignore[arg-type]
    ],
)
def test_an_event_holds_only_the_events_and_reasons_that_it_may_hold(build: Callable[[], Event]) -> None:
    with pytest.raises(InvalidValue):
        build()


_GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "shape",
    [
        *(None, [], "gaussian", {}, {"kind": None}, {"kind": "gaussian"}),
        *(_GAUSSIAN | {"kind": kind} for kind in (["gaussian"], "os.system", "Gaussian")),
        _GAUSSIAN | {"seed": 0},
        *(_GAUSSIAN | {"noise_multiplier": value} for value in ("1.0", math.nan, 10**400, -1)),
        {"kind": "repeated", "event": _GAUSSIAN, "count": 2.0},
        {"kind": "repeated", "event": _GAUSSIAN},
        {"kind": "repeated", "event": None, "count": 2},
        {"kind": "composed", "events": {}},
        {"kind": "composed", "events": [None]},
        {"kind": "poisson-sampled", "sampling_probability": 0.5, "event": {"kind": "composed", "events": []}},
        {"kind": "non-private", "reason": ""},
    ],
    ids=lambda shape: repr(shape)[:60],
)
def test_json_that_is_not_exactly_an_event_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_deep_nesting_and_counts_beyond_floating_point_are_refused() -> None:
    shape = to_json(STEP)
    for _ in range(100_000):
        shape = {"kind": "repeated", "event": shape, "count": 1}
    with pytest.raises(InvalidValue):
        from_json(shape)
    deep = many = Repeated(Gaussian(1.0), 1)
    for _ in range(2000):
        deep = Repeated(deep, 1)
    for _ in range(4):
        many = Repeated(many, 10**6)
    for event, name in ((deep, "event"), (many, "repetitions")):
        with pytest.raises(InvalidValue, match=f"^{name}"):
            counted(event)


def test_numbers_of_other_libraries_are_kept_as_python_s_own() -> None:
    narrow = Repeated(Repeated(Gaussian(np.float32(0.5)), np.int32(100_000)), np.int32(100_000))  # type: ignore[arg-type]
    assert counted(narrow) == {Gaussian(0.5): 10**10}
    step = PoissonSampled(np.float32(0.25), Gaussian(Fraction(3, 2)))  # type: ignore[arg-type]
    assert type(step.sampling_probability) is type(step.event.noise_multiplier) is float
    assert json.loads(json.dumps(to_json(narrow))) == to_json(narrow)


# Numbers that a stranger's file may hold: an answer or a named refusal, never a crash

TINY, HUGE = 5e-324, 1.7e308
NOISE = (0.0, TINY, 1e-200, 1e-4, 0.05, 1e7, 1e200, HUGE)
EXTREME: list[Event] = [
    *(kind(noise) for kind in (Gaussian, Laplace, PureDP) for noise in NOISE),
    *(PoissonSampled(p, Gaussian(noise)) for p, noise in itertools.product((TINY, 1e-100, 1e-10, 1.0), NOISE)),
]


@pytest.mark.parametrize("event", EXTREME, ids=str)
def test_every_number_that_is_allowed_has_an_answer(event: Event) -> None:
    for count, delta in itertools.product((1, 10**18), (TINY, 1e-5, 1 - 1e-16)):
        found = answers(Repeated(event, count), delta=delta)
        assert all(answer.reason if answer.epsilon is None else answer.epsilon >= 0 for answer in found)
        assert bound(Repeated(event, count), delta=delta).epsilon >= 0


@pytest.mark.parametrize("inner", [Gaussian(HUGE), PureDP(0.0), PureDP(TINY), PureDP(HUGE)])
def test_a_selection_of_an_extreme_event_has_an_answer(inner: Event) -> None:
    assert bound(RepeatAndSelect(inner, mean=1e300), delta=1e-5).epsilon >= 0


def test_sampling_without_replacement_with_very_much_noise_has_an_answer() -> None:
    event = Repeated(SampledWithoutReplacement(10**7, 1, Gaussian(1e300)), 10**7)
    assert bound(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE).epsilon >= 0


@pytest.mark.parametrize("epsilon", [0.0, TINY, 1e-8, 0.1, 30.0, 499.0, 501.0, HUGE])
def test_a_pure_mechanism_next_to_gaussian_steps_has_an_answer(epsilon: float) -> None:
    event = Composed((PureDP(epsilon), Repeated(PoissonSampled(0.01, Gaussian(1.0)), 10), Gaussian(3.0)))
    alone = bound(Composed(event.events[1:]), delta=1e-5).epsilon
    found = bound(event, delta=1e-5).epsilon
    assert alone * 0.9999 <= found
    assert found <= (alone + epsilon) * 1.0001 + (1 if epsilon > 500 else 0) or epsilon == HUGE


def test_a_step_that_loses_much_next_to_one_that_loses_little_is_counted_tightly() -> None:
    both, alone = (
        bound(event, delta=1e-12)
        for event in (Composed((Gaussian(0.3), PoissonSampled(1e-6, Gaussian(5.0)))), Gaussian(0.3))
    )
    assert both.accountant == "pld"
    assert alone.epsilon <= both.epsilon <= alone.epsilon * 1.001


# Claims

MET = Premise("each record's contribution has norm at most C", Standing.MET)
BROKEN = Premise("acceptance does not look at the records", Standing.BROKEN, because="it reads the private loss")
PROVEN = Claim(
    epsilon=2.366,
    delta=1e-5,
    adjacency=Adjacency.ADD_OR_REMOVE_ONE,
    accountant="pld",
    theorem="composition of privacy loss distributions",
    premises=(MET, IDEAL_ARITHMETIC),
    proof="accounting/pld.proof.md",
)


@pytest.mark.parametrize(
    "changed, kind",
    [
        ({}, "proven"),
        ({"epsilon": math.inf}, "proven"),
        ({"epsilon": 0.0}, "proven"),
        ({"premises": (MET, BROKEN), "proof": None}, "published"),
        ({"is_estimate": True, "proof": None}, "estimate"),
        ({"is_estimate": True, "premises": (BROKEN,)}, "estimate"),
    ],
)
def test_a_claim_is_proven_unless_a_premise_is_broken_or_it_is_an_estimate(changed: dict[str, Any], kind: str) -> None:
    claim = dataclasses.replace(PROVEN, **changed)
    assert claim.kind == kind
    assert claim.is_proven == (kind == "proven")
    assert claim.broken == tuple(premise for premise in claim.premises if premise is BROKEN)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("proof", None),
        *(("epsilon", value) for value in (-1e-300, -math.inf, math.nan)),
        *(("delta", value) for value in (0.0, 1.0, math.nan, True, "1e-5")),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused_by_name(name: str, wrong: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}"):
        dataclasses.replace(PROVEN, **{name: wrong})  # type: ignore[arg-type]


def test_a_premise_states_something_and_a_broken_one_says_why() -> None:
    for statement, because in ((" ", "a reason"), ("it holds", "")):
        with pytest.raises(InvalidValue):
            Premise(statement, Standing.BROKEN, because=because)


def test_a_broken_published_rule_says_why_and_where_that_is_shown() -> None:
    rule = PublishedRule(paper="Somebody (2020)", theorem="Theorem 1")
    assert not rule.is_broken
    assert published_rule(rule, "published") is rule
    assert published_rule(rule, "proven") is None
    for wrong in ({"because": "it does not hold"}, {"counts_accepted_only": True}):
        with pytest.raises(InvalidValue):
            dataclasses.replace(rule, **wrong)
    with pytest.raises(InvalidValue, match=r"^accounting"):
        published_rule(rule, "hoped")

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting.events import (
    EVENT_TYPES,
    Atom,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
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
NOT_NUMBERS = [math.nan, math.inf, -math.inf, True, "1.0", None, 1j, [1.0]]


def not_negative() -> st.SearchStrategy[float]:
    return st.floats(0, allow_infinity=False)


def sampled_without_replacement() -> st.SearchStrategy[SampledWithoutReplacement]:
    sizes = st.integers(1, 10**9).flatmap(lambda records: st.tuples(st.just(records), st.integers(1, records)))
    return st.builds(lambda size, event: SampledWithoutReplacement(size[0], size[1], event), sizes, gaussians())


def gaussians() -> st.SearchStrategy[Gaussian]:
    return st.builds(Gaussian, not_negative())


def simple_atoms() -> st.SearchStrategy[Atom]:
    laplaces = st.builds(Laplace, not_negative())
    sampled = st.builds(PoissonSampled, st.floats(0, 1, exclude_min=True), gaussians())
    bare = st.builds(NonPrivate, st.text(min_size=1).filter(str.strip))
    pure = st.builds(PureDP, not_negative())
    limits = st.builds(RenyiLimit, st.floats(1, 1e6, exclude_min=True), st.floats(1e-9, 1e9))
    return st.one_of(gaussians(), laplaces, pure, limits, sampled, sampled_without_replacement(), bare)


def nested(inner: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    means = st.floats(1, allow_infinity=False)
    return st.one_of(
        st.builds(Repeated, inner, st.integers(1, 1000)),
        st.builds(Composed, st.lists(inner, max_size=4).map(tuple)),
        st.builds(RepeatAndSelect, inner, means, st.none() | not_negative()),
    )


def events() -> st.SearchStrategy[Event]:
    return st.recursive(simple_atoms(), nested, max_leaves=12)


def atoms() -> st.SearchStrategy[Atom]:
    selected = st.builds(RepeatAndSelect, events(), st.floats(1, 1e6), st.none() | not_negative())
    return simple_atoms() | selected


@given(event=events())
def test_an_event_survives_being_written_as_json_and_read_back(event: Event) -> None:
    text = json.dumps(to_json(event), allow_nan=False)
    assert from_json(json.loads(text)) == event


@given(event=events())
def test_events_are_hashable_and_equal_by_value(event: Event) -> None:
    twin = pickle.loads(pickle.dumps(event))
    assert twin == event
    assert hash(twin) == hash(event)
    assert {twin: 1}[event] == 1


@given(event=events())
def test_events_are_frozen_and_take_no_new_attributes(event: Event) -> None:
    field = dataclasses.fields(event)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, field, 1)
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(event, "price", 1)


@given(event=events())
def test_an_event_prints_on_one_line_without_the_name_of_a_field_missing(event: Event) -> None:
    assert str(event)
    assert "object at 0x" not in str(event)


@given(counts=st.dictionaries(atoms(), st.integers(1, 10**6), max_size=5))
def test_counting_undoes_composing(counts: dict[Atom, int]) -> None:
    assert counted(composed(counts)) == counts


@given(event=events())
def test_composing_what_was_counted_says_the_same(event: Event) -> None:
    assert counted(composed(counted(event))) == counted(event)
    assert composed(counted(composed(counted(event)))) == composed(counted(event))


@given(event=events(), times=st.integers(1, 1000))
def test_repeating_multiplies_every_count(event: Event, times: int) -> None:
    assert counted(Repeated(event, times)) == {atom: times * count for atom, count in counted(event).items()}


@given(parts=st.lists(events(), max_size=4))
def test_composing_adds_the_counts_in_any_order(parts: list[Event]) -> None:
    together = counted(Composed(tuple(parts)))
    assert together == counted(Composed(tuple(reversed(parts))))
    assert sum(together.values()) == sum(sum(counted(part).values()) for part in parts)


@given(event=events())
def test_counted_never_holds_a_repetition_or_a_composition(event: Event) -> None:
    assert not any(isinstance(atom, Repeated | Composed) for atom in counted(event))


def test_an_empty_composition_is_nothing() -> None:
    assert counted(Composed(())) == {}
    assert composed({}) == Composed(())
    assert composed({STEP: 0}) == Composed(())
    assert str(Composed(())) == "nothing"


def test_what_happened_once_or_alone_is_said_in_the_shortest_way() -> None:
    assert composed({STEP: 1}) == STEP
    assert composed({STEP: 4698}) == Repeated(STEP, 4698)
    both: dict[Atom, int] = {STEP: 2, Gaussian(4.0): 1}
    assert composed(both) == Composed((Repeated(STEP, 2), Gaussian(4.0)))


def test_a_negative_count_is_never_composed() -> None:
    with pytest.raises(InvalidValue):
        composed({STEP: -1})


def test_events_are_printed_for_people() -> None:
    assert str(Repeated(STEP, 4698)) == (
        "4698 × PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))"
    )
    assert str(Composed((Laplace(2.0), Gaussian(4.0)))) == "Laplace(noise_multiplier=2) + Gaussian(noise_multiplier=4)"
    assert str(SampledWithoutReplacement(60_000, 600, Gaussian(0.9))) == (
        "SampledWithoutReplacement(600 of 60000, Gaussian(noise_multiplier=0.9))"
    )
    assert str(RepeatAndSelect(Gaussian(4.0), 10.0)) == (
        "RepeatAndSelect(Gaussian(noise_multiplier=4), mean=10, shape=1.0)"
    )
    assert str(PureDP(0.25)) == "PureDP(epsilon=0.25)"
    assert str(RenyiLimit(order=8.0, divergence=0.25)) == "RenyiLimit(order=8, divergence=0.25)"
    assert str(NonPrivate("the mean image")) == "NonPrivate(the mean image)"


NUMBER_FIELDS: dict[str, Callable[[object], Event]] = {
    "Gaussian.noise_multiplier": lambda value: Gaussian(value),  # type: ignore[arg-type]
    "Laplace.noise_multiplier": lambda value: Laplace(value),  # type: ignore[arg-type]
    "PureDP.epsilon": lambda value: PureDP(value),  # type: ignore[arg-type]
    "RenyiLimit.order": lambda value: RenyiLimit(value, 1.0),  # type: ignore[arg-type]
    "RenyiLimit.divergence": lambda value: RenyiLimit(2.0, value),  # type: ignore[arg-type]
    "PoissonSampled.sampling_probability": lambda value: PoissonSampled(value, Gaussian(1.0)),  # type: ignore[arg-type]
    "SampledWithoutReplacement.records": lambda value: SampledWithoutReplacement(value, 1, Gaussian(1.0)),  # type: ignore[arg-type]
    "SampledWithoutReplacement.sample_size": lambda value: SampledWithoutReplacement(9, value, Gaussian(1.0)),  # type: ignore[arg-type]
    "RepeatAndSelect.mean": lambda value: RepeatAndSelect(Gaussian(1.0), value),  # type: ignore[arg-type]
    "Repeated.count": lambda value: Repeated(Gaussian(1.0), value),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("field", NUMBER_FIELDS)
@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1], ids=repr)
def test_nan_infinity_booleans_strings_and_negatives_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        NUMBER_FIELDS[field](value)
    assert caught.value.name == field.partition(".")[2]
    assert caught.value.allowed
    assert caught.value.given is value
    assert repr(value) in str(caught.value)


def test_the_fields_tried_above_are_all_fields_that_hold_a_number() -> None:
    named = {f"{kind.__name__}.{field.name}" for kind in EVENT_TYPES for field in dataclasses.fields(kind)}
    others = {field for field in named if field.endswith((".event", ".events", ".reason"))}
    assert named - others - {"RepeatAndSelect.shape"} == set(NUMBER_FIELDS)


@pytest.mark.parametrize("shape", [value for value in NOT_NUMBERS if value is not None] + [-1e-9], ids=repr)
def test_the_shape_of_a_selection_is_none_or_not_negative(shape: float) -> None:
    with pytest.raises(InvalidValue, match="shape"):
        RepeatAndSelect(STEP, 10.0, shape)


@pytest.mark.parametrize("probability", [0.0, 1.0 + 2**-52])
def test_a_sampling_probability_is_above_zero_and_at_most_one(probability: float) -> None:
    with pytest.raises(InvalidValue, match="sampling_probability"):
        PoissonSampled(probability, Gaussian(1.0))


def test_a_sample_is_no_larger_than_the_records() -> None:
    assert SampledWithoutReplacement(600, 600, Gaussian(1.0)).sample_size == 600
    with pytest.raises(InvalidValue, match="sample_size must be at most the 600 records; given: 601"):
        SampledWithoutReplacement(600, 601, Gaussian(1.0))


def test_a_selection_repeats_at_least_once_on_average() -> None:
    with pytest.raises(InvalidValue, match=r"mean must be a finite number >= 1; given: 0\.5"):
        RepeatAndSelect(STEP, 0.5)


@pytest.mark.parametrize("reason", ["", " ", None, 3])
def test_what_was_released_without_noise_has_a_reason(reason: str) -> None:
    with pytest.raises(InvalidValue, match="reason"):
        NonPrivate(reason)


@pytest.mark.parametrize(
    "build",
    [
        lambda: PoissonSampled(0.5, STEP),  # type: ignore[arg-type]
        lambda: SampledWithoutReplacement(9, 3, Laplace(1.0)),  # type: ignore[arg-type]
        lambda: Repeated("a step", 3),  # type: ignore[arg-type]
        lambda: RepeatAndSelect(None, 3.0),  # type: ignore[arg-type]
        lambda: Composed((STEP, 3)),  # type: ignore[arg-type]
        lambda: Composed([STEP]),  # type: ignore[arg-type]
        lambda: Composed(STEP),  # type: ignore[arg-type]
    ],
)
def test_an_event_holds_nothing_but_the_events_that_it_may_hold(build: Callable[[], Event]) -> None:
    with pytest.raises(InvalidValue):
        build()


@pytest.mark.parametrize(
    "shape",
    [
        None,
        [],
        "gaussian",
        {},
        {"kind": None},
        {"kind": ["gaussian"], "noise_multiplier": 1.0},
        {"kind": "os.system", "noise_multiplier": 1.0},
        {"kind": "Gaussian", "noise_multiplier": 1.0},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": 1.0, "seed": 0},
        {"kind": "gaussian", "noise_multiplier": "1.0"},
        {"kind": "gaussian", "noise_multiplier": math.nan},
        {"kind": "gaussian", "noise_multiplier": 10**400},
        {"kind": "gaussian", "noise_multiplier": -1},
        {"kind": "repeated", "event": {"kind": "gaussian", "noise_multiplier": 1.0}, "count": 2.0},
        {"kind": "repeated", "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
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


def test_json_nested_deeper_than_any_run_is_refused() -> None:
    shape: dict[str, object] = to_json(STEP)
    for _ in range(100_000):
        shape = {"kind": "repeated", "event": shape, "count": 1}
    with pytest.raises(InvalidValue):
        from_json(shape)


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


def test_counts_beyond_floating_point_are_refused_however_they_are_nested() -> None:
    event: Event = Gaussian(1.0)
    for _ in range(4):
        event = Repeated(event, 10**6)
    with pytest.raises(InvalidValue, match="repetitions must be a whole number <= 1000000000000000000"):
        counted(event)
    with pytest.raises(InvalidValue, match="count must be a whole number <= 1000000000000000000"):
        Repeated(Gaussian(1.0), 10**400)


def test_numbers_of_other_libraries_are_kept_as_python_s_own() -> None:
    narrow = Repeated(Repeated(Gaussian(np.float32(0.5)), np.int32(100_000)), np.int32(100_000))  # type: ignore[arg-type]
    assert counted(narrow) == {Gaussian(0.5): 10**10}
    step = PoissonSampled(np.float32(0.25), Gaussian(Fraction(3, 2)))  # type: ignore[arg-type]
    assert type(step.sampling_probability) is float
    assert type(step.event.noise_multiplier) is float
    assert json.loads(json.dumps(to_json(narrow))) == to_json(narrow)


def test_an_event_nested_too_deep_is_refused_when_it_is_counted() -> None:
    event: Event = Gaussian(1.0)
    for _ in range(2000):
        event = Repeated(event, 1)
    with pytest.raises(InvalidValue, match="event must be nested a few levels deep"):
        counted(event)


@pytest.mark.parametrize("order", [1.0, 0.5, 0.0])
def test_the_order_of_a_limit_is_above_one(order: float) -> None:
    with pytest.raises(InvalidValue, match=r"^order must be"):
        RenyiLimit(order=order, divergence=1.0)


def test_a_limit_that_admits_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^divergence must be"):
        RenyiLimit(order=2.0, divergence=0.0)

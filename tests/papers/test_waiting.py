from __future__ import annotations

from lehr.papers.waiting import Waiting, shape_of
from tests.papers.made_up_jobs import squared, tiny

SMALL = [tiny(seed=seed) for seed in range(4)]
LARGE = [tiny(seed=seed, expected_batch_size=64) for seed in range(2)]


def test_seeds_and_rates_have_one_shape_and_batches_and_clips_have_not() -> None:
    assert shape_of(tiny(seed=1, settings={"learning_rate": 0.1})) == shape_of(tiny())
    for changed in ({"expected_batch_size": 64}, {"settings": {"clip_norm": 2.0}}, {"views": 4}, {"data": "mnist"}):
        assert shape_of(tiny(**changed)) != shape_of(tiny())
    assert shape_of(tiny(simulated_batch_size=16)) != shape_of(tiny())
    assert shape_of(squared(1)) == shape_of(squared(2))


def test_a_process_stays_with_its_shape_while_there_is_a_job_of_it() -> None:
    waiting, last = Waiting([SMALL[0], LARGE[0], SMALL[1], LARGE[1]]), None
    found = []
    while (job := waiting.next_for(last, ())) is not None:
        found.append(job)
        last = shape_of(job)
    assert found == [SMALL[0], SMALL[1], LARGE[0], LARGE[1]]


def test_a_new_process_begins_with_a_shape_that_nobody_works_on() -> None:
    waiting = Waiting([*SMALL, *LARGE])
    assert waiting.next_for(None, [shape_of(SMALL[0])]) == LARGE[0]


def test_the_largest_group_is_split_where_all_shapes_are_worked_on() -> None:
    waiting = Waiting([*LARGE, *SMALL])
    assert waiting.next_for(None, [shape_of(SMALL[0]), shape_of(LARGE[0])]) == SMALL[0]


def test_every_job_is_given_once() -> None:
    waiting = Waiting([*SMALL, *LARGE])
    given = [waiting.next_for(None, ()) for _ in range(len(waiting))]
    assert len(waiting) == 0
    assert waiting.next_for(None, ()) is None
    assert sorted(map(str, given)) == sorted(map(str, [*SMALL, *LARGE]))

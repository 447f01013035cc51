from __future__ import annotations

from lehr.reports.search_rows import Row, best_first, best_of, score_in_words, setting_in_words


def row(number: int, score: float | None) -> Row:
    return Row(number=number, state="done", score=score, parameters={"momentum": 0.9})


ROWS = [row(0, 0.5), row(1, None), row(2, 0.9), row(3, 0.9), row(4, 0.1)]


def test_the_best_accuracy_is_the_largest_and_the_best_loss_the_smallest() -> None:
    assert [one.number for one in best_first(ROWS, score="accuracy")] == [2, 3, 0, 4, 1]
    assert [one.number for one in best_first(ROWS, score="loss")] == [4, 0, 2, 3, 1]
    best = best_of(ROWS, score="loss")
    assert best is not None
    assert best.number == 4


def test_where_nothing_was_scored_there_is_no_best() -> None:
    assert best_of([row(0, None)], score="accuracy") is None
    assert best_of([], score="loss") is None


def test_words_are_as_people_read_them() -> None:
    assert score_in_words(0.12345, score="accuracy") == "12.35%"
    assert score_in_words(0.12345, score="loss") == "0.1235"
    assert score_in_words(None, score="loss") == "–"
    assert [setting_in_words(value) for value in (0.123456, 1e-5, 3, True, "sgd")] == [
        "0.1235",
        "1e-05",
        "3",
        "True",
        "sgd",
    ]


def test_the_json_form_has_every_field() -> None:
    assert set(row(0, 0.5).to_json()) == set(Row.__dataclass_fields__)

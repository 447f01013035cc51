from __future__ import annotations

import math
from dataclasses import replace

from lehr.events import Adjacency, Gaussian, RepeatAndSelect, Repeated
from lehr.reports.certificate import Certificate
from lehr.reports.wording import WIDTH, best_guess, guarantee, how_chosen, page


def test_the_page_answers_every_question(filled: Certificate) -> None:
    text = " ".join(page(filled).split())
    for answer in (
        "The unit of privacy is one image",
        "One person may have 2 records",
        "ε = 2.5 at δ = 1e-05",
        "12.2 times as likely",
        "Ex post, and not a guarantee",
        "Theorem: a theorem.",
        "Proof: accounting/pld.proof.md, SHA-256 abab",
        "Met by the code: each gradient is clipped.",
        "Counted by: pld (lehr 0.1.0).",
        "Not used: gdp, an estimate.",
        "Assumed: the random bits are independent and uniform.",
        "Assumed: sums and noise are real numbers, not floating point.",
        "Who sees the raw data: the hospital.",
        "How the data was collected: with consent.",
        "Treated as public: the number of records; the labels' names.",
        "Number of records, stated as public: 60,000.",
        "They were chosen on the private data",
        "Choosing them did this to the records: Gaussian(noise_multiplier=4).",
        "The budget of 'MNIST, training half' is ε = 3 at δ = 1e-05; ε = 2.75 of it is spent, counted as filter.",
        "Paid for 'first' (this model): 4698 ×",
        "Paid for 'search': Gaussian",
        "NOT A GUARANTEE (published): ε = 1 by a paper's Theorem 1. Does not hold here: rejected steps cost nothing",
        "An attack (canaries in one run) shows ε of at least 1.2 with confidence 0.95.",
        "Issued on 2026-01-31 by Lehr 0.1.0.",
    ):
        assert answer in text


def test_what_was_not_stated_is_said_to_be_so(filled: Certificate) -> None:
    stated = replace(
        filled.stated, settings_chosen_on="fixed", records_per_person=None, records=None, treated_as_public=()
    )
    bare = replace(
        filled, ex_post=None, budget=None, audit=None, settings_cost=None, published_claims=(), stated=stated
    )
    text = " ".join(page(bare).split())
    for answer in (
        "How many records one person may have is not stated.",
        "Treated as public: nothing was stated.",
        "They were fixed before any data was seen.",
        "No budget was kept",
        "No audit is reported.",
        "do not hold here? - None.",
    ):
        assert answer in text
    assert "Ex post" not in text


def test_lines_fit_a_terminal(filled: Certificate) -> None:
    assert max(len(line) for line in page(filled).splitlines()) <= WIDTH


def test_a_hopeless_epsilon_is_not_turned_into_an_overflow() -> None:
    words = guarantee(epsilon=1e6, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert "e^1e+06 times as likely" in words
    assert "replaced by another" in words


def test_a_certificate_that_does_not_hold_is_headed_by_the_reasons(filled: Certificate) -> None:
    shown = page(filled, mismatches=("epsilon is wrong", "the budget is overspent"))
    assert shown.startswith(
        "THIS PRIVACY CERTIFICATE DOES NOT HOLD\n  - epsilon is wrong\n  - the budget is overspent\n"
    )
    assert page(filled).startswith("PRIVACY CERTIFICATE\n\n")


def test_delta_and_audit_are_shown_in_all_their_digits(filled: Certificate) -> None:
    assert filled.audit is not None
    audit = replace(filled.audit, epsilon_lower_bound=1.23456, confidence=0.99999)
    text = " ".join(page(replace(filled, delta=1.0000004e-5, audit=audit)).split())
    assert "ε = 2.5 at δ = 1.0000004e-05." in text
    assert "at least 1.23456 with confidence 0.99999." in text


def test_a_choice_among_equal_trials_says_how_many_there_were_and_another_cost_does_not(filled: Certificate) -> None:
    step = Gaussian(4.0)
    among = replace(filled, event=Repeated(step, 12), settings_cost=Repeated(step, 9))
    assert "It was chosen among 4 trials" in " ".join(page(among).split())
    assert "trials" not in " ".join(how_chosen(replace(among, settings_cost=Repeated(step, 7))))


def test_a_selection_is_said_in_words(filled: Certificate) -> None:
    selected = replace(filled, event=RepeatAndSelect(Gaussian(4.0), mean=7.0, shape=0.0), settings_cost=None)
    assert "drawn by the logarithmic law with mean 7" in " ".join(page(selected).split())


def test_the_best_guess_is_the_bound_that_both_errors_have() -> None:
    """At every ε and δ the guesser whose errors are equal is allowed exactly that by the trade-off of the claim."""
    for epsilon, delta in ((0.0, 1e-5), (1.0, 1e-5), (3.0, 0.01), (8.0, 1e-6)):
        words = best_guess(epsilon=epsilon, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
        told = float(words.split("at most ")[1].split(" %")[0]) / 100
        error = (1 - delta) / (1 + math.exp(epsilon))
        assert 1 - error <= told <= 1 - error + 1.1e-4


def test_the_best_guess_of_a_large_epsilon_is_always_right_and_does_not_overflow() -> None:
    assert "at most 100 % of" in best_guess(epsilon=5000.0, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)

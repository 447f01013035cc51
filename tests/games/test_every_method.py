"""Every method's claim of ε = 3 against the step game, at a sampling probability of 0.1 and 400 steps.

That the same game finds faults is shown in tests/games/test_sabotaged_methods.py.
"""

from __future__ import annotations

import pytest

from lehr.auditing import Audit, Verdict
from lehr.errors import InvalidValue
from lehr.games.every_method import TEMPERED, Contender, contenders
from lehr.methods.by_name import METHODS
from tests.games.sabotage import keys_of

CONTENDERS = contenders()
# Methods whose accounting is tight in this game, and for the others what the game certifies at least. DPSUR pays for
# its tests as well, AGD for its choices and for the part of its limit that it does not get to spend.
TIGHT = 2.2
CERTIFIED = {**dict.fromkeys(CONTENDERS, TIGHT), "agd": 1.2}


def played(name: str, *, num_canaries: int | None = None) -> Audit:
    contender = CONTENDERS[name]
    plan = contender.plan(epsilon=3.0, delta=1e-5, steps=400, sampling_probability=0.1)
    if num_canaries is None:  # patterns over all coordinates are dearer, and AGD asks every one of its questions
        num_canaries = 8192 if contender.build().clipping.needs_coordinates or name == "agd" else 16_384
    return contender.attacked(plan, num_canaries=num_canaries, keys=keys_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTENDERS)
def test_a_claim_of_three_holds_and_the_game_comes_close_to_it(name: str) -> None:
    audit = played(name)
    assert 2.99 <= audit.claimed_epsilon <= 3.0
    assert audit.steps >= 400
    assert audit.verdict is Verdict.HOLDS
    assert audit.decisive.confidence == 0.95
    assert CERTIFIED[name] <= audit.decisive.epsilon <= audit.claimed_epsilon


def test_every_method_with_noise_takes_part_and_one_network_of_tempered_sigmoids() -> None:
    assert CONTENDERS.keys() == METHODS.keys() - {"plain-sgd"} | {TEMPERED}


def test_what_is_stated_is_what_is_attacked() -> None:
    audit = Contender(method="dpsgd").attacked(Contender(method="dpsgd").plan(steps=20), num_canaries=64)
    assert (audit.subject, audit.steps, audit.members + audit.others) == ("dpsgd", 20, 64)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"sampling_probability": 0.0}, {"epsilon": -1.0}])
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        Contender(method="dpsgd").plan(**wrong)  # type: ignore[arg-type]

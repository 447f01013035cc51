"""The step game refutes every method whose accounting is tight once its noise, its clip or its sampling is not real.

That the same methods hold as they are is shown in tests/games/test_every_method.py.
"""

from __future__ import annotations

import pytest

from lehr.auditing import Audit, Verdict
from lehr.games import step_game
from lehr.games.every_method import TEMPERED, contenders
from tests.games.sabotage import SABOTAGES, keys_of

CONTENDERS = contenders()
# Of each kind of clip and noise one; ADAN has ADADP's, ADAL has DPSGD's.
TIGHT = ("adadp", "auto-s", "dpopt", "dpsgd", "dpsgd-per-layer", "sa-dpsgd", TEMPERED)


def sabotaged(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> Audit:
    contender = CONTENDERS[name]
    plan = contender.plan(epsilon=3.0, delta=1e-5, steps=400, sampling_probability=0.1)
    method = SABOTAGES[fault](contender.build(), monkeypatch)
    keys = keys_of(f"{name}, {fault}")
    return step_game.attack(method, plan, num_canaries=2048, keys=keys, host=contender.host())


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("fault", SABOTAGES)
@pytest.mark.parametrize("name", TIGHT)
def test_the_claim_is_refuted(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = sabotaged(name, fault, monkeypatch)
    assert audit.claimed_epsilon <= 3.0
    assert audit.verdict is Verdict.REFUTED
    assert audit.decisive.epsilon > 3.0
    if fault == "noise halved":  # which is seen without any canary, too
        assert not audit.checks[0].passed

"""The step game refutes every method whose accounting is tight once its noise, its clip or its sampling is not real.

That the same methods hold as they are is shown in tests/attacks/test_subjects.py.
"""

from __future__ import annotations

import pytest

from lehr.attacks import step_attack
from lehr.attacks.subjects import TEMPERED, method_settings
from lehr.auditing import Audit, Verdict
from tests.attacks.sabotage import SABOTAGES, keys_of
from tests.sizes import cases

CONTENDERS = method_settings()
# Of each kind of clip and noise one; ADAN has ADADP's, ADAL has DPSGD's.
TIGHT = ("adadp", "auto-s", "dpopt", "dpsgd", "dpsgd-per-layer", "sa-dpsgd", TEMPERED)


def sabotaged(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> Audit:
    setting = CONTENDERS[name]
    plan = setting.plan(epsilon=3.0, delta=1e-5, steps=64, sampling_probability=0.25)
    method = SABOTAGES[fault](setting.build(), monkeypatch)
    keys = keys_of(f"{name}, {fault}")
    return step_attack.attack(method, plan, num_canaries=2048, keys=keys, host=setting.host())


@pytest.mark.slow
@pytest.mark.parametrize("fault", SABOTAGES)
@pytest.mark.parametrize("name", cases(TIGHT, always=["adadp", "dpsgd"]))
def test_the_claim_is_refuted(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = sabotaged(name, fault, monkeypatch)
    assert audit.claimed_epsilon <= 3.0
    assert audit.verdict is Verdict.REFUTED
    assert audit.decisive.epsilon > 3.0
    if fault == "noise halved":  # which is seen without any canary, too
        assert not audit.checks[0].passed

from __future__ import annotations

import pytest

from lehr.compat.opacus import PrivacyEngine, UnprovenWarning
from lehr.compat.opacus.accountants import PRVAccountant, create_accountant, register_accountant
from lehr.errors import InvalidValue


@pytest.mark.parametrize("name, mechanism", [("prv", "prv"), ("pld", "prv"), ("rdp", "rdp"), ("gdp", "gdp")])
def test_names_pick_accountants(name: str, mechanism: str) -> None:
    assert create_accountant(name).mechanism() == mechanism


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidValue, match="accountant must be one of"):
        create_accountant("moments")


class Hopeful(PRVAccountant):
    def get_epsilon(self, delta: float) -> float:  # type: ignore[override]
        return 0.0


def test_an_accountant_of_the_users_own_is_no_guarantee_and_takes_no_name_of_lehrs() -> None:
    register_accountant("hopeful", Hopeful, force=True)
    with pytest.warns(UnprovenWarning, match="user's own"):
        engine = PrivacyEngine(accountant="hopeful")
    assert not engine.claim(delta=1e-5).is_proven
    for name in ("prv", "hopeful"):
        with pytest.raises(InvalidValue, match="mechanism"):
            register_accountant(name, Hopeful)
    with pytest.raises(InvalidValue, match="mechanism"):
        register_accountant("prv", Hopeful, force=True)

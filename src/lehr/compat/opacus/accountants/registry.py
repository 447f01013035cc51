"""Accountants by the names that Opacus has for them, and ``"pld"``, which is what ``"prv"`` is here.

>>> create_accountant("prv").mechanism()
'prv'
"""

from __future__ import annotations

from lehr import validate
from lehr.compat.opacus.accountants.accountant import GaussianAccountant, IAccountant, PRVAccountant, RDPAccountant
from lehr.errors import InvalidValue

OWN: dict[str, type[IAccountant]] = {
    "rdp": RDPAccountant,
    "gdp": GaussianAccountant,
    "prv": PRVAccountant,
    "pld": PRVAccountant,
}
_ACCOUNTANTS = dict(OWN)


def register_accountant(mechanism: str, accountant: type[IAccountant], force: bool = False) -> None:
    """Let a name pick an accountant of your own. What it says is yours to prove; Lehr's names stay Lehr's."""
    validate.text(mechanism=mechanism)
    if mechanism in OWN or (mechanism in _ACCOUNTANTS and not force):
        raise InvalidValue("mechanism", allowed=f"none of {sorted(_ACCOUNTANTS)}", given=mechanism)
    _ACCOUNTANTS[mechanism] = accountant


def create_accountant(mechanism: str) -> IAccountant:
    """A new accountant of this name."""
    return _ACCOUNTANTS[validate.one_of(_ACCOUNTANTS, accountant=mechanism)]()

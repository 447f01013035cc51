"""Accountants in Opacus's shape over ``lehr.accounting``.

- ``accountant``: the history of steps, and what it costs by one way of counting or another
- ``registry``: accountants by name
- ``utils``: the noise that a target allows
"""

from lehr.compat.opacus.accountants.accountant import GaussianAccountant, IAccountant, PRVAccountant, RDPAccountant
from lehr.compat.opacus.accountants.registry import create_accountant, register_accountant

__all__ = [
    "GaussianAccountant",
    "IAccountant",
    "PRVAccountant",
    "RDPAccountant",
    "create_accountant",
    "register_accountant",
]

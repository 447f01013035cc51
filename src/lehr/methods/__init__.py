"""The methods: functions that return a ``Method``. ``named`` builds one by its name.

``by_name`` finds all of them, so a new file with such a function is a new method: its name is the function's, with
hyphens.
"""

from __future__ import annotations

from lehr.methods.adadp import adadp, adal, adan
from lehr.methods.agd import agd
from lehr.methods.by_name import METHODS, named
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import auto_s, dpsgd, dpsgd_per_layer, plain_sgd
from lehr.methods.dpsur import dpsur
from lehr.methods.sa_dpsgd import sa_dpsgd

__all__ = [
    "METHODS",
    "adadp",
    "adal",
    "adan",
    "agd",
    "auto_s",
    "dpopt",
    "dpsgd",
    "dpsgd_per_layer",
    "dpsur",
    "named",
    "plain_sgd",
    "sa_dpsgd",
]

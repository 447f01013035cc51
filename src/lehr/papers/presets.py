"""The papers that can be run again, and the tables and figures of each.

>>> [each.name for each in experiments("sa-dpsgd")][:1]
['table1']
>>> experiment("sa-dpsgd", "table9")
Traceback (most recent call last):
...
lehr.errors.InvalidValue: name must be one of ...table1, ...; given: 'table9'
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from lehr import validate
from lehr.papers.experiment import Experiment

# The file of each, and what it is.
PAPERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sa-dpsgd": ("sa_dpsgd", "Fu et al. 2022: SA-DPSGD, DPSGD with simulated annealing"),
        "tempered-sigmoids": ("tempered_sigmoids", "Papernot et al. 2021: tempered sigmoid activations"),
        "adadp": ("adadp", "Xu et al. 2020: ADADP, adaptive clipping and noise"),
        "tan": ("tan", "Sander et al. 2023: TAN, total amount of noise"),
        "methods": ("side_by_side", "No paper: the methods of all of them beside one another, at one proven ε"),
    }
)


def experiments(paper: str) -> tuple[Experiment, ...]:
    """The tables and figures of a paper."""
    module, _ = PAPERS[validate.one_of(PAPERS, paper=paper)]
    found: tuple[Experiment, ...] = import_module(f"lehr.papers.{module}").EXPERIMENTS
    return found


def experiment(paper: str, name: str) -> Experiment:
    """One of them."""
    named = {each.name: each for each in experiments(paper)}
    return named[validate.one_of(named, name=name)]

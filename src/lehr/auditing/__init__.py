"""Auditing: how much an attack proves about ε, and what that says about the ε that is claimed. Without torch.

- ``scores``: what an attack says of records that were there, and of records that were not
- ``lower_bound``: "ε is at least this, with this confidence", and what that rests on
- ``rates``, ``thresholds``: how often an attack errs, at thresholds that were not chosen by the result
- ``clopper_pearson``: from error rates alone
- ``gaussian_tradeoff``: from error rates, for mechanisms that are Gaussian
- ``known_variance``: from scores that are Gaussian, with a standard deviation that is known
- ``sampled_gaussian``: from how often a record was drawn, and error rates where it was
- ``one_run``, ``one_run_tradeoff``: from guesses about many canaries of a single run, dependent or not
- ``curves``: what an attack shows at every threshold, for pictures
- ``audit``: all that came out of an attack, the verdict included

How the scores are come by: ``lehr.games``.
"""

from __future__ import annotations

from lehr.auditing.audit import Audit, Check, Verdict
from lehr.auditing.lower_bound import LowerBound
from lehr.auditing.scores import Scores

__all__ = ["Audit", "Check", "LowerBound", "Scores", "Verdict"]

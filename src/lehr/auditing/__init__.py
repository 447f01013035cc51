"""Auditing: lower bounds on ε from attacks, and what they say about the claimed ε. Without torch.

- ``scores``: the scores that an attack gives to members and non-members, and error rates at a threshold
- ``thresholds``: how a threshold is chosen without spoiling the confidence
- ``bounds``: from scores to "ε is at least this, with this confidence", one function per bound
- ``one_run``: the same from guesses about many canaries of a single run
- ``audit``: the outcome of an attack: bounds, verdict, ROC, JSON and text

The attacks themselves are in ``lehr.attacks``.
"""

from __future__ import annotations

from lehr.auditing.audit import Audit, Check, Verdict
from lehr.auditing.bounds import LowerBound
from lehr.auditing.scores import Floats, Scores, errors_above

__all__ = ["Audit", "Check", "Floats", "LowerBound", "Scores", "Verdict", "bounds", "errors_above", "one_run"]

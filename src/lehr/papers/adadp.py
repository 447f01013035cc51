"""ADADP. Xu et al. (2020), "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning".

- ``adadp_runs``: settings, ways to train, what they cost
- ``adadp_levels``: Table I, and the rates that were tried before
- ``adadp_times``: Table II
- ``adadp_trajectories``: Figure 1, computed by ``beale``
- ``adadp_curves``: Figures 2, 3 and 4b
- ``adadp_prior``: Figure 4
- ``adadp_sweeps``: Figure 5
"""

from __future__ import annotations

from lehr.papers.adadp_curves import FIGURE2, FIGURE3, FIGURE4B
from lehr.papers.adadp_levels import RATES, TABLE1, TABLE1_CIFAR_10
from lehr.papers.adadp_prior import FIGURE4
from lehr.papers.adadp_sweeps import FIGURE5
from lehr.papers.adadp_times import TABLE2
from lehr.papers.adadp_trajectories import FIGURE1
from lehr.papers.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    TABLE1,
    TABLE2,
    FIGURE1,
    FIGURE2,
    FIGURE3,
    FIGURE4,
    FIGURE4B,
    FIGURE5,
    TABLE1_CIFAR_10,
    RATES,
)

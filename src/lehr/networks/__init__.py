"""Networks of the papers, and the sizes that are benchmarked: plain modules that know nothing of privacy.

None mixes records or keeps running statistics, so each can be trained privately as it is. ``build`` makes one by its
name. ``with_activation`` puts another activation into a model, and ``freeze`` leaves parts of it untrained.
"""

from __future__ import annotations

from lehr.networks.by_name import build
from lehr.networks.freezing import freeze
from lehr.networks.swapping import with_activation
from lehr.networks.tempered_sigmoid import TemperedSigmoid

__all__ = ["TemperedSigmoid", "build", "freeze", "with_activation"]

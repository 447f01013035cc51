"""Networks of the papers, and the sizes that are benchmarked: plain modules that know nothing of privacy.

None mixes records or keeps running statistics, so each can be trained privately as it is. ``build`` makes one by its
name.
"""

from __future__ import annotations

from lehr.networks.by_name import build

__all__ = ["build"]

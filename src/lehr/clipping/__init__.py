"""Clipping: bounding what one record can do to a sum, each rule with its proof beside it.

- ``flat``: each record's whole gradient has at most the clip norm
- ``per_layer``: each layer of it has a bound of its own
- ``automatic``: every gradient is scaled to nearly the clip norm, large or small
- ``per_coordinate``: each number of it has a bound of its own
- ``adaptive``: such bounds that follow what was released before, for ADADP
- ``prior``: where these come from
- ``scheduled``: a clip norm that follows a public schedule
"""

from __future__ import annotations

from lehr.clipping.adaptive import AdaptiveClip
from lehr.clipping.automatic import AutomaticClip
from lehr.clipping.flat import FlatClip
from lehr.clipping.per_coordinate import PerCoordinateClip
from lehr.clipping.per_layer import PerLayerClip
from lehr.clipping.prior import RawPrior, ReleasedPrior
from lehr.clipping.scheduled import ScheduledClip

__all__ = [
    "AdaptiveClip",
    "AutomaticClip",
    "FlatClip",
    "PerCoordinateClip",
    "PerLayerClip",
    "RawPrior",
    "ReleasedPrior",
    "ScheduledClip",
]

"""A clip norm that follows a public schedule. The noise follows the sensitivity, so that ε stays what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lehr.clipping.automatic import AutomaticClip
from lehr.clipping.fixed import LearnsNothing
from lehr.clipping.flat import FlatClip
from lehr.clipping.per_layer import PerLayerClip
from lehr.interfaces import ClipRule, SlotState
from lehr.schedules import CONSTANT, Schedule


@dataclass(frozen=True)
class ScheduledClip(LearnsNothing):
    """A rule whose clip norm is multiplied by the schedule's factor at every step.

    >>> from lehr.schedules import StepDecay
    >>> halved = ScheduledClip(FlatClip(1.0), StepDecay(every=10, decay=0.5))
    >>> [halved.rule({}, step).sensitivity for step in (0, 10, 25)]
    [1.0, 0.5, 0.25]
    """

    clip: FlatClip | AutomaticClip | PerLayerClip
    schedule: Schedule

    def rule(self, state: SlotState, step: int) -> ClipRule:
        return replace(self.clip, clip_norm=self.clip.clip_norm * self.schedule.factor(step))


def with_schedule(
    clip: FlatClip | AutomaticClip | PerLayerClip, schedule: Schedule
) -> FlatClip | AutomaticClip | PerLayerClip | ScheduledClip:
    """The rule under a schedule; the rule itself where that is constant."""
    return clip if schedule == CONSTANT else ScheduledClip(clip, schedule)

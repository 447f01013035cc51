"""Which job a process gets next: one of the shape that it has compiled already, as long as there is one."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from lehr.papers.job import Job, Training


def shape_of(job: Job) -> str:
    """Jobs of one shape are compiled alike."""
    if not isinstance(job, Training):
        return f"measurement {job.function}"
    batch = job.expected_batch_size if job.simulated_batch_size is None else job.simulated_batch_size
    words = (job.data, job.network, job.method, job.settings.get("clip_norm"), batch, job.physical_batch)
    return json.dumps([*words, job.views, job.precision])


class Waiting:
    """Jobs in order of worth, by their shapes."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._groups: dict[str, deque[Job]] = {}
        for job in jobs:
            self._groups.setdefault(shape_of(job), deque()).append(job)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def next_for(self, last: str | None, at_work: Sequence[str]) -> Job | None:
        """The next job of a process, by the shape of its last one and the shapes that others are at work on.

        A shape that nobody works on goes before one that somebody does, and then the one with the most jobs left for
        each process that is on it.
        """
        if not self._groups:
            return None
        busy = Counter(at_work)
        shape = last if last in self._groups else min(self._groups, key=lambda each: self._claim(each, busy))
        group = self._groups[shape]
        job = group.popleft()
        if not group:
            del self._groups[shape]
        return job

    def _claim(self, shape: str, busy: Counter[str]) -> tuple[bool, float]:
        """The smallest goes first; among equals, the one that stands first."""
        num_at_work = busy[shape]
        return num_at_work > 0, -len(self._groups[shape]) / (num_at_work + 1) if num_at_work else 0.0

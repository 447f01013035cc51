from __future__ import annotations

import pytest

from lehr.papers.experiment import Size
from lehr.papers.job import Measurement
from lehr.papers.tan_figures import FIGURE7
from lehr.papers.tan_norms import EDGES, norms_of_gradients, spread_of

TINY = ("wide_resnet", {"depth": 10, "width": 1, "in_channels": 1})


def test_norms_are_counted_into_bins_and_none_is_lost() -> None:
    found = spread_of([0.0, 1e-9, 0.5, 2.0, 1e9])
    assert len(found["shares"]) == len(EDGES) - 1
    assert sum(found["shares"]) == pytest.approx(1)
    assert found["shares"][0] == found["shares"][-1] * 2 == 0.4
    assert found["share_clipped"] == 0.4
    assert found["share_below_a_tenth"] == 0.4


@pytest.mark.parametrize("views", [1, 2])
def test_norms_are_looked_at_before_the_first_step_and_after_those_asked_for(views: int) -> None:
    found = norms_of_gradients(
        device="cpu",
        data_dir=None,
        data_name="digits",
        network=TINY,
        augmentation="none" if views == 1 else "flip_crop",
        views=views,
        batch=4,
        reference_batch=64,
        steps=2,
        watched=70,
        looks=(0, 2),
    )
    assert [look["step"] for look in found["looks"]] == [0, 2]
    medians = [look["median"] for look in found["looks"]]
    assert all(median > 0 for median in medians)
    assert medians[0] != medians[1]


def test_the_jobs_of_the_figure_call_it() -> None:
    for size in (Size(), Size(is_quick=True)):
        for job in FIGURE7.jobs(size):
            assert isinstance(job, Measurement)
            assert job.function == f"tan_norms:{norms_of_gradients.__name__}"

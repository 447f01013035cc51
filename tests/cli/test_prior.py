"""``lehr prior``: made, shown, and used by ``lehr train``."""

from __future__ import annotations

from tests.cli.conftest import Run, RunJson

NETWORK = ("--set", "model.widths=[8,8,8]", "--channels", "1", "--image-side", "16")
TINY = (*NETWORK, "--images", "10", "--steps", "2", "--batch-size", "4", "--kinds", "dead-leaves, pink-noise")


def test_a_prior_is_made_and_shown(lehr: Run, lehr_json: RunJson) -> None:
    assert "step 2 of 2" in lehr("prior", "make", "--to", "prior", *TINY).stderr
    shown = lehr_json("prior", "show", "prior")
    assert shown["settings"]["kinds"] == ["dead-leaves", "pink-noise"]
    assert "dead-leaves, pink-noise" in lehr("prior", "show", "prior").stdout
    assert lehr_json("prior", "make", "--to", "again", *TINY)["weights"] == shown["weights"]


def test_bad_input_is_refused_before_anything_is_written(lehr: Run) -> None:
    for wrong in (("--kinds", "photographs"), ("--set", "method.name=dpsgd"), ("--network", "none"), ("--steps", "0")):
        lehr("prior", "make", "--to", "prior", *TINY, *wrong, code=2)
        lehr("prior", "show", "prior", code=3)

"""Ctrl-C in ``lehr.fit``: a checkpoint, a report, and the way to continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import lehr
from lehr.certificates.run_reading import read_run
from lehr.run.shape import Progress

STEPS = 6
SETTINGS: dict[str, Any] = {
    "epsilon": 8,
    "delta": 1e-4,
    "steps": STEPS,
    "batch_size": 32,
    "settings_chosen_on": "fixed",
    "compiled": False,
    "quiet": True,
}


class PressCtrlC(lehr.Callback):
    """Presses Ctrl-C during the second step, once."""

    def stepped(self, progress: Progress) -> None:
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_a_checkpoint_and_a_report_and_the_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my run"
    with pytest.raises(KeyboardInterrupt):
        lehr.fit("small_cnn", "digits", directory=folder, callbacks=[PressCtrlC()], **SETTINGS)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    [*_, newest] = sorted((folder / "checkpoints").iterdir())
    assert newest.stem == "step-0000000002"
    assert "This run is not finished" in (folder / "report.html").read_text()
    said = capsys.readouterr().err
    assert f"lehr train --resume '{folder}'" in said
    assert "resume=True" in said

    run = lehr.fit("small_cnn", "digits", directory=folder, resume=True, **SETTINGS)
    assert (run.end.reason, run.end.step) == ("plan completed", STEPS)
    assert read_run(folder).steps_charged == STEPS  # no step was charged twice
    assert "This run is not finished" not in (folder / "report.html").read_text()

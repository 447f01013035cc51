"""A released model of a network that the command can build by itself, for images of one channel, 8 × 8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lehr import networks
from lehr.certificates.release import release
from tests.written_runs import configuration, write_run


def released_model(tmp_path: Path, **data: Any) -> str:
    config = configuration(model={"network": "small_cnn", "arguments": {}}, data={"num_classes": 10, **data})
    files = write_run(tmp_path / "run", config=config, model=networks.build("small_cnn"))
    release(files.directory, tmp_path / "model")
    return "model"

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from lehr.data.decoder_process import ERROR, NOT_AN_IMAGE, NOT_READ, READ, answer, asked
from lehr.data.decoding import Listed

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def listed(path: Path, content: bytes | None = None) -> Listed:
    if content is None:
        Image.fromarray(np.full((2, 2), 7, dtype=np.uint8)).save(path)
    else:
        path.write_bytes(content)
    about = os.stat(path)
    return Listed(os.fsencode(path), about.st_size, about.st_mtime_ns)


def test_every_file_has_its_answer_and_the_process_ends_with_its_input(tmp_path: Path) -> None:
    good, bad = listed(tmp_path / "good.png"), listed(tmp_path / "bad.png", b"no image")
    gone = Listed(os.fsencode(tmp_path / "gone.png"), 3, 4)
    question = asked([good, gone, bad], side=2, channels=1) + asked([good], side=1, channels=3)
    ended = subprocess.run(
        [sys.executable, "-m", "lehr.data.decoder_process"],
        input=question,
        capture_output=True,
        timeout=60,
        check=True,
        env=ENVIRONMENT,
    )
    no_such_file = NOT_READ + ERROR.pack(2)
    assert ended.stdout == READ + bytes([7] * 4) + no_such_file + NOT_AN_IMAGE + READ + bytes([7] * 3)
    assert ended.stderr == b""


def test_half_a_question_is_the_end() -> None:
    assert not answer(BytesIO(b"\1\0"), BytesIO())


def test_a_worker_loads_no_torch() -> None:
    script = "import sys, lehr.data.decoder_process; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env=ENVIRONMENT)

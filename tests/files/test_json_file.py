from __future__ import annotations

from pathlib import Path

import pytest

from lehr import events
from lehr.errors import StoreError
from lehr.files import json_file


def test_a_shape_comes_back_through_its_reader(tmp_path: Path) -> None:
    event = events.Repeated(events.Gaussian(2.0), 3)
    json_file.write(tmp_path / "event.json", events.to_json(event))
    assert json_file.read(tmp_path / "event.json", events.from_json) == event


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "os.system"}', '{"kind": "gaussian", "noise_multiplier": NaN}'])
def test_what_the_reader_refuses_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"cannot use .*event\.json: "):
        json_file.read(path, events.from_json)
    assert path.read_text() == text

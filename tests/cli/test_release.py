from __future__ import annotations

from pathlib import Path

from lehr.reports.run_claims import to_json
from tests.cli.conftest import Run, RunJson
from tests.reports.conftest import PUBLISHED
from tests.written_runs import certificate, configuration, write_run


def test_a_release_says_what_it_wrote_and_what_it_destroyed(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    said = lehr("release", "run", "--to", "model").stdout
    assert "model: ε = 0.20393 at δ = 1e-05, proven" in said
    assert "model_card.md" in said
    assert "destroyed" in said
    assert not files.key.exists()


def test_a_program_is_told_the_same(lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert lehr_json("release", "run", "--to", "model") == {
        "released": "model",
        "files": ["certificate.json", "config.json", "model.safetensors", "model_card.md"],
        "epsilon": certificate(steps_taken=40).epsilon,
        "delta": 1e-5,
        "published": None,
    }


def test_the_number_of_a_papers_rule_is_shown_as_what_it_is(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration() | {"claims": {"published": to_json(PUBLISHED)}})
    said = lehr("release", "run", "--to", "model").stdout
    assert "ε as published: 1 — not a guarantee: the choice looks at the records" in said


def test_a_run_that_is_not_over_is_an_unusable_file(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_over=False)
    assert "not over" in lehr("release", "run", "--to", "model", code=3).stderr


def test_what_was_never_stated_can_be_stated_now(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(stated=None))
    files.certificate.unlink()
    assert "--settings-chosen-on" in lehr("release", "run", "--to", "model", code=2).stderr
    lehr("release", "run", "--to", "model", "--settings-chosen-on", "fixed")


def test_a_model_without_privacy_needs_a_word(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    assert "--allow-no-privacy" in lehr("release", "run", "--to", "model", code=2).stderr
    assert "no privacy guarantee" in lehr("release", "run", "--to", "model", "--allow-no-privacy").stdout

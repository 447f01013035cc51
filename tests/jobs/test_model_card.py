"""A released folder is ready for Hugging Face's hub: its README.md is a model card that the hub reads. No network."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.certificates.release import release
from tests.written_runs import configuration, write_run

hub = pytest.importorskip("huggingface_hub")


def test_card_has_the_guarantee_and_the_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", config=configuration(run="first: try # 1"))
    released = release(run.directory, tmp_path / "model")
    assert released.certificate is not None
    card = hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "lehr"
    assert {"differential-privacy", "sa-dpsgd"} <= set(card.data.tags)
    [score] = card.data.eval_results
    assert (score.dataset_name, score.metric_type, score.metric_value) == ("digits", "accuracy", 0.95)
    assert card.data.model_name == "first: try # 1"
    guarantee = card.data.differential_privacy
    assert guarantee["guarantee"] == "proven"
    assert released.certificate.epsilon <= guarantee["epsilon"] < released.certificate.epsilon * 1.001
    assert (guarantee["delta"], guarantee["unit"]) == (1e-5, "one image")
    assert guarantee["adjacency"] == "add-or-remove-one"
    assert guarantee["public"] == ["the number of records"]
    assert "released_model.load" in card.text
    assert "lehr certificate check certificate.json" in card.text


def test_card_of_a_model_without_privacy_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", config=configuration(plan=None), rows=[])
    release(run.directory, tmp_path / "model", allow_no_privacy=True)
    card = hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.differential_privacy["guarantee"] == "none"
    assert "differential-privacy" not in card.data.tags
    assert card.data.eval_results is None


@pytest.mark.parametrize("name", ["---", "a: [b\n---\n# c", 'say "no"\x85 \x7f', "\u2028 €😀"])
def test_no_name_breaks_the_front_matter(tmp_path: Path, name: str) -> None:
    config = configuration(data={"name": name}, stated={"treated_as_public": ["the number of records", "- x: y"]})
    run = write_run(tmp_path / "run", config=config)
    (run.certificate).unlink()
    release(run.directory, tmp_path / "model")
    card = hub.ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.differential_privacy["guarantee"] == "proven"
    assert card.data.differential_privacy["public"] == ["the number of records", "- x: y"]

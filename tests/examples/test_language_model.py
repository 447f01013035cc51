"""The language model is fine-tuned privately, and the attack on it stays below the claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.examples.loading import example, run_main

pytest.importorskip("transformers")
language_model = example("language_model", needs="peft")

TINY = ["--steps", "3", "--batch-size", "16", "--length", "12", "--width", "8", "--layers", "1", "--rank", "2"]
TINY += ["--canaries", "16", "--public-steps", "2", "--public-records", "50"]
ROW = re.compile(r"^(.+?) {2,}([\d,]+) +(\d+\.\d\d) +(none|\d+\.\d\d)(?: +at least (\d+\.\d\d))? +\d+$", re.MULTILINE)


@pytest.mark.filterwarnings("ignore")
def test_both_private_models_have_a_certificate_and_an_attack_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "module.py").write_text('"""First.\n\nSecond."""\ndef f():\n    "Third."\n', encoding="utf-8")
    assert language_model.docstrings(folder) == ["First.", "Second.", "Third."]
    monkeypatch.setattr(language_model.sysconfig, "get_path", lambda _: str(folder))
    text = tmp_path / "records.txt"
    text.write_text("\n\n".join(f"record {number}" for number in range(120)), encoding="utf-8")
    with torch.random.fork_rng(devices=()):
        run_main(language_model, monkeypatch, "--text", str(text), "--epsilon", "4", *TINY)
    printed = capsys.readouterr().out
    assert f"108 records, and 12 held out, from {text}" in printed
    rows = {row[0]: row[1:] for row in ROW.findall(printed)}
    assert list(rows) == ["before fine-tuning", "LoRA, private", "all weights, private", "all weights, not private"]
    assert int(rows["LoRA, private"][0]) < int(rows["all weights, private"][0].replace(",", ""))
    for name, (_, perplexity, epsilon, shown) in rows.items():
        assert 1 < float(perplexity) < 1000
        if name.endswith(" private") and "not" not in name:
            assert 3 < float(epsilon) <= 4
            assert float(shown) < float(epsilon)
        else:
            assert epsilon == "none"


def test_the_attack_is_right_about_canaries_that_were_learnt_and_shows_nothing_about_coins() -> None:
    generator = torch.Generator().manual_seed(0)
    is_in = torch.rand(256, generator=generator) < 0.5
    learnt = language_model.attack(is_in.double() + 0.1 * torch.rand(256, generator=generator), is_in, delta=1e-5)
    assert learnt.epsilon > 3
    assert language_model.attack(torch.rand(256, generator=generator), is_in, delta=1e-5).epsilon < 0.5


def test_a_text_is_cut_or_padded_and_padding_has_no_loss() -> None:
    short, long = (language_model.encode(text, length=6) for text in (b"ab", b"abcdefgh"))
    edge, ignored = language_model.EDGE, language_model.IGNORED
    assert short["input_ids"].tolist()[:4] == [edge, ord("a"), ord("b"), edge]
    assert short["labels"].tolist() == [edge, ord("a"), ord("b"), edge, ignored, ignored]
    assert short["attention_mask"].tolist() == [1, 1, 1, 1, 0, 0]
    assert long["labels"].tolist() == [edge, *b"abcde"]

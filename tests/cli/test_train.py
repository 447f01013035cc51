"""``lehr train``: options, a file or a run that is resumed, and what is printed about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import read_certificate
from lehr.config import RunConfig
from lehr.methods.by_name import METHODS
from lehr.planning.budget import Budget
from lehr.rounding import at_most
from lehr.run.shape import Callback, Progress
from lehr.training.fit import fit
from tests.cli.conftest import Run, RunJson
from tests.data import picture_folders
from tests.training.tiny import HELD, new_budget

SHORT = ("--noise-multiplier", "1", "--steps", "3", "--expected-batch-size", "8", "--no-compile")
OWN = ("--npz", "private.npz", "--records", "40", "--num-classes", "3")
FIXED = ("--settings-chosen-on", "fixed")


class Stop(Callback):
    def stepped(self, progress: Progress) -> None:
        raise KeyboardInterrupt


def config(directory: Path) -> dict[str, Any]:
    shape = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert isinstance(shape, dict)
    return shape


def words(text: str) -> str:
    return " ".join(text.split())


def test_run_is_trained_and_its_promise_is_printed(lehr: Run, lehr_json: RunJson, own: Path) -> None:
    shown = lehr("train", *OWN, *SHORT, *FIXED, "--delta", "1e-3", "--run", "run", "-q").stdout
    certificate = read_certificate(own / "run" / "certificate.json")
    assert "plan completed, 3 steps" in shown
    assert f"ε, proven {at_most(certificate.epsilon)} at δ = 0.001" in words(shown)
    assert "as published" not in shown
    assert "report.html" in shown
    answer = lehr_json("train", "--resume", "run", "--npz", "private.npz", "--no-compile")
    assert (answer["steps"], answer["accepted"], answer["reason"]) == (3, 3, "plan completed")
    assert 0 < answer["epsilon_spent"] <= answer["epsilon"]
    assert answer["accuracy"] is None


def test_papers_rule_is_shown_beside_the_proven_one(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    rule = ("--method", "sa-dpsgd", "--accounting", "published", *SHORT, *FIXED)
    shown = words(lehr("train", "--dataset", "digits", *rule, "--run", "run", "-q").stdout)
    certificate = read_certificate(tmp_path / "run" / "certificate.json")
    [published] = certificate.published_claims
    assert published.epsilon != certificate.epsilon
    assert f"ε, proven {at_most(certificate.epsilon)} at δ" in shown
    assert f"ε as published {at_most(published.epsilon)} — not a guarantee: " in shown
    assert re.search(r"accepted 3 of \d+ candidates; 33 were planned", shown)
    answer = lehr_json("train", "--resume", "run", "--no-compile")  # it is over, and says the same again
    assert (answer["proven"]["kind"], answer["published"]["kind"]) == ("proven", "published")
    assert "docs/published_claims.md" in answer["published"]["not_a_guarantee_because"]
    assert answer["proven"]["not_a_guarantee_because"] is None
    assert 0 <= answer["accuracy"] <= 1


@pytest.mark.parametrize(
    "options, proven, epsilon",
    [
        (("--accounting", "published"), "proven", None),
        (("--accounting", "published", "--method", "adadp"), "published", "infinity"),
        (("--declared", "public"), None, None),
    ],
    ids=["a rule that holds", "a rule that looks at gradients", "public records"],
)
def test_run_without_a_certificate_says_what_holds(
    lehr_json: RunJson, options: tuple[str, ...], proven: str | None, epsilon: str | None
) -> None:
    answer = lehr_json("train", "--dataset", "digits", *SHORT, *options, "--run", "run")
    assert answer["epsilon"] is None
    assert (answer["proven"] is None) == (proven is None) == (answer["epsilon_spent"] is None)
    assert (answer["promises_nothing"] is None) == (proven is not None)
    if proven is not None:
        assert (answer["proven"]["epsilon"] == "infinity") == (epsilon == "infinity")
        assert (answer["published"]["kind"], answer["published"]["epsilon"] > 0) == (proven, True)
    assert (lehr_json("report", "run")["proven"] is None) == (proven != "proven")


def test_plain_sgd_promises_nothing(lehr: Run, own: Path) -> None:
    shown = lehr("train", *OWN, "--method", "plain-sgd", "--steps", "2", "--no-compile", *FIXED, "--run", "run", "-q")
    assert "infinity: there is no privacy" in shown.stdout
    assert "none: nothing is guaranteed" in shown.stdout
    assert "δ" not in shown.stdout
    assert not (own / "run" / "certificate.json").exists()


def test_folders_are_streamed_and_a_run_on_them_is_resumed(lehr: Run, tmp_path: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        picture_folders.write(tmp_path / part, 12, seed=seed)
    images = ("--folder", "train", "--test-folder", "test", "--image-side", "4", "--channels", "1", "--streamed")
    counts = ("--num-classes", "3", "--records", "12")
    shown = lehr("train", *images, *counts, "--workers", "1", *SHORT, "--run", "run", "-q").stdout
    assert "plan completed, 3 steps" in shown
    assert config(tmp_path / "run")["data"]["shape"] == [1, 4, 4]
    assert "3 steps" in lehr("train", "--resume", "run", *images, *counts, "--workers", "0", "-q").stdout


def test_help_names_every_method(lehr: Run) -> None:
    shown = words(lehr("train", "--help").stdout)
    assert [name for name in METHODS if name not in shown] == []


FILE = """
[data]
npz = "private.npz"
test_npz = "test.npz"
records = 40
num_classes = 3
[model]
activation = "relu"
[method]
name = "sa-dpsgd"
clip_norm = 0.5
rejection_threshold = 4
schedule = { kind = "step-decay", every = 2, decay = 0.5 }
[privacy]
noise_multiplier = 1.0
steps = 30
expected_batch_size = 8
[training]
evaluate_every = 2
"""


def test_options_equal_a_file_and_override_it(lehr: Run, own: Path) -> None:
    (own / "run.toml").write_text(FILE, encoding="utf-8")
    lehr("train", "run.toml", "--steps", "3", "--no-compile", "--run", "one", "-q")
    options = ("--method", "sa-dpsgd", "--clip-norm", "0.5", "--activation", "relu")
    settings = ("rejection_threshold=4", "schedule={kind='step-decay',every=2,decay=0.5}", "training.evaluate_every=2")
    set_them = [word for setting in settings for word in ("--set", setting)]
    lehr("train", *OWN, "--test-npz", "test.npz", *SHORT, *options, *set_them, "--run", "two", "-q")
    assert config(own / "one") == config(own / "two")
    assert config(own / "one")["method"]["acceptance"]["rejection_threshold"] == 4


def test_stopped_run_is_resumed_with_its_records(lehr: Run, lehr_json: RunJson, own: Path) -> None:
    data = {"npz": "private.npz", "test_npz": "test.npz", "records": 40, "num_classes": 3, "name": "clinic"}
    privacy = {"noise_multiplier": 1.0, "steps": 3, "expected_batch_size": 8.0}
    chosen = RunConfig.of(privacy=privacy, data=data)
    with pytest.raises(KeyboardInterrupt):
        fit(config=chosen, directory=own / "run", quiet=True, compiled=False, callbacks=[Stop()], name="a name")
    assert "dataset" in lehr("train", "--resume", "run", "--no-compile", code=2).stderr
    answer = lehr_json("train", "--resume", "run", *OWN[:2], "--test-npz", "test.npz", "--no-compile")
    assert (answer["steps"], answer["reason"]) == (3, "plan completed")
    with Ledger.open(own / "run" / "ledger.db") as ledger:
        assert ledger.run == "a name"
        assert ledger.is_finished()


def test_nothing_private_is_printed(lehr: Run, own: Path) -> None:
    result = lehr("train", *OWN, *SHORT, "--held-out-fraction", "0.25", "--run", "run")
    printed = f"{result.stdout} {result.stderr}"
    assert "held-out" in printed.replace("/", " ").split()
    assert str(HELD) not in printed.replace("/", " ").split()
    assert str(own) not in printed


def test_budget_pays_for_a_run_or_refuses_it(lehr: Run, own: Path) -> None:
    new_budget(own / "our.budget", epsilon=20)
    paid = ("--budget", "our.budget", "--name", "first", *FIXED, "--delta", "1e-3")
    lehr("train", *OWN, *SHORT, *paid, "--run", "run", "-q")
    with Budget.open(own / "our.budget") as account:
        assert [(run.run, run.is_settled) for run in account.status().runs] == [("first", True)]
    assert read_certificate(own / "run" / "certificate.json").budget is not None
    new_budget(own / "small.budget", epsilon=0.2)
    lehr("train", *OWN, *SHORT, "--budget", "small.budget", "--run", "other", code=1)
    assert not (own / "other").exists()


def test_file_in_the_documentation_can_be_trained(lehr_json: RunJson, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "run.toml").write_text(example, encoding="utf-8")
    answer = lehr_json("train", "run.toml", "--steps", "2", "--evaluate-every", "1", "--run", "run")
    assert (answer["steps"], answer["reason"]) == (2, "plan completed")

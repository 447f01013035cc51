"""``lehr train``: options, a file or a run that is resumed, and what is printed about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
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
from tests.training.tiny import HELD, PRIVATE, TEST, new_budget

SHORT = ("--noise-multiplier", "1", "--steps", "3", "--expected-batch-size", "8", "--no-compile")
OWN = ("--npz", "private.npz", "--records", "40", "--num-classes", "3")


class Stop(Callback):
    def stepped(self, progress: Progress) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Records of our own, in files."""
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST}.items():
        np.savez(tmp_path / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    return tmp_path


def config(directory: Path) -> dict[str, Any]:
    shape = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    assert isinstance(shape, dict)
    return shape


def begin(directory: Path, **tables: dict[str, Any]) -> None:
    """A run that is stopped after its first step."""
    said = {"noise_multiplier": 1.0, "steps": 3, "expected_batch_size": 8.0}
    words = RunConfig.of(privacy=said).with_values(**tables)
    with pytest.raises(KeyboardInterrupt):
        fit(config=words, directory=directory, quiet=True, compiled=False, callbacks=[Stop()], name="of its own name")


def test_a_run_is_trained_and_its_promise_is_printed(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    shown = lehr("train", "--dataset", "digits", *SHORT, "--settings-chosen-on", "fixed", "--run", "run", "-q").stdout
    certificate = read_certificate(tmp_path / "run" / "certificate.json")
    assert "plan completed, 3 steps" in shown
    assert "ε, proven" in shown
    assert "at δ = 0.0001" in shown
    assert "as published" not in shown
    assert f"{certificate.epsilon:.2f}"[:3] in shown
    assert "report.html" in shown
    said = lehr_json("train", "--resume", "run", "--no-compile")
    assert (said["steps"], said["accepted"], said["reason"], said["delta"]) == (3, 3, "plan completed", 1e-4)
    assert 0 < said["epsilon_spent"] <= said["epsilon"]
    assert 0 <= said["accuracy"] <= 1


PUBLISHED = ("--method", "sa-dpsgd", "--accounting", "published", *SHORT, "--settings-chosen-on", "fixed")


def test_a_run_by_a_papers_rule_shows_both_numbers_and_which_of_them_holds(
    lehr: Run, lehr_json: RunJson, tmp_path: Path
) -> None:
    shown = " ".join(lehr("train", "--dataset", "digits", *PUBLISHED, "--run", "run", "-q").stdout.split())
    certificate = read_certificate(tmp_path / "run" / "certificate.json")
    [published] = certificate.published_claims
    assert published.epsilon != certificate.epsilon
    assert f"ε, proven {at_most(certificate.epsilon)} at δ" in shown
    assert f"ε as published {at_most(published.epsilon)} — not a guarantee: " in shown
    assert "shown in docs/published_claims.md" in shown
    assert re.search(r"accepted 3 of \d+ candidates; 33 were planned", shown)
    said = lehr_json("train", "--resume", "run", "--no-compile")  # it is over, and says the same again
    assert (said["proven"]["kind"], said["published"]["kind"]) == ("proven", "published")
    assert said["proven"]["epsilon"] != said["published"]["epsilon"]
    assert "docs/published_claims.md" in said["published"]["not_a_guarantee_because"]
    assert said["proven"]["not_a_guarantee_because"] is None


def test_a_rule_that_holds_is_shown_as_proven_too(lehr: Run) -> None:
    shown = lehr("train", "--dataset", "digits", *SHORT, "--accounting", "published", "--run", "run", "-q").stdout
    words = " ".join(shown.split())
    assert "none yet: state how the settings were chosen" in words
    assert "this rule is proven too" in words
    assert "not a guarantee" not in words


def test_folders_are_streamed_and_a_run_on_them_is_resumed(lehr: Run, tmp_path: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        picture_folders.write(tmp_path / part, 12, seed=seed)
    words = ("--folder", "train", "--test-folder", "test", "--image-side", "4", "--channels", "1", "--num-classes", "3")
    said = (*words, "--records", "12", "--streamed")
    shown = lehr("train", *said, "--workers", "1", *SHORT, "--run", "run", "-q").stdout
    assert "plan completed, 3 steps" in shown
    assert config(tmp_path / "run")["data"]["shape"] == [1, 4, 4]
    assert "plan completed, 3 steps" in lehr("train", "--resume", "run", *said, "--workers", "0", "-q").stdout
    assert "image_side must be stated" in lehr("train", "--folder", "train", "--streamed", *SHORT, code=2).stderr


def test_plain_sgd_takes_steps_alone_and_promises_nothing(lehr: Run, tmp_path: Path) -> None:
    plain = ("--method", "plain-sgd", "--steps", "2", "--no-compile", "--settings-chosen-on", "fixed")
    shown = lehr("train", "--dataset", "digits", *plain, "--run", "run", "-q").stdout
    assert "infinity: there is no privacy" in shown
    assert "none: nothing is guaranteed" in shown
    assert "δ" not in shown
    assert not (tmp_path / "run" / "certificate.json").exists()


def test_where_a_papers_rule_looks_at_gradients_without_noise_only_its_number_is_finite(lehr_json: RunJson) -> None:
    said = lehr_json(
        "train", "--dataset", "digits", "--method", "adadp", "--accounting", "published", *SHORT, "--run", "run"
    )
    assert (said["proven"]["epsilon"], said["epsilon"]) == ("infinity", None)
    assert said["published"]["epsilon"] > 0


def test_the_help_names_every_method(lehr: Run) -> None:
    shown = " ".join(lehr("train", "--help").stdout.split())
    assert [name for name in METHODS if name not in shown] == []


def test_any_setting_of_a_file_can_be_said_as_an_option(lehr: Run, own: Path) -> None:
    settings = ("rejection_threshold=4", "schedule={kind='step-decay',every=2,decay=0.5}", "training.evaluate_every=2")
    words = [word for setting in settings for word in ("--set", setting)]
    lehr("train", "--dataset", "digits", "--method", "sa-dpsgd", *SHORT, *words, "--run", "run", "-q")
    made = config(own / "run")
    assert made["method"]["acceptance"]["rejection_threshold"] == 4
    assert made["method"]["update"]["schedule"] == {"kind": "step-decay", "every": 2, "decay": 0.5}
    assert made["training"]["evaluate_every"] == 2


def test_options_say_the_same_as_a_file_and_go_over_it(lehr: Run, own: Path) -> None:
    (own / "run.toml").write_text(
        """
        [data]
        npz = "private.npz"
        test_npz = "test.npz"
        records = 40
        num_classes = 3
        [model]
        activation = "relu"
        [method]
        name = "auto-s"
        clip_norm = 0.5
        [privacy]
        noise_multiplier = 1.0
        steps = 30
        expected_batch_size = 8
        [training]
        evaluate_every = 2
        """,
        encoding="utf-8",
    )
    lehr("train", "run.toml", "--steps", "3", "--no-compile", "--run", "one", "-q")
    options = ("--method", "auto-s", "--clip-norm", "0.5", "--activation", "relu", "--evaluate-every", "2")
    lehr("train", *OWN, "--test-npz", "test.npz", *SHORT, *options, "--run", "two", "-q")
    assert config(own / "one") == config(own / "two")


def test_a_run_is_resumed_by_its_folder_alone(lehr_json: RunJson, tmp_path: Path) -> None:
    begin(tmp_path / "run")
    said = lehr_json("train", "--resume", "run", "--no-compile")
    assert (said["steps"], said["reason"]) == (3, "plan completed")
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.run == "of its own name"
        assert ledger.is_finished()


def test_a_run_of_our_own_records_is_resumed_with_them(lehr: Run, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"npz": "private.npz", "test_npz": "test.npz", "records": 40, "num_classes": 3, "name": "clinic"}
    begin(own / "run", data=data)
    refused = lehr("train", "--resume", "run", "--no-compile", code=2)
    assert "with npz or folder beside it" in refused.stderr
    lehr("train", "--resume", "run", "--npz", "private.npz", "--test-npz", "test.npz", "--no-compile", "-q")


def test_nothing_private_is_printed(lehr: Run, own: Path) -> None:
    result = lehr("train", *OWN, *SHORT, "--held-out-fraction", "0.25", "--run", "run")
    words = f"{result.stdout} {result.stderr}".replace("/", " ").split()
    assert "held-out" in words
    assert str(HELD) not in words
    assert str(own) not in result.stdout + result.stderr


def test_a_budget_pays_for_a_run(lehr: Run, own: Path) -> None:
    new_budget(own / "our.budget")
    paid = ("--budget", "our.budget", "--name", "first", "--settings-chosen-on", "fixed", "--delta", "1e-3")
    lehr("train", *OWN, *SHORT, *paid, "--run", "run", "-q")
    with Budget.open(own / "our.budget") as account:
        assert [(run.run, run.is_settled) for run in account.status().runs] == [("first", True)]
    certificate = read_certificate(own / "run" / "certificate.json")
    assert certificate.budget is not None


def test_a_budget_that_is_too_small_says_no_and_nothing_is_left(lehr: Run, own: Path) -> None:
    new_budget(own / "our.budget", epsilon=0.2)
    lehr("train", *OWN, *SHORT, "--budget", "our.budget", "--run", "run", code=1)
    assert not (own / "run").exists()


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (("--dataset", "minst", *SHORT), 2, "dataset must be one of mnist"),
        (("--dataset", "digits"), 2, "epsilon must be given, unless noise_multiplier and steps both are"),
        (("--method", "sgd", *SHORT), 2, "method must be one of adadp, "),
        (("--method", "plain-sgd", "--epsilon", "3"), 2, "epsilon must be left out for a method without privacy"),
        (("--method", "plain-sgd"), 2, "steps must be given for a method without privacy"),
        (("--accounting", "hoped", *SHORT), 2, "accounting must be one of proven, published"),
        (("--set", "clipp=1", *SHORT), 2, "setting of dpsgd must be one of"),
        (("--set", "trianing.views=2", *SHORT), 2, "table must be one of [data]"),
        (("--set", "training.view=2", *SHORT), 2, "key of [training] must be one of"),
        (("--network", "big", *SHORT), 2, "network must be one of"),
        (("--npz", "nowhere.npz", "--records", "4", "--num-classes", "2", *SHORT), 3, "cannot read nowhere.npz"),
        (("--npz", "private.npz", *SHORT), 2, "records must be stated"),
        (("nowhere.toml",), 3, "cannot read nowhere.toml"),
        (("--device", "abacus", *SHORT), 2, "device must be"),
        (("--settings-chosen-on", "private", *SHORT), 1, "neither an event nor a budget pays"),
        (("--resume", "nowhere"), 3, "has no run that began"),
        (("--budget", "nowhere.budget", *SHORT), 3, "nowhere.budget"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], code: int, says: str, lehr: Run, own: Path
) -> None:
    where = () if "--resume" in arguments else ("--run", "run")
    result = lehr("train", *arguments, *where, code=code)
    assert result.stderr.startswith("lehr: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr
    assert not (own / "run").exists()


@pytest.mark.parametrize(
    "option",
    [
        ("--set", "views=2"),
        ("--accounting", "proven"),
        ("--epsilon", "3"),
        ("--steps", "4"),
        ("--method", "auto-s"),
        ("--views", "2"),
        ("--seed", "1"),
    ],
    ids=" ".join,
)
def test_what_a_resumed_run_says_itself_is_not_said_again(option: tuple[str, str], lehr: Run) -> None:
    result = lehr("train", "--resume", "run", *option, code=2)
    name = option[0].removeprefix("--").replace("-", "_")
    assert f"{name} must be left out beside resume" in result.stderr


def test_a_folder_that_is_used_stays_as_it_is(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter").write_text("mine")
    assert "not empty" in lehr("train", *SHORT, "--run", "run", code=3).stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter"]


PAGE = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")


def test_the_file_on_the_page_can_be_trained(lehr_json: RunJson, tmp_path: Path) -> None:
    [words] = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "run.toml").write_text(words, encoding="utf-8")
    said = lehr_json("train", "run.toml", "--steps", "2", "--evaluate-every", "1", "--run", "run")
    assert (said["steps"], said["reason"]) == (2, "plan completed")


def test_programs_are_told_no_proven_epsilon_of_a_run_that_promises_nothing(lehr_json: RunJson) -> None:
    said = lehr_json("train", *SHORT, "--declared", "public", "--run", "open")
    assert (said["proven"], said["epsilon"], said["epsilon_spent"]) == (None, None, None)
    assert said["promises_nothing"] == "the training records were declared public"
    assert lehr_json("report", "open")["proven"] is None

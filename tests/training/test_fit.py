"""Training through the front door: what works, what it leaves, and what is refused before anything is spent."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

from lehr import fit
from lehr.accounting.events import Gaussian, PoissonSampled, counted
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import Statements, read_certificate
from lehr.data import DataSet, InMemory, Preparation
from lehr.errors import BadRecord, CertificateMismatch, InvalidValue, LehrError, NotPrivate, StoreError, Unreachable
from lehr.methods.dpsgd import dpsgd
from lehr.optim.averaging import ExponentialAverage
from lehr.optim.optimizers import adam
from lehr.planning.plan import Plan
from lehr.run.shape import Callback, End, Evaluation, Progress, RunFiles, Start
from lehr.schedules import LinearDecay
from lehr.training.ending import Run
from lehr.training.prepare import config_of_run
from tests.training.tiny import HELD, PRIVATE, PUBLIC, STATED, TEST, fit_tiny, linear

INPUTS, LABELS = PRIVATE


class Listening(Callback):
    def __init__(self) -> None:
        self.told: list[object] = []

    def started(self, start: Start) -> None:
        self.told.append(start)

    def stepped(self, progress: Progress) -> None:
        self.told.append(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        self.told.append(evaluation)

    def ended(self, end: End) -> None:
        self.told.append(end)


class Items(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return HELD

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return INPUTS[place], int(LABELS[place])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit_tiny(tmp_path_factory.mktemp("fit") / "run", settings_chosen_on="fixed", evaluate_every=2)


def text_outside_private(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file() and "private" not in path.parts]
    assert files
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files if path.suffix in (".json", ".jsonl"))


def test_the_model_that_was_handed_over_has_the_weights_that_were_written(run: Run) -> None:
    written = load_file(run.directory / "model.safetensors")
    assert written.keys() == run.model.state_dict().keys()
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, written[name])
    assert not torch.equal(written["1.weight"], linear().state_dict()["1.weight"])


def test_the_sampling_probability_is_that_of_the_stated_number(run: Run) -> None:
    assert run.plan.records == STATED != HELD
    [step] = counted(run.plan.step_event)
    assert step == PoissonSampled(8 / STATED, Gaussian(1.0))


def test_the_ledger_has_all_steps_and_is_finished(run: Run) -> None:
    with Ledger.open(run.directory / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 5}
        assert ledger.is_finished()


def test_the_certificate_is_that_of_the_plan_and_is_on_the_disk(run: Run) -> None:
    assert run.certificate is not None
    assert counted(run.certificate.event) == {run.plan.step_event: 5}
    assert run.certificate.epsilon == pytest.approx(run.plan.bound().epsilon, rel=1e-6)
    assert read_certificate(run.directory / "certificate.json") == run.certificate
    assert run.certificate.stated.records == STATED


def test_a_score_comes_after_every_so_many_steps_and_after_the_last(run: Run) -> None:
    assert [row.step for row in run.evaluations] == [2, 4, 5]
    assert {row.on for row in run.evaluations} == {"test"}
    assert run.accuracy == run.evaluations[-1].accuracy


def test_the_last_score_is_that_of_the_model_that_is_handed_back(run: Run) -> None:
    with torch.no_grad():
        outputs = run.model(TEST[0])
    assert run.evaluations[-1].loss == pytest.approx(float(cross_entropy(outputs, TEST[1])), rel=1e-5)
    assert run.accuracy == pytest.approx(float((outputs.argmax(1) == TEST[1]).double().mean()))


def test_nothing_private_is_written_outside_the_private_folder(run: Run) -> None:
    text = text_outside_private(run.directory)
    assert re.search(rf"(?<![\w.]){STATED}(?![\w.])", text)
    assert not re.search(rf"(?<![\w.]){HELD}(?![\w.])", text)
    for private in (str(run.directory), str(Path.cwd()), "records_drawn"):
        assert private not in text
    assert (run.directory / "private").stat().st_mode & 0o777 == 0o700
    assert not (run.directory / "private" / "diagnostics.jsonl").exists()


def test_without_a_word_on_how_settings_were_chosen_there_is_no_certificate(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run")
    assert run.certificate is None
    assert not (tmp_path / "run" / "certificate.json").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_callbacks_are_told_everything_in_order(tmp_path: Path) -> None:
    listening = Listening()
    fit_tiny(tmp_path / "run", callbacks=[listening], evaluate_every=5)
    kinds = [type(told).__name__ for told in listening.told]
    assert kinds == ["Start", *["Progress"] * 5, "Evaluation", "End"]
    start = listening.told[0]
    assert isinstance(start, Start)
    assert (start.steps, start.first_step, start.expected_batch_size) == (5, 0, 8)


def test_the_generators_of_the_process_are_as_before(tmp_path: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    fit_tiny(tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "data",
    [
        PRIVATE,
        InMemory(INPUTS, LABELS),
        TensorDataset(INPUTS, LABELS),
        Items(),
        (INPUTS.double(), LABELS.to(torch.int32)),
        (INPUTS, LABELS.to(torch.uint8)),
        ((INPUTS * 255).to(torch.uint8), LABELS.float()),
    ],
    ids=["pair", "in memory", "tensor data set", "data set", "double and int32", "uint8 labels", "bytes and floats"],
)
def test_records_may_come_in_any_of_these_forms(data: object, tmp_path: Path) -> None:
    assert fit_tiny(tmp_path / "run", data=data, steps=2).end.step == 2


def test_a_data_set_brings_its_public_facts_along(tmp_path: Path) -> None:
    whole = DataSet(
        name="tiny",
        train=InMemory(*PRIVATE),
        test=InMemory(*TEST),
        num_classes=3,
        shape=(1, 4, 4),
        preparation=Preparation(mean=(0.5,), std=(0.5,)),
        records=STATED,
    )
    run = fit_tiny(tmp_path / "run", data=whole, test=None, records=None, num_classes=None)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data"]["preparation"] == {"mean": [0.5], "std": [0.5]}
    assert (config["data"]["name"], run.plan.records, len(run.evaluations)) == ("tiny", STATED, 5)


def test_a_known_data_set_may_be_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    named = {"data": "digits", "test": None, "records": None, "num_classes": None}
    assert fit_tiny(tmp_path / "run", model=model, delta=1e-4, **named).plan.records == 1464


@pytest.mark.parametrize(
    "changed",
    [
        {"augmentation": "flip_crop", "views": 2},
        {"views": 2},
        {"augmentation": "flip_crop"},
        {"averaging": ExponentialAverage(decay=0.9)},
        {"precision": "bfloat16"},
        {"method": dpsgd(update=adam(0.01))},
        {"method": "auto-s"},
        {"method": "sa-dpsgd", "public": PUBLIC},
        {"physical_batch": 3},
        {"sampling": "without-replacement", "records": HELD},
        {"model": nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))},
    ],
    ids=lambda changed: " ".join(changed),
)
def test_each_way_to_train_reaches_the_end_of_its_plan(changed: dict[str, Any], tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", steps=3, **changed)
    assert (run.end.step, run.end.reason) == (3, "plan completed")
    assert all(bool(value.isfinite().all()) for value in run.model.state_dict().values())


def test_training_learns(tmp_path: Path) -> None:
    run = fit_tiny(
        tmp_path / "run", noise_multiplier=0.1, expected_batch_size=40, steps=40, method=dpsgd(clip_norm=1.0)
    )
    assert run.evaluations[-1].loss < run.evaluations[0].loss / 2


def test_averaged_weights_are_the_ones_that_are_scored_and_written(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", averaging=ExponentialAverage(decay=0.99))
    with torch.no_grad():
        loss = float(cross_entropy(run.model(TEST[0]), TEST[1]))
    assert run.evaluations[-1].loss == pytest.approx(loss, rel=1e-5)
    [last] = sorted((tmp_path / "run" / "checkpoints").glob("*5.safetensors"))
    raw = load_file(last)
    assert not torch.equal(raw["model/1.weight"], run.model.state_dict()["1.weight"])
    assert torch.equal(raw["average/1.weight"], run.model.state_dict()["1.weight"])


def test_patience_ends_a_run_and_the_certificate_is_still_that_of_the_whole_plan(tmp_path: Path) -> None:
    hopeless = dpsgd(learning_rate=50.0, clip_norm=5.0, momentum=0.0)
    said = {"patience": 1, "evaluate_every": 1, "steps": 40, "settings_chosen_on": "fixed"}
    run = fit_tiny(tmp_path / "run", method=hopeless, **said)
    assert run.end.step < 40
    assert run.end.reason == "no better for 1 evaluations"
    assert run.certificate is not None
    assert counted(run.certificate.event) == {run.plan.step_event: 40}


def test_the_acceptance_rate_is_there_to_be_seen_and_every_candidate_is_charged(tmp_path: Path) -> None:
    listening = Listening()
    run = fit_tiny(
        tmp_path / "run", method="sa-dpsgd", steps=30, noise_multiplier=8.0, evaluate_every=10, callbacks=[listening]
    )
    assert 0 < run.end.accepted < run.end.step == 30
    assert [row.accepted for row in run.evaluations] == sorted(row.accepted for row in run.evaluations)
    assert run.evaluations[-1].accepted == run.end.accepted
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 30}


def test_epsilon_is_never_passed_held_out_scores_included(tmp_path: Path) -> None:
    said = {"epsilon": 4.0, "noise_multiplier": None, "test": None, "held_out_fraction": 0.25, "steps": 4}
    run = fit_tiny(tmp_path / "run", settings_chosen_on="fixed", evaluate_every=2, **said)
    assert run.certificate is not None
    assert counted(run.certificate.event) == {run.plan.step_event: 4, Gaussian(20.0): 2}
    assert run.plan.bound().epsilon < run.certificate.epsilon <= 4.0
    assert run.plan.records == 30
    assert run.certificate.stated.records == STATED
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged()) == counted(run.certificate.event)
    assert {row.on.partition(" (±")[0] for row in run.evaluations} == {"held-out records, noised"}


def refused(tmp_path: Path, **changed: Any) -> LehrError:
    """The error of a run that must not leave anything behind."""
    with pytest.raises(LehrError) as caught:
        fit_tiny(tmp_path / "deep" / "run", **changed)
    assert list(tmp_path.iterdir()) == []
    return caught.value


def with_value(tensor: Tensor, place: int, value: float) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    "changed, kind, says",
    [
        ({"data": (INPUTS, with_value(LABELS, 7, 3))}, BadRecord, r"record 7 cannot be used: its label is 3, not a"),
        ({"data": (INPUTS, with_value(LABELS, 0, -1))}, BadRecord, r"record 0 cannot be used: its label is -1"),
        ({"data": (with_value(INPUTS, 9, math.nan), LABELS)}, BadRecord, r"record 9 cannot be used: its input holds a"),
        ({"test": (with_value(TEST[0], 2, math.inf), TEST[1])}, BadRecord, r"record 2 of test cannot be used"),
        ({"data": (INPUTS[:0], LABELS[:0])}, BadRecord, r"there are no records"),
        ({"data": (INPUTS, LABELS[:40])}, BadRecord, r"record 40 cannot be used"),
        ({"data": [1, 2]}, InvalidValue, r"data must be .*; given: 'list'"),
        ({"records": None}, InvalidValue, r"records must be .*state.*; given: None"),
        ({"records": 0}, InvalidValue, r"records must be a whole number >= 1; given: 0"),
        ({"num_classes": None}, InvalidValue, r"num_classes must be stated"),
        ({"method": "dp-sgd"}, InvalidValue, r"method must be one of adadp, .*, dpsgd, .*, sa-dpsgd; given: 'dp-sgd'"),
        ({"method": "sa-dpsgd", "test": None}, InvalidValue, r"public must be given, .*sa-dpsgd"),
        ({"method": "sa-dpsgd", "public": TEST}, InvalidValue, r"test must be other records"),
        ({"public": (torch.rand(3, 1, 5, 5), torch.zeros(3).long())}, InvalidValue, r"public must be .*\(1, 4, 4\)"),
        ({"test": (torch.rand(3, 16), torch.zeros(3).long())}, InvalidValue, r"test must be .*\(1, 4, 4\).*\(16,\)"),
        ({"noise_multiplier": 0.0}, InvalidValue, r"noise_multiplier must be a finite number > 0"),
        ({"noise_multiplier": math.nan}, InvalidValue, r"noise_multiplier must be"),
        (
            {"noise_multiplier": None},
            InvalidValue,
            r"epsilon must be given, unless noise_multiplier and steps both are",
        ),
        ({"epsilon": 3.0}, InvalidValue, r"exactly three"),
        ({"expected_batch_size": 0}, InvalidValue, r"expected_batch_size must be a finite number > 0"),
        ({"expected_batch_size": 41}, InvalidValue, r"expected_batch_size must be at most the 40 records"),
        ({"delta": 1.0}, InvalidValue, r"delta must be a number in \(0, 1\)"),
        ({"steps": 0}, InvalidValue, r"steps must be a whole number >= 1"),
        ({"evaluate_every": 0}, InvalidValue, r"evaluate_every must be a whole number >= 1"),
        ({"evaluate_every": 2, "test": None}, InvalidValue, r"evaluate_every must be left out"),
        ({"patience": 2, "test": None}, InvalidValue, r"patience must be left out"),
        ({"held_out_fraction": 0.5}, InvalidValue, r"held_out_fraction must be left out where there are public test"),
        ({"held_out_fraction": math.nan, "test": None}, InvalidValue, r"held_out_fraction must be a finite number"),
        ({"held_out_fraction": 1.0, "test": None}, InvalidValue, r"held_out_fraction must be a number in \(0, 1\)"),
        ({"views": 0}, InvalidValue, r"views must be"),
        ({"augmentation": "mirror"}, InvalidValue, r"augmentation must be one of .*; given: 'mirror'"),
        ({"precision": "half"}, InvalidValue, r"precision must be one of as_model, bfloat16; given: 'half'"),
        ({"device": "abacus"}, InvalidValue, r"device must be .*; given: 'abacus'"),
        ({"physical_batch": 0}, InvalidValue, r"physical_batch must be"),
        ({"name": "two\nlines"}, InvalidValue, r"name must be one line"),
        ({"model": 3}, InvalidValue, r"model must be a torch module or the name of a network; given: 'int'"),
        ({"model": linear(outputs=2)}, InvalidValue, r"model must be one with 3 outputs, one a class; given: 2"),
        ({"model": nn.Linear(5, 3)}, InvalidValue, r"model must be one that takes records of shape \(1, 4, 4\)"),
        ({"model": nn.Linear(4, 3)}, InvalidValue, r"loss_fn must be one for the outputs"),
        ({"model": nn.Sequential(nn.BatchNorm2d(1), *linear())}, NotPrivate, r"BatchNorm2d.*Instead"),
        ({"loss_fn": cross_entropy}, InvalidValue, r"loss_fn must be .*one loss per record"),
        ({"sampling": "without-replacement"}, InvalidValue, r"records must be .*replace-one.*; given: 40"),
        ({"settings_chosen_on": "private"}, CertificateMismatch, r"neither an event nor a budget pays"),
        ({"settings_chosen_on": "guessed"}, InvalidValue, r"settings_chosen_on must be one of fixed, private, public"),
        (
            {"settings_chosen_on": "fixed", "stated": Statements(settings_chosen_on="fixed")},
            InvalidValue,
            r"settings_chosen_on must be left out beside stated",
        ),
        ({"resume": True}, StoreError, r"has no run that began: config.json is missing"),
        ({"budget": "nowhere.budget"}, StoreError, r"nowhere.budget"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name_and_leaves_nothing(
    changed: dict[str, Any], kind: type[LehrError], says: str, tmp_path: Path
) -> None:
    error = refused(tmp_path, **changed)
    assert isinstance(error, kind), repr(error)
    assert re.search(says, str(error)), str(error)


def test_an_error_of_the_stated_number_does_not_tell_the_true_one(tmp_path: Path) -> None:
    assert str(HELD) not in str(refused(tmp_path, sampling="without-replacement"))


def test_held_out_scores_are_refused_where_neighbours_have_a_record_replaced(tmp_path: Path) -> None:
    replacing = {"sampling": "without-replacement", "records": HELD, "expected_batch_size": 8}
    error = refused(tmp_path, test=None, held_out_fraction=0.25, **replacing)
    assert "held_out_fraction must be left out under replace-one" in str(error)


def test_scores_that_are_charged_cannot_be_of_an_unknown_number(tmp_path: Path) -> None:
    said = {"epsilon": 4.0, "steps": None, "test": None, "held_out_fraction": 0.25, "evaluate_every": 2}
    assert "evaluate_every must be left out where steps is" in str(refused(tmp_path, **said))


def test_an_epsilon_out_of_reach_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, epsilon=0.001, steps=None, noise_multiplier=0.5, expected_batch_size=40)
    assert isinstance(error, Unreachable)


def test_a_split_that_leaves_nobody_in_a_part_is_refused(tmp_path: Path) -> None:
    one = (TEST[0][:1], TEST[1][:1])
    error = refused(tmp_path, method="sa-dpsgd", test=one)
    assert "acceptance_fraction must be one that leaves somebody in both parts" in str(error)


def test_a_folder_with_something_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter").write_text("mine")
    with pytest.raises(StoreError, match="there already and not empty"):
        fit_tiny(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter"]


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        fit_tiny(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="there already"):
        fit_tiny(tmp_path / "file")


def test_without_a_directory_the_run_is_kept_in_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = fit(
        linear(), PRIVATE, test=TEST, records=STATED, num_classes=3, delta=1e-3, noise_multiplier=1.0, steps=1,
        expected_batch_size=8, compiled=False, quiet=True,
    )  # fmt: skip
    assert run.directory.parent == Path("runs")
    assert RunFiles(run.directory).config.exists()


def test_private_diagnostics_stay_in_the_private_folder(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", diagnostics=True)
    kept = tmp_path / "run" / "private" / "diagnostics.jsonl"
    assert len(kept.read_text().splitlines()) == 5
    assert kept.stat().st_mode & 0o077 == 0
    assert "records_drawn" not in text_outside_private(tmp_path / "run")


def test_records_are_drawn_at_the_rate_of_the_stated_number_and_not_at_that_of_their_own(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", diagnostics=True, steps=100, expected_batch_size=STATED // 2, test=None)
    lines = (tmp_path / "run" / "private" / "diagnostics.jsonl").read_text().splitlines()
    drawn = [json.loads(line)["records_drawn"] for line in lines]
    deviation = math.sqrt(HELD / 4 / 100)
    assert abs(sum(drawn) / 100 - HELD / 2) < 5 * deviation < HELD / 2 - STATED / 2


def test_averaging_may_be_given_in_the_words_of_a_file(tmp_path: Path) -> None:
    words = {"kind": "tail", "first_step": 1}
    fit_tiny(tmp_path / "run", averaging=words)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["training"]["averaging"] == words
    with pytest.raises(InvalidValue, match="averaging must be an object of one of the forms"):
        fit_tiny(tmp_path / "other", averaging="ema")


def test_a_network_may_be_named_and_its_run_is_resumed_from_its_words(tmp_path: Path) -> None:
    where = tmp_path / "run"
    fit(
        "small_cnn",
        "digits",
        noise_multiplier=1.0,
        steps=2,
        expected_batch_size=32,
        delta=1e-4,
        directory=where,
        compiled=False,
        quiet=True,
    )
    weights = (where / "model.safetensors").read_bytes()
    (where / "model.safetensors").unlink()
    fit(config=config_of_run(where), directory=where, resume=True, compiled=False, quiet=True)
    assert (where / "model.safetensors").read_bytes() == weights


def test_a_plan_that_was_made_before_takes_the_place_of_its_numbers(tmp_path: Path) -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=8, records=STATED, steps=3, delta=1e-3)
    numbers = dict.fromkeys(("delta", "noise_multiplier", "steps", "expected_batch_size"))
    run = fit_tiny(tmp_path / "run", plan=plan, **numbers)
    assert run.plan == plan
    assert run.end.step == 3


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"steps": 5}, "plan must be given without"),
        ({"noise_schedule": LinearDecay(steps=3)}, "plan must be given without"),
        ({"records": STATED + 1}, "plan must be one of"),
    ],
    ids=["beside a number", "beside a schedule", "of other records"],
)
def test_a_plan_that_contradicts_what_is_said_beside_it_is_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=8, records=STATED, steps=3, delta=1e-3)
    numbers = dict.fromkeys(("delta", "noise_multiplier", "steps", "expected_batch_size"))
    with pytest.raises(InvalidValue, match=message):
        fit_tiny(tmp_path / "run", plan=plan, **{**numbers, **changed})
    assert not (tmp_path / "run").exists()


class FromFourOn(nn.Module):
    """Centres its batch where there are four records or more, or where one number is large."""

    def __init__(self, *, by_value: bool) -> None:
        super().__init__()
        self.layer, self.by_value = linear(), by_value

    def forward(self, images: Tensor) -> Tensor:
        if images.max() > 100 if self.by_value else images.shape[0] >= 4:
            images = images - images.mean(0)
        return self.layer(images)  # type: ignore[no-any-return]


def test_a_model_that_mixes_from_some_batch_size_on_trains_on_each_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = fit_tiny(tmp_path / "run", model=FromFourOn(by_value=False)).model
    assert "each is run alone" in caplog.text
    assert not torch.equal(trained.state_dict()["layer.1.weight"], linear().state_dict()["1.weight"])


def test_a_model_that_mixes_where_values_say_so_trains_on_one_record_after_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit_tiny(tmp_path / "run", model=FromFourOn(by_value=True))
    assert "one record after another" in caplog.text

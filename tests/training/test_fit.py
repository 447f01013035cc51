"""``lehr.fit``: its results, the files it leaves, and the errors raised before anything is spent."""

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
from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    Gaussian,
    PoissonSampled,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    counted,
)
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import Statements, read_certificate
from lehr.certificates.checking import mismatches
from lehr.data import DataSet, InMemory, Preparation
from lehr.errors import BadRecord, CertificateMismatch, InvalidValue, LehrError, NotPrivate, StoreError, Unreachable
from lehr.methods.dpsgd import dpsgd
from lehr.optim.averaging import ExponentialAverage
from lehr.optim.optimizers import adam
from lehr.planning.plan import Plan
from lehr.privacy.sampling import usual_largest_batch
from lehr.run.shape import Callback, End, Evaluation, Progress, RunFiles, Start
from lehr.schedules import LinearDecay
from lehr.training.ending import Run
from lehr.training.prepare import config_of_run
from tests.training.tiny import HELD, PRIVATE, PUBLIC, STATED, TEST, fit_tiny, linear

INPUTS, LABELS = PRIVATE
HELD_OUT: dict[str, Any] = {"held_out_fraction": 0.25, "test": None}
PLAN = Plan(noise_multiplier=2.0, expected_batch_size=8, records=STATED, steps=3, delta=1e-3)
NO_NUMBERS = dict.fromkeys(("delta", "noise_multiplier", "steps", "expected_batch_size"))


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[object] = []

    def started(self, start: Start) -> None:
        self.calls.append(start)

    def stepped(self, progress: Progress) -> None:
        self.calls.append(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        self.calls.append(evaluation)

    def ended(self, end: End) -> None:
        self.calls.append(end)


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


def test_truncated_batches_are_planned_charged_and_never_larger(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", sampling="truncated-poisson", largest_batch=9, records=50)
    assert run.plan.largest_batch == 9
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {TruncatedPoissonSampled(8 / 50, 50, 9, Gaussian(1.0)): 5}
    usual = fit_tiny(tmp_path / "usual", sampling="truncated-poisson", records=50)
    assert usual.plan.largest_batch == usual_largest_batch(8, 50)
    for wrong in ({"largest_batch": 9}, {"sampling": "truncated-poisson", "largest_batch": 7, "records": 50}):
        with pytest.raises(InvalidValue, match=r"^largest_batch must be"):
            fit_tiny(tmp_path / "wrong", **wrong)
    with pytest.raises(InvalidValue, match=r"^records must be"):  # there are more than stated
        fit_tiny(tmp_path / "wrong", sampling="truncated-poisson", records=40)


@pytest.mark.parametrize("sampling", ["without-replacement", "truncated-poisson"])
def test_under_zero_out_a_run_is_charged_for_a_record_that_adds_nothing(sampling: str, tmp_path: Path) -> None:
    named = {"sampling": sampling, "adjacency": "zero-out", "records": HELD, "settings_chosen_on": "fixed"}
    run = fit_tiny(tmp_path / "run", noise_multiplier=4.0, **named)
    noise = Gaussian(4.0)
    expected = {
        "without-replacement": SampledWithoutReplacement(HELD, 8, noise),
        "truncated-poisson": TruncatedPoissonSampled(8 / HELD, HELD, usual_largest_batch(8, HELD), noise),
    }[sampling]
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {expected: 5}
        assert ledger.adjacency is Adjacency.ZERO_OUT
    certificate = run.certificate
    assert certificate is not None
    assert mismatches(certificate) == ()
    assert (certificate.adjacency, certificate.accountant) == (Adjacency.ZERO_OUT, "pld")
    assert "add nothing" in certificate.theorem
    for wrong, name in (({"held_out_fraction": 0.5, "test": None}, "held_out_fraction"), ({"bands": 2}, "bands")):
        with pytest.raises(InvalidValue, match=f"^{name} must be"):
            fit_tiny(tmp_path / "wrong", **named | wrong)
    with pytest.raises(InvalidValue, match=r"^adjacency must be"):
        fit_tiny(tmp_path / "wrong", method="dpsur", **named)


def test_epochs_of_balls_in_bins_are_planned_and_charged(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", sampling="balls-in-bins", steps=7)
    assert (run.plan.bins, run.plan.expected_batch_size) == (5, 8)
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {BallsInBins(5, Gaussian(1.0)): 2}  # the second is not completed
    assert math.isclose(run.proven.epsilon, run.plan.bound().epsilon, rel_tol=1e-9)
    rounded = fit_tiny(tmp_path / "rounded", sampling="balls-in-bins", expected_batch_size=9, epochs=2, steps=None)
    assert (rounded.plan.bins, rounded.plan.steps, rounded.plan.expected_batch_size) == (4, 8, 10)
    planned = fit_tiny(tmp_path / "planned", sampling="balls-in-bins", epsilon=4.0, noise_multiplier=None, steps=10)
    assert 3.98 < planned.plan.bound().epsilon <= 4.0
    wrong: list[dict[str, Any]] = [
        {"noise_schedule": LinearDecay(last=0.5, steps=5)},
        {"largest_batch": 9},
        {"epsilon": 4.0, "expected_batch_size": None},
        {"simulated_batch_size": 2},
    ]
    for changed in wrong:
        with pytest.raises(LehrError):
            fit_tiny(tmp_path / "wrong", sampling="balls-in-bins", **changed)
    assert not (tmp_path / "wrong").exists()


def test_model_has_the_written_weights(run: Run) -> None:
    written = load_file(run.directory / "model.safetensors")
    assert written.keys() == run.model.state_dict().keys()
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, written[name])
    assert not torch.equal(written["1.weight"], linear().state_dict()["1.weight"])


def test_sampling_probability_uses_the_stated_number(run: Run) -> None:
    assert run.plan.records == STATED != HELD
    [step] = counted(run.plan.step_event)
    assert step == PoissonSampled(8 / STATED, Gaussian(1.0))


def test_ledger_has_all_steps_and_is_finished(run: Run) -> None:
    with Ledger.open(run.directory / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 5}
        assert ledger.is_finished()


def test_certificate_covers_the_plan_and_is_on_disk(run: Run) -> None:
    assert run.certificate is not None
    assert counted(run.certificate.event) == {run.plan.step_event: 5}
    assert run.certificate.epsilon == pytest.approx(run.plan.bound().epsilon, rel=1e-6)
    assert read_certificate(run.directory / "certificate.json") == run.certificate
    assert run.certificate.stated.records == STATED


def test_evaluations_at_intervals_and_at_the_end(run: Run) -> None:
    assert [row.step for row in run.evaluations] == [2, 4, 5]
    assert {row.on for row in run.evaluations} == {"test"}
    assert run.accuracy == run.evaluations[-1].accuracy


def test_last_evaluation_is_of_the_returned_model(run: Run) -> None:
    with torch.no_grad():
        outputs = run.model(TEST[0])
    assert run.evaluations[-1].loss == pytest.approx(float(cross_entropy(outputs, TEST[1])), rel=1e-5)
    assert run.accuracy == pytest.approx(float((outputs.argmax(1) == TEST[1]).double().mean()))


def test_nothing_private_outside_the_private_folder(run: Run) -> None:
    text = text_outside_private(run.directory)
    assert re.search(rf"(?<![\w.]){STATED}(?![\w.])", text)
    assert not re.search(rf"(?<![\w.]){HELD}(?![\w.])", text)
    for private in (str(run.directory), str(Path.cwd()), "records_drawn"):
        assert private not in text
    assert (run.directory / "private").stat().st_mode & 0o777 == 0o700
    assert not (run.directory / "private" / "diagnostics.jsonl").exists()


def test_no_certificate_without_settings_chosen_on(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run")
    assert run.certificate is None
    assert not (tmp_path / "run" / "certificate.json").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_callbacks_in_order(tmp_path: Path) -> None:
    recorder = Recorder()
    fit_tiny(tmp_path / "run", callbacks=[recorder], evaluate_every=5)
    kinds = [type(call).__name__ for call in recorder.calls]
    assert kinds == ["Start", *["Progress"] * 5, "Evaluation", "End"]
    start = recorder.calls[0]
    assert isinstance(start, Start)
    assert (start.steps, start.first_step, start.expected_batch_size) == (5, 0, 8)


def test_global_generators_are_restored(tmp_path: Path) -> None:
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
def test_forms_of_data(data: object, tmp_path: Path) -> None:
    assert fit_tiny(tmp_path / "run", data=data, steps=2).end.step == 2


def test_data_set_brings_its_public_facts(tmp_path: Path) -> None:
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


def test_data_set_by_name(tmp_path: Path) -> None:
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
def test_options_reach_the_end_of_the_plan(changed: dict[str, Any], tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", steps=3, **changed)
    assert (run.end.step, run.end.reason) == (3, "plan completed")
    assert all(bool(value.isfinite().all()) for value in run.model.state_dict().values())


def test_training_learns(tmp_path: Path) -> None:
    run = fit_tiny(
        tmp_path / "run", noise_multiplier=0.1, expected_batch_size=40, steps=40, method=dpsgd(clip_norm=1.0)
    )
    assert run.evaluations[-1].loss < run.evaluations[0].loss / 2


def test_averaged_weights_are_evaluated_and_written(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", averaging=ExponentialAverage(decay=0.99))
    with torch.no_grad():
        loss = float(cross_entropy(run.model(TEST[0]), TEST[1]))
    assert run.evaluations[-1].loss == pytest.approx(loss, rel=1e-5)
    [last] = sorted((tmp_path / "run" / "checkpoints").glob("*5.safetensors"))
    raw = load_file(last)
    assert not torch.equal(raw["model/1.weight"], run.model.state_dict()["1.weight"])
    assert torch.equal(raw["average/1.weight"], run.model.state_dict()["1.weight"])


def test_patience_ends_a_run_certified_for_the_whole_plan(tmp_path: Path) -> None:
    hopeless = dpsgd(learning_rate=50.0, clip_norm=5.0, momentum=0.0)
    said = {"patience": 1, "evaluate_every": 1, "steps": 40, "settings_chosen_on": "fixed"}
    run = fit_tiny(tmp_path / "run", method=hopeless, **said)
    assert run.end.step < 40
    assert run.end.reason == "no better for 1 evaluations"
    assert run.certificate is not None
    assert counted(run.certificate.event) == {run.plan.step_event: 40}


def test_every_candidate_is_charged(tmp_path: Path) -> None:
    recorder = Recorder()
    run = fit_tiny(
        tmp_path / "run", method="sa-dpsgd", steps=30, noise_multiplier=8.0, evaluate_every=10, callbacks=[recorder]
    )
    assert 0 < run.end.accepted < run.end.step == 30
    assert [row.accepted for row in run.evaluations] == sorted(row.accepted for row in run.evaluations)
    assert run.evaluations[-1].accepted == run.end.accepted
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 30}


def test_epsilon_includes_held_out_evaluations(tmp_path: Path) -> None:
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


def with_value(tensor: Tensor, place: int, value: float) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    "changed, kind, about",
    [
        ({"data": (INPUTS, with_value(LABELS, 7, 3))}, BadRecord, "record 7 "),
        ({"data": (INPUTS, with_value(LABELS, 0, -1))}, BadRecord, "record 0 "),
        ({"data": (with_value(INPUTS, 9, math.nan), LABELS)}, BadRecord, "record 9 "),
        ({"test": (with_value(TEST[0], 2, math.inf), TEST[1])}, BadRecord, "record 2 of test "),
        ({"data": (INPUTS[:0], LABELS[:0])}, BadRecord, "no records"),
        ({"data": (INPUTS, LABELS[:40])}, BadRecord, "record 40 "),
        ({"data": [1, 2]}, InvalidValue, "data"),
        ({"records": None}, InvalidValue, "records"),
        ({"records": 0}, InvalidValue, "records"),
        ({"num_classes": None}, InvalidValue, "num_classes"),
        ({"method": "dp-sgd"}, InvalidValue, "method"),
        ({"method": "sa-dpsgd", "test": None}, InvalidValue, "public"),
        ({"method": "sa-dpsgd", "public": TEST}, InvalidValue, "test"),
        ({"method": "sa-dpsgd", "test": (TEST[0][:1], TEST[1][:1])}, InvalidValue, "acceptance_fraction"),
        ({"public": (torch.rand(3, 1, 5, 5), torch.zeros(3).long())}, InvalidValue, "public"),
        ({"test": (torch.rand(3, 16), torch.zeros(3).long())}, InvalidValue, "test"),
        ({"noise_multiplier": 0.0}, InvalidValue, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, InvalidValue, "noise_multiplier"),
        ({"noise_multiplier": None}, InvalidValue, "epsilon"),
        ({"epsilon": 3.0}, InvalidValue, "the setting"),
        ({"epsilon": 0.001, "steps": None, "noise_multiplier": 0.5}, Unreachable, "epsilon"),
        ({"expected_batch_size": 0}, InvalidValue, "expected_batch_size"),
        ({"expected_batch_size": 41}, InvalidValue, "expected_batch_size"),
        ({"delta": 1.0}, InvalidValue, "delta"),
        ({"steps": 0}, InvalidValue, "steps"),
        ({"evaluate_every": 0}, InvalidValue, "evaluate_every"),
        ({"evaluate_every": 2, "test": None}, InvalidValue, "evaluate_every"),
        ({"evaluate_every": 2, "steps": None, "epsilon": 4.0, **HELD_OUT}, InvalidValue, "evaluate_every"),
        ({"patience": 2, "test": None}, InvalidValue, "patience"),
        ({"held_out_fraction": 0.5}, InvalidValue, "held_out_fraction"),
        ({"held_out_fraction": math.nan, "test": None}, InvalidValue, "held_out_fraction"),
        ({"held_out_fraction": 1.0, "test": None}, InvalidValue, "held_out_fraction"),
        ({**HELD_OUT, "sampling": "without-replacement", "records": HELD}, InvalidValue, "held_out_fraction"),
        ({"views": 0}, InvalidValue, "views"),
        ({"augmentation": "mirror"}, InvalidValue, "augmentation"),
        ({"averaging": "ema"}, InvalidValue, "averaging"),
        ({"precision": "half"}, InvalidValue, "precision"),
        ({"device": "abacus"}, InvalidValue, "device"),
        ({"physical_batch": 0}, InvalidValue, "physical_batch"),
        ({"name": "two\nlines"}, InvalidValue, "name"),
        ({"model": 3}, InvalidValue, "model"),
        ({"model": linear(outputs=2)}, InvalidValue, "model"),
        ({"model": nn.Linear(5, 3)}, InvalidValue, "model"),
        ({"model": nn.Linear(4, 3)}, InvalidValue, "loss_fn"),
        ({"model": nn.Sequential(nn.BatchNorm2d(1), *linear())}, NotPrivate, "BatchNorm2d"),
        ({"loss_fn": cross_entropy}, InvalidValue, "loss_fn"),
        ({"sampling": "without-replacement"}, InvalidValue, "records"),
        ({"settings_chosen_on": "private"}, CertificateMismatch, ""),
        ({"settings_chosen_on": "guessed"}, InvalidValue, "settings_chosen_on"),
        (
            {"settings_chosen_on": "fixed", "stated": Statements(settings_chosen_on="fixed")},
            InvalidValue,
            "settings_chosen_on",
        ),
        ({"plan": PLAN}, InvalidValue, "plan"),
        ({"plan": PLAN, **NO_NUMBERS, "noise_schedule": LinearDecay(steps=3)}, InvalidValue, "plan"),
        ({"plan": PLAN, **NO_NUMBERS, "records": STATED + 1}, InvalidValue, "plan"),
        ({"resume": True}, StoreError, "config.json"),
        ({"budget": "nowhere.budget"}, StoreError, "nowhere.budget"),
    ],
)
def test_refused_before_anything_is_written(
    changed: dict[str, Any], kind: type[LehrError], about: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        fit_tiny(tmp_path / "deep" / "run", **changed)
    assert list(tmp_path.iterdir()) == []
    error = caught.value
    assert error.name == about if isinstance(error, InvalidValue) else about in str(error), str(error)


def test_error_about_stated_number_hides_true_number(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as caught:
        fit_tiny(tmp_path / "run", sampling="without-replacement")
    assert str(HELD) not in str(caught.value)


def test_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        fit_tiny(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["letter"]


def test_path_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        fit_tiny(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="file"):
        fit_tiny(tmp_path / "file")


def test_default_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = fit(
        linear(), PRIVATE, test=TEST, records=STATED, num_classes=3, delta=1e-3, noise_multiplier=1.0, steps=1,
        expected_batch_size=8, compiled=False, quiet=True,
    )  # fmt: skip
    assert run.directory.parent == Path("runs")
    assert RunFiles(run.directory).config.exists()


def test_diagnostics_stay_in_the_private_folder(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", diagnostics=True)
    kept = tmp_path / "run" / "private" / "diagnostics.jsonl"
    assert len(kept.read_text().splitlines()) == 5
    assert kept.stat().st_mode & 0o077 == 0
    assert "records_drawn" not in text_outside_private(tmp_path / "run")


def test_records_are_drawn_at_the_stated_rate(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", diagnostics=True, steps=100, expected_batch_size=STATED // 2, test=None)
    lines = (tmp_path / "run" / "private" / "diagnostics.jsonl").read_text().splitlines()
    drawn = [json.loads(line)["records_drawn"] for line in lines]
    deviation = math.sqrt(HELD / 4 / 100)
    assert abs(sum(drawn) / 100 - HELD / 2) < 5 * deviation < HELD / 2 - STATED / 2


def test_averaging_from_a_table(tmp_path: Path) -> None:
    words = {"kind": "tail", "first_step": 1}
    fit_tiny(tmp_path / "run", averaging=words)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["training"]["averaging"] == words


def test_named_network_is_resumed_from_its_config(tmp_path: Path) -> None:
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


def test_finished_plan_replaces_its_numbers(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", plan=PLAN, **NO_NUMBERS)
    assert (run.plan, run.end.step) == (PLAN, 3)


class FromFourOn(nn.Module):
    """Centres its batch where there are four records or more, or where one number is large."""

    def __init__(self, *, by_value: bool) -> None:
        super().__init__()
        self.layer, self.by_value = linear(), by_value

    def forward(self, images: Tensor) -> Tensor:
        if images.max() > 100 if self.by_value else images.shape[0] >= 4:
            images = images - images.mean(0)
        return self.layer(images)  # type: ignore[no-any-return]


def test_model_that_mixes_large_batches_gets_each_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = fit_tiny(tmp_path / "run", model=FromFourOn(by_value=False)).model
    assert "each is run alone" in caplog.text
    assert not torch.equal(trained.state_dict()["layer.1.weight"], linear().state_dict()["1.weight"])


def test_model_that_mixes_by_value_gets_one_record_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit_tiny(tmp_path / "run", model=FromFourOn(by_value=True))
    assert "one record after another" in caplog.text

"""A decided run: config.json, resuming, trials of a search, ranks, sharding, and callbacks on errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from lehr import fit
from lehr.accounting.events import Gaussian, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import Statements, read_certificate
from lehr.certificates.run_reading import read_run
from lehr.data.private_pca import PrivatePCA
from lehr.data.split import Split
from lehr.errors import CertificateMismatch, Diverged, InvalidValue
from lehr.methods import by_name
from lehr.methods.by_name import named
from lehr.methods.dpsgd import dpsgd
from lehr.optim.optimizers import Update, adam, custom
from lehr.planning.plan import Plan
from lehr.planning.search_cost import RepeatedSelection, SearchTrial
from lehr.privacy.correlated import CorrelatedNoise
from lehr.privacy.rng import RunKey
from lehr.run.distributed import Ranks
from lehr.run.mechanism import Method
from lehr.run.replay import RunPlan
from lehr.run.shape import Callback, End, Evaluation, Progress
from lehr.schedules import Cosine
from lehr.training import describing, ending, training_run
from lehr.training import fit as fitting
from lehr.training.ending import Run
from lehr.training.training_run import SHARDABLE_OPTIMIZERS, TrainingRun, _refuse_unshardable, identity
from tests.several_ranks import copied, prepared, records, train
from tests.training.tiny import HELD, PRIVATE, PUBLIC, TEST, fit_tiny, linear, new_budget

KEY = RunKey(bytes(32))
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def decided(monkeypatch: pytest.MonkeyPatch, fit_it: Any = fit_tiny, **changed: Any) -> TrainingRun:
    """The run that ``fit`` would train."""
    caught: list[TrainingRun] = []

    def keep(run: TrainingRun, where: Path, **_: object) -> Run:
        caught.append(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "train_run", keep)
        with pytest.raises(KeyboardInterrupt):
            fit_it(Path("never"), **changed)
    return caught[0]


# config.json.


@pytest.mark.parametrize(
    "method",
    [
        dpsgd(),
        named("dpsgd", schedule=Cosine(total_steps=5)),
        named("dpsgd", update=adam(0.1)),
        dpsgd(update=custom(lambda parameters: torch.optim.ASGD(parameters, lr=0.1))),
        named("auto-s", clip_norm=1.0),
        named("sa-dpsgd", rejection_threshold=3),
        named("sa-dpsgd", accounting="published"),
    ],
    ids=["plain", "schedule", "update", "custom", "auto-s", "sa-dpsgd", "published"],
)
def test_config_is_public_json(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    config = decided(monkeypatch, method=method, settings_chosen_on="fixed").recorded
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    text = json.dumps(config)
    assert '"records": 40' in text
    assert str(HELD) not in text
    claims = config["claims"]
    assert (claims["published"] is None) == (method.published is None)
    assert claims["proven"]["kind"] == "proven"
    if method.published is not None:
        assert (claims["published"]["kind"], claims["published"]["premises"][0]["standing"]) == ("published", "broken")
    else:
        assert Plan.from_json(config["plan"]) == PLAN
    assert (config["data"]["shape"], config["data"]["is_known"]) == ([1, 4, 4], False)
    assert config["stated"]["treated_as_public"] == ["the number of records", "the test records"]


def test_config_of_a_run_without_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = decided(monkeypatch, method="plain-sgd", noise_multiplier=0.0).recorded
    assert config["claims"]["proven"]["epsilon"] == "infinity"
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["stated"] is None


def test_frozen_parameters_are_listed() -> None:
    model = linear()
    model[1].bias.requires_grad_(False)
    words = describing.model_words(model, cross_entropy, None, {})
    assert words["trained"] == {"1.weight": [3, 16]}
    assert (words["frozen"], words["parameters"], words["network"]) == (["1.bias"], 48, None)


@pytest.mark.parametrize(
    "loss_fn, name",
    [
        (partial(cross_entropy, reduction="none"), "cross_entropy(reduction='none')"),
        (nn.CrossEntropyLoss(reduction="none"), "CrossEntropyLoss"),
        (cross_entropy, "cross_entropy"),
    ],
)
def test_loss_is_named_without_an_address(loss_fn: Any, name: str) -> None:
    assert describing.model_words(linear(), loss_fn, None, {})["loss"] == name


def test_method_is_described_with_its_settings() -> None:
    words = describing.method_words(named("adadp"))
    assert json.loads(json.dumps(words)) == words
    assert words["name"] == "adadp"
    assert words != describing.method_words(by_name.named("adadp", clip_norm=0.5))


# Interruptions and resuming.


class Stop(Callback):
    """Ctrl-C after a step."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.end: End | None = None

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.after:
            raise KeyboardInterrupt

    def ended(self, end: End) -> None:
        self.end = end


class Fail(Stop):
    """Raises an error as a step on a record might."""

    def evaluated(self, evaluation: Evaluation) -> None:
        raise IndexError("Target 2 is out of bounds")


def interrupted(directory: Path, *, after: int = 3, **changed: Any) -> Stop:
    stop = Stop(after)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(directory, callbacks=[stop], checkpoint_seconds=0, **changed)
    return stop


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("training_run") / "run"
    interrupted(directory)
    return directory


def test_interrupted_run_resumes_at_no_cost(tmp_path: Path) -> None:
    stop = interrupted(tmp_path / "run", settings_chosen_on="fixed")
    assert stop.end is not None
    assert (stop.end.reason, stop.end.step) == ("interrupted", 3)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    run = fit_tiny(tmp_path / "run", settings_chosen_on="fixed", resume=True)
    assert (run.end.step, [row.step for row in run.evaluations]) == (5, [1, 2, 3, 4, 5])
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 5}


def test_finished_run_resumes_without_a_change(tmp_path: Path) -> None:
    options = {"settings_chosen_on": "fixed", "budget": new_budget(tmp_path / "budget")}
    first = fit_tiny(tmp_path / "run", **options)
    before = load_file(tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "certificate.json").unlink()  # as if it had been killed before this was written
    again = fit_tiny(tmp_path / "run", resume=True, **options)
    after = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.certificate == first.certificate == read_certificate(tmp_path / "run" / "certificate.json")


@pytest.mark.parametrize(
    "changed, what",
    [
        ({"steps": 6}, r"plan.steps was 5 and is 6"),
        ({"noise_multiplier": 1.5}, r"plan.noise_multiplier"),
        ({"records": 41}, r"records was 40 and is 41"),
        ({"method": dpsgd(clip_norm=1.0)}, r"method.clipping.clip_norm"),
        ({"method": "sa-dpsgd"}, r"method.name"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))}, r"model.trained"),
        ({"views": 2}, r"training.views"),
        ({"evaluate_every": 2}, r"training.evaluate_every"),
        ({"name": "another"}, r"run was"),
        ({"settings_chosen_on": "fixed"}, r"stated was None"),
        ({"loss_fn": lambda outputs, targets: cross_entropy(outputs, targets, reduction="none")}, r"model.loss"),
        ({"data": (PRIVATE[0].flip(0), PRIVATE[1])}, r"^data must"),
        ({"data": (PRIVATE[0][:-1], PRIVATE[1][:-1])}, r"^data must"),
        ({"test": PUBLIC}, r"^data must"),
        ({"test": None}, r"evaluated_on"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_other_settings_or_records_are_not_resumed(changed: dict[str, Any], what: str, begun: Path) -> None:
    charged = (begun / "ledger.db").read_bytes()
    with pytest.raises(InvalidValue, match=what):
        fit_tiny(begun, resume=True, **changed)
    assert (begun / "ledger.db").read_bytes() == charged


def test_error_about_a_record_does_not_reach_callbacks(tmp_path: Path) -> None:
    fail = Fail(after=99)
    with pytest.raises(IndexError):
        fit_tiny(tmp_path / "run", callbacks=[fail])
    assert fail.end is not None
    assert fail.end.reason == "stopped by IndexError"


def test_diverged_run_stays_charged(tmp_path: Path) -> None:
    stop = Stop(after=99)
    with pytest.raises(Diverged):
        fit_tiny(
            tmp_path / "run",
            method=dpsgd(learning_rate=1e38, clip_norm=1e3),
            test=None,
            callbacks=[stop],
            steps=40,
        )
    assert stop.end is not None
    assert "no longer finite" in stop.end.reason
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged())


def test_run_starts_from_the_given_weights(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(tmp_path / "run", callbacks=[Stop(after=1)])
    first = load_file(tmp_path / "run" / "checkpoints" / "step-0000000000.safetensors")
    assert torch.equal(first["model/1.weight"], linear().state_dict()["1.weight"])


def test_acceptance_and_evaluation_share_no_record(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method="sa-dpsgd", acceptance_fraction=0.5)
    split = Split.load(tmp_path / "run" / "private" / "split.npy")
    evaluated, accepted = set(split.private.tolist()), set(split.public.tolist())
    assert evaluated | accepted == set(range(len(TEST[1])))
    assert not evaluated & accepted
    with torch.no_grad():
        loss = cross_entropy(run.model(TEST[0][split.private]), TEST[1][split.private])
    assert run.evaluations[-1].loss == pytest.approx(float(loss), rel=1e-5)


def test_run_killed_while_writing_its_split_resumes(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", method="sa-dpsgd")
    split = tmp_path / "run" / "private" / "split.npy"
    before = split.read_bytes()
    split.with_name("split.part").write_bytes(before[:40])
    split.unlink()
    fit_tiny(tmp_path / "run", method="sa-dpsgd", resume=True)
    assert split.read_bytes() == before
    assert split.stat().st_mode & 0o077 == 0
    assert not split.with_name("split.part").exists()


# Claims and certificates.


def test_published_claim_includes_held_out_evaluations(tmp_path: Path) -> None:
    options: dict[str, Any] = {"test": None, "held_out_fraction": 0.5, "held_out_noise_multiplier": 0.3}
    run = fit_tiny(tmp_path / "run", method="dpsgd", accounting="published", **options)
    assert run.published is not None
    assert run.published.is_proven
    assert run.published.epsilon >= run.proven.epsilon
    assert run.accuracy is not None


def test_certificate_is_for_the_plan_and_not_for_less_or_more() -> None:
    run_plan = RunPlan(plan=PLAN, score_event=Gaussian(20.0), evaluate_every=2)
    stated = Statements(settings_chosen_on="fixed", records=40)
    made = ending.certificate_for(run_plan, PLAN, stated, charged=Repeated(PLAN.step_event, 2))
    assert counted(made.event) == {PLAN.step_event: 5, Gaussian(20.0): 3}
    assert made.ex_post is not None
    assert made.ex_post.epsilon < made.epsilon
    with pytest.raises(CertificateMismatch):
        ending.certificate_for(run_plan, PLAN, stated, charged=Repeated(PLAN.step_event, 6))


PRICE = RepeatedSelection(mean=3)
TRIAL = SearchTrial(price=PRICE, event=PLAN.event)


def test_trial_is_certified_for_its_whole_search(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", trial_of=TRIAL, settings_chosen_on="private")
    assert run.certificate is not None
    assert run.certificate.event == PRICE.event(PLAN.event)
    assert run.proven.epsilon > 1.2 * run.plan.bound().epsilon
    record = read_run(tmp_path / "run")
    assert (record.trial_of, record.planned) == (PRICE, PLAN.event)
    assert record.counted_for == PRICE.event(PLAN.event)
    with pytest.raises(InvalidValue, match="trial_of was"):
        fit_tiny(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"steps": 6}, "what a trial does to the records"),
        ({"settings_chosen_on": "fixed"}, "settings_chosen_on"),
        ({"declared": "synthetic"}, "trial_of"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"budget": "b"}, "budget"),
    ],
)
def test_run_that_is_no_trial_of_its_search(tmp_path: Path, changed: dict[str, Any], name: str) -> None:
    budget = new_budget(tmp_path / "b")
    changed = {key: budget if key == "budget" else value for key, value in changed.items()}
    with pytest.raises(InvalidValue) as caught:
        fit_tiny(tmp_path / "run", **{"settings_chosen_on": "private", "trial_of": TRIAL, **changed})
    assert caught.value.name == name
    assert not (tmp_path / "run").exists()


# Several ranks. Whole runs of several processes are in tests/run.


def fit_ranked(where: Path, **changed: Any) -> Run:
    options: dict[str, Any] = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 12, "delta": 1e-3, **changed}
    data, model = options.pop("data", None) or records(0, 60), options.pop("model", None) or nn.Linear(4, 3)
    return fit(model, data, records=60, num_classes=3, quiet=True, directory=where, **options)


def test_ranks_are_alike_only_with_the_same_settings_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**changed: Any) -> dict[str, str]:
        return identity(decided(monkeypatch, fit_ranked, compiled=False, **changed), KEY)

    one = made()
    assert made() == one
    other_steps = made(steps=5)
    assert other_steps["settings"] != one["settings"]
    assert other_steps["records"] == one["records"]
    held = records(0, 60)
    swapped = type(held)(held.inputs[torch.arange(59, -1, -1)], held.targets[torch.arange(59, -1, -1)])
    assert made(data=swapped)["records"] != one["records"]


def test_ranks_need_the_same_coefficients_of_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank optimises them itself: another machine may end at others, and all add noise to one sum."""
    run = decided(monkeypatch, fit_ranked, compiled=False, bands=2)
    found = identity(run, KEY)
    assert identity(run, KEY) == found
    mechanism = run.mechanism
    assert isinstance(mechanism.noise, CorrelatedNoise)
    first, second = mechanism.noise.coefficients
    noise = replace(mechanism.noise, coefficients=(first, second - 1e-6))
    object.__setattr__(run, "mechanism", replace(mechanism, noise=noise))
    assert identity(run, KEY)["settings"] != found["settings"]


def branches(names: str, *, is_training: bool = True) -> nn.Module:
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(4, 3))
    return model.train(is_training)


def test_ranks_need_layers_in_the_same_order_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise follows the order of layers: in two orders, one number would be added to different weights."""
    run = decided(monkeypatch, fit_ranked, compiled=False)
    found = []
    for model in (branches("ab"), branches("ab"), branches("ba"), branches("ab", is_training=False)):
        object.__setattr__(run, "model", model)
        found.append(identity(run, KEY)["model"])
    one, twin, other_order, other_mode = found
    assert one == twin
    assert one not in (other_order, other_mode)


def test_only_sharded_ranks_need_the_same_physical_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (decided(monkeypatch, fit_ranked, compiled=False, physical_batch=size) for size in (4, 8))
    assert identity(few, KEY) == identity(many, KEY)
    monkeypatch.setattr(TrainingRun, "is_sharded", True)
    assert identity(few, KEY)["physical_batch"] != identity(many, KEY)["physical_batch"]


def test_trial_of_a_search_is_not_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = decided(monkeypatch, fit_ranked, compiled=False)
    object.__setattr__(run, "ranks", Ranks(number=0, total=2))
    monkeypatch.setattr(training_run, "check_searchable", lambda plan: None)
    trial: Any = SimpleNamespace(check_same=lambda event: None)
    with pytest.raises(InvalidValue, match="trial_of"):
        run._refuse_unfit_trial(trial)


def test_sharding_needs_torchrun(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="torchrun"):
        fit_ranked(tmp_path / "run", sharded=True)


@pytest.mark.usefixtures("met")
@pytest.mark.parametrize(
    "name, changed",
    [
        ("method", {"method": "sa-dpsgd", "public": records(2, 20)}),
        ("method", {"method": named("dpsur", test_batch_size=30)}),
        ("method", {"method": "adadp"}),
        ("method", {"method": "dpopt"}),
        ("optimizer", {"method": named("dpsgd", update=Update(optimizer="adafactor", learning_rate=0.1))}),
        ("optimizer", {"method": named("dpsgd", update=custom(lambda parameters: optim.ASGD(parameters, lr=0.1)))}),
        ("precision", {"precision": "bfloat16"}),
        ("compiled", {"compiled": True}),
        ("diagnostics", {"diagnostics": True}),
        ("held_out_fraction", {"held_out_fraction": 0.2, "evaluate_every": 2}),
        ("private_pca", {"private_pca": PrivatePCA(dimensions=2, noise_multiplier=8.0)}),
    ],
)
def test_what_cannot_be_sharded(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as caught:
        fit_ranked(tmp_path / "run", sharded=True, **changed)
    assert caught.value.name == name
    assert not (tmp_path / "run").exists()


class StatefulClip:
    """Keeps a state for every parameter."""

    needs_coordinates, unproven = False, None

    def start(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros(()) for name in parameters}


def test_stateful_clip_rules_cannot_be_sharded() -> None:
    method: Any = SimpleNamespace(**{**vars(named("dpsgd")), "clipping": StatefulClip(), "name": "own"})
    with pytest.raises(InvalidValue, match="method"):
        _refuse_unshardable(method)


def test_shardable_optimizers() -> None:
    assert {"sgd", "adam", "adamw"} <= set(SHARDABLE_OPTIMIZERS)
    assert not {"adafactor", "normalised-sgd"} & set(SHARDABLE_OPTIMIZERS)


@pytest.mark.usefixtures("met")
def test_single_sharded_rank_trains_like_one_process(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    found = train(copied(run, "spread"), sharded=True)
    expected = train(run)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-4, abs=1e-6)
    assert found["held"] == [20, 5, 15, 3]

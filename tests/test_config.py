"""Runs from a configuration: a TOML file, the arguments of ``fit``, and what a run recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from lehr import fit
from lehr.certificates.run_reading import State, read_run
from lehr.config import RunConfig
from lehr.data import Preparation
from lehr.errors import InvalidValue, LehrError, StoreError
from lehr.methods.by_name import named
from lehr.networks import build
from lehr.optim.averaging import ExponentialAverage
from lehr.planning.plan import delta_for
from lehr.run.shape import Callback, Progress
from lehr.training.describing import method_words
from lehr.training.ending import Run
from lehr.training.prepare import config_of_run, method_and_plan, run_plan
from lehr.training.records import load_records
from tests.data import picture_folders
from tests.training.tiny import PRIVATE, PUBLIC, TEST, fit_tiny

TOML = """
[data]
name = "clinic"
npz = "private.npz"
test_npz = "test.npz"
records = 40
num_classes = 3
mean = [0.5]
std = [0.25]

[model]
network = "small_cnn"
image_side = 4
activation = "relu"

[method]
name = "dpsgd"
learning_rate = 0.25
clip_norm = 0.5
schedule = { kind = "cosine", total_steps = 4, final_fraction = 0.0 }

[privacy]
noise_multiplier = 1.5
steps = 4
expected_batch_size = 8
delta = 1e-3
settings_chosen_on = "fixed"

[training]
averaging = { kind = "exponential", decay = 0.9 }
augmentation = "flip_crop"
views = 2
evaluate_every = 2
"""
TINY: dict[str, Any] = {"noise_multiplier": 1.5, "steps": 4, "expected_batch_size": 8.0}
OWN: dict[str, Any] = {"npz": "private.npz", "records": 40, "num_classes": 3}


class Stop(Callback):
    """Stops a run before its first step, or after it."""

    def __init__(self, *, after: int) -> None:
        self.after = after

    def started(self, start: object) -> None:
        self._stop(0)

    def stepped(self, progress: Progress) -> None:
        self._stop(progress.step)

    def _stop(self, step: int) -> None:
        if step == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: three files of records, and a configuration."""
    monkeypatch.chdir(tmp_path)
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST, "public": PUBLIC}.items():
        np.savez(tmp_path / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    (tmp_path / "run.toml").write_text(TOML, encoding="utf-8")
    return tmp_path


def recorded(directory: str) -> dict[str, Any]:
    """The configuration that a run recorded."""
    shape = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    assert isinstance(shape, dict)
    return shape


def digits(**tables: dict[str, Any]) -> RunConfig:
    return RunConfig.of(privacy={"noise_multiplier": 1.0, "steps": 2, "expected_batch_size": 8}).with_values(**tables)


def train(config: RunConfig, directory: str = "run", **options: Any) -> Run:
    return fit(config=config, directory=directory, quiet=True, compiled=False, **options)


def start(config: RunConfig, directory: str = "run", *, steps: int = 0) -> None:
    """Begin a run and interrupt it."""
    with pytest.raises(KeyboardInterrupt):
        train(config, directory, callbacks=[Stop(after=steps)])


def test_a_file_and_the_arguments_of_fit_give_the_same_run(here: Path) -> None:
    start(RunConfig.read(Path("run.toml")), "from_file")
    with pytest.raises(KeyboardInterrupt):
        fit(
            build("small_cnn", num_classes=3, image_side=4, activation="relu"),
            PRIVATE,
            test=TEST,
            dataset="clinic",
            records=40,
            num_classes=3,
            preparation=Preparation((0.5,), (0.25,)),
            config=RunConfig.of(model={"network": "small_cnn", "image_side": 4, "activation": "relu"}),
            method=named(
                "dpsgd",
                learning_rate=0.25,
                clip_norm=0.5,
                schedule={"kind": "cosine", "total_steps": 4, "final_fraction": 0.0},
            ),
            noise_multiplier=1.5,
            steps=4,
            expected_batch_size=8,
            delta=1e-3,
            settings_chosen_on="fixed",
            averaging=ExponentialAverage(decay=0.9),
            augmentation="flip_crop",
            views=2,
            evaluate_every=2,
            directory="from_call",
            quiet=True,
            compiled=False,
            callbacks=[Stop(after=0)],
        )
    assert recorded("from_file") == recorded("from_call")


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"method": {"name": "sa-dpsgd", "rejection_threshold": 4}, "training": {"acceptance_fraction": 0.25}},
        {"method": {"name": "auto-s", "stability": 0.1}, "model": {"activation": "tempered_sigmoid(mnist)"}},
        {"method": {"name": "sa-dpsgd", "rejection_threshold": 1}, "privacy": {"accounting": "published"}},
        {"method": {"name": "dpsur", "test_batch_size": 16}, "privacy": {"noise_multiplier": None}},
        {"method": {"name": "plain-sgd"}, "privacy": {"noise_multiplier": 0.0}},
        {
            "method": {"clip_schedule": {"kind": "linear-decay", "steps": 2, "first": 1.0, "last": 0.5}},
            "privacy": {"noise_schedule": {"kind": "step-decay", "every": 1, "decay": 0.5}, "delta": 1e-6},
        },
        {"training": {"precision": "bfloat16", "patience": 3, "augmentation": "rrc"}},
        {"data": {"records": 1400}, "privacy": {"stated": {"settings_chosen_on": "public", "released": ["weights"]}}},
        {
            "model": {"network": "projected_mlp", "inputs": 64, "dimensions": 4, "hidden": 8},
            "privacy": {"private_pca": {"dimensions": 4, "noise_multiplier": 2.0}},
        },
        {"data": OWN, "training": {"held_out_fraction": 0.25, "held_out_noise_multiplier": 9.0, "evaluate_every": 1}},
        {"data": OWN | {"records": 48}, "privacy": {"sampling": "without-replacement"}},
        {"data": OWN | {"public_npz": "public.npz"}, "method": {"name": "sa-dpsgd"}},
    ],
    ids=str,
)
def test_a_run_records_a_configuration_that_makes_the_same_run(tables: dict[str, dict[str, Any]], here: Path) -> None:
    config = digits(**tables)
    start(config, "first")
    files = {name: value for name, value in tables.get("data", {}).items() if name.endswith("npz")}
    again = config_of_run(Path("first")).with_values(data=files)
    start(again, "second")
    assert recorded("second") == recorded("first")
    assert recorded("first")["data"]["is_known"] is not bool(files)
    # The method and the plan are known without a record, from either.
    for each in (config, again):
        method, plan = method_and_plan(each)
        assert method_words(method) == recorded("first")["method"]
        assert plan.to_json() == recorded("first")["plan"]


def test_a_run_on_own_records_is_resumed_with_the_same_records_only(here: Path) -> None:
    start(RunConfig.read(Path("run.toml")), steps=1)
    config = config_of_run(Path("run"))
    for files in ({}, {"npz": "public.npz", "test_npz": "test.npz"}):
        with pytest.raises(InvalidValue) as caught:
            train(config.with_values(data=files), resume=True)
        assert caught.value.name == ("data" if files else "dataset")
    again = config.with_values(data={"npz": "private.npz", "test_npz": "test.npz"})
    assert train(again, resume=True).end.step == 4


def test_a_run_by_a_papers_rule_is_resumed_and_ends_at_its_accepted_candidates(here: Path) -> None:
    start(digits(method={"name": "sa-dpsgd"}, privacy={"accounting": "published"}), steps=1)
    run = train(config_of_run(Path("run")), resume=True)
    assert (run.end.accepted, run.plan.stops_at_accepted, run.plan.steps) == (2, 2, 22)
    assert run.published is not None
    assert not run.published.is_proven


def test_a_run_under_a_limit_is_resumed_under_the_same_limit(here: Path) -> None:
    agd = {"name": "agd", "choice_batch_size": 32, "step_sizes": 2}
    limit = 8.333333333333334
    start(
        RunConfig.of(method=agd, privacy={"epsilon": limit, "steps": 2, "expected_batch_size": 16}),
        steps=1,
    )
    run = train(config_of_run(Path("run")), resume=True)
    assert run.plan.limit is not None
    assert run.proven.epsilon == pytest.approx(limit)
    assert read_run(run.directory).state is State.SPENT


def test_noise_follows_its_schedule(here: Path) -> None:
    _, plan = method_and_plan(
        digits(privacy={"noise_schedule": {"kind": "linear-decay", "steps": 2, "first": 3.0, "last": 2.0}})
    )
    assert [plan.noise_multiplier_at(step) for step in (0, 1)] == [3.0, 2.5]
    assert plan.bound().epsilon < method_and_plan(digits())[1].bound().epsilon


def test_folders_of_images_are_scaled_and_labelled_by_their_names(here: Path) -> None:
    for shade, (part, classes) in enumerate({"train": "abc", "test": "abc", "wrong": "bc"}.items()):
        for label, name in enumerate(classes):
            (here / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((6, 6), 60 * label + 7 * number + shade, dtype=np.uint8)
                Image.fromarray(pixels).save(here / part / name / f"{number}.png")
    data: dict[str, Any] = {"folder": "train", "image_side": 4, "channels": 1, "records": 12, "num_classes": 3}
    start(RunConfig.of(data={**data, "test_folder": "test"}, privacy={**TINY, "expected_batch_size": 4}))
    assert recorded("run")["data"]["shape"] == [1, 4, 4]
    with pytest.raises(InvalidValue) as caught:
        train(RunConfig.of(data={**data, "test_folder": "wrong"}, privacy=TINY), "other")
    assert caught.value.name == "folder"


def test_streamed_folders_are_trained_on_and_need_their_options(here: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        picture_folders.write(here / part, 12, seed=seed, side=6)
    data: dict[str, Any] = {"folder": "train", "test_folder": "test", "channels": 1, "records": 12, "num_classes": 3}
    privacy = {**TINY, "expected_batch_size": 4}
    streamed: dict[str, Any] = {**data, "image_side": 4, "streamed": True}
    start(RunConfig.of(data={**streamed, "workers": 0}, privacy=privacy), steps=1)
    assert recorded("run")["data"]["shape"] == [1, 4, 4]
    run = train(config_of_run(Path("run")).with_values(data={**streamed, "workers": 1}), resume=True)
    assert run.end.step == 4
    assert run.evaluations
    for wrong, name in (
        ({**data, "streamed": True}, "image_side"),
        ({**streamed, "num_classes": 4}, "num_classes"),
        ({**data, "image_side": 4, "workers": 2}, "workers"),
        ({"streamed": True}, "streamed"),
        ({**streamed, "streamed": "yes"}, "streamed"),
        ({**streamed, "workers": -1}, "workers"),
    ):
        with pytest.raises(InvalidValue) as caught:
            train(RunConfig.of(data=wrong, privacy=privacy), "other")
        assert caught.value.name == name


def test_the_seed_decides_the_initial_weights_and_not_the_noise(here: Path) -> None:
    first = []
    for directory, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(digits(privacy={"steps": 1}), directory, seed=seed)
        first.append(load_file(f"{directory}/checkpoints/step-0000000000.safetensors")["model/0.weight"])
    ends = [load_file(f"{directory}/model.safetensors")["0.weight"] for directory in ("one", "again")]
    assert first[0].equal(first[1])
    assert not first[0].equal(first[2])
    assert not ends[0].equal(ends[1])


@pytest.mark.parametrize(
    "text, kind, says",
    [
        ("[privcy]\nepsilon = 3", InvalidValue, "privcy"),
        ("epsilon = 3", InvalidValue, "epsilon"),
        ("[privacy]\nepsilom = 3", InvalidValue, "epsilom"),
        ("[data]\nbatch = 3", InvalidValue, "batch"),
        ("[training]\nloss = 3", InvalidValue, "loss"),
        ("[data\n", StoreError, "run.toml"),
        ("\udcff", StoreError, "run.toml"),
        (None, StoreError, "run.toml"),
    ],
)
def test_a_wrong_file_is_refused(text: str | None, kind: type[LehrError], says: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "run.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind, match=says):
        RunConfig.read(tmp_path / "run.toml")


def test_a_damaged_run_is_refused(here: Path) -> None:
    with pytest.raises(StoreError):
        config_of_run(here)  # no run
    start(RunConfig.read(Path("run.toml")))
    path, shape = here / "run" / "config.json", recorded("run")
    shape["data"].pop("declared")  # older runs do not have it: their records are private
    path.write_text(json.dumps(shape))
    assert "declared" not in config_of_run(here / "run").data
    for section, key in (("data", "preparation"), ("model", "arguments"), ("method", "settings")):
        path.write_text(json.dumps(shape | {section: shape[section] | {key: 3}}))
        with pytest.raises(InvalidValue, match=key):
            config_of_run(here / "run")


@pytest.mark.parametrize(
    "tables, name",
    [
        ({"data": {"name": "minst"}}, "dataset"),
        ({"data": {"npz": "private.npz"}}, "records"),
        ({"data": {"npz": "private.npz", "records": 40}}, "num_classes"),
        ({"data": {"npz": "private.npz", "folder": "images"}}, "npz"),
        ({"data": {"name": "mnist", "npz": "private.npz", "records": 40, "num_classes": 3}}, "dataset"),
        ({"data": {"npz": "nowhere.npz", "records": 4, "num_classes": 2}}, None),
        ({"data": {"mean": 0.5, "std": [0.5]}}, "mean"),
        ({"data": {"mean": [0.5]}}, "std"),
        ({"data": {"test_npz": "none.npz"}}, None),
        ({"model": {"network": "big_cnn"}}, "network"),
        ({"model": {"depth": 3}}, "argument of small_cnn"),
        ({"model": {"image_side": 16}}, "model"),
        ({"model": {"num_classes": 4}}, "model"),
        ({"method": {"name": "sgd"}}, "method"),
        ({"method": {"clipping": 1}}, "setting of dpsgd"),
        ({"method": {"accounting": "proven"}, "privacy": {"accounting": "published"}}, "accounting of [privacy]"),
        ({"privacy": {"accounting": "hoped"}}, "accounting"),
        ({"privacy": {"noise_schedule": "cosine"}}, "noise_schedule"),
        ({"privacy": {"sampling": "shuffled"}}, "sampling"),
        ({"privacy": {"settings_chosen_on": 3}}, "settings_chosen_on"),
        ({"privacy": {"stated": {"chosen": "fixed"}}}, "stated"),
        ({"privacy": {"stated": "fixed"}}, "stated"),
        ({"privacy": {"private_pca": "yes"}}, "private_pca"),
        ({"training": {"averaging": "ema"}}, "averaging"),
        ({"training": {"augmentation": "mirror"}}, "augmentation"),
        ({"training": {"held_out_fraction": 0.2}}, "held_out_fraction"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name_and_leaves_nothing(
    tables: dict[str, dict[str, Any]], name: str | None, here: Path
) -> None:
    np.savez(here / "none.npz", inputs=np.zeros((0, 1, 8, 8), dtype=np.float32), targets=np.zeros(0, dtype=np.int64))
    with pytest.raises(LehrError) as caught:
        train(digits(**tables))
    assert getattr(caught.value, "name", None) == name
    assert not (here / "run").exists()


def test_a_run_of_an_unnamed_network_has_no_configuration(here: Path) -> None:
    fit_tiny(here / "run", steps=1)
    with pytest.raises(InvalidValue) as caught:
        config_of_run(here / "run")
    assert caught.value.name == "run"


@pytest.mark.parametrize("records", [1, 9, 10, 11, 999, 1000, 60_000, 10**6])
def test_the_default_delta_is_the_largest_power_of_ten_below_one_over_the_records(records: int) -> None:
    delta = delta_for(None, records=records)
    assert delta < 1 / records
    assert delta * 10 >= 1 / records * (1 - 1e-12)


@pytest.mark.parametrize(
    "tables, name",
    [
        ({"data": {"npz": "private.npz"}}, "records"),
        ({"data": {"name": "minst"}}, "dataset"),
        ({"method": {"name": "sgd"}}, "method"),
        ({"data": OWN, "method": {"name": "sa-dpsgd"}}, "public"),
    ],
)
def test_a_wrong_plan_is_refused_by_name(tables: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        method_and_plan(digits(**tables))
    assert caught.value.name == name


def test_the_plan_needs_no_file(here: Path) -> None:
    _, plan = method_and_plan(RunConfig.read(Path("run.toml")))
    records = load_records(digits(data=OWN | {"public_npz": "public.npz"}))
    assert records.public is not None
    assert (len(records.private), records.test, len(records.public)) == (len(PRIVATE[0]), None, len(PUBLIC[0]))
    config = digits(data=OWN, training={"held_out_fraction": 0.25, "evaluate_every": 1})
    allowed = run_plan(config)
    start(config)
    for file in here.glob("*.npz"):
        file.unlink()
    assert method_and_plan(RunConfig.read(Path("run.toml")))[1] == plan
    assert (plan.records, plan.steps, plan.delta) == (40, 4, 1e-3)
    assert run_plan(config).event == allowed.event == read_run(here / "run").planned


def test_a_search_table_does_not_change_a_run(tmp_path: Path) -> None:
    text = '[data]\nname = "digits"\n'
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "search.toml").write_text(f"{text}[search]\ntrials = 3\n[search.space]\nmomentum = [0.0, 0.9]\n")
    assert RunConfig.read(tmp_path / "search.toml") == RunConfig.read(tmp_path / "run.toml")

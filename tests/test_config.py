"""A run in words: a TOML file says the same as the options of a command and as the arguments of ``fit``."""

from __future__ import annotations

import json
import math
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
from lehr.run.shape import Callback, Progress
from lehr.training.describing import method_words
from lehr.training.ending import Run
from lehr.training.prepare import config_of_run, default_delta, load_records, method_and_plan, run_plan
from tests.data import picture_folders
from tests.training.tiny import PRIVATE, PUBLIC, TEST, fit_tiny

WORDS = """
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
QUIET: dict[str, Any] = {"quiet": True, "compiled": False}
TINY: dict[str, Any] = {"noise_multiplier": 1.5, "steps": 4, "expected_batch_size": 8.0}


class Stop(Callback):
    def stepped(self, progress: Progress) -> None:
        raise KeyboardInterrupt


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with records of our own, and words about them."""
    monkeypatch.chdir(tmp_path)
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST, "public": PUBLIC}.items():
        np.savez(tmp_path / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())
    (tmp_path / "run.toml").write_text(WORDS, encoding="utf-8")
    return tmp_path


def config(directory: str) -> dict[str, Any]:
    shape = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    assert isinstance(shape, dict)
    return shape


def digits(**tables: dict[str, Any]) -> RunConfig:
    return RunConfig.of(privacy={"noise_multiplier": 1.0, "steps": 2, "expected_batch_size": 8}).with_values(**tables)


def train(words: RunConfig, directory: str = "run", **how: Any) -> Run:
    return fit(config=words, directory=directory, **{**QUIET, **how})


def test_a_file_and_the_arguments_of_fit_give_the_same_run(here: Path) -> None:
    train(RunConfig.read(Path("run.toml")), "from_file", seed=3)
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
        **QUIET,
    )
    assert config("from_file") == config("from_call")


def test_what_was_read_from_a_run_makes_the_very_same_configuration(here: Path) -> None:
    train(RunConfig.read(Path("run.toml")), "first")
    again = config_of_run(Path("first")).with_values(data={"npz": "private.npz", "test_npz": "test.npz"})
    train(again, "second")
    assert config("second") == config("first")


def test_a_run_of_our_own_records_is_resumed_with_them(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(RunConfig.read(Path("run.toml")), callbacks=[Stop()])
    again = config_of_run(Path("run")).with_values(data={"npz": "private.npz", "test_npz": "test.npz"})
    assert train(again, resume=True).end.step == 4


def test_a_run_of_our_own_records_is_not_resumed_without_them(here: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(RunConfig.read(Path("run.toml")), callbacks=[Stop()])
    with pytest.raises(InvalidValue, match="with npz or folder beside it; given: 'clinic'"):
        train(config_of_run(Path("run")), resume=True)
    with pytest.raises(InvalidValue, match="data must be the very records"):
        train(
            config_of_run(Path("run")).with_values(data={"npz": "public.npz", "test_npz": "test.npz"}),
            resume=True,
        )


@pytest.mark.parametrize(
    "tables",
    [
        {"method": {"name": "sa-dpsgd", "rejection_threshold": 4}, "training": {"acceptance_fraction": 0.25}},
        {"method": {"name": "auto-s", "stability": 0.1}, "model": {"activation": "tempered_sigmoid(mnist)"}},
        {"method": {"name": "sa-dpsgd", "rejection_threshold": 1}, "privacy": {"accounting": "published"}},
        {"method": {"name": "dpsur", "test_batch_size": 16}},
        {"method": {"name": "plain-sgd"}, "privacy": {"noise_multiplier": 0.0}},
        {
            "method": {"clip_schedule": {"kind": "linear-decay", "steps": 2, "first": 1.0, "last": 0.5}},
            "privacy": {"noise_schedule": {"kind": "linear-decay", "steps": 2, "first": 2.0, "last": 1.0}},
        },
        {"training": {"precision": "bfloat16", "patience": 3, "augmentation": "rrc"}},
        {"data": {"records": 1400}, "privacy": {"stated": {"settings_chosen_on": "public", "released": ["weights"]}}},
    ],
    ids=["sa-dpsgd", "auto-s", "published", "dpsur", "plain-sgd", "schedules", "training", "stated"],
)
def test_a_known_data_set_is_trained_on_as_said_and_said_the_same_by_its_run(
    tables: dict[str, dict[str, Any]], here: Path
) -> None:
    train(digits(**tables), "first")
    assert config("first")["data"]["is_known"]
    train(config_of_run(Path("first")), "second")
    assert config("second") == config("first")


def test_a_run_by_a_papers_rule_is_resumed_and_ends_at_its_accepted_candidates(here: Path) -> None:
    words = digits(method={"name": "sa-dpsgd"}, privacy={"accounting": "published"})
    with pytest.raises(KeyboardInterrupt):
        train(words, callbacks=[Stop()])
    run = train(config_of_run(Path("run")), resume=True)
    assert (run.end.accepted, run.plan.stops_at_accepted, run.plan.steps) == (2, 2, 22)
    assert run.published is not None
    assert not run.published.is_proven


def test_a_run_under_a_limit_is_resumed_under_the_same_limit(here: Path) -> None:
    agd = {"name": "agd", "choice_batch_size": 32, "step_sizes": 2}
    words = RunConfig.of(method=agd, privacy={"epsilon": 8.333333333333334, "steps": 2, "expected_batch_size": 16})
    with pytest.raises(KeyboardInterrupt):
        train(words, callbacks=[Stop()])
    run = train(config_of_run(Path("run")), resume=True)
    assert run.plan.limit is not None
    assert run.proven.epsilon == pytest.approx(8.333333333333334)
    assert read_run(run.directory).state is State.SPENT


def test_a_private_pca_is_said_in_a_file_and_by_its_run(here: Path) -> None:
    words = digits(
        model={"network": "projected_mlp", "inputs": 64, "dimensions": 4, "hidden": 8},
        privacy={"private_pca": {"dimensions": 4, "noise_multiplier": 2.0}},
    )
    run = train(words, "first")
    assert "Gaussian(noise_multiplier=2)" in str(read_run(run.directory).planned)
    train(config_of_run(Path("first")), "second")
    assert config("second") == config("first")


def test_the_noise_of_a_file_follows_its_schedule_and_costs_what_that_costs(here: Path) -> None:
    louder = {"kind": "linear-decay", "steps": 2, "first": 3.0, "last": 2.0}
    run = train(digits(privacy={"noise_schedule": louder}))
    assert [run.plan.noise_multiplier_at(step) for step in (0, 1)] == [3.0, 2.5]
    assert run.proven.epsilon < train(digits(), "even").proven.epsilon


def test_held_out_scores_are_said_the_same_by_their_run(here: Path) -> None:
    words = RunConfig.of(
        data={"npz": "private.npz", "records": 40, "num_classes": 3},
        privacy=TINY,
        training={"held_out_fraction": 0.25, "held_out_noise_multiplier": 9.0, "evaluate_every": 2},
    )
    train(words, "first")
    assert config("first")["plan"]["records"] == 30
    train(config_of_run(Path("first")).with_values(data={"npz": "private.npz"}), "second")
    assert config("second") == config("first")


def test_folders_of_images_are_read_scaled_and_labelled_by_their_names(here: Path) -> None:
    for shade, (part, classes) in enumerate({"train": "abc", "test": "abc", "wrong": "bc"}.items()):
        for label, name in enumerate(classes):
            (here / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((6, 6), 60 * label + 7 * number + shade, dtype=np.uint8)
                Image.fromarray(pixels).save(here / part / name / f"{number}.png")
    said: dict[str, Any] = {"folder": "train", "image_side": 4, "channels": 1, "records": 12, "num_classes": 3}
    words = RunConfig.of(data={**said, "test_folder": "test"}, privacy={**TINY, "expected_batch_size": 4})
    train(words)
    assert config("run")["data"]["shape"] == [1, 4, 4]
    with pytest.raises(InvalidValue, match="folder must be with the same classes everywhere: a, b, c"):
        train(RunConfig.of(data={**said, "test_folder": "wrong"}, privacy=TINY), "other")


def test_streamed_folders_are_trained_on_and_need_their_words(here: Path) -> None:
    for part, seed in (("train", 1), ("test", 2)):
        picture_folders.write(here / part, 12, seed=seed, side=6)
    said: dict[str, Any] = {"folder": "train", "test_folder": "test", "channels": 1, "records": 12, "num_classes": 3}
    privacy = {**TINY, "expected_batch_size": 4}
    cut: dict[str, Any] = {**said, "image_side": 4, "streamed": True}
    run = train(RunConfig.of(data={**cut, "workers": 0}, privacy=privacy))
    assert config("run")["data"]["shape"] == [1, 4, 4]
    assert run.evaluations
    again = config_of_run(Path("run")).with_values(data={**said, "image_side": 4, "streamed": True, "workers": 1})
    assert train(again, resume=True).end.step == 4
    for words, says in (
        ({**said, "streamed": True}, "image_side must be stated where folders are streamed"),
        ({**cut, "num_classes": 4}, "num_classes must be the number of folders"),
        ({**said, "image_side": 4, "workers": 2}, "workers must be left out where there is no folder that is streamed"),
        ({"streamed": True}, "streamed must be left out where there is no folder"),
        ({**cut, "streamed": "yes"}, "streamed must be"),
        ({**cut, "workers": -1}, "workers must be"),
    ):
        with pytest.raises(InvalidValue, match=says):
            train(RunConfig.of(data=words, privacy=privacy), "other")


def test_the_first_weights_follow_from_the_seed_and_nothing_else_does(here: Path) -> None:
    first = []
    for directory, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(digits(), directory, seed=seed)
        first.append(load_file(f"{directory}/checkpoints/step-0000000000.safetensors")["model/0.weight"])
    ends = [load_file(f"{directory}/model.safetensors")["0.weight"] for directory in ("one", "again")]
    assert first[0].equal(first[1])
    assert not first[0].equal(first[2])
    assert not ends[0].equal(ends[1])  # noise has no seed


@pytest.mark.parametrize(
    "text, kind, says",
    [
        ("[privcy]\nepsilon = 3", InvalidValue, r"table must be one of \[data\], .*; given: 'privcy'"),
        ("epsilon = 3", InvalidValue, r"table must be one of .*; given: 'epsilon'"),
        ("[privacy]\nepsilom = 3", InvalidValue, r"key of \[privacy\] must be one of .*epsilon.*; given: 'epsilom'"),
        ("[data]\nbatch = 3", InvalidValue, r"key of \[data\] must be one of"),
        ("[training]\nloss = 3", InvalidValue, r"key of \[training\] must be one of"),
        ("[data\n", StoreError, r"cannot use .*it is not TOML"),
        ("\udcff", StoreError, r"cannot read .*it is not UTF-8"),
    ],
)
def test_a_file_that_says_something_unknown_is_refused_by_name(
    text: str, kind: type[LehrError], says: str, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind, match=says):
        RunConfig.read(tmp_path / "run.toml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*run.toml: No such file"):
        RunConfig.read(tmp_path / "run.toml")
    with pytest.raises(StoreError, match="has no run that began"):
        config_of_run(tmp_path)


def test_a_run_that_does_not_say_what_its_records_are_is_one_of_private_records(here: Path) -> None:
    train(RunConfig.read(Path("run.toml")))
    path = here / "run" / "config.json"
    shape = config("run")
    shape["data"].pop("declared")
    path.write_text(json.dumps(shape))
    assert "declared" not in config_of_run(here / "run").data
    for section, key in (("data", "preparation"), ("model", "arguments"), ("method", "settings")):
        path.write_text(json.dumps(shape | {section: shape[section] | {key: 3}}))
        with pytest.raises(InvalidValue, match=f"{key} must be an object"):
            config_of_run(here / "run")


@pytest.mark.parametrize(
    "tables, says",
    [
        ({"data": {"name": "minst"}}, "dataset must be one of mnist, .*; given: 'minst'"),
        ({"data": {"npz": "private.npz"}}, "records must be stated"),
        ({"data": {"npz": "private.npz", "records": 40}}, "num_classes must be stated"),
        ({"data": {"npz": "private.npz", "folder": "images"}}, "npz must be left out beside folder"),
        ({"data": {"npz": 3}}, "npz must be a non-empty string"),
        (
            {"data": {"name": "mnist", "npz": "private.npz", "records": 40, "num_classes": 3}},
            "dataset must be another name than that of a built-in data set",
        ),
        ({"data": {"npz": "nowhere.npz", "records": 4, "num_classes": 2}}, "cannot read nowhere.npz"),
        ({"data": {"mean": 0.5, "std": [0.5]}}, "mean must be a list"),
        ({"data": {"mean": [0.5]}}, "std must be a list"),
        ({"data": {"records": "many"}}, "records must be a whole number"),
        ({"model": {"network": "big_cnn"}}, "network must be one of"),
        ({"model": {"name": "big_cnn"}}, "argument of small_cnn must be one of"),
        ({"model": {"network": ["small_cnn"]}}, "network must be a non-empty string"),
        ({"privacy": {"sampling": [math.inf]}}, "sampling must be a non-empty string"),
        ({"model": {"depth": 3}}, "argument of small_cnn must be one of"),
        ({"model": {"image_side": 16}}, "model must be one that takes records of shape"),
        ({"model": {"num_classes": 4}}, "model must be one with 10 outputs"),
        ({"method": {"name": "sgd"}}, "method must be one of"),
        ({"method": {"clipping": 1}}, "setting of dpsgd must be one of"),
        ({"method": {"name": 3}}, "method must be a non-empty string"),
        (
            {"method": {"accounting": "proven"}, "privacy": {"accounting": "published"}},
            r"accounting of \[privacy\] must be what \[method\] says, proven",
        ),
        ({"privacy": {"accounting": "hoped"}}, "accounting must be one of proven, published; given: 'hoped'"),
        ({"privacy": {"noise_schedule": "cosine"}}, "schedule must be an object whose kind is one of"),
        ({"privacy": {"epsilon": "three"}}, "exactly three|epsilon must be"),
        ({"privacy": {"steps": 2.5}}, "steps must be a whole number"),
        ({"privacy": {"delta": 0}}, "delta must be"),
        ({"privacy": {"sampling": "shuffled"}}, "shuffled epochs have no accountant"),
        ({"privacy": {"settings_chosen_on": 3}}, "settings_chosen_on must be one of"),
        ({"privacy": {"stated": {"chosen": "fixed"}}}, "stated must be a table with settings_chosen_on"),
        ({"privacy": {"stated": "fixed"}}, "stated must be a table"),
        ({"training": {"averaging": "ema"}}, "averaging must be an object"),
        ({"training": {"augmentation": "mirror"}}, "augmentation must be one of"),
        ({"training": {"augmentation": 3}}, "augmentation must be an object"),
        ({"privacy": {"private_pca": "yes"}}, "private_pca must be an object"),
        ({"training": {"precision": "half"}}, "precision must be one of"),
        ({"training": {"views": "two"}}, "views must be a whole number"),
        ({"training": {"held_out_fraction": 0.2}}, "held_out_fraction must be left out where there are public test"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_refused_by_name_and_leaves_nothing(
    tables: dict[str, dict[str, Any]], says: str, here: Path
) -> None:
    with pytest.raises(LehrError, match=says):
        train(digits(**tables))
    assert not (here / "run").exists()


def test_an_empty_file_of_test_records_is_refused_and_not_passed_over(here: Path) -> None:
    np.savez(here / "none.npz", inputs=np.zeros((0, 1, 8, 8), dtype=np.float32), targets=np.zeros(0, dtype=np.int64))
    with pytest.raises(LehrError, match="record 0 of test cannot be used: there are no records"):
        train(digits(data={"test_npz": "none.npz"}))


def test_a_run_of_a_model_that_has_no_name_cannot_be_made_again_from_words(here: Path) -> None:
    fit_tiny(here / "run", steps=1)
    with pytest.raises(InvalidValue, match="run must be one of a network that Lehr can build by its name"):
        config_of_run(here / "run")


@pytest.mark.parametrize("records", [1, 9, 10, 11, 999, 1000, 60_000, 10**6])
def test_the_default_delta_is_the_largest_power_of_ten_below_one_over_the_records(records: int) -> None:
    delta = default_delta(records)
    assert delta < 1 / records
    assert delta * 10 >= 1 / records * (1 - 1e-12)


OWN = {"npz": "private.npz", "records": 40, "num_classes": 3}


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"method": {"name": "dpsur"}, "privacy": {"noise_multiplier": None}},
        {"data": OWN, "training": {"held_out_fraction": 0.25, "evaluate_every": 1}},
        {"data": OWN | {"records": 48}, "privacy": {"sampling": "without-replacement"}},
        {"privacy": {"noise_schedule": {"kind": "step-decay", "every": 1, "decay": 0.5}, "delta": 1e-6}},
        {"data": OWN | {"public_npz": "public.npz"}, "method": {"name": "sa-dpsgd"}},
    ],
    ids=str,
)
def test_the_method_and_the_plan_are_known_without_a_record(here: Path, tables: dict[str, Any]) -> None:
    words = digits(**tables)
    trained = train(words)
    method, plan = method_and_plan(words)
    assert plan == trained.plan
    assert method_words(method) == config("run")["method"]
    again, kept = method_and_plan(config_of_run(here / "run"))
    assert kept == trained.plan
    assert method_words(again) == method_words(method)


def test_no_file_is_needed_to_know_the_plan(here: Path) -> None:
    (here / "private.npz").unlink()
    _, plan = method_and_plan(RunConfig.read(Path("run.toml")))
    assert (plan.records, plan.steps, plan.delta) == (40, 4, 1e-3)


@pytest.mark.parametrize(
    "tables, says",
    [
        ({"data": {"npz": "private.npz"}}, "records must be stated"),
        ({"data": {"name": "minst"}}, "dataset must be one of"),
        ({"method": {"name": "sgd"}}, "method must be one of"),
        ({"data": OWN, "method": {"name": "sa-dpsgd"}}, "public must be given"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(tables: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        method_and_plan(digits(**tables))


def test_the_records_themselves_are_given_part_by_part(here: Path) -> None:
    given = load_records(digits(data=OWN | {"public_npz": "public.npz"}))
    assert given.public is not None
    assert (len(given.private), given.test, len(given.public)) == (len(PRIVATE[0]), None, len(PUBLIC[0]))


def test_all_that_a_run_may_do_is_known_without_a_record(here: Path) -> None:
    words = digits(data=OWN, training={"held_out_fraction": 0.25, "evaluate_every": 1})
    allowance = run_plan(words)
    trained = train(words)
    assert allowance.event == read_run(trained.directory).planned
    assert allowance.plan == trained.plan


def test_what_a_file_says_about_a_search_does_not_change_its_run(tmp_path: Path) -> None:
    said = '[data]\nname = "digits"\n'
    (tmp_path / "run.toml").write_text(said)
    (tmp_path / "search.toml").write_text(f"{said}[search]\ntrials = 3\n[search.space]\nmomentum = [0.0, 0.9]\n")
    assert RunConfig.read(tmp_path / "search.toml") == RunConfig.read(tmp_path / "run.toml")

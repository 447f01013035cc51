"""What cannot be done is one line on standard error with its exit code, and leaves the folder as it was."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lehr.accounting.events import Adjacency
from lehr.cli.main import app
from lehr.files import strict_json
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from tests.cli.conftest import released_model, write_plan, write_records
from tests.written_runs import write_run

PLAN = "plan --delta 1e-5 --records 60000 --expected-batch-size 512"
ACCOUNT = "account --noise-multiplier 1.23 --delta 1e-5"
ISSUE = "certificate issue new.json --settings-chosen-on public --plan"
TRAIN = "train --no-compile --run new --noise-multiplier 1 --steps 3 --expected-batch-size 8"
SEARCH = "search search.toml --study new"
PAID = "search paid.toml --study new --epsilon 6 --pay"

# A command line, its exit code, and what the message has: the name of the value or the file.
REFUSED = {
    "audit": (2, "audit must be"),
    "audit nowhere": (3, "nowhere"),
    "audit run --method all": (2, "method must be"),
    "audit run --epsilon 3": (2, "epsilon must be"),
    "audit run --confidence 1": (2, "confidence must be"),
    "audit run --canaries 63": (2, "canaries must be"),
    "audit run --device abacus": (2, "device must be"),
    "audit run --attack chess": (2, "attack must be"),
    "audit run --npz private.npz": (2, "npz must be"),
    "audit run --attack model --json": (2, "json must be"),
    "audit run --attack model --report new.html": (2, "report must be"),
    "audit run --attack model --device cuda": (2, "device must be"),
    "audit --method all --attack model": (2, "attack must be"),
    "audit run --report mine.html": (3, "mine.html"),
    "audit --method agd --epsilon 0.001": (1, "agd"),
    "audit broken.toml": (3, "broken.toml"),
    "audit empty": (3, "empty"),
    f"{PLAN} --steps 3": (2, "epsilon must be given"),
    f"{PLAN} --epsilon nan --steps 9": (2, "epsilon must be"),
    f"{PLAN} --epsilon 1e-9 --noise-multiplier 0.5": (1, "epsilon"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --save nowhere/plan.json": (3, "nowhere"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --save new.json --html mine.html": (3, "mine.html"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --save our.budget --overwrite": (3, "our.budget"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --html our.budget --overwrite": (3, "our.budget"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --save loop/plan.json": (3, "loop"),
    f"{PLAN} --noise-multiplier 1 --steps 9 --save {'x' * 300}": (3, "xxx"),
    f"{PLAN} --noise-multiplier 2 --steps 9 --adjacency replace-one --tan --save new.json": (2, "adjacency must be"),
    f"{PLAN} --epsilon 3 --largest-batch 600": (2, "largest_batch must be"),
    "plan --records 600 --bins 3 --steps 9 --epsilon 3 --largest-batch 300": (2, "largest_batch must be"),
    f"{ACCOUNT} --steps 3 --sampling-probability 0.1 --largest-batch 9": (2, "largest_batch must be"),
    f"{ACCOUNT} --steps 0 --sampling-probability 0.1": (2, "steps must be"),
    f"{ACCOUNT} --steps 3 --sampling-probability 1.5": (2, "sampling_probability must be"),
    f"{ACCOUNT} --steps 3 --sampling-probability 0.1 --records 10": (2, "records must be"),
    f"{ACCOUNT} --steps 3 --expected-batch-size 0 --records 10": (2, "expected_batch_size must be"),
    f"{ACCOUNT} --sampling-probability 0.1": (2, "steps must be"),
    f"{ACCOUNT} --steps 3": (2, "expected_batch_size must be"),
    "account --plan plan.json --steps 3": (2, "steps must be left out beside plan"),
    "account --plan plan.json --delta 1e-6": (2, "delta must be left out beside plan"),
    "account --plan broken.toml": (3, "broken.toml"),
    "account --plan none.json": (3, "none.json"),
    "account --plan our.budget": (3, "not a plan, but a budget"),
    "simulate public.toml --batches 8,many": (2, "batches must be"),
    "simulate public.toml --batches 8,16,128": (2, "less than the 64"),
    "simulate public.toml --batches 8,16,32 --confidence 95": (2, "confidence must be"),
    "simulate public.toml --batches 8,16,32 --set data.declared=private": (2, "public or synthetic"),
    "budget create our.budget --dataset MNIST --epsilon 3 --delta 1e-5": (3, "our.budget"),
    "budget show none.budget": (3, "none.budget"),
    "budget spend our.budget --run unknown --steps 1": (2, "run must be"),
    "budget settle our.budget --run unknown": (2, "run must be"),
    "budget settle our.budget --run first": (2, "steps must be"),
    "budget settle our.budget --run first --steps 1 --ledger x": (2, "steps must be left out beside ledger"),
    "budget reserve our.budget --run second --plan replaced.json": (2, "adjacency must be"),
    "budget reserve our.budget --run second --plan large.json": (1, "second"),
    "budget fits our.budget --plan large.json --continuing abc": (3, "our.budget"),
    f"{ISSUE} plan.json --steps-taken 0": (2, "steps_taken must be"),
    f"{ISSUE} plan.json --steps-taken 1001": (1, "1001"),
    f"{ISSUE} plan.json --run first": (2, "budget must be"),
    f"{ISSUE} plan.json --budget our.budget": (2, "run must be"),
    f"{ISSUE} plan.json --unit-of-privacy 'two\nlines'": (2, "unit_of_privacy must be"),
    f"{ISSUE} plan.json --ledger none.ledger": (3, "none.ledger"),
    f"{ISSUE} plan.json --ledger none.ledger --steps-taken 3": (2, "steps_taken must be"),
    f"{ISSUE} plan.json --settings-cost replaced.json": (2, "adjacency must be"),
    f"{ISSUE} plan.json --settings-cost small.json": (2, "plan must be"),
    f"{ISSUE} small.json": (2, "plan must be"),
    "certificate issue our.budget --plan plan.json --settings-chosen-on public --overwrite": (3, "our.budget"),
    "certificate issue mine.html --plan plan.json --settings-chosen-on public": (3, "mine.html"),
    "certificate show plan.json": (3, "plan.json"),
    "certificate check broken.toml": (3, "broken.toml"),
    "release going-on --to new": (3, "not over"),
    "report empty": (3, "empty"),
    "report run empty": (2, "runs must be"),
    "report run ./run --compare": (2, "runs must be"),
    "report run --compare": (2, "runs must be"),
    "report run empty --compare": (3, "empty"),
    "report run empty --compare --prediction x": (2, "prediction must be"),
    "report run --to mine.html": (3, "mine.html"),
    "serve . --list --port 80": (2, "port must be"),
    "serve . --list --open": (2, "open must be"),
    "serve . --json": (2, "json must be"),
    "serve nowhere": (3, "nowhere"),
    "evaluate model": (2, "records must be"),
    "evaluate model --dataset digits --npz private.npz": (2, "records must be"),
    "evaluate model --dataset digits --votes 3": (2, "augmentation must be"),
    "evaluate run --dataset digits": (3, "config.json"),
    "predict model": (2, "inputs must be"),
    "predict model --dataset digits --to mine.html": (3, "mine.html"),
    "predict model missing.png": (3, "missing.png"),
    "train --dataset digits --run new": (2, "epsilon must be"),
    "train --run new --method plain-sgd --epsilon 3": (2, "epsilon must be"),
    f"{TRAIN} --set trianing.views=2": (2, "table must be"),
    f"{TRAIN} --set training.view=2": (2, "key of [training] must be"),
    f"{TRAIN} --npz nowhere.npz --records 4 --num-classes 2": (3, "nowhere.npz"),
    f"{TRAIN} --device abacus": (2, "device must be"),
    f"{TRAIN} --settings-chosen-on private": (1, "pays"),
    f"{TRAIN} --budget none.budget": (3, "none.budget"),
    "train none.toml": (3, "none.toml"),
    "train --resume empty": (3, "empty"),
    "train --dataset digits --noise-multiplier 1 --steps 3 --run run": (3, "not empty"),
    **{
        f"train --resume run {option}": (2, "must be left out beside resume")
        for option in ("--set views=2", "--epsilon 3", "--method auto-s", "--views 2", "--seed 1", "plain.toml")
    },
    "search private.toml --study new": (2, "public or synthetic"),
    f"{SEARCH} --sampler best": (2, "sampler must be"),
    f"{SEARCH} --mean 3": (2, "mean must be"),
    f"{SEARCH} --epsilon 3": (2, "epsilon must be"),
    f"{PAID} later": (2, "pay must be"),
    f"{PAID} selection": (2, "mean must be"),
    f"{PAID} selection --mean 3 --trials 3": (2, "trials must be"),
    f"{PAID} selection --mean 3 --law uniform": (2, "law must be"),
    f"{PAID} selection --mean 3 --storage sqlite://": (2, "storage must be"),
    f"{PAID} composition --mean 3": (2, "mean must be"),
    "plan --sigma 3": (2, "(see: lehr"),
    "plan": (2, "--records"),
    "planning": (2, "planning"),
    "budget": (2, "Missing command"),
    "budget show": (2, "Missing argument"),
    "account --adjacency next-to": (2, "add-or-remove-one"),
}

CONFIG = """
[data]
name = "digits"
declared = "{declared}"
[privacy]
{noise}
expected_batch_size = 64
delta = 1e-4
steps = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, plans, configurations and files that are in the way."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "loop").symlink_to("loop")
    (folder / "empty").mkdir()
    (folder / "mine.html").write_text("mine")
    write_plan(folder / "plan.json")
    write_plan(folder / "large.json", noise_multiplier=0.6, steps=5000)
    write_plan(folder / "replaced.json", adjacency=Adjacency.REPLACE_ONE, steps=10)
    plan = strict_json.read(folder / "plan.json", Plan.from_json)
    strict_json.write(folder / "small.json", simulate(plan, expected_batch_size=64).to_json())
    with Budget.create(folder / "our.budget", dataset="MNIST", epsilon=3.0, delta=1e-5) as budget:
        budget.reserve(plan.event, run="first")
    (folder / "broken.toml").write_text("[data")
    (folder / "plain.toml").write_text("[method]\nname = 'plain-sgd'\n[privacy]\nsteps = 3\n")
    for name, declared, noise in (
        ("public", "public", "noise_multiplier = 2"),
        ("private", "private", "noise_multiplier = 2"),
        ("search", "public", "epsilon = 8"),
        ("paid", "private", ""),
    ):
        (folder / f"{name}.toml").write_text(CONFIG.format(declared=declared, noise=noise))
    write_records(folder)
    write_run(folder / "run")
    write_run(folder / "going-on", is_over=False)
    released_model(folder)
    return folder


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*") if path.name != "lock"}


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:90])
def test_refusal_is_one_line_with_its_exit_code(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = content(folder)
    result = CliRunner().invoke(app, shlex.split(line))
    code, words = REFUSED[line]
    assert result.exit_code == code, f"{result.stdout}{result.stderr}{result.exception!r}"
    assert result.stderr.startswith("lehr: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert content(folder) == before

"""Everything that reads a file, each with the file that is mutated for it, and with what must hold if it is accepted.

A reader runs in a folder of its own, with copies of what it needs. It may raise a ``LehrError``, and a command may
leave with one of its exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.store import ResultFile
from lehr import accounting
from lehr.accounting.ledger import Ledger
from lehr.certificates import checking
from lehr.certificates.certificate import read_certificate
from lehr.cli.main import app
from lehr.config import RunConfig
from lehr.data import image_folder, load
from lehr.data.decoding import decode_listed
from lehr.data.file_content import read_file
from lehr.data.image_folder import list_images
from lehr.data.readers import parse_cifar, read_inputs, read_npz
from lehr.data.split import Split
from lehr.errors import LehrError
from lehr.planning.budget import Budget
from lehr.reports.serving import Pages
from lehr.run.shape import Callback, Start
from lehr.search.request import Search
from lehr.training.fit import fit
from lehr.training.prepare import config_of_run, method_and_plan, run_plan
from lehr.training.records import read_data

EXIT_CODES = (0, 1, 2, 3, 4)
RECORDS = ("private.npz", "test.npz")
IMAGE_KINDS = ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm")


@dataclass(frozen=True)
class Reader:
    """What reads ``file``, a file of this kind; ``needs`` is what else is copied, and ``often`` its share of inputs."""

    name: str
    file: str
    kind: str
    read: Callable[[], object]
    often: int = 1
    needs: tuple[str, ...] = ()


class Stopped(LehrError):
    """A run that is not to go on."""


class _Stop(Callback):
    def started(self, start: Start) -> None:
        raise Stopped


def command(words: str) -> int:
    """Run the command ``lehr``; its exit code."""
    try:
        app(words.split())
    except SystemExit as end:
        code = end.code
    assert code in EXIT_CODES, f"exit code {code}"
    return int(code)


COMMANDS = (
    ("paid.json", "json", "certificate check paid.json"),
    ("paid.json", "json", "certificate show paid.json"),
    ("plan.json", "json", "account --plan plan.json"),
    ("plan.json", "json", "certificate issue new.json --plan plan.json --settings-chosen-on fixed"),
    ("plan.json", "json", "budget fits data.budget --plan plan.json"),
    ("data.budget", "entries", "budget show data.budget --json"),
    ("data.budget", "entries", "budget settle data.budget --run second --steps 5"),
    ("prediction.json", "json", "report run --prediction prediction.json"),
    ("model/config.json", "json", "evaluate model --npz test.npz"),
    ("model/model.safetensors", "safetensors", "predict model private.npz"),
    ("model/config.json", "json", "predict model images.idx --votes 2"),
    ("images", "folder", "evaluate model --folder images"),
    ("search-search/study.db", "database", "search search.toml --no-compile --json"),
    ("search-search/search.json", "json", "search search.toml --no-compile --json"),
    ("images.idx", "idx", "predict model images.idx"),
    ("private.npz", "npz", "predict model private.npz --json"),
    ("images/a/image.png", "png", "predict model images/a/image.png --resize"),
    ("nothing", "folder", "release run --to nothing"),
    ("plan.json", "folder", "predict model images.idx --to plan.json --overwrite"),
)
_RUN_FILES = (
    ("config.json", "json"),
    ("ledger.db", "entries"),
    ("metrics.jsonl", "json lines"),
    ("certificate.json", "json"),
    ("audit.json", "json"),
    ("model.safetensors", "safetensors"),
    ("private/key", "bytes"),
    ("private", "folder"),
)
_RESUMED_FILES = (
    ("config.json", "json"),
    ("config.json", "json"),
    ("ledger.db", "entries"),
    ("checkpoints/step-0000000000.safetensors", "safetensors"),
    ("checkpoints", "folder"),
    ("private/attempts.jsonl", "json lines"),
    ("private/fingerprint", "bytes"),
    ("private/diagnostics.jsonl", "json lines"),
    ("private/lock", "folder"),
    ("metrics.jsonl", "bytes"),
)


def readers(known: Mapping[str, Any]) -> list[Reader]:
    """All of them. ``known`` is what ``facts`` found in the files as they were written."""

    def reads_budget() -> None:
        with Budget.open("data.budget", continuing=known["budget head"]) as budget:
            status = budget.status()
            assert status.epsilon_spent >= known["budget spent"], "the budget shows less than was spent"
            assert (status.epsilon, status.delta) == known["budget limit"], "the budget has another limit"

    def reads_ledger() -> None:
        with Ledger.open("run/ledger.db", continuing=known["ledger head"]) as ledger:
            assert ledger.charged() == known["charged"], "the ledger shows other charges"

    def releases() -> None:
        if command("release run --to released") == 0:
            stated = read_certificate("released/certificate.json")
            assert stated.epsilon >= known["epsilon"], "the released model promises less than it costs"
            assert stated.delta <= known["delta"], "the released model promises less than it costs"

    def of_run() -> Iterator[Reader]:
        for file, kind in _RUN_FILES:
            yield Reader("release", f"run/{file}", kind, releases, 6, ("run",))
            yield Reader("report", f"run/{file}", kind, partial(command, "report run"), 3, ("run",))
            yield Reader("serve", f"run/{file}", kind, lambda: Pages(Path()).answer("/"), 8, ("run",))
        for file, kind in _RESUMED_FILES:
            yield Reader("resume", f"interrupted/{file}", kind, _resume, 6, ("interrupted", *RECORDS))

    mnist = "known/MNIST/raw/train-images-idx3-ubyte"
    return [
        Reader("certificate", "model/certificate.json", "json", partial(_check, "model/certificate.json"), 20),
        Reader("certificate", "paid.json", "json", partial(_check, "paid.json"), 20),
        *(Reader(words, file, kind, partial(command, words), 1, _needs(words)) for file, kind, words in COMMANDS),
        Reader("budget", "data.budget", "entries", reads_budget, 60),
        Reader("ledger", "run/ledger.db", "entries", reads_ledger, 60),
        *of_run(),
        Reader("configuration", "run.toml", "toml", _configure, 100, RECORDS),
        Reader("train", "run.toml", "toml", _train, 12, RECORDS),
        Reader("search", "search.toml", "toml", lambda: Search.read(Path("search.toml")).plan, 40, RECORDS),
        Reader("npz", "private.npz", "npz", lambda: read_npz(Path("private.npz")), 60),
        *(
            Reader("unlabelled", file, kind, partial(read_inputs, Path(file), shape=(1, 4, 4)), 40)
            for file, kind in (("private.npz", "npz"), ("images.idx", "idx"), ("images.idx.gz", "idx.gz"))
        ),
        Reader("known data", mnist, "idx", lambda: load("mnist", Path("known")), 10, ("known",)),
        Reader("split", "split.npy", "npy", lambda: Split.load("split.npy"), 40),
        Reader("cifar", "cifar.bin", "bytes", _cifar, 10),
        *(
            Reader(name, f"images/a/image.{ending}", "png" if ending == "png" else "bytes", read, 10, ("images",))
            for name, read in (("image folder", _image_folder), ("streamed folder", _streamed_folder))
            for ending in IMAGE_KINDS
        ),
        Reader("kept results", "kept.json", "json", lambda: ResultFile.read("kept.json"), 10),
    ]


def _needs(words: str) -> tuple[str, ...]:
    """The files and folders that a command names, and those behind them."""
    files = (".npz", ".budget", ".toml", ".idx")
    named = [word for word in words.split() if word in ("run", "model", "images") or Path(word).suffix in files]
    return (*named, "search-search", *RECORDS) if words.startswith("search") else tuple(named)


def facts() -> dict[str, Any]:
    """What the files in the current folder say, before any of them is mutated."""
    certificate = read_certificate("model/certificate.json")
    with Budget.open("data.budget") as budget, Ledger.open("run/ledger.db") as ledger:
        status = budget.status()
        return {
            "budget head": budget.head,
            "budget spent": status.epsilon_spent,
            "budget limit": (status.epsilon, status.delta),
            "ledger head": ledger.head,
            "charged": ledger.charged(),
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
        }


def _check(file: str) -> None:
    certificate = read_certificate(file)
    if not checking.mismatches(certificate):
        costs = accounting.bound(certificate.event, delta=certificate.delta, adjacency=certificate.adjacency)
        assert certificate.epsilon >= costs.epsilon, "a certificate holds that promises less than its event costs"


def _cifar() -> None:
    parse_cifar(read_file(Path("cifar.bin")), num_labels=1, path=Path("cifar.bin"))


def _configure() -> None:
    config = RunConfig.read(Path("run.toml"))
    method_and_plan(config)
    run_plan(config)
    read_data(config)


def _train() -> None:
    config = RunConfig.read(Path("run.toml"))
    fit(config=config, directory=Path("new"), callbacks=[_Stop()], quiet=True, compiled=False, seed=1)


def _resume() -> None:
    config = config_of_run(Path("interrupted")).with_values(data={"npz": "private.npz", "test_npz": "test.npz"})
    fit(config=config, directory=Path("interrupted"), resume=True, callbacks=[_Stop()], quiet=True, compiled=False)


def _image_folder() -> None:
    image_folder.read_image_folder(Path("images"), size=(4, 4))


def _streamed_folder() -> None:
    files = list_images(Path("images"))
    for index in range(len(files)):
        decode_listed(files.at(index), size=(4, 4), channels=3)

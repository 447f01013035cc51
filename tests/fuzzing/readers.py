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
from lehr.data.records import InMemory
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


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What reads ``file``, a file of this kind; ``needs`` is what else is copied, and ``often`` its share of inputs."""

    name: str
    file: str
    kind: str
    read: Callable[[], object]
    needs: tuple[str, ...] = ()
    often: int = 1


class Stopped(LehrError):
    """A run that is not to go on."""


class _Stop(Callback):
    def started(self, start: Start) -> None:
        raise Stopped


def command(*words: str) -> int:
    """Run the command ``lehr``; its exit code."""
    try:
        app(list(words))
    except SystemExit as end:
        code = end.code
    assert code in EXIT_CODES, f"exit code {code}"
    return int(code)


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
        if command("release", "run", "--to", "released") == 0:
            stated = read_certificate("released/certificate.json")
            assert stated.epsilon >= known["epsilon"], "the released model promises less than it costs"
            assert stated.delta <= known["delta"], "the released model promises less than it costs"

    def shows(*words: str) -> Callable[[], object]:
        return lambda: command(*words)

    return [
        *(
            Reader(name="certificate", file=file, kind="json", read=_checker(file), often=20)
            for file in ("model/certificate.json", "paid.json")
        ),
        *_commands(
            ("paid.json", "json", "certificate check paid.json"),
            ("paid.json", "json", "certificate show paid.json"),
            ("plan.json", "json", "account --plan plan.json"),
            ("plan.json", "json", "certificate issue new.json --plan plan.json --settings-chosen-on fixed"),
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
        ),
        Reader(name="budget", file="data.budget", kind="entries", read=reads_budget, often=60),
        Reader(name="ledger", file="run/ledger.db", kind="entries", read=reads_ledger, often=60),
        Reader(name="plan and budget", file="plan.json", kind="json", needs=("data.budget",), often=2,
               read=shows("budget", "fits", "data.budget", "--plan", "plan.json")),
        *(
            Reader(name="release", file=f"run/{file}", kind=kind, read=releases, needs=("run",), often=6)
            for file, kind in _RUN_FILES
        ),
        *(
            Reader(name="report", file=f"run/{file}", kind=kind, read=shows("report", "run"), needs=("run",), often=3)
            for file, kind in _RUN_FILES
        ),
        *(
            Reader(name="serve", file=f"run/{file}", kind=kind, read=_serve, needs=("run",), often=8)
            for file, kind in _RUN_FILES
        ),
        *(
            Reader(name="resume", file=f"interrupted/{file}", kind=kind, read=_resume, needs=_RESUMED, often=6)
            for file, kind in _RESUMED_FILES
        ),
        Reader(name="release --to", file="nothing", kind="folder", needs=("run",),
               read=shows("release", "run", "--to", "nothing")),
        Reader(name="predict --to", file="plan.json", kind="folder", needs=("model", "images.idx"),
               read=shows("predict", "model", "images.idx", "--to", "plan.json", "--overwrite")),
        Reader(name="configuration", file="run.toml", kind="toml", read=_configure, needs=RECORDS, often=100),
        Reader(name="train", file="run.toml", kind="toml", read=_train, needs=RECORDS, often=12),
        Reader(name="search", file="search.toml", kind="toml", read=lambda: Search.read(Path("search.toml")).plan,
               needs=RECORDS, often=40),
        Reader(name="npz", file="private.npz", kind="npz", read=lambda: read_npz(Path("private.npz")), often=60),
        *(
            Reader(name="unlabelled", file=file, kind=kind, read=_unlabelled(file), often=40)
            for file, kind in (("private.npz", "npz"), ("images.idx", "idx"), ("images.idx.gz", "idx.gz"))
        ),
        Reader(name="known data", file="known/MNIST/raw/train-images-idx3-ubyte", kind="idx",
               needs=("known",), often=10,
            read=lambda: load("mnist", Path("known"))),
        Reader(name="split", file="split.npy", kind="npy", read=lambda: Split.load("split.npy"), often=40),
        Reader(name="cifar", file="cifar.bin", kind="bytes", often=10,
               read=lambda: _cifar("cifar.bin")),
        *(
            Reader(name=read.__name__, file=f"images/a/image.{ending}", kind="png" if ending == "png" else "bytes",
                   read=read, needs=("images",), often=10)
            for read in (_image_folder, _streamed_folder)
            for ending in ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm")
        ),
        Reader(name="kept results", file="kept.json", kind="json", read=lambda: ResultFile.read("kept.json"), often=10),
    ]  # fmt: skip


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
_RESUMED = ("interrupted", *RECORDS)
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


def _commands(*described: tuple[str, str, str]) -> Iterator[Reader]:
    for file, kind, words in described:
        needs = [word for word in words.split() if word in _FOLDERS or Path(word).suffix in _FILES]
        if words.startswith("search"):
            needs += ["search-search", *RECORDS]
        yield Reader(name=words, file=file, kind=kind, read=partial(command, *words.split()), needs=tuple(needs))


_FOLDERS, _FILES = ("run", "model", "images"), (".npz", ".budget", ".toml", ".idx")


def _checker(file: str) -> Callable[[], None]:
    def check() -> None:
        certificate = read_certificate(file)
        if not checking.mismatches(certificate):
            costs = accounting.bound(certificate.event, delta=certificate.delta, adjacency=certificate.adjacency)
            assert certificate.epsilon >= costs.epsilon, "a certificate holds that promises less than its event costs"

    return check


def _cifar(name: str) -> InMemory:
    return parse_cifar(read_file(Path(name)), num_labels=1, path=Path(name))


def _unlabelled(file: str) -> Callable[[], object]:
    return lambda: read_inputs(Path(file), shape=(1, 4, 4))


def _configure() -> None:
    said = RunConfig.read(Path("run.toml"))
    method_and_plan(said)
    run_plan(said)
    read_data(said)


def _train() -> None:
    fit(
        config=RunConfig.read(Path("run.toml")),
        directory=Path("new"),
        callbacks=[_Stop()],
        quiet=True,
        compiled=False,
        seed=1,
    )


def _resume() -> None:
    words = {"npz": "private.npz", "test_npz": "test.npz"}
    asked = config_of_run(Path("interrupted")).with_values(data=words)
    fit(config=asked, directory=Path("interrupted"), resume=True, callbacks=[_Stop()], quiet=True, compiled=False)


def _serve() -> None:
    Pages(Path()).answer("/")


def _image_folder() -> None:
    image_folder.read_image_folder(Path("images"), size=(4, 4))


def _streamed_folder() -> None:
    files = list_images(Path("images"))
    for place in range(len(files)):
        decode_listed(files.at(place), size=(4, 4), channels=3)

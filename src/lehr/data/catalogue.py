"""The built-in data sets: public facts, files with sizes and hashes, download addresses, and copies on this machine.

Means, standard deviations and numbers of records are published constants and count as public. Hashes are of the
uncompressed content. A file without a hash is checked by its size, and the archive it comes from by its published MD5.

Folders are searched in this order: ``data_dir``, those in the variable ``LEHR_DATA``, ``data`` and ``datasets`` below
the current and the home folder, torchvision's caches, Lehr's cache, ``/usr/share/datasets``. Needs no torch.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lehr import validate
from lehr.data import file_content
from lehr.errors import StoreError

VARIABLE = "LEHR_DATA"
_SYSTEM = Path("/usr/share/datasets")
_DEFAULT = ("data", "datasets", "~/data", "~/datasets", "~/.cache/torchvision", "~/.cache/torch/datasets")

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class DataFile:
    """A file by its uncompressed content."""

    name: str
    num_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a data set lies on disk. ``folders`` are searched below each root; downloads go into the first."""

    reader: str
    folders: tuple[str, ...]
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files."""
        return self.train + self.test


@dataclass(frozen=True)
class Source:
    """A compressed tar file with all files and its published MD5, or an address below which every file is NAME.gz."""

    address: str
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSetInfo:
    """A data set and what is public about it. One without a layout ships with Lehr."""

    name: str
    title: str
    homepage: str
    citation: str
    records: int
    test_records: int
    num_classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: Layout | None = None
    sources: tuple[Source, ...] = ()
    unsupported_folder: str | None = None  # of a layout that Lehr does not read

    @property
    def num_bytes(self) -> int:
        """The size of all records, uncompressed."""
        return (self.records + self.test_records) * (math.prod(self.shape) + 1)


def data_set_info(name: str) -> DataSetInfo:
    """Return the entry of that name; the error lists the names."""
    return CATALOGUE[validate.one_of(CATALOGUE, name=name)]


def _idx(folders: tuple[str, ...], *sha256: str) -> Layout:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    files = tuple(map(DataFile, names, (47_040_016, 60_008, 7_840_016, 10_008), sha256))
    return Layout(reader="idx", folders=folders, train=files[:2], test=files[2:])


MNIST = DataSetInfo(
    name="mnist",
    title="MNIST, handwritten digits",
    homepage="http://yann.lecun.com/exdb/mnist/",
    citation="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
    records=60_000,
    test_records=10_000,
    num_classes=10,
    shape=(1, 28, 28),
    mean=(0.1307,),
    std=(0.3081,),
    layout=_idx(
        ("MNIST/raw", "mnist", "MNIST"),
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    sources=(
        Source("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Source("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ),
)

FASHION_MNIST = DataSetInfo(
    name="fashion-mnist",
    title="Fashion-MNIST, pieces of clothing",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    citation="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking, 2017",
    records=60_000,
    test_records=10_000,
    num_classes=10,
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    layout=_idx(
        ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST"),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    sources=(
        Source("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        Source("https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
    ),
)

_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_CIFAR_10_SHA256 = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
)

CIFAR_10 = DataSetInfo(
    name="cifar-10",
    title="CIFAR-10, small photographs of ten kinds of things",
    homepage=f"{_CIFAR}cifar.html",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    records=50_000,
    test_records=10_000,
    num_classes=10,
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    layout=Layout(
        reader="cifar-10",
        folders=("cifar-10-batches-bin",),
        train=tuple(
            DataFile(f"data_batch_{number}.bin", 30_730_000, sha256)
            for number, sha256 in enumerate(_CIFAR_10_SHA256, start=1)
        ),
        test=(
            DataFile("test_batch.bin", 30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
    ),
    sources=(Source(f"{_CIFAR}cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),),
    unsupported_folder="cifar-10-batches-py",
)

CIFAR_100 = DataSetInfo(
    name="cifar-100",
    title="CIFAR-100, small photographs of a hundred kinds of things",
    homepage=f"{_CIFAR}cifar.html",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    records=50_000,
    test_records=10_000,
    num_classes=100,
    shape=(3, 32, 32),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    layout=Layout(  # only the hash of the archive is published
        reader="cifar-100",
        folders=("cifar-100-binary",),
        train=(DataFile("train.bin", 153_700_000),),
        test=(DataFile("test.bin", 30_740_000),),
    ),
    sources=(Source(f"{_CIFAR}cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),),
    unsupported_folder="cifar-100-python",
)

DIGITS = DataSetInfo(
    name="digits",
    title="Optical recognition of handwritten digits (UCI), 8 × 8 pixels",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    citation="Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998",
    records=1_464,
    test_records=333,
    num_classes=10,
    shape=(1, 8, 8),
    mean=(0.3053,),
    std=(0.3760,),
)

CATALOGUE = {info.name: info for info in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, DIGITS)}


@dataclass(frozen=True, kw_only=True)
class LocalCopy:
    """A folder that has all files of a layout by name. Their content is not verified yet."""

    layout: Layout
    folder: Path
    paths: Mapping[str, Path]

    def read(self, file: DataFile) -> bytearray:
        """Return the verified content of one of the files."""
        return read_verified(file, self.paths[file.name])

    def problem(self) -> str | None:
        """Return what is wrong with the content of the files, or None."""
        try:
            for file in self.layout.files:
                self.read(file)
        except StoreError as error:
            return str(error)
        return None


def cache_folder() -> Path:
    """Return the folder for downloads where no other is given."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lehr"


def configured_folders(data_dir: PathLike | None = None) -> list[Path]:
    """Return the folders the user named. Each may be a data set's own folder or one above it."""
    given = [] if data_dir is None else [os.fspath(data_dir)]
    listed = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [_expanded(folder) for folder in [*given, *listed] if folder]


def default_folders() -> list[Path]:
    """Return the folders that are searched without being named."""
    return [*map(_expanded, _DEFAULT), cache_folder(), _SYSTEM]


def target_folder(info: DataSetInfo, data_dir: PathLike | None = None) -> Path:
    """Return the folder that downloads of a data set go into."""
    assert info.layout is not None
    return (configured_folders(data_dir) or [cache_folder()])[0] / info.layout.folders[0]


def local_copies(info: DataSetInfo, data_dir: PathLike | None = None) -> Iterator[LocalCopy]:
    """Yield every folder that has all files of a data set by name, in the order of the search."""
    configured = configured_folders(data_dir)
    if info.layout is None:
        return
    for root in dict.fromkeys([*configured, *default_folders()]):
        for folder in [root / below for below in info.layout.folders] + [root] * (root in configured):
            paths = {file.name: path for file in info.layout.files if (path := _present(folder, file.name)) is not None}
            if len(paths) == len(info.layout.files):
                yield LocalCopy(layout=info.layout, folder=folder, paths=paths)


def find_copy(info: DataSetInfo, data_dir: PathLike | None = None) -> LocalCopy | None:
    """Return the first copy whose content is verified."""
    return next((copy for copy in local_copies(info, data_dir) if copy.problem() is None), None)


def how_to_get(info: DataSetInfo, data_dir: PathLike | None = None) -> str:
    """Return how to install a data set that is not on this machine, as one paragraph."""
    assert info.layout is not None
    files = ", ".join(f"{file.name} ({file.num_bytes:,} bytes)" for file in info.layout.files)
    advice = (
        f"Get it with `lehr data get {info.name}`, or put these files, uncompressed or with .gz, into "
        f"{target_folder(info, data_dir)}: {files}"
    )
    for root in [*configured_folders(data_dir), *default_folders()]:
        if info.unsupported_folder is not None and (root / info.unsupported_folder).is_dir():
            [address] = [source.address for source in info.sources]
            return (
                f"{root / info.unsupported_folder} is the Python (pickle) layout; Lehr reads the binary layout, "
                f"{address}. {advice}"
            )
    return advice


def read_verified(file: DataFile, path: Path) -> bytearray:
    """Return the content of a file after comparing its size and hash with the catalogue; raise ``StoreError``."""
    whole = file_content.read_exactly(path, num_bytes=file.num_bytes)
    given = hashlib.sha256(whole).hexdigest()
    if file.sha256 not in (None, given):
        raise StoreError(f"cannot use {path}: its content has the SHA-256 {given}, not {file.sha256}")
    return whole


def _present(folder: Path, name: str) -> Path | None:
    try:
        return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    except OSError:  # no permission to look into the folder
        return None


def _expanded(folder: str) -> Path:
    return Path(os.path.expanduser(folder)).absolute()

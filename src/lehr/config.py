"""``RunConfig``: all settings of a run, as one frozen tree of dataclasses that is validated on construction.

    [data]                              [privacy]
    name = "mnist"                      epsilon = 3
                                        delta = 1e-5
    [model]                             expected_batch_size = 512
    network = "paper_cnn"               noise_multiplier = 1.23
    activation = "tanh"                 settings_chosen_on = "public"

    [method]                            [training]
    name = "sa-dpsgd"                   averaging = { kind = "exponential", decay = 0.999 }
    rejection_threshold = 4             evaluate_every = 100

Each field is declared once, with its type, default and help text. The TOML key, the keyword of ``lehr.fit``, the option
of ``lehr train`` with its help, ``--set`` and config.json are derived from it. To add an option, add a field
(CONTRIBUTING.md has an example). All tables and keys are optional.

>>> config = RunConfig().with_options(batch_size=256, epsilon=3, network="paper_cnn")
>>> config.privacy.expected_batch_size, config.model.network
(256, 'paper_cnn')
>>> RunConfig().with_options(clip_nrom=1.0)
Traceback (most recent call last):
...
lehr.errors.InvalidValue: option must be a known one; did you mean clip_norm?; given: 'clip_nrom'
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, Self, cast, get_args, get_origin, get_type_hints

from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json, toml_text

# Names from other libraries, accepted wherever a field can be given.
ALIASES = {
    "batch_size": "expected_batch_size",
    "lr": "learning_rate",
    "lr_scheduler": "schedule",
    "max_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "max_steps": "steps",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "scheduler": "schedule",
    "target_delta": "delta",
    "target_epsilon": "epsilon",
}
# Names from other libraries that an error translates; what they mean there is not quite the same.
SUGGESTIONS = {
    "accumulate_grad_batches": "physical_batch",
    "callback": "callbacks",
    "checkpoint_dir": "directory",
    "classes": "num_classes",
    "criterion": "loss_fn",
    "early_stopping": "patience",
    "gradient_accumulation_steps": "physical_batch",
    "gradient_clip_val": "clip_norm",
    "l2_norm_clip": "clip_norm",
    "loss": "loss_fn",
    "max_physical_batch_size": "physical_batch",
    "n_classes": "num_classes",
    "num_samples": "records",
    "num_train_epochs": "epochs",
    "num_workers": "workers",
    "optim": "optimizer",
    "output_dir": "directory",
    "per_device_train_batch_size": "batch_size",
    "poisson_sampling": "sampling",
    "random_state": "seed",
    "sample_rate": "batch_size",
    "sample_size": "records",
    "save_dir": "directory",
    "sigma": "noise_multiplier",
    "test_data": "test",
    "train_data": "data",
    "validation_data": "test",
    "verbose": "quiet",
}
# DPSGD's settings where none are given, in fit, on the command line and in the integrations. The learning rate acts on
# gradients of at most CLIP_NORM.
LEARNING_RATE, CLIP_NORM, MOMENTUM = 0.5, 0.1, 0.9
DATA_FORMS = ("npz", "folder")
CLASSIFICATION, REGRESSION, MULTILABEL = TASKS = ("classification", "regression", "multilabel")
BANDED, BANDED_INVERSE = CORRELATIONS = ("banded", "banded-inverse")  # matrices of correlated noise
PLAN_FIELDS = (
    "epsilon",
    "delta",
    "noise_multiplier",
    "expected_batch_size",
    "steps",
    "epochs",
    "sampling",
    "adjacency",
    "largest_batch",
    "bands",
    "correlation",
    "records_per_user",
    "max_records_per_user",
    "noise_schedule",
    "simulated_batch_size",
)


def option(
    help: str,  # noqa: A002
    default: Any = None,
    *,
    check: Callable[..., Any] | None = None,
    choices: tuple[str, ...] | None = None,
    keyword: str | None = None,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    in_cli: bool = True,
) -> Any:
    """Declare a field. ``keyword`` is its name in ``fit`` if that differs; ``flags`` are its command-line names."""
    metadata = {
        "help": help,
        "check": check or (choices and (lambda **named: validate.one_of(choices, **named))),
        "keyword": keyword,
        "flags": flags,
        "metavar": metavar,
        "in_cli": in_cli,
    }
    return field(default=default, metadata=metadata)


class Option(NamedTuple):
    """A declared field, with everything that ``fit``, the command line and TOML need."""

    table: str
    key: str
    keyword: str
    type: type
    default: Any
    help: str
    flags: tuple[str, ...]
    metavar: str | None
    in_cli: bool
    check: Callable[..., Any] | None


class Section(Mapping[str, Any]):
    """One table of the tree. As a mapping it contains the values that differ from the defaults, by TOML key."""

    REST: ClassVar[str | None] = None  # the field for keys that belong to a method or a network
    TABLE: ClassVar[str] = ""
    RECORDED: ClassVar[tuple[str, ...] | None] = None  # the fields that a run's config.json records; None: all

    def __post_init__(self) -> None:
        if self.REST is not None:
            rest = dict(getattr(self, self.REST))
            for key in [key for key in rest if key in _options(type(self))]:
                object.__setattr__(self, key, rest.pop(key))
            object.__setattr__(self, self.REST, rest)
        for key, each in _options(type(self)).items():
            value = getattr(self, key)
            if value is not None:
                object.__setattr__(self, key, _checked(each, value))

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build the section from a table. None counts as not given; aliases are accepted."""
        known = _options(cls)
        given: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, value in table.items():
            name = key if key in known else ALIASES.get(key, key)
            if name in known:
                if name in given:
                    raise InvalidValue(name, allowed=f"given once; {key} is an alias of it", given=value)
                given[name] = value
            elif name == cls.REST:
                rest |= strict_json.check_object(key, value)
            elif cls.REST is not None:  # the argument of a network may have any name
                rest[key] = value
            else:
                raise InvalidValue(f"key of [{cls.TABLE}]", allowed="one of " + ", ".join(sorted(known)), given=key)
        if cls.REST is not None:
            given[cls.REST] = rest
        return cls(**{key: value for key, value in given.items() if value is not None})

    def __getitem__(self, key: str) -> Any:
        return self._given()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given())

    def __len__(self) -> int:
        return len(self._given())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.items())})"

    def _given(self) -> dict[str, Any]:
        given = {key: getattr(self, key) for key in _options(type(self))}
        given = {key: value for key, value in given.items() if value != _options(type(self))[key].default}
        return {**given, **(getattr(self, self.REST) if self.REST else {})}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DataConfig(Section):
    """The records. Paths are never recorded."""

    TABLE, RECORDED = "data", ("name", "records", "users", "num_classes", "task", "declared")

    name: str | None = option(
        "A built-in data set (see `lehr data list`), or a name for your own data.",
        keyword="dataset",
        flags=("--dataset",),
    )
    data_dir: Path | None = option("Folder to search for data sets first.", metavar="FOLDER")
    npz: Path | None = option("Your own records: arrays of inputs and targets.", metavar="FILE")
    folder: Path | None = option("Images in one folder per class.", metavar="FOLDER")
    test_npz: Path | None = option("Public records to evaluate on.", metavar="FILE")
    test_folder: Path | None = option("Public images to evaluate on, in one folder per class.", metavar="FOLDER")
    public_npz: Path | None = option("Public records used for acceptance.", metavar="FILE")
    public_folder: Path | None = option("Public images used for acceptance, in one folder per class.", metavar="FOLDER")
    prior: Path | None = option("Folder of `lehr prior make`: weights to start from.", metavar="FOLDER")
    image_side: int | None = option("Scale images from folders to this side length.")
    channels: int = option("Channels of images from folders: 3, or 1 for grey.", 3)
    streamed: bool = option("Read images from folders only when they are sampled.", False)
    workers: int | None = option(
        "Processes that decode streamed images; 4 by default.",
        check=lambda **named: validate.count(minimum=0, **named),
    )
    records: int | None = option("Number of records. You state it, and it is public. Required for your own data.")
    num_classes: int | None = option("Number of classes. Required for your own data, unless the task is another.")
    task: str | None = option(
        "classification, regression or multilabel; by default regression if targets are floats without num_classes.",
        choices=TASKS,
    )
    owners: str | None = option(
        "Column or npz array with the owner of each record: the unit of privacy is then a user, not a record.",
        metavar="NAME",
    )
    users: int | None = option("Number of users. You state it, and it is public. Required with owners.")
    target: str | None = option("Column of the targets, if the data are a table; label or labels.", in_cli=False)
    declared: str = option(
        "private; or public or synthetic for records that need no protection, without any guarantee.",
        "private",
        choices=("private", "public", "synthetic"),
    )
    mean: Any = option("Public mean of each channel.", in_cli=False)
    std: Any = option("Public standard deviation of each channel.", in_cli=False)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelConfig(Section):
    """The network. Other keys are the network's own arguments."""

    TABLE, REST = "model", "arguments"

    network: str | None = option(
        "Network by name; by default one that suits the shape of the images. On the command line also "
        "package.module:factory, a function that returns your own network: this runs your code."
    )
    activation: str | None = option(
        "Activation of the network: tanh, relu, tempered_sigmoid(mnist), tempered_sigmoid(1.97, 2.27, 1.15), ..."
    )
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MethodConfig(Section):
    """The training method. Other keys are the method's own settings."""

    TABLE, REST = "method", "settings"

    # Listed here, because importing lehr.methods would import torch just for a help text.
    name: str = option(
        "adadp, adal, adan, agd, auto-s, dpopt, dpsgd, dpsgd-per-layer, dpsur, sa-dpsgd, or plain-sgd (no privacy).",
        "dpsgd",
        keyword="method",
        flags=("--method",),
    )
    learning_rate: float | None = option("Learning rate.", check=validate.positive)
    clip_norm: float | None = option("Largest norm of one record's gradient.", check=validate.positive)
    clip: str | None = option("Clip rule of dpsgd: flat (the default), automatic, per-layer or quantile.")
    target_quantile: float | None = option(
        "With the clip rule quantile: the part of records that the clip norm, clip_norm at first, leaves unclipped."
    )
    noise: str | None = option(
        "float; or discrete: integers, so that the last bits of floating point tell nothing. For dpsgd, auto-s and "
        "dpsgd-per-layer.",
        choices=("float", "discrete"),
    )
    momentum: float | None = option("Momentum of the optimizer.", check=validate.non_negative)
    weight_decay: float | None = option(
        "Weight decay of the optimizer; needs a learning rate.", check=validate.non_negative
    )
    optimizer: str | None = option(
        "Optimizer by name, such as sgd, adam or adamw, with torch's defaults; needs a learning rate."
    )
    schedule: Any = option("Learning rate over the run: constant, cosine or linear; in a file also a table.")
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrivacyConfig(Section):
    """The guarantee, and the numbers that determine the plan."""

    TABLE, RECORDED = "privacy", ("private_pca",)  # config.json stores the plan and the statements outside the tables

    epsilon: float | None = option("Largest ε that the whole run may cost.", check=validate.positive)
    delta: float | None = option("The δ of (ε, δ); by default a power of ten below 1/records.", check=validate.delta)
    noise_multiplier: float | None = option(
        "Standard deviation of the noise, divided by the sensitivity.", check=validate.non_negative
    )
    expected_batch_size: float | None = option("Expected number of records in a batch.", check=validate.positive)
    steps: int | None = option("Number of steps.")
    epochs: float | None = option("Passes over the data, instead of steps.", check=validate.positive)
    sampling: str = option("poisson, balls-in-bins, truncated-poisson or without-replacement.", "poisson")
    adjacency: str | None = option(
        "zero-out: with truncated-poisson or without-replacement, neighbours have a record that adds nothing.",
        choices=("add-or-remove-one", "replace-one", "zero-out"),
    )
    largest_batch: int | None = option(
        "With truncated-poisson: larger batches are cut to this at random; by default a size hardly ever exceeded."
    )
    bands: int = option(
        "More than 1: noise that is correlated over this many steps and cancels in part; for few passes at a large ε.",
        1,
    )
    correlation: str = option(
        "With bands: of what matrix they are. banded-inverse keeps no past noise, but does not amplify by sampling.",
        BANDED,
        choices=CORRELATIONS,
    )
    records_per_user: int | None = option(
        "With owners: records of a drawn user in a step, chosen at random and averaged before clipping; 1 by default."
    )
    max_records_per_user: int | None = option(
        "With owners: draw records, not users, with at most so many of each user in the whole run. State records then."
    )
    noise_schedule: Any = option("Multiplies the noise step by step, and is counted.", in_cli=False)
    simulated_batch_size: float | None = option(
        "Simulate the plan with smaller batches; for public records only.", check=validate.positive
    )
    accounting: str | None = option(
        "proven; or published: plan by the paper's accounting rule, and show both.",
        choices=("proven", "published"),
    )
    settings_chosen_on: str | None = option(
        "How the settings were chosen: fixed, public or private. Without it there is no certificate.",
        choices=("fixed", "public", "private"),
    )
    budget: Path | None = option("Budget file that pays for the run.", metavar="BUDGET")
    private_pca: Any = option("Fills a projection layer before the first step, with charged noise.", in_cli=False)
    stated: Any = option("Statements for the certificate.", in_cli=False)
    plan: Any = option("A finished plan, instead of its numbers.", in_cli=False)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TrainingConfig(Section):
    """How to train. None of these fields changes the ε of a training step."""

    TABLE = "training"

    recipe: str | None = option("Choose network, method, batch, steps and rate by this recipe; auto chooses one.")
    augmentation: Any = option("none, flip_crop, rrc, ours or simclr.", "none")
    views: int = option("Augmented copies of a record, averaged before clipping.", 1)
    phases: Any = option(
        "Which layers are trained for how many steps, at which rate, with how many views.", in_cli=False
    )
    averaging: Any = option("Average of the weights.", in_cli=False)
    precision: str = option("as_model or bfloat16.", "as_model", choices=("as_model", "bfloat16"))
    evaluate_every: int | None = option("Steps between evaluations.")
    patience: int | None = option("Stop after this many evaluations without a lower loss.")
    acceptance_fraction: float = option("Fraction of the test records used for acceptance.", 0.5, check=validate.delta)
    held_out_fraction: float = option(
        "Fraction of the private records held out for evaluation, with noise that is charged.",
        0.0,
        check=validate.non_negative,
    )
    held_out_noise_multiplier: float = option(
        "Noise multiplier of evaluations on held-out records.", 20.0, check=validate.positive
    )
    largest_loss: float | None = option(
        "Clip losses on held-out records to this; 4 by default, required for regression.", check=validate.positive
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RunOptions(Section):
    """Where and how a run is computed. None of these fields is recorded in config.json."""

    TABLE, RECORDED = "run", ()

    directory: Path | None = option("Folder for the run; must be new.", flags=("--run",), metavar="FOLDER")
    resume: bool = option("Continue the run in the folder.", False, in_cli=False)
    name: str | None = option("Name of the run, in its ledger and its budget.")
    seed: int | None = option(
        "Seed for weight initialisation; DP noise is never seeded.",
        check=lambda **named: validate.count(minimum=0, **named),
    )
    device: Any = option("cpu or cuda.")
    physical_batch: int | None = option("Records per physical batch; does not change the result.")
    compiled: bool | None = option("torch.compile the step.", flags=("--compile/--no-compile",))
    sharded: bool = option("Under torchrun: shard the weights over the processes.", False, flags=("--shard",))
    checkpoint_seconds: float = option("Seconds between checkpoints.", 10.0, check=validate.non_negative)
    diagnostics: bool = option(
        "Keep un-noised diagnostics in the run's private folder.",
        False,
        flags=("--private-diagnostics",),
    )
    quiet: bool = option("Show no progress.", False, flags=("--quiet", "-q"))
    silent: bool = option("Show nothing, not even why a run ended early.", False, in_cli=False)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The whole tree. ``of`` and ``with_values`` take tables; ``with_options`` takes the keywords of ``fit``."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    run: RunOptions = field(default_factory=RunOptions)

    @classmethod
    def of(cls, **tables: Mapping[str, Any]) -> Self:
        """Build the configuration from tables."""
        known = sections(cls)
        for name, table in tables.items():
            if name not in known or not isinstance(table, Mapping):
                raise InvalidValue("table", allowed="one of " + ", ".join(f"[{each}]" for each in known), given=name)
        made: dict[str, Any] = {name: known[name].of(table) for name, table in tables.items()}
        return cls(**made)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the configuration from a TOML file. ``lehr.search`` reads the table [search]."""
        tables = read_tables(path)
        tables.pop("search", None)
        return cls.of(**tables)

    @classmethod
    def from_json(cls, shape: Mapping[str, Any]) -> Self:
        """Build the configuration from ``to_json`` output or a run's config.json. Additional keys are ignored."""
        tables: dict[str, dict[str, Any]] = {}
        for name, section in sections(cls).items():
            given = shape.get(name)
            known = {*_options(section), section.REST}
            tables[name] = {key: given[key] for key in given if key in known} if isinstance(given, Mapping) else {}
        if "preparation" in shape.get("data", {}):
            tables["data"] |= strict_json.check_object("preparation", shape["data"]["preparation"])
        tables["privacy"] |= {key: shape[key] for key in ("plan", "stated") if key in shape}
        if isinstance(shape.get("run"), str):
            tables["run"]["name"] = shape["run"]
        return cls.of(**tables)

    def to_json(self, *, is_recorded: bool = False) -> dict[str, dict[str, Any]]:
        """All fields as JSON, or with ``is_recorded`` only those that a run's config.json contains."""
        found: dict[str, dict[str, Any]] = {}
        for name, section in sections(type(self)).items():
            part = getattr(self, name)
            keys = [
                key
                for key in _options(section)
                if not is_recorded or section.RECORDED is None or key in section.RECORDED
            ]
            found[name] = {key: as_json(getattr(part, key)) for key in (*keys, *filter(None, [section.REST]))}
        return found

    def tables(self) -> dict[str, dict[str, Any]]:
        """The values that differ from the defaults, as JSON types."""
        return {name: as_json(dict(getattr(self, name))) for name in sections(type(self))}

    def to_toml(self) -> str:
        """The values that differ from the defaults, as TOML."""
        return toml_text.written(self.tables())

    def with_tables(self, **tables: Mapping[str, Any]) -> Self:
        """A copy in which these tables replace the current ones."""
        changed: dict[str, Any] = {name: getattr(self.of(**{name: table}), name) for name, table in tables.items()}
        return dataclasses.replace(self, **changed)

    def with_values(self, **tables: Mapping[str, Any]) -> Self:
        """A copy in which these keys replace the current ones, table by table. None counts as not given."""
        self.of(**tables)  # raises an error for unknown names
        known = sections(type(self))
        given = {
            name: {_key(known[name], key): value for key, value in table.items() if value is not None}
            for name, table in tables.items()
        }
        return self.with_tables(**{name: {**getattr(self, name), **table} for name, table in given.items()})

    def with_options(self, **flat: Any) -> Self:
        """A copy with these options, which have the names of ``fit``'s keywords. None counts as not given."""
        known = options(type(self))
        tables: dict[str, dict[str, Any]] = {}
        for name, value in flat.items():
            each = known.get(ALIASES.get(name, name))
            if each is None:
                close = suggestion(name, [*known, *ALIASES])
                hint = "see help(lehr.fit)" if close is None else f"did you mean {close}?"
                raise InvalidValue("option", allowed=f"a known one; {hint}", given=name)
            if value is None:
                continue
            table = tables.setdefault(each.table, {})
            if each.key in table:
                raise InvalidValue(each.keyword, allowed=f"given once; {name} is an alias of it", given=value)
            table[each.key] = value
        return self.with_values(**tables)

    def with_plan(self, plan: Any) -> Self:
        """A copy in which a finished plan replaces the numbers that determine one."""
        kept = {key: value for key, value in self.privacy.items() if key not in PLAN_FIELDS}
        return self.with_tables(privacy={**kept, "plan": plan})

    def at_full_batch(self) -> Self:
        """A copy without ``simulated_batch_size``."""
        kept = {key: value for key, value in self.privacy.items() if key != "simulated_batch_size"}
        return self.with_tables(privacy=kept)


def sections(tree: type[RunConfig] = RunConfig) -> dict[str, type[Section]]:
    """The tables of a tree, by name."""
    return {each.name: cast("type[Section]", each.default_factory) for each in dataclasses.fields(tree)}


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """The option that an unknown name stands for, or the closest of the known names.

    >>> suggestion("l2_norm_clip", ["clip_norm"]), suggestion("epsillon", ["epsilon", "delta"])
    ('clip_norm', 'epsilon')
    """
    return SUGGESTIONS.get(name) or next(iter(difflib.get_close_matches(name, [*known], n=1)), None)


def _key(section: type[Section], key: str) -> str:
    """The key of a section that a name stands for; other names stay."""
    alias = ALIASES.get(key, key)
    return alias if key not in _options(section) and alias in _options(section) else key


def is_known(table: str, key: str) -> bool:
    """Whether a table accepts a key. [method] and [model] accept every key: methods and networks add their own."""
    section = sections().get(table)
    return section is not None and (section.REST is not None or ALIASES.get(key, key) in _options(section))


def options(tree: type[RunConfig] = RunConfig) -> dict[str, Option]:
    """Every field of a tree, by the keyword that ``fit`` and the command line use."""
    return {each.keyword: each for section in sections(tree).values() for each in _options(section).values()}


@cache
def _options(section: type[Section]) -> dict[str, Option]:
    hints, found = get_type_hints(section), {}
    for each in dataclasses.fields(section):  # type: ignore[arg-type]
        if "help" in each.metadata:
            rest = {key: value for key, value in each.metadata.items() if key != "keyword"}
            keyword = each.metadata["keyword"] or each.name
            kind = _without_none(hints[each.name])
            found[each.name] = Option(
                table=section.TABLE, key=each.name, keyword=keyword, type=kind, default=each.default, **rest
            )
    return found


def _without_none(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        [kind] = (part for part in get_args(hint) if part is not NoneType)
        return kind
    return hint


def _checked(each: Option, value: Any) -> Any:
    named = {each.keyword: value}
    if each.check is not None:
        each.check(**named)
    if each.type is bool:
        return validate.true_or_false(**named)
    if each.type is int:
        return validate.count(minimum=0 if each.check else 1, **named)
    if each.type is str:
        return validate.text(**named)
    if each.type is Path:
        return value if isinstance(value, Path) else Path(validate.text(**named))
    return value


def as_json(value: Any) -> Any:
    """A value of the tree as JSON types. Objects with ``to_json`` use it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case _ if hasattr(value, "to_json"):
            return as_json(value.to_json())
        case Mapping():
            return {str(key): as_json(each) for key, each in value.items() if each is not None}
        case list() | tuple():
            return [as_json(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return as_json(dataclasses.asdict(value))
        case _:
            return str(value)


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    text = atomic.read(path)
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: an integer with thousands of digits
        raise StoreError(f"cannot use {path}: it is not TOML: {error}") from error
    strict_json.refuse_depth(read)
    return read

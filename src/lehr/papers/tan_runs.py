"""The training runs of TAN (Sander, Stock & Sablayrolles 2023) on CIFAR-10, as jobs.

All of them stand for one private training or for one that has the same η: batches of 4096 of 50 000 records at noise
multiplier 3. Smaller batches simulate it, with the same noise for a record and the same steps; they protect nobody,
and CIFAR-10 is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from lehr.papers.experiment import Size
from lehr.papers.job import Training

Network: TypeAlias = tuple[str, Mapping[str, Any]]

REFERENCE_BATCH, REFERENCE_NOISE, RECORDS = 4096, 3.0, 50_000
RATE, CLIP_NORM, DECAY = 4.0, 1.0, 0.999
PAPER_STEPS, SHORT_STEPS = 2500, 600
LAW_BATCHES, LARGEST_FITTED = (64, 128, 256, 512, 1024, REFERENCE_BATCH), 512
SEEDS = 3
RATE_SEED = 100  # none of the other runs has it
WIDE_RESNET: Network = ("wide_resnet", {"order": "after"})
VIT: Network = ("vision_transformer", {"width": 192, "depth": 6})
NF_RESNET: Network = (
    "nf_resnet",
    {"num_blocks": [2, 2, 2], "stem_channels": 56, "stem": "small", "num_classes": 10},
)
# Records at once by batch and views: about a whole draw, a half or a quarter of one.
AT_ONCE = MappingProxyType(
    {
        (128, 4): 84,
        (128, 8): 84,
        (256, 1): 296,
        (256, 4): 148,
        (256, 8): 148,
        (512, 1): 560,
        (512, 4): 280,
        (512, 8): 280,
        (512, 16): 140,
        (REFERENCE_BATCH, 4): 560,
    }
)
_SHORTER = 30
_SMALLER = 32  # times: the digits of scikit-learn have about a thirty-second of CIFAR-10's records
QUICK = (
    f"Quick: trainings are of a tiny network on the digits of scikit-learn, with batches {_SMALLER} and steps "
    f"{_SHORTER} times smaller than written."
)
_TINY: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "wide_resnet": {"depth": 10, "width": 1, "in_channels": 1},
        "vision_transformer": {"width": 24, "depth": 1, "image_side": 8, "patch_side": 2, "in_channels": 1},
        "nf_resnet": {"num_blocks": [1], "stem_channels": 8, "in_channels": 1},
    }
)


def run(
    *,
    batch: int,
    steps: int,
    seed: int,
    network: Network = WIDE_RESNET,
    rate: float = RATE,
    views: int = 1,
    augmentation: str = "none",
    records: int = RECORDS,
    stands_for: int = REFERENCE_BATCH,
    evaluate_every: int | None = None,
    physical_batch: int | None = None,
) -> Training:
    """One run; a batch that is smaller than what it ``stands_for`` makes it a simulation."""
    return Training(
        data="cifar-10",
        network=network,
        method="dpsgd",
        seed=seed,
        expected_batch_size=stands_for,
        steps=steps,
        noise_multiplier=REFERENCE_NOISE,
        settings={"learning_rate": rate, "clip_norm": CLIP_NORM, "momentum": 0.0},
        delta=delta_of(records),
        evaluate_every=evaluate_every,
        averaging={"kind": "exponential", "decay": DECAY},
        augmentation=augmentation,
        views=views,
        precision="bfloat16",
        physical_batch=physical_batch,
        simulated_batch_size=None if batch == stands_for else batch,
        records=None if records == RECORDS else records,
    )


def scored_run(*, batch: int, views: int, **more: Any) -> Training:
    """A short run that is scored on the way."""
    at_once = AT_ONCE[batch, views]
    return run(batch=batch, views=views, steps=SHORT_STEPS, evaluate_every=50, physical_batch=at_once, **more)


def delta_of(records: int) -> float:
    """10⁻⁵ for all of CIFAR-10, and in proportion for fewer records, as the paper has it."""
    return 0.5 / records


# --- The sets of runs -----------------------------------------------------------------------------------------------


def law(size: Size, *, steps: int, batch: int) -> list[Training]:
    """A point of Figure 4."""
    return [_sized(run(batch=batch, steps=steps, seed=seed), size) for seed in seeds(size)]


def order(size: Size, *, side: str, views: int) -> list[Training]:
    """A point of Figure 5: the norm after the activation, or before it."""
    network: Network = ("wide_resnet", {"order": side})
    return _scored(size, batch=512, views=views, network=network, augmentation="flip_crop")


def vit(size: Size, *, network: Network, rate: float, views: int) -> list[Training]:
    """A line of Figure 6."""
    return _scored(size, batch=256, views=views, network=network, rate=rate, augmentation="flip_crop")


def pipeline(
    size: Size, *, batch: int, rate: float = RATE, augmentation: str = "flip_crop", views: int = 4
) -> list[Training]:
    """A cell of Table 2 at small scale, and the augmented line of Figure 1."""
    return _scored(size, batch=batch, views=views, rate=rate, augmentation=augmentation)


def tried_rate(size: Size, *, network: Network, rate: float) -> list[Training]:
    """One run at a learning rate."""
    is_vit = network is VIT
    job = scored_run(
        batch=256 if is_vit else 512,
        views=1,
        network=network,
        rate=rate,
        augmentation="flip_crop" if is_vit else "none",
        seed=RATE_SEED,
    )
    return [_sized(job, size)]


def same_eta(size: Size, *, steps: int, stands_for: int, batch: int, rate: float) -> list[Training]:
    """Other steps and batches at the same η, as in Tables 3 and 4."""
    return [
        _sized(run(batch=batch, steps=steps, seed=seed, rate=rate, stands_for=stands_for), size) for seed in seeds(size)
    ]


def data_size(size: Size, *, records: int, batch: int, steps: int) -> list[Training]:
    """A row of Table 5."""
    return [_sized(run(batch=batch, steps=steps, seed=seed, records=records), size) for seed in seeds(size)]


def by_seed(points: Sequence[Sequence[Training]]) -> list[Training]:
    """The jobs of several points: the first seed of each, then the second, so that all are begun soon."""
    longest = max((len(jobs) for jobs in points), default=0)
    found = [jobs[place] for place in range(longest) for jobs in points if place < len(jobs)]
    return list({repr(job): job for job in found}.values())


def seeds(size: Size, *, usual: int = SEEDS) -> range:
    return range(size.seeds if size.seeds is not None else 1 if size.is_quick else usual)


def quick(job: Training) -> Training:
    """The same small: the digits of scikit-learn, a tiny network, a few steps."""
    name, arguments = job.network
    return replace(
        job,
        data="digits",
        network=(name, {**arguments, **_TINY[name]}),
        steps=job.steps // _SHORTER,
        expected_batch_size=job.expected_batch_size / _SMALLER,
        simulated_batch_size=None if job.simulated_batch_size is None else job.simulated_batch_size / _SMALLER,
        records=None if job.records is None else job.records // _SMALLER,
        evaluate_every=None if job.evaluate_every is None else 5,
        physical_batch=None,
        precision="as_model",
    )


def _scored(size: Size, *, batch: int, views: int, **more: Any) -> list[Training]:
    return [_sized(scored_run(batch=batch, views=views, seed=seed, **more), size) for seed in seeds(size)]


def _sized(job: Training, size: Size) -> Training:
    return quick(job) if size.is_quick else job


def titled(words: str, size: Size) -> str:
    """The title of a table. What is quick says so."""
    return f"{QUICK} {words.replace('CIFAR-10', 'digits')}" if size.is_quick else words

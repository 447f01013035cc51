"""What one private step costs beside a plain one: ``python -m benchmarks.step [--device cuda]`` prints a table.

Every side goes from a batch on the device to updated weights, in the same precision and the same run. *Plain* is a step
of ordinary SGD, compiled, the fastest of both memory formats and, on a GPU, of launches and of a recorded CUDA graph.
*Lehr* is the same step in private: mask, norms, flat clip, noise, update. *Opacus* is run in every mode it has. Sides
are timed in turns, and the ratio is to plain. ``gib`` is the most memory that a step holds on top of weights and batch.
``--json`` prints the rows as JSON instead of a table; ``--save FILE`` also writes them to a file, with the machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from lehr.gradients.execution import CudaGraphReplay
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.precision import narrow
from lehr.networks.residual import wide_resnet
from lehr.networks.small import cifar_cnn, paper_cnn
from lehr.privacy.clipping import FlatClip

GIB = 2**30
LEARNING_RATE = 0.1
NOISE_MULTIPLIER = 1.0
CLIP_NORM = 1.0
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "paper CNN": (paper_cnn, (1, 28, 28)),
    "CIFAR CNN": (cifar_cnn, (3, 32, 32)),
    "WRN-16-4": (wide_resnet, (3, 32, 32)),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One network and batch; a plain step takes all views of all records as images."""

    network: str
    batch: int
    device: str
    precision: str
    views: int = 1

    @property
    def label(self) -> str:
        views = f", {self.views} views" if self.views > 1 else ""
        return f"{self.network}, {self.batch}{views}, {self.device}, {self.precision}"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way to do the step."""

    who: str
    step: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    network: str
    batch: int
    views: int
    device: str
    precision: str
    who: str
    ms: float
    gib: float
    ratio: float
    how: str = ""


CASES = {
    "cpu": [
        Case(network="paper CNN", batch=512, device="cpu", precision="float32"),
        Case(network="paper CNN", batch=2048, device="cpu", precision="float32"),
        Case(network="CIFAR CNN", batch=128, device="cpu", precision="float32"),
    ],
    "cuda": [
        Case(network="paper CNN", batch=512, device="cuda", precision="bfloat16"),
        Case(network="paper CNN", batch=4096, device="cuda", precision="bfloat16"),
        Case(network="CIFAR CNN", batch=1024, device="cuda", precision="bfloat16"),
        Case(network="WRN-16-4", batch=1024, device="cuda", precision="bfloat16"),
        Case(network="WRN-16-4", batch=1024, views=4, device="cuda", precision="bfloat16"),
    ],
}


def record_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per record."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def data(case: Case) -> tuple[Tensor, Tensor]:
    """Random images ``[B, K, C, H, W]`` and labels ``[B]``: what is timed does not depend on what they show."""
    generator = torch.Generator(case.device).manual_seed(1)
    shape = (case.batch, case.views, *NETWORKS[case.network][1])
    images = torch.randn(shape, generator=generator, device=case.device)
    labels = torch.randint(0, 10, (case.batch,), generator=generator, device=case.device)
    return images, labels


def model_for(case: Case) -> nn.Module:
    """The same weights for every side."""
    torch.manual_seed(0)
    return NETWORKS[case.network][0]().to(case.device)


def plain_sides(case: Case) -> Iterator[Side]:
    """Both memory formats, launched and recorded."""
    for memory_format in (torch.channels_last, torch.contiguous_format):
        step, held, arguments = plain_step(case, memory_format)
        word = "channels last" if memory_format is torch.channels_last else "contiguous"
        yield from launched_and_recorded(f"plain, {word}", step, held, arguments)


def plain_step(case: Case, memory_format: torch.memory_format) -> tuple[Callable[[Any, Any], object], Any, Any]:
    """Ordinary SGD: the forward and backward passes compiled, weights kept in float32."""
    model = model_for(case).to(memory_format=memory_format)  # type: ignore[call-overload]
    names = [name for name, _ in model.named_parameters()]
    weights = list(model.parameters())
    images, labels = data(case)
    arguments = (images.flatten(0, 1).contiguous(memory_format=memory_format), labels.repeat_interleave(case.views))
    dtype = torch.bfloat16 if case.precision == "bfloat16" else None

    def loss(weights: list[Tensor], images: Tensor, labels: Tensor) -> Tensor:
        values = narrow(dict(zip(names, weights, strict=True)), dtype)
        outputs = functional_call(model, values, (narrow(images, dtype),))
        return functional.cross_entropy(outputs.float(), labels)

    compiled = torch.compile(loss, fullgraph=True, dynamic=False)

    def step(weights: list[Tensor], arguments: tuple[Tensor, Tensor]) -> None:
        gradients = torch.autograd.grad(compiled(weights, *arguments), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-LEARNING_RATE)

    return step, weights, arguments


def lehr_sides(case: Case) -> Iterator[Side]:
    """The private step, launched and recorded."""
    model = model_for(case)
    engine = GhostEngine(
        model,
        record_losses,
        views=case.views,
        precision="bfloat16" if case.precision == "bfloat16" else "as_model",
        cuda_graphs=False,
    )
    clip = FlatClip(CLIP_NORM)
    images, labels = data(case)
    mask = torch.ones(case.batch, dtype=torch.bool, device=case.device)
    noise = torch.Generator(case.device).manual_seed(2)
    sizes = [parameter.numel() for parameter in model.parameters()]

    def step(weights: list[Tensor], arguments: tuple[Tensor, Tensor, Tensor]) -> None:
        private = engine.private_sum(clip, *arguments)
        drawn = torch.split(torch.randn(sum(sizes), generator=noise, device=case.device), sizes)
        with torch.no_grad():
            values = list(private.values.values())
            shaped = [one.view_as(value) for one, value in zip(drawn, values, strict=True)]
            torch._foreach_add_(values, shaped, alpha=NOISE_MULTIPLIER * private.sensitivity)
            torch._foreach_add_(weights, values, alpha=-LEARNING_RATE / case.batch)

    arguments = (images if case.views > 1 else images.squeeze(1), labels, mask)
    yield from launched_and_recorded("lehr", step, list(model.parameters()), arguments, generators=[noise])


def launched_and_recorded(
    who: str,
    step: Callable[[Any, Any], object],
    held: Any,
    arguments: Any,
    generators: Sequence[torch.Generator] = (),
) -> Iterator[Side]:
    """On a GPU the step also as a CUDA graph."""
    yield Side(who=who, step=lambda: step(held, arguments))
    if arguments[0].is_cuda:
        replayed = CudaGraphReplay(step, generators=generators)
        yield Side(who=f"{who}, recorded", step=lambda: replayed(held, arguments))


def opacus_sides(case: Case) -> Iterator[Side]:
    """Every mode that runs this network; the others are named."""
    for mode in OPACUS_MODES:
        try:
            step = opacus_step(case, mode)
            step()
        except Exception as error:
            print(f"  opacus {mode} does not run {case.network}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        else:
            yield Side(who=f"opacus {mode}", step=step)


def opacus_step(case: Case, mode: str) -> Callable[[], object]:
    """Its own optimizer, sum, clip and noise, under autocast where the precision is lower."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    images, labels = data(case)
    images = images.squeeze(1)
    module = model_for(case)
    prepared = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(TensorDataset(images, labels), batch_size=case.batch),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    private, optimizer = prepared[0], prepared[1]
    criterion = prepared[2] if mode == "ghost" else nn.CrossEntropyLoss()
    lower = torch.autocast(case.device, torch.bfloat16, enabled=case.precision == "bfloat16")

    def step() -> None:
        optimizer.zero_grad()
        with lower:
            loss = criterion(private(images), labels)
        loss.backward()
        optimizer.step()

    return step


def run(case: Case, *, with_opacus: bool, rounds: int) -> list[Row]:
    """One case: the fastest plain side, the fastest of ours, every mode of Opacus."""
    print(f"{case.label}: compiling", file=sys.stderr, flush=True)
    sides = [*plain_sides(case), *lehr_sides(case)]
    if with_opacus and case.views == 1:
        sides += opacus_sides(case)
    for side in sides:
        for _ in range(3):
            side.step()
    times = timed_in_turns(sides, device=case.device, rounds=rounds)
    plain, ours = fastest(times, "plain"), fastest(times, "lehr")
    chosen = [("plain", plain), ("lehr", ours), *((who, who) for who in times if who.startswith("opacus"))]
    by_name = {side.who: side for side in sides}
    rows = []
    for who, name in chosen:
        held = by_name[name.removesuffix(", recorded")]  # a recording holds its memory between steps
        gib = gib_of_one_step(held.step, device=case.device)
        row = Row(**_shape(case), who=who, ms=times[name], gib=gib, ratio=times[name] / times[plain], how=name)
        rows.append(row)
        print(f"  {name}: {row.ms:.3f} ms, {row.gib:.2f} GiB, ratio {row.ratio:.2f}", file=sys.stderr, flush=True)
    return rows


def fastest(times: dict[str, float], who: str) -> str:
    """The fastest of the sides whose name begins so."""
    return min((name for name in times if name.startswith(who)), key=lambda name: times[name])


def timed_in_turns(sides: list[Side], *, device: str, rounds: int) -> dict[str, float]:
    """Milliseconds, the median over rounds in which every side has its turn."""
    found: dict[str, list[float]] = {side.who: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side.who].append(milliseconds(side.step, device=device))
    return {who: statistics.median(times) for who, times in found.items()}


def milliseconds(step: Callable[[], object], *, device: str) -> float:
    """Of one step, after one that is not counted; on a GPU the mean of ten in a row."""
    step()
    if device != "cuda":
        begun = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begun)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    return 100 * (time.perf_counter() - begun)


def gib_of_one_step(step: Callable[[], object], *, device: str) -> float:
    """As torch's own allocators count it."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / GIB
    return _most_allocated(step) / GIB


def _most_allocated(step: Callable[[], object]) -> int:
    """The largest running total of what the step allocates and frees."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    total = most = 0
    for _, size in sorted(_allocations(seen), key=lambda event: event[0]):
        total += size
        most = max(most, total)
    return most


def _allocations(seen: profile) -> Iterator[tuple[int, int]]:
    """When, and how many bytes: below zero where they were given back."""
    assert seen.profiler is not None
    waiting: list[Any] = list(seen.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while waiting:
        event = waiting.pop()
        waiting += event.children
        size = getattr(event.extra_fields, "alloc_size", None)
        if size is not None:
            yield event.start_time_ns, size


def _shape(case: Case) -> dict[str, Any]:
    return {name: value for name, value in asdict(case).items() if name in Row.__dataclass_fields__}


def machine(device: str, *, commit: str | None) -> dict[str, Any]:
    """Where and with what this was measured."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    try:
        from opacus import __version__ as opacus_version
    except ImportError:
        opacus_version = None
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "processor": platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "opacus": opacus_version},
        "commit": commit or asked.stdout.strip() or None,
        "date": datetime.now(UTC).date().isoformat(),
        "settings": {"clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER, "learning_rate": LEARNING_RATE},
    }


def table(rows: list[Row]) -> str:
    """What a person reads."""
    head = f"{'network':<10} {'batch':>6} {'views':>5} {'device':<6} {'precision':<9} {'who':<16}"
    head += f" {'ms':>9} {'GiB':>7} {'ratio':>6}"
    lines = [
        f"{row.network:<10} {row.batch:>6} {row.views:>5} {row.device:<6} {row.precision:<9} {row.who:<16}"
        f" {row.ms:>9.3f} {row.gib:>7.3f} {row.ratio:>6.2f}"
        for row in rows
    ]
    return "\n".join([head, "-" * len(head), *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(CASES), default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the rows and the machine to a JSON file")
    parser.add_argument("--only", metavar="TEXT", default="", help="only cases whose name holds this, such as 'WRN'")
    parser.add_argument("--rounds", type=int, default=11, metavar="N", help="how often each side has its turn")
    parser.add_argument("--commit", help="what to note as the commit, for a copy without git's history")
    parser.add_argument("--without-opacus", action="store_true", help="leave Opacus out")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    cases = [case for case in CASES[given.device] if given.only in case.label]
    if not cases:
        parser.error(f"--only {given.only!r} fits none of: " + "; ".join(case.label for case in CASES[given.device]))
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    rows: list[Row] = []
    for case in cases:
        rows += run(case, with_opacus=not given.without_opacus, rounds=given.rounds)
        if given.save:  # after every case, so that an interrupted run keeps what it has
            given.save.write_text(
                json.dumps(
                    {**machine(given.device, commit=given.commit), "rows": [asdict(row) for row in rows]}, indent=1
                )
                + "\n"
            )
        torch._dynamo.reset()
    print(json.dumps([asdict(row) for row in rows], indent=1) if given.json else table(rows))


if __name__ == "__main__":
    main()

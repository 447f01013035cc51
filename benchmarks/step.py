"""What one private step costs beside a plain one: ``python -m benchmarks.step [--device cuda]`` prints a table.

Every side goes from a batch on the device to updated weights, in the same precision and the same run. *Plain* is a step
of ordinary SGD, compiled, the fastest of both memory formats and, on a GPU, of launches and of a recorded CUDA graph.
*Lehr* is the same step in private: mask, norms, flat clip, noise, update. *Opacus* is run in every mode it has. Sides
are timed in turns, and the ratio is to plain. ``gib`` is the most memory that a step holds on top of weights and batch.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks import parse_options, save
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
Step = Callable[[], object]
Side = tuple[str, Step]  # one way to do the step, by name


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
    yield who, lambda: step(held, arguments)
    if arguments[0].is_cuda:
        replayed = CudaGraphReplay(step, generators=generators)
        yield f"{who}, recorded", lambda: replayed(held, arguments)


def opacus_sides(case: Case) -> Iterator[Side]:
    """Every mode that runs this network; the others are named."""
    for mode in OPACUS_MODES:
        try:
            step = opacus_step(case, mode)
            step()
        except Exception as error:
            print(f"  opacus {mode} does not run {case.network}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        else:
            yield f"opacus {mode}", step


def opacus_step(case: Case, mode: str) -> Step:
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


def run(case: Case, *, with_opacus: bool, rounds: int) -> list[dict[str, Any]]:
    """One case: the fastest plain side, the fastest of ours, every mode of Opacus."""
    print(f"{case.label}: compiling", file=sys.stderr, flush=True)
    sides: dict[str, Step] = dict([*plain_sides(case), *lehr_sides(case)])
    if with_opacus and case.views == 1:
        sides |= dict(opacus_sides(case))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for step in sides.values():
        for _ in range(3):
            step()
    for _ in range(rounds):  # every side has its turn
        for name, step in sides.items():
            times[name].append(milliseconds(step, device=case.device))
    medians = {name: statistics.median(several) for name, several in times.items()}
    plain, ours = (
        min((name for name in medians if name.startswith(who)), key=lambda name: medians[name])
        for who in ("plain", "lehr")
    )
    rows = []
    for who, name in {"plain": plain, "lehr": ours, **{name: name for name in sides if "opacus" in name}}.items():
        step = sides[name.removesuffix(", recorded")]  # a recording holds its memory between steps
        gib, ratio = gib_of_one_step(step, device=case.device), medians[name] / medians[plain]
        rows.append({**asdict(case), "who": who, "ms": medians[name], "gib": gib, "ratio": ratio, "how": name})
        print(f"  {name}: {medians[name]:.3f} ms, {gib:.2f} GiB, ratio {ratio:.2f}", file=sys.stderr, flush=True)
    return rows


def milliseconds(step: Step, *, device: str) -> float:
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


def gib_of_one_step(step: Step, *, device: str) -> float:
    """As torch's own allocators count it."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / GIB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    waiting: list[Any] = list(seen.profiler.kineto_results.experimental_event_tree())
    allocations: list[tuple[int, int]] = []  # when, and how many bytes: below zero where they were given back
    while waiting:
        event = waiting.pop()
        waiting += event.children
        size = getattr(event.extra_fields, "alloc_size", None)
        if size is not None:
            allocations.append((event.start_time_ns, size))
    allocations.sort(key=lambda allocation: allocation[0])
    return max(accumulate((size for _, size in allocations), initial=0)) / GIB


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    head = f"{'network':<10} {'batch':>6} {'views':>5} {'precision':<9} {'who':<16} {'ms':>9} {'GiB':>7} {'ratio':>6}"
    line = "{network:<10} {batch:>6} {views:>5} {precision:<9} {who:<16} {ms:>9.3f} {gib:>7.3f} {ratio:>6.2f}"
    return "\n".join([head, "-" * len(head), *(line.format(**row) for row in rows)])


def main() -> None:
    given = parse_options(
        __doc__,
        only={"metavar": "TEXT", "default": "", "help": "only cases whose name holds this, such as 'WRN'"},
        rounds={"type": int, "default": 11, "metavar": "N", "help": "how often each side has its turn"},
        without_opacus={"action": "store_true", "help": "leave Opacus out"},
    )
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here")
    cases = [case for case in CASES[given.device] if given.only in case.label]
    if not cases:
        raise SystemExit(f"--only {given.only!r} fits none of {[case.label for case in CASES[given.device]]}")
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows += run(case, with_opacus=not given.without_opacus, rounds=given.rounds)
        save(given, rows=rows)  # after every case, so that an interrupted run keeps what it has
        torch._dynamo.reset()
    print(table(rows))


if __name__ == "__main__":
    main()

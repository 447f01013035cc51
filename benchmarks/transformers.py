"""What a private step of a transformer costs: ``python -m benchmarks.transformers [--device cuda]`` prints a table.

Models are built from configurations with random weights, so that nothing is downloaded.

    GPT-2 124M   all weights trained, embeddings tied, 32 records of 256 tokens
    Llama 1B     LoRA of rank 16 in all linear layers of its blocks, frozen weights in bfloat16, 8 records of 512 tokens
    Llama 1B     all weights trained with gradient checkpointing, 32 records of 512 tokens; nothing is compiled

``--batch`` sets other numbers of records; one that does not fit into memory is listed with its error.

Three sides take turns, a few steps each, in one process. *plain* is a step of SGD, compiled. *engine* is the same step
in private: norms, flat clip, noise, update. *integration* is ``LehrTrainer`` from end to end: draw, collation,
transfer, step, optimizer and callbacks. All run in bfloat16, with float32 weights of what is trained.

``ms`` is the median; ``gib`` is the most memory that a side allocates, from building its model to its last step, and is
measured on a GPU only. ``--quick`` has tiny models and compiles nothing, for a test. A side that cannot run is listed
with its error.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks import parse_options, save
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.precision import narrow
from lehr.integrations.transformers import LehrTrainer, PrivacyConfig
from lehr.privacy.clipping import FlatClip

GIB = 2**30
LEARNING_RATE = 0.01
NOISE_MULTIPLIER = 1.0
CLIP_NORM = 1.0
RANK = 16
SIDES = ("plain", "engine", "integration")
Step = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and the shape of a batch."""

    model: str
    batch: int
    length: int
    device: str
    is_tiny: bool = False

    @property
    def is_checkpointed(self) -> bool:
        return self.model == "Llama 1B"

    @property
    def is_compiled(self) -> bool:
        return not (self.is_tiny or self.is_checkpointed)

    @property
    def warm_up(self) -> int:
        return 1 if self.is_checkpointed else 3

    @property
    def at_once(self) -> int:
        """Steps of a turn; a GPU is waited for at their end."""
        return 1 if self.is_checkpointed else 4

    @property
    def label(self) -> str:
        return f"{self.model}, {self.batch} x {self.length}, {self.device}"


CASES = [
    Case(model="GPT-2 124M", batch=32, length=256, device="cuda"),
    Case(model="Llama 1B LoRA", batch=8, length=512, device="cuda"),
    Case(model="Llama 1B", batch=32, length=512, device="cuda"),
]


class Lora(nn.Module):
    """A frozen linear layer and an update of low rank, as peft builds it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        like: dict[str, Any] = {"bias": False, "device": base.weight.device, "dtype": torch.float32}
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, RANK, **like)
        self.lora_B = nn.Linear(RANK, base.out_features, **like)
        nn.init.normal_(self.lora_B.weight, std=0.01)

    def forward(self, values: Tensor) -> Tensor:
        update = self.lora_B(self.lora_A(values.to(self.lora_A.weight.dtype)))
        output: Tensor = self.base_layer(values)
        summed: Tensor = output + update.to(output.dtype)
        return summed


def model_for(case: Case) -> nn.Module:
    """The same weights for every side."""
    torch.manual_seed(0)
    with torch.device(case.device):
        return (gpt2 if case.model.startswith("GPT-2") else llama)(case).train()


def gpt2(case: Case) -> nn.Module:
    """GPT-2 without dropout, which plain and private steps would draw differently."""
    tiny: dict[str, Any] = {"vocab_size": 211, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    dropouts: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {**tiny, "bos_token_id": 1, "eos_token_id": 1} if case.is_tiny else {}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, **dropouts, **sizes))  # type: ignore[no-untyped-call]


def llama(case: Case) -> nn.Module:
    """The shape of Llama 3.2 1B."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    }
    sizes |= {"num_key_value_heads": 8, "vocab_size": 128_256}
    if case.is_tiny:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "vocab_size": 211}
    config = LlamaConfig(tie_word_embeddings=True, use_cache=False, max_position_embeddings=case.length, **sizes)
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    if case.is_checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return cast(nn.Module, model)
    model.to(torch.bfloat16).requires_grad_(False)
    for block in list(model.modules()):
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear) and name != "lm_head":
                setattr(block, name, Lora(layer))
    return cast(nn.Module, model)


def tokens(case: Case) -> Tensor:
    """Random tokens: what is timed does not depend on what they say."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, 211, (case.batch, case.length), generator=generator)


def record_losses(outputs: Any, ids: Tensor) -> Tensor:
    """The mean loss of each record over its own tokens."""
    logits = outputs["logits"][:, :-1]
    losses = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return losses.mean(1)


def plain_step(case: Case) -> Step:
    """Forward and backward pass in bfloat16, with weights kept in float32."""
    model = model_for(case)
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    weights: list[Tensor] = [value for value in model.parameters() if value.requires_grad]
    ids = tokens(case).to(case.device)

    def loss(weights: list[Tensor], ids: Tensor) -> Tensor:
        if case.is_checkpointed:  # computed again in the backward pass, when the model has its own weights
            with torch.autocast(case.device, torch.bfloat16):
                logits = model(input_ids=ids).logits[:, :-1]
        else:
            values = narrow(dict(zip(names, weights, strict=True)), torch.bfloat16)
            logits = functional_call(model, values, (), {"input_ids": ids}).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    compiled = torch.compile(loss, dynamic=False) if case.is_compiled else loss

    def step() -> None:
        gradients = torch.autograd.grad(compiled(weights, ids), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-LEARNING_RATE)

    return step


def engine_step(case: Case) -> Step:
    """The private step of the engine that ``lehr.fit`` uses."""
    model = model_for(case)
    engine = GhostEngine(model, record_losses, precision="bfloat16", compiled=case.is_compiled)
    clip = FlatClip(CLIP_NORM)
    ids = tokens(case).to(case.device)
    mask = torch.ones(case.batch, dtype=torch.bool, device=case.device)
    noise = torch.Generator(case.device).manual_seed(2)
    weights = [value.detach() for value in model.parameters() if value.requires_grad]
    sizes = [value.numel() for value in weights]

    def step() -> None:
        private = engine.private_sum(clip, {"input_ids": ids}, ids, mask)
        drawn = torch.split(torch.randn(sum(sizes), generator=noise, device=case.device), sizes)
        values = [value.float() for value in private.values.values()]
        shaped = [one.view_as(value) for one, value in zip(drawn, values, strict=True)]
        torch._foreach_add_(values, shaped, alpha=NOISE_MULTIPLIER * private.sensitivity)
        torch._foreach_add_(weights, values, alpha=-LEARNING_RATE / case.batch)

    return step


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The batch as a data set, every record of which is drawn in every step."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._ids[index], "labels": self._ids[index]}


class Turns(TrainerCallback):
    """After a few steps of the trainer, the other sides have their turn. Time between steps is the trainer's."""

    def __init__(self, after_turn: Callable[[float], None], case: Case) -> None:
        self._after_turn, self._device, self._at_once = after_turn, case.device, case.at_once
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._at_once:
            return
        _synchronize(self._device)
        self._after_turn((time.perf_counter() - self._began) / self._at_once)
        _synchronize(self._device)
        self._began = time.perf_counter()


def trainer_for(case: Case, folder: Path, *, steps: int) -> LehrTrainer:
    """The integration, with the settings of the other sides."""
    arguments: dict[str, Any] = {"optim": "sgd", "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    return LehrTrainer(
        model=model_for(case),
        train_dataset=Sentences(tokens(case)),
        args=TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=steps,
            per_device_train_batch_size=case.batch,
            learning_rate=LEARNING_RATE,
            logging_steps=10**6,
            use_cpu=case.device == "cpu",
            bf16=True,
            gradient_checkpointing=case.is_checkpointed,
            **arguments,
        ),
        privacy=PrivacyConfig(
            noise_multiplier=NOISE_MULTIPLIER,
            records=case.batch,
            delta=1e-5,
            expected_batch_size=case.batch,
            physical_batch=case.batch,
            clip_norm=CLIP_NORM,
        ),
    )


def run(case: Case, *, rounds: int, sides: tuple[str, ...] = SIDES) -> Iterator[dict[str, Any]]:
    """One case: the rows of all sides."""
    print(case.label, file=sys.stderr, flush=True)
    measured = {who: Measured() for who in sides}
    steps: dict[str, Step] = {}
    for who, make in (("plain", plain_step), ("engine", engine_step)):
        if who in sides:
            _build(case, who, make, measured[who], steps)

    def take_turns() -> None:
        for who, step in steps.items():
            measured[who].times.append(_milliseconds(step, case))

    if "integration" in sides:
        _train(case, measured["integration"], take_turns, rounds=rounds)
    if "integration" not in sides or measured["integration"].error:
        for _ in range(rounds):
            take_turns()
    plain = measured["plain"].ms if "plain" in measured else None
    for who, own in measured.items():
        ratio = own.ms / plain if own.ms and plain else None
        yield {**asdict(case), "who": who, "ms": own.ms, "gib": own.gib, "ratio": ratio, "note": own.error}


@dataclass
class Measured:
    """What one side took."""

    times: list[float] = field(default_factory=list)
    gib: float | None = None
    error: str = ""

    @property
    def ms(self) -> float | None:
        return statistics.median(self.times) if self.times else None


def _build(case: Case, who: str, make: Callable[[Case], Step], own: Measured, steps: dict[str, Step]) -> None:
    before = _reset_memory(case.device)
    try:
        step = make(case)
        for _ in range(case.warm_up):
            step()
    except Exception as error:
        own.error = _first_line(error)
    else:
        steps[who], own.gib = step, _peak(case.device, before)
    print(f"  {who}: {own.error or 'warmed up'}", file=sys.stderr, flush=True)


def _train(case: Case, own: Measured, take_turns: Step, *, rounds: int) -> None:
    """Train with the integration; after the first turns, the other sides have theirs after each."""
    before, times = _reset_memory(case.device), []

    def after_turn(seconds: float) -> None:
        times.append(1e3 * seconds)
        if len(times) == case.warm_up:
            own.gib = _peak(case.device, before)
        if len(times) > case.warm_up:
            take_turns()

    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer = trainer_for(case, Path(folder), steps=case.at_once * (case.warm_up + rounds))
            trainer.add_callback(Turns(after_turn, case))
            trainer.train()
        except Exception as error:
            own.error = _first_line(error)
        else:
            own.times = times[case.warm_up :]
    print(f"  integration: {own.error or 'measured'}", file=sys.stderr, flush=True)


def _milliseconds(step: Step, case: Case) -> float:
    _synchronize(case.device)
    began = time.perf_counter()
    for _ in range(case.at_once):
        step()
    _synchronize(case.device)
    return 1e3 * (time.perf_counter() - began) / case.at_once


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _reset_memory(device: str) -> float:
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(device: str, before: float) -> float | None:
    return (torch.cuda.max_memory_allocated() - before) / GIB if device == "cuda" else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    head = f"{'model':<14} {'batch':>5} {'length':>6} {'side':<12} {'ms':>9} {'GiB':>7} {'ratio':>6}  note"
    lines = [
        f"{row['model']:<14} {row['batch']:>5} {row['length']:>6} {row['who']:<12} "
        f"{_number(row['ms'], 2):>9} {_number(row['gib'], 2):>7} {_number(row['ratio'], 2):>6}  {row['note']}"
        for row in rows
    ]
    return "\n".join([head, "-" * len(head), *lines])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def cases_of(device: str, *, quick: bool) -> list[Case]:
    """The cases on this device."""
    cases = [replace(case, device=device) for case in CASES]
    return [replace(case, batch=3, length=8, is_tiny=True) for case in cases] if quick else cases


def main() -> None:
    given = parse_options(
        __doc__,
        only={"metavar": "TEXT", "default": "", "help": "only cases whose name holds this, such as 'GPT-2'"},
        sides={"metavar": "NAME", "nargs": "+", "choices": SIDES, "default": list(SIDES), "help": "only these sides"},
        batch={"type": int, "nargs": "+", "metavar": "N", "help": "other numbers of records"},
        rounds={"type": int, "default": 15, "metavar": "N", "help": "how often each side has its turn"},
        quick={"action": "store_true", "help": "tiny models"},
    )
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here")
    cases = [case for case in cases_of(given.device, quick=given.quick) if given.only in case.label]
    if not cases:
        raise SystemExit(f"--only {given.only!r} fits none of {[case.label for case in CASES]}")
    if given.batch:
        cases = [replace(case, batch=batch) for case in cases for batch in given.batch]
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    versions = {name: metadata.version(name) for name in ("transformers", "accelerate")}
    for case in cases:
        for row in run(case, rounds=given.rounds, sides=tuple(given.sides)):
            rows.append(row)
            save(given, libraries=versions, rows=rows)  # so that an interrupted run keeps what it has
        torch._dynamo.reset()
    print(table(rows))


if __name__ == "__main__":
    main()

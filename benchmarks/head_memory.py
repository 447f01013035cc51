"""Memory of a private step with a language model's head whole and in tiles: ``python -m benchmarks.head_memory``.

Each side runs in a process of its own, on one thread of a CPU and not compiled: the highest resident memory during a
step, above what was resident before it. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

WORDS, RECORDS, LENGTH = 50_257, 8, 256
_STATUS = Path("/proc/self/status")


def resident(name: str) -> float:
    """VmRSS, the memory now, or VmHWM, the highest since it was reset, in MiB."""
    return int(_STATUS.read_text().split(f"{name}:")[1].split()[0]) / 1024


def measure(*, is_tiled: bool) -> float:
    """How far a step raises the memory, after a smaller one."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from lehr.gradients.ghost import GhostEngine
    from lehr.gradients.language_heads import losses_of_tiled, with_tiled_head
    from lehr.integrations.transformers import record_losses
    from lehr.privacy.clipping import FlatClip

    torch.set_num_threads(1)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes))  # type: ignore[no-untyped-call]
    ids = torch.randint(0, WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}

    def whole(outputs: Any, inputs: Any) -> torch.Tensor:
        return record_losses(outputs["logits"], inputs["labels"], is_causal=True)

    tiled = with_tiled_head(model, model) if is_tiled else None
    loss_fn = whole if tiled is None else losses_of_tiled
    engine = GhostEngine(tiled or model, loss_fn, compiled=False, passes="one")

    def step(records: int, length: int) -> None:
        some = {name: value[:records, :length] for name, value in batch.items()}
        inputs = some if is_tiled else {"input_ids": some["input_ids"]}
        engine.private_sum(FlatClip(1.0), inputs, some)

    step(2, 8)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step(RECORDS, LENGTH)
    return resident("VmHWM") - before


def main() -> None:
    if len(sys.argv) > 1:
        print(f"{measure(is_tiled=sys.argv[1] == 'tiles'):.0f}")
        return
    print(f"logits in float32: {4 * RECORDS * LENGTH * WORDS / 2**20:.0f} MiB")
    for side in ("whole", "tiles"):
        command = [sys.executable, "-m", "benchmarks.head_memory", side]
        print(f"{side}: {subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()} MiB")


if __name__ == "__main__":
    main()

"""Bytes that rank 0 sends and receives per step: ``python -m benchmarks.rank_traffic``.

Several gloo processes train a small CNN on synthetic images. Rank 0 reads the counters of its own TCP connections after
an early and after a late step, so that what is exchanged once, at the beginning and at the end, is left out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import parse_options, save
from lehr import Callback, fit, networks

FIRST, LAST, STEPS = 5, 25, 30
_BYTES_ACKED = 120  # the place of bytes_acked in Linux's struct tcp_info; bytes_received stands behind it


def traffic() -> tuple[int, int]:
    """Bytes sent and received by all TCP connections of this process."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        except OSError:
            continue
        if len(info) >= _BYTES_ACKED + 16:
            acked, got = struct.unpack_from("QQ", info, _BYTES_ACKED)
            sent, received = sent + acked, received + got
    return sent, received


class Counting(Callback):
    """Reads the counters after two steps."""

    def __init__(self) -> None:
        self.at: dict[int, tuple[int, int]] = {}

    def stepped(self, progress: Any) -> None:
        if progress.step in (FIRST, LAST):
            self.at[progress.step] = traffic()


def rank(number: int, total: int, folder: str, writing: Any, is_sharded: bool) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=total)
    torch.manual_seed(0)
    model = networks.build("small_cnn")
    records = torch.rand(256, 1, 8, 8), torch.arange(256) % 10
    counting = Counting()
    fit(
        model,
        records,
        records=256,
        num_classes=10,
        delta=1e-4,
        noise_multiplier=1.0,
        steps=STEPS,
        expected_batch_size=64,
        compiled=False,
        sharded=is_sharded,
        directory=Path(folder) / "run",
        callbacks=[counting],
        quiet=True,
    )
    if number == 0:
        sent, received = (
            (late - early) / (LAST - FIRST) for early, late in zip(counting.at[FIRST], counting.at[LAST], strict=True)
        )
        parameters = sum(value.numel() for value in networks.build("small_cnn").parameters())
        writing.send({"sent": round(sent), "received": round(received), "parameters": parameters})


def measured(total: int, *, is_sharded: bool) -> dict[str, Any]:
    """What rank 0 of so many sent and received in a step, on average."""
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        reading, writing = processes.Pipe(duplex=False)
        ranks = [
            processes.Process(target=rank, args=(number, total, folder, writing, is_sharded)) for number in range(total)
        ]
        for process in ranks:
            process.start()
        writing.close()
        found: dict[str, Any] = reading.recv()
        for process in ranks:
            process.join()
    return {"ranks": total, "sharded": is_sharded, **found}


def main() -> None:
    given = parse_options(__doc__, sharded={"action": "store_true", "help": "sharded weights, too"})
    rows = [measured(total, is_sharded=one) for one in (False, True)[: 1 + given.sharded] for total in (2, 4)]
    save(given, rows=rows)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

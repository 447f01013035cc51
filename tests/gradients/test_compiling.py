from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lehr.gradients.compiling import compiled_step


def step_of(addend: int) -> Callable[[Tensor], Tensor]:
    def step(values: Tensor) -> Tensor:
        return values + addend

    return step


def test_every_step_may_be_compiled_anew_however_many_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch stops compiling a function after a few times, and the steps of all engines are one function to it."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile_without_backend)
    steps = [compiled_step(step_of(addend)) for addend in range(torch._dynamo.config.recompile_limit + 3)]
    assert [step(torch.zeros(1)).item() for step in steps] == list(range(len(steps)))


def test_what_would_break_the_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(values: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return values

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile_without_backend)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled_step(step)(torch.zeros(1))


compile_with_backend = torch.compile


def compile_without_backend(step: Callable[..., Tensor], *, fullgraph: bool, dynamic: bool) -> Callable[..., Tensor]:
    """The graph is captured and guarded as always, and then run as it is: generating code takes many seconds."""
    return compile_with_backend(step, fullgraph=fullgraph, dynamic=dynamic, backend="eager")

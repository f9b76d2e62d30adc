"""Lessons on fusion: chains of pointwise operators, GELU, and many small tensors."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from pipeline.lessons.bench import Bench, Call, compiled_afresh, counted_all
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, kernels_in
from pipeline.report import formatting

CHAIN_GPU_NUMBERS, CHAIN_CPU_NUMBERS = 2**26, 2**21
EAGER, SCRIPTED, CHAIN_COMPILED, BY_HAND = "eager", "TorchScript", "compiled", "one kernel by hand"


def chain(x: Tensor) -> Tensor:
    """Return nine pointwise operators on a tensor of any shape: each kernel that runs some reads one and writes one."""
    return torch.abs(torch.sqrt(torch.relu(x * 0.5 + 1.0)) * 2.0 - 1.0).neg().exp()


@cache
def scripted() -> Callable[[Tensor], Tensor]:
    """Return the same in TorchScript, without its warnings."""
    with warnings.catch_warnings(action="ignore"):
        script: Callable[[Tensor], Tensor] = torch.jit.script(chain)
    return script


def run_chain(bench: Bench) -> list[Row]:
    """Apply the chain to one large fp32 tensor; bytes are kernels × (one tensor read + one written)."""
    x = bench.random(CHAIN_GPU_NUMBERS if bench.on_gpu else CHAIN_CPU_NUMBERS)
    compiled = compiled_afresh(chain)
    calls: dict[str, Call | str] = {
        EAGER: lambda: chain(x),
        SCRIPTED: lambda: scripted()(x),
        CHAIN_COMPILED: lambda: compiled(x),
        BY_HAND: "Triton compiles for GPUs",
    }
    if bench.on_gpu:
        from pipeline.lessons.chain_kernel import chain as by_hand  # Triton, which not every platform has

        calls[BY_HAND] = lambda: by_hand(x)
    rows = [Row(name, "" if name == EAGER else EAGER, built_seconds=None if name == EAGER else 0.0) for name in calls]
    timed = counted_all(bench, list(zip(rows, calls.values(), strict=True)))
    moved = 2 * x.numel() * x.element_size()  # of each kernel
    return [replace(row, moved_bytes=None if row.kernels is None else row.kernels * moved) for row in timed]


def says_chain(rows: Rows) -> list[str]:
    """Compare the compiler with eager and a hand-written kernel, in time and in bytes."""
    pace, own = rows.pace(CHAIN_COMPILED, EAGER), rows.pace(CHAIN_COMPILED, BY_HAND)
    beside = f", and {own} one kernel written by hand" if own else ""
    found = [f"Compiled, the chain is {pace} eager{beside}." if pace else ""]
    eager, fused = rows.row(EAGER), rows.row(CHAIN_COMPILED)
    if not (eager and fused and eager.moved_bytes and fused.moved_bytes):
        return found
    found.append(
        f"Eager moves {formatting.size(eager.moved_bytes)} in {eager.kernels:g} kernels, the compiled chain "
        f"{formatting.size(fused.moved_bytes)} in {fused.kernels:g}."
    )
    ratio = rows.times(EAGER, CHAIN_COMPILED)
    if ratio and rows.outcome(EAGER, CHAIN_COMPILED) != "not resolved":
        less = eager.moved_bytes / fused.moved_bytes
        near = 0.8 <= ratio.value / less <= 1.25
        found.append(
            "The time falls as the bytes do: the chain is bound by memory."
            if near
            else f"{less:.2g} times fewer bytes gave {ratio.value:.2g} times the speed: bytes are not all that counts."
        )
    return found


GELU_GPU_NUMBERS, GELU_CPU_NUMBERS = 2**26, 2**21
SPELT, GELU_COMPILED, LIBRARY = "spelt out, eager", "spelt out, compiled", "the library's gelu"


def spelt_out(x: Tensor) -> Tensor:
    """Return GELU's tanh approximation of a tensor of any shape (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def run_gelu(bench: Bench) -> list[Row]:
    """Apply GELU to one large fp32 tensor."""
    x = bench.random(GELU_GPU_NUMBERS if bench.on_gpu else GELU_CPU_NUMBERS)
    compiled = compiled_afresh(spelt_out)
    calls = [lambda: spelt_out(x), lambda: compiled(x), lambda: torch.nn.functional.gelu(x, approximate="tanh")]
    rows = [Row(SPELT), Row(GELU_COMPILED, SPELT, built_seconds=0.0), Row(LIBRARY, SPELT)]
    return counted_all(bench, list(zip(rows, calls, strict=True)))


def says_gelu(rows: Rows) -> list[str]:
    """Return the gain by fusing, and whether the compiler reaches the library."""
    pace, beside = rows.pace(GELU_COMPILED, SPELT), rows.pace(GELU_COMPILED, LIBRARY)
    return [
        f"Compiled, GELU that is spelt out in operators is {pace} eager." if pace else "",
        f"It is {beside} the kernel that the library's author wrote by hand." if beside else "",
    ]


TENSORS, NUMBERS = 64, 4096
SINGLY, FOREACH, MANY_TENSORS_COMPILED = "one by one", "foreach", "compiled"


def scaled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return every tensor, of any shape, times 0.9."""
    return [tensor * 0.9 for tensor in tensors]


def run_many_tensors(bench: Bench) -> list[Row]:
    """Multiply each of 64 tensors of 4,096 numbers, as an optimizer's step does."""
    tensors = [bench.random(NUMBERS) for _ in range(TENSORS)]
    compiled = compiled_afresh(scaled)
    return counted_all(bench, [
        (Row(SINGLY), lambda: scaled(tensors)),
        (Row(FOREACH, SINGLY), lambda: list(torch._foreach_mul(tensors, 0.9))),
        (Row(MANY_TENSORS_COMPILED, SINGLY, built_seconds=0.0), lambda: compiled(tensors)),
    ])  # fmt: skip


says_many_tensors = partial(kernels_in, "call")

"""A chain of pointwise operators: eager, scripted, compiled, and as one kernel written by hand."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from pipeline.lessons.launch_counter import compiled_afresh, counted
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench, Call, skipped
from pipeline.report import formatting

GPU_NUMBERS, CPU_NUMBERS = 2**26, 2**21
EAGER, SCRIPTED, COMPILED, BY_HAND = "eager", "TorchScript", "compiled", "one kernel by hand"


def chain(x: Tensor) -> Tensor:
    """Nine pointwise operators on a tensor of any shape: each kernel that runs some reads one and writes one."""
    return torch.abs(torch.sqrt(torch.relu(x * 0.5 + 1.0)) * 2.0 - 1.0).neg().exp()


@cache
def scripted() -> Callable[[Tensor], Tensor]:
    """The same in TorchScript, whose deprecation is known."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        script: Callable[[Tensor], Tensor] = torch.jit.script(chain)
    return script


def by_hand(x: Tensor) -> Tensor:
    """The same of a dense fp32 tensor of any shape as one Triton kernel.

    Imported here because no other lesson needs Triton, which not every platform has.
    """
    from pipeline.lessons.chain_kernel import chain as kernel

    return kernel(x)


def run(bench: Bench) -> list[Row]:
    """One large fp32 tensor; bytes are kernels × (one tensor read + one written)."""
    x = bench.random(GPU_NUMBERS if bench.on_gpu else CPU_NUMBERS)
    compiled = compiled_afresh(chain)
    calls: dict[str, Call] = {EAGER: lambda: chain(x), SCRIPTED: lambda: scripted()(x), COMPILED: lambda: compiled(x)}
    if bench.on_gpu:
        calls[BY_HAND] = lambda: by_hand(x)
    rows = [Row(name, "" if name == EAGER else EAGER, built_seconds=None if name == EAGER else 0.0) for name in calls]
    timed = bench.sampling(list(zip(rows, calls.values(), strict=True)), agree=True)
    done = [weighed(counted(row, calls[row.name], bench), x) for row in timed]
    return done if bench.on_gpu else [*done, skipped(Row(BY_HAND), "Triton compiles for GPUs")]


def weighed(row: Row, x: Tensor) -> Row:
    """The row with the bytes that its kernels move: each reads and writes a tensor like `x`, of any shape."""
    moved = None if row.kernels is None else row.kernels * 2 * x.numel() * x.element_size()
    return replace(row, moved_bytes=moved)


def lead(rows: Rows) -> str:
    """What the compiler makes of it, beside eager and one's own kernel."""
    pace, own = rows.pace(COMPILED, EAGER), rows.pace(COMPILED, BY_HAND)
    beside = f", and {own} one kernel written by hand" if own else ""
    return f"Compiled, the chain is {pace} eager{beside}." if pace else ""


def says(rows: Rows) -> list[str]:
    """The bytes of each way, and whether the time follows them."""
    found = []
    eager, fused = rows.row(EAGER), rows.row(COMPILED)
    if eager and fused and eager.moved_bytes and fused.moved_bytes:
        found.append(
            f"Eager moves {formatting.size(eager.moved_bytes)} in {eager.kernels:g} kernels, the compiled chain "
            f"{formatting.size(fused.moved_bytes)} in {fused.kernels:g}."
        )
    ratio = rows.times(EAGER, COMPILED) if rows.outcome(EAGER, COMPILED) != "not resolved" else None
    if ratio and eager and fused and eager.moved_bytes and fused.moved_bytes:
        less = eager.moved_bytes / fused.moved_bytes
        near = 0.8 <= ratio.value / less <= 1.25
        found.append(
            "The time falls as the bytes do: the chain is bound by memory."
            if near
            else f"{less:.2g} times fewer bytes gave {ratio.value:.2g} times the speed: bytes are not all that counts."
        )
    return found


LESSON = Lesson(
    title="What does fusing a chain of pointwise operators win?",
    how="Nine pointwise operators in a row on one large fp32 tensor; the answers are checked against eager's.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)

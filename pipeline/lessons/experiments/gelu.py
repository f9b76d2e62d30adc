"""GELU spelt out in operators, eager, compiled, and as the library's one kernel."""

import math

import torch
from torch import Tensor

from pipeline.lessons.launch_counter import compiled_afresh, counted
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench

GPU_NUMBERS, CPU_NUMBERS = 2**26, 2**21
SPELT, COMPILED, LIBRARY = "spelt out, eager", "spelt out, compiled", "the library's gelu"


def spelt_out(x: Tensor) -> Tensor:
    """GELU's tanh approximation of a tensor of any shape (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def run(bench: Bench) -> list[Row]:
    """One large fp32 tensor."""
    x = bench.random(GPU_NUMBERS if bench.on_gpu else CPU_NUMBERS)
    compiled = compiled_afresh(spelt_out)
    calls = [lambda: spelt_out(x), lambda: compiled(x), lambda: torch.nn.functional.gelu(x, approximate="tanh")]
    rows = [Row(SPELT), Row(COMPILED, SPELT, built_seconds=0.0), Row(LIBRARY, SPELT)]
    timed = bench.sampling(list(zip(rows, calls, strict=True)), agree=True)
    return [counted(row, call, bench) for row, call in zip(timed, calls, strict=True)]


def lead(rows: Rows) -> str:
    """What fusing wins."""
    pace = rows.pace(COMPILED, SPELT)
    return f"Compiled, GELU that is spelt out in operators is {pace} eager." if pace else ""


def says(rows: Rows) -> list[str]:
    """Whether the compiler reaches the library."""
    beside = rows.pace(COMPILED, LIBRARY)
    return [f"It is {beside} the kernel that the library's author wrote by hand."] if beside else []


LESSON = Lesson(
    title="GELU spelt out: what does a compiler make of it?",
    how="The tanh form of GELU in nine pointwise operators on one large fp32 tensor.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)

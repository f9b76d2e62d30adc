"""Many small tensors: one by one, with foreach, and compiled."""

import torch

from pipeline.lessons.launch_counter import compiled_afresh, counted
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench

TENSORS, NUMBERS = 64, 4096
SINGLY, FOREACH, COMPILED = "one by one", "foreach", "compiled"


def scaled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Every tensor, of any shape, times 0.9."""
    return [tensor * 0.9 for tensor in tensors]


def run(bench: Bench) -> list[Row]:
    """As an optimizer's step does: one multiplication for each of 64 tensors of 4,096 numbers."""
    tensors = [bench.random(NUMBERS) for _ in range(TENSORS)]
    compiled = compiled_afresh(scaled)
    rows = bench.sampling(
        [
            (Row(SINGLY), lambda: scaled(tensors)),
            (Row(FOREACH, SINGLY), lambda: list(torch._foreach_mul(tensors, 0.9))),
            (Row(COMPILED, SINGLY, built_seconds=0.0), lambda: compiled(tensors)),
        ],
        agree=True,
    )
    calls = [lambda: scaled(tensors), lambda: torch._foreach_mul(tensors, 0.9), lambda: compiled(tensors)]
    return [counted(row, call, bench) for row, call in zip(rows, calls, strict=True)]


def lead(rows: Rows) -> str:
    """Each against the loop."""
    paces = {name: rows.pace(name, SINGLY) for name in (FOREACH, COMPILED)}
    told = [f"{name} is {pace} {SINGLY}" for name, pace in paces.items() if pace]
    return f"{'; '.join(told)}." if told else ""


def says(rows: Rows) -> list[str]:
    """The launches, where they were counted."""
    counts = {row.name: row.kernels for row in rows.measured() if row.kernels is not None}
    if len(counts) < 2:
        return []
    return ["Kernels a call: " + ", ".join(f"{name} {count:g}" for name, count in counts.items()) + "."]


LESSON = Lesson(
    title="Many small tensors: one by one, foreach, or compiled?",
    how="64 tensors of 4,096 fp32 numbers, each multiplied by a number, as an optimizer's step does.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
)

"""Sizes that suit the matrix units, and their neighbours."""

import torch

from pipeline.lessons.experiments.precisions import matmul
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, value
from pipeline.lessons.variant_bench import Bench

GPU_SIDES = (4096, 4088, 4092, 4094, 4095, 4097)
CPU_SIDES = (768, 760, 764, 766, 767, 769)


def run(bench: Bench) -> list[Row]:
    """Square matmuls: fp16 on a GPU, for its tensor cores, and fp32 on a CPU, for its vectors."""
    dtype, sides = (torch.float16, GPU_SIDES) if bench.on_gpu else (torch.float32, CPU_SIDES)
    return bench.sampling([(row_of(side, sides[0]), matmul(bench, dtype, side)) for side in sides])


def row_of(side: int, reference: int) -> Row:
    """A size, with the largest power of two that divides it."""
    factor = side & -side
    return Row(name_of(side), name_of(reference) if side != reference else "", flops=2.0 * side**3,
               note=f"divisible by {factor}" if factor > 1 else "odd")  # fmt: skip


def name_of(side: int) -> str:
    """Such as 4,096."""
    return f"{side:,}"


def lead(rows: Rows) -> str:
    """The friendly size beside the worst of its neighbours."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "TFLOP/s"))}
    friendly = next((row.name for row in rows.measured() if not row.against), None)
    if friendly is None or len(rates) < 2:
        return ""
    worst = min(rates, key=lambda name: rates[name])
    if worst == friendly:
        return f"{friendly} is the slowest of its neighbours here: nothing is won by that size."
    if rows.outcome(friendly, worst) != "slower":
        return f"This run shows no price for a side other than {friendly}."
    lost = 1 - rates[worst] / rates[friendly]
    note = {row.name: row.note for row in rows}[worst]
    return f"A side of {worst} ({note}) in place of {friendly} costs {100 * lost:.0f} % of the rate."


LESSON = Lesson(
    title="Which sizes suit the matrix units?",
    how="Square matmuls whose sides are divisible by many twos, by few, or odd: fp16 on a GPU, where tensor cores want "
    "multiples of 8, and fp32 on a CPU, which has vectors but no tensor cores.",
    unit="TFLOP/s",
    run=run,
    lead=lead,
)

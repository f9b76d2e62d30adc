"""Changing a tensor in place, or making a new one."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench

GPU_NUMBERS, CPU_NUMBERS = 2**26, 2**22
NEW, KEPT, IN_PLACE = "a new tensor", "into a kept buffer", "in place"


def run(bench: Bench) -> list[Row]:
    """ReLU; each way reads and writes every number once."""
    numbers = GPU_NUMBERS if bench.on_gpu else CPU_NUMBERS
    x = bench.random(numbers)
    own, buffer = x.clone(), torch.empty_like(x)
    size = 4 * numbers
    return bench.sampling([
        (Row(NEW, moved_bytes=2 * size, note=f"takes {size // 2**20} MiB more"), lambda: torch.clamp_min(x, 0)),
        (Row(KEPT, NEW, moved_bytes=2 * size, note="takes nothing more, once the buffer is there"),
         lambda: torch.clamp_min(x, 0, out=buffer)),
        (Row(IN_PLACE, NEW, moved_bytes=2 * size, note="takes nothing more"), lambda: own.clamp_min_(0)),
    ])  # fmt: skip


def lead(rows: Rows) -> str:
    """What changing a tensor in place wins."""
    outcome = rows.outcome(NEW, IN_PLACE)
    if outcome == "faster":
        return f"In place wins time as well as memory here: it is {rows.pace(IN_PLACE, NEW)} a new tensor."
    if outcome in ("same", "slower"):
        return "In place wins memory here, and no time: the same bytes move either way."
    return "In place wins memory; whether it wins time, this run can't tell." if outcome else ""


LESSON = Lesson(
    title="In place, or new?",
    how="ReLU of one large fp32 tensor, three ways.",
    unit="time",
    run=run,
    lead=lead,
)

"""Reading numbers side by side, or a stride apart."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, value
from pipeline.lessons.variant_bench import Bench, Call
from pipeline.report import formatting

GPU_NUMBERS, CPU_NUMBERS = 2**24, 2**21
STRIDES = (1, 2, 4, 8, 16)


def run(bench: Bench) -> list[Row]:
    """Copy so many fp32 numbers, a stride apart, into a dense buffer; only those bytes count as moved."""
    numbers = GPU_NUMBERS if bench.on_gpu else CPU_NUMBERS
    source, out = bench.random(numbers * STRIDES[-1]), torch.empty(numbers, device=bench.device)
    return bench.sampling([(row_of(stride, numbers), gather(source, out, stride)) for stride in STRIDES])


def row_of(stride: int, numbers: int) -> Row:
    """A stride; all are compared with numbers side by side."""
    return Row(f"stride {stride}", "stride 1" if stride > 1 else "", series="useful bytes", at=stride,
               moved_bytes=2.0 * 4 * numbers)  # fmt: skip


def gather(source: torch.Tensor, out: torch.Tensor, stride: int) -> Call:
    """A call that copies every `stride`-th number of `source` [numbers] into `out` [fewer numbers] until it is full."""
    view = source[: out.numel() * stride : stride]
    return lambda: out.copy_(view)


def lead(rows: Rows) -> str:
    """What the widest stride costs."""
    factor = price(rows)
    if factor is None:
        return ""
    if factor < 1.1:
        return "This device shows no price for a stride."
    longer = formatting.significant(factor)
    return f"Read numbers side by side: {STRIDES[-1]} apart, the same count takes {longer} × as long."


def price(rows: Rows) -> float | None:
    """How many times less useful bytes a second move at the widest stride."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "GB/s"))}
    first, last = f"stride {STRIDES[0]}", f"stride {STRIDES[-1]}"
    return rates[first] / rates[last] if first in rates and last in rates else None


def says(rows: Rows) -> list[str]:
    """Why it costs that."""
    factor = price(rows)
    if factor is None or factor < 1.1:
        return []
    why = "Memory moves in whole lines: what isn't used of a line was fetched for nothing."
    if factor <= STRIDES[-1]:
        return [why]
    most = f"That alone costs no more than the stride, {STRIDES[-1]} times"
    return [f"{why} {most}; the rest, such as vector loads or a cache that is too small, isn't told apart here."]


LESSON = Lesson(
    title="Does it matter where the numbers lie?",
    how="The same count of fp32 numbers, a stride apart in a large tensor, copied into a dense one.",
    unit="GB/s",
    run=run,
    lead=lead,
    says=says,
    axis="stride, numbers",
)

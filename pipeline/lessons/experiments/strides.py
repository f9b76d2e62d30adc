"""Reading numbers side by side, or a stride apart."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, shown, value
from pipeline.lessons.variant_bench import Bench, Call
from pipeline.report import formatting as words

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


def says(rows: Rows) -> list[str]:
    """How the useful bandwidth falls."""
    rates = {row.name: found.value for row in rows.measured() if (found := value(row, "GB/s"))}
    first, last = f"stride {STRIDES[0]}", f"stride {STRIDES[-1]}"
    if first not in rates or last not in rates:
        return []
    factor = rates[first] / rates[last]
    ends = f"{shown(rates[first], 'GB/s')} of useful bytes move; {STRIDES[-1]} apart, {shown(rates[last], 'GB/s')}"
    if factor < 1.1:
        return [f"Side by side, {ends}: this device shows no price for the stride."]
    sentences = [
        (
            f"Side by side, {ends}, {words.significant(factor)} times less. "
            "Memory moves in whole lines: what isn't used of a line was fetched for nothing."
        )
    ]
    if factor > STRIDES[-1]:
        sentences.append(
            f"That alone costs no more than the stride, {STRIDES[-1]} times; the rest, such as vector loads or a cache "
            "that the wider stretch no longer fits, isn't told apart here."
        )
    return sentences


LESSON = Lesson(
    name="strides",
    title="Does it matter where the numbers lie?",
    how="The same count of fp32 numbers, a stride apart in a large tensor, copied into a dense one.",
    unit="GB/s",
    run=run,
    says=says,
    axis="stride, numbers",
)

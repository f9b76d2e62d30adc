"""int8 against fp8: how fast their matmuls are, and what rounding to them loses."""

import torch
from torch import Tensor

from pipeline.devices.accelerators import FP8
from pipeline.lessons.experiments.precisions import matmul
from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, value
from pipeline.lessons.variant_bench import Bench, Call, skipped
from pipeline.measure.peaks import fp8_matmul
from pipeline.measure.torch_device import has_compute
from pipeline.report import formatting

GPU_SIDE, CPU_SIDE = 6144, 192
NUMBERS, RARE, LARGE = 2**20, 2**10, 50.0  # every so-manieth number is so many times as large
LARGEST_INT8, LARGEST_FP8 = 127.0, 448.0  # of e4m3
INT8, EIGHT = "int8", "fp8"


def run(bench: Bench) -> list[Row]:
    """Square matmuls, beside fp16 on a GPU and fp32 on a CPU; and what rounding loses."""
    side, plain = (GPU_SIDE, "fp16") if bench.on_gpu else (CPU_SIDE, "fp32")
    rows = {name: row_of(name, plain, side, bench) for name in (plain, INT8, EIGHT)}
    calls: dict[str, Call] = {
        plain: matmul(bench, torch.float16 if bench.on_gpu else torch.float32, side),
        INT8: int8_matmul(bench, side),
    }
    if bench.on_gpu and has_compute(bench.device, FP8):
        calls[EIGHT] = fp8_matmul(*(bench.random(side, side, dtype=torch.float8_e4m3fn) for _ in range(2)))
    timed = {row.name: row for row in bench.sampling([(rows[name], call) for name, call in calls.items()])}
    reason = "matrix instructions for fp8 came with NVIDIA's compute capability 8.9"
    return [timed.get(name) or skipped(row, reason) for name, row in rows.items()]


def row_of(name: str, plain: str, side: int, bench: Bench) -> Row:
    """A format with the FLOPs of its matmul and, for 8 bits, what rounding loses."""
    against = plain if name != plain else ""
    return Row(name, against, flops=2.0 * side**3, note=lost(name, bench) if name != plain else "")


def int8_matmul(bench: Bench, side: int) -> Call:
    """A matmul of integers from −127 to 127 into 32 bits; the second matrix lies by columns, as GPUs want it."""
    left, right = (bench.random(side, side).mul(40).clamp(-LARGEST_INT8, LARGEST_INT8).to(torch.int8) for _ in range(2))
    return lambda: torch._int_mm(left, right.t())


def lost(name: str, bench: Bench) -> str:
    """What rounding to a format loses of numbers that are alike, and of numbers of which a few are large."""
    even = bench.random(NUMBERS)
    uneven = even.clone()
    uneven[::RARE] *= LARGE
    apart, among = (formatting.share(off(rounded(name, x), x)) for x in (even, uneven))
    return f"{apart} off, and {among} among a few large ones"


def off(found: Tensor, right: Tensor) -> float:
    """Relative L2 of the ordinary numbers of [numbers], which are all but every so-manieth."""
    ordinary = torch.ones_like(right, dtype=torch.bool)
    ordinary[::RARE] = False
    return float((found - right)[ordinary].norm() / right[ordinary].norm())


def rounded(name: str, x: Tensor) -> Tensor:
    """A tensor of any shape after a trip through int8 or e4m3, its largest number on the format's largest."""
    largest = x.abs().max()
    if name == INT8:
        scale = largest / LARGEST_INT8
        return (x / scale).round() * scale
    scale = largest / LARGEST_FP8
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def lead(rows: Rows) -> str:
    """Both formats beside the plain one."""
    told = [
        f"{row.name} is {pace} {row.against}" for row in rows.measured() if (pace := rows.pace(row.name, row.against))
    ]
    return f"{'; '.join(told)}." if told else ""


def says(rows: Rows) -> list[str]:
    """What each loses, and what that means for a net."""
    notes = {row.name: row.note for row in rows if row.note}
    if not any(value(row, "time") for row in rows):
        return []
    said = [f"Rounded to {name}, normal numbers are {note}." for name, note in notes.items()]
    why = "Steps of int8 are all alike, and one large number widens them for all; those of fp8 grow with the number."
    return [*said, why]


LESSON = Lesson(
    title="int8 or fp8?",
    how="The same square matmul with 8 bits a number; and a million normal numbers rounded with one scale, as they are "
    "or every 1,024th of them 50 times as large, the error being that of the others.",
    unit="TFLOP/s",
    run=run,
    lead=lead,
    says=says,
)

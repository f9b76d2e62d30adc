"""Whether a copy into a contiguous layout pays for itself."""

from collections.abc import Callable
from functools import partial

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows
from pipeline.lessons.variant_bench import Bench, Call
from pipeline.report import formatting

GPU_SIDE, CPU_SIDE = 4096, 768
Use = Callable[[torch.Tensor], None]

USES = ("one sum", "ten sums", "one matmul")


def strided(use: str) -> str:
    """The row's name that uses the transposed matrix as it lies."""
    return f"{use}, as it lies"


def copied(use: str) -> str:
    """The row's name that copies it first."""
    return f"{use}, .contiguous() first"


def run(bench: Bench) -> list[Row]:
    """A transposed fp32 matrix in three uses, as it lies or copied first; the copy is timed as well."""
    side = GPU_SIDE if bench.on_gpu else CPU_SIDE
    transposed, other = bench.random(side, side).t(), bench.random(side, side)
    out = torch.empty_like(other)
    variants: list[tuple[Row, Call]] = []
    for use, work in uses(other, out).items():
        variants.append((Row(strided(use)), partial(work, transposed)))
        variants.append((Row(copied(use), strided(use)), partial(on_copy, work, transposed)))
    return bench.sampling(variants)


def on_copy(work: Use, matrix: torch.Tensor) -> None:
    """The same use of a contiguous copy of `matrix` [side, side], copied anew at each call."""
    work(matrix.contiguous())


def uses(other: torch.Tensor, out: torch.Tensor) -> dict[str, Use]:
    """What is done with a matrix, by name; `other` and `out` are [side, side] as well."""

    def sums(count: int, matrix: torch.Tensor) -> None:
        for _ in range(count):
            torch.add(matrix, other, out=out)

    def matmul(matrix: torch.Tensor) -> None:
        torch.matmul(matrix, other, out=out)

    return dict(zip(USES, (partial(sums, 1), partial(sums, 10), matmul), strict=True))


def lead(rows: Rows) -> str:
    """Where the copy pays."""
    tried = [use for use in USES if rows.outcome(strided(use), copied(use))]
    pays = [use for use in tried if rows.outcome(strided(use), copied(use)) == "faster"]
    rest = [use for use in tried if use not in pays]
    if not tried:
        return ""
    if not pays:
        return f".contiguous() paid for its copy in none of these uses: {formatting.listed(rest)}."
    beside = f", not in {formatting.listed(rest)}" if rest else ""
    return f".contiguous() paid for its copy in {formatting.listed(pays)}{beside}."


LESSON = Lesson(
    title="Does .contiguous() pay?",
    how="A transposed fp32 matrix is added to another once or ten times, or multiplied, as it lies or after "
    ".contiguous(), whose own time counts.",
    unit="time",
    run=run,
    lead=lead,
)

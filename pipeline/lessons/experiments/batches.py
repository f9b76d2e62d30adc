"""The same work as one large batch or many small ones."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, seconds
from pipeline.lessons.variant_bench import Bench, Call
from pipeline.report import formatting

SAMPLES = 1024
GPU_WIDTH, CPU_WIDTH = 1024, 256
BATCHES = (1, 4, 16, 64, 256, 1024)


def run(bench: Bench) -> list[Row]:
    """1,024 samples through one linear layer; fp16 on a GPU, fp32 on a CPU."""
    dtype, width = (torch.float16, GPU_WIDTH) if bench.on_gpu else (torch.float32, CPU_WIDTH)
    samples, weight = bench.random(SAMPLES, width, dtype=dtype), bench.random(width, width, dtype=dtype)
    out = torch.empty_like(samples)
    return bench.sampling([(row_of(batch, width), in_batches(samples, weight, out, batch)) for batch in BATCHES])


def row_of(batch: int, width: int) -> Row:
    """A batch size; all are compared with one batch of everything."""
    return Row(name_of(batch), name_of(SAMPLES) if batch != SAMPLES else "", series="1,024 samples", at=batch,
               flops=2.0 * SAMPLES * width**2)  # fmt: skip


def name_of(batch: int) -> str:
    """Such as 64 batches of 16."""
    count = SAMPLES // batch
    return f"{count:,} batch{'' if count == 1 else 'es'} of {batch:,}"


def in_batches(samples: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, batch: int) -> Call:
    """A call that multiplies `samples` [count, width] by `weight` [width, width], batch by batch, into `out`, alike."""
    pairs = list(zip(samples.split(batch), out.split(batch), strict=True))

    def call() -> None:
        for part, place in pairs:
            torch.matmul(part, weight, out=place)

    return call


def lead(rows: Rows) -> str:
    """The ends of the range."""
    pace = rows.pace(name_of(SAMPLES), name_of(1))
    return f"{name_of(SAMPLES)} is {pace} {name_of(1)}." if pace else ""


def says(rows: Rows) -> list[str]:
    """The least batch that is within 10 % of the best."""
    times = {row.at: seconds(row).value for row in rows.measured() if row.at is not None}
    if not times:
        return []
    best = min(times.values())
    enough = min(at for at, time in times.items() if time <= 1.1 * best)
    return [f"A batch of {enough:,.0f} is enough to come within 10 % of the best, {formatting.seconds(best)}."]


LESSON = Lesson(
    title="One large batch, or many small ones?",
    how="1,024 samples through one linear layer, 1,024 wide on a GPU and 256 on a CPU, in batches of 1 to 1,024.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
    axis="samples a batch",
)

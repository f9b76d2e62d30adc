"""What a launch costs beside the kernel, and what a CUDA graph removes of it."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, seconds
from pipeline.lessons.variant_bench import Bench, Call, skipped
from pipeline.report import formatting as words

THOUSANDS = (1, 4, 16, 64, 256, 1024, 4096, 16384)  # of 1,024 fp32 numbers
KERNELS = 20  # in one call
EAGER, GRAPH = "one by one", "CUDA graph"


def run(bench: Bench) -> list[Row]:
    """Twenty kernels that add one to a tensor, launched one by one or replayed as a graph."""
    variants: list[tuple[Row, Call]] = []
    for thousands in THOUSANDS if bench.on_gpu else THOUSANDS[:-1]:
        x = bench.random(1024 * thousands)
        variants.append((row_of(EAGER, thousands), one_by_one(x)))
        if bench.on_gpu:
            variants.append((row_of(GRAPH, thousands), as_graph(x)))
    without = [] if bench.on_gpu else [skipped(Row(GRAPH), "CUDA graphs need a GPU")]
    return [*bench.sampling(variants), *without]


def row_of(series: str, thousands: int) -> Row:
    """A size under one way of launching."""
    against = f"{EAGER}, {thousands} Ki" if series == GRAPH else ""
    return Row(f"{series}, {thousands} Ki", against, series, thousands, KERNELS, kernels=KERNELS)


def one_by_one(x: torch.Tensor) -> Call:
    """A call that launches twenty kernels from Python, each adding 1 to `x`, of any shape, in place."""

    def call() -> None:
        for _ in range(KERNELS):
            x.add_(1.0)

    return call


def as_graph(x: torch.Tensor) -> Call:
    """A call that replays the same twenty on `x`, of any shape, recorded once."""
    graph = torch.cuda.CUDAGraph()
    work = one_by_one(x)
    work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def says(rows: Rows) -> list[str]:
    """The floor under small kernels, the size that hides it, and what the graph removes."""
    eager = {row.at: seconds(row).value for row in rows.measured() if row.series == EAGER and row.at is not None}
    if not eager:
        return []
    floor = eager[min(eager)]
    found = [f"However small, a kernel launched from Python takes {words.seconds(floor)} here."]
    hidden = [at for at, time in eager.items() if time >= 2 * floor]
    if hidden:
        found.append(f"Only from {min(hidden):,.0f} Ki numbers on does the work take twice as long as that.")
    small = min(eager)
    return [*found, rows.sentence(f"{GRAPH}, {small:g} Ki", f"{EAGER}, {small:g} Ki"),
            rows.sentence(f"{GRAPH}, {max(eager):g} Ki", f"{EAGER}, {max(eager):g} Ki")]  # fmt: skip


LESSON = Lesson(
    name="launches",
    title="What does a launch cost, and what does a CUDA graph remove?",
    how="Twenty kernels that add one to a tensor of 1,024 to 16 million numbers; times are of one kernel.",
    unit="time",
    run=run,
    says=says,
    axis="Ki (1,024) numbers a kernel",
)

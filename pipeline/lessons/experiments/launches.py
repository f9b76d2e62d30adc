"""What a launch costs beside the kernel, and what a CUDA graph removes of it."""

import torch

from pipeline.lessons.lesson import Lesson
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, seconds
from pipeline.lessons.variant_bench import Bench, Call, skipped
from pipeline.report import formatting

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


def lead(rows: Rows) -> str:
    """The floor under small kernels, and what the graph makes of it."""
    eager, graph = by_size(rows, EAGER), by_size(rows, GRAPH)
    if not eager:
        return ""
    beside = f", and {formatting.seconds(min(graph.values()))} in a CUDA graph" if graph else ""
    what = "a kernel launched" if graph else "an operator called"
    least = formatting.seconds(min(eager.values()))
    return f"However small, {what} from Python takes {least} or more here{beside}."


def by_size(rows: Rows, series: str) -> dict[float, float]:
    """Seconds of one kernel by its thousands of numbers."""
    return {row.at: seconds(row).value for row in rows.measured() if row.series == series and row.at is not None}


def says(rows: Rows) -> list[str]:
    """The size that hides the launch, and why a run's report shows a shorter one."""
    eager = by_size(rows, EAGER)
    if not eager:
        return []
    least = min(eager.values())
    hidden = [at for at in eager if min(time for size, time in eager.items() if size >= at) >= 2 * least]
    found = [f"Only from {min(hidden):,.0f} Ki numbers on does the work take twice as long as that."] if hidden else []
    launched = any(row.series == GRAPH for row in rows.measured())  # which a CPU has none of
    less = ["A run's report shows less: the best of many bursts of a kernel that does nothing."] if launched else []
    return [*found, *less]


LESSON = Lesson(
    title="What does a launch cost, and what does a CUDA graph remove?",
    how="Twenty kernels that add one to a tensor of 1,024 to 16 million numbers; times are of one kernel.",
    unit="time",
    run=run,
    lead=lead,
    says=says,
    axis="Ki (1,024) numbers a kernel",
)

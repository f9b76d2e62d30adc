"""What a lesson is."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, Unit
from pipeline.lessons.variant_bench import Bench


@dataclass(frozen=True)
class Lesson:
    """One experiment.

    Attributes:
        name: what `--only` takes.
        title: as a question.
        how: what is done, in one sentence.
        unit: of the chart.
        run: does it; about five seconds. It may leave out of a CPU's rows only what it names as skipped.
        says: what the rows say, with figures computed from them.
        axis: of a chart of lines; empty for bars.
        gpu_only: why there is nothing to do on a CPU; empty where there is.
    """

    name: str
    title: str
    how: str
    unit: Unit
    run: Callable[[Bench], list[Row]]
    says: Callable[[Rows], list[str]]
    axis: str = ""
    gpu_only: str = ""

"""What a lesson is."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, Unit
from pipeline.lessons.variant_bench import Bench


def nothing_more(_: Rows) -> list[str]:
    """Of a lesson that one sentence tells."""
    return []


@dataclass(frozen=True)
class Lesson:
    """One experiment.

    Attributes:
        title: as a question.
        how: what is done, in one sentence.
        unit: of the chart.
        run: does it; about five seconds. It may leave out of a CPU's rows only what it names as skipped.
        lead: what a person would say of the rows, in one sentence with its figures; empty where they don't tell.
        says: what else the rows say that table and chart don't show.
        axis: of a chart of lines; empty for bars.
        gpu_only: why there is nothing to do on a CPU; empty where there is.
        name: what `--only` takes, by the contents.
    """

    title: str
    how: str
    unit: Unit
    run: Callable[[Bench], list[Row]]
    lead: Callable[[Rows], str]
    says: Callable[[Rows], list[str]] = nothing_more
    axis: str = ""
    gpu_only: str = ""
    name: str = ""

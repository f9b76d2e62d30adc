"""Accuracy and memory against speed, of the ranked stages."""

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report.charts.scatter import front
from pipeline.report.figure import Figure, drawn
from pipeline.report.formatting import clean, significant
from pipeline.report.tables import Column, figure, names, table_of

WIDE_RANGE = 20  # from the least to the most: on a linear axis all but the most would lie on the floor
Point = tuple[str, float, float, str]  # name, times as fast, value, place


def fronts(summary: RunSummary) -> list[Figure]:
    """Two charts at most; one needs two stages."""
    fast = f"times as fast as {clean(summary.run.baseline)}"
    accuracies = [(stage, stage.stage.accuracy) for stage in summary.ranked]
    errors = [(stage, found.relative_l2) for stage, found in accuracies if found and found.relative_l2 > 0]
    memory = [(stage, peak / 2**30) for stage in summary.ranked if (peak := stage.peak_bytes)]
    figures = []
    if len(points(errors)) > 1:
        note = "Right and low is better. A stage without any error has no place on this scale."
        titles = ("Error against speed", fast, "relative L2 of the logits")
        figures.append(_front(points(errors), titles, note, log=True))
    if len(points(memory)) > 1:
        peaks = [peak for _, peak in memory]
        titles = ("Memory against speed", fast, "GiB of the device" if summary.on_gpu else "GiB resident at the peak")
        wide = max(peaks) > WIDE_RANGE * min(peaks)
        figures.append(_front(points(memory), titles, "Right and low is better.", log=wide))
    return figures


def points(values: list[tuple[StageSummary, float]]) -> list[Point]:
    """Those with a ratio."""
    return [(clean(stage.name), stage.ratio.value, value, stage.place) for stage, value in values if stage.ratio]


def _front(found: list[Point], titles: tuple[str, str, str], note: str, *, log: bool) -> Figure:
    columns: list[Column[Point]] = [
        names("stage", lambda point: point[0]),
        Column(titles[1], cell=figure(lambda point: point[1], significant)),
        Column(titles[2], cell=figure(lambda point: point[2], significant)),
    ]
    table = table_of(columns, sorted(found, key=lambda point: -point[1]))
    return drawn(titles[0], front(found, titles, log), note, table)

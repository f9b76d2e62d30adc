"""What speed costs in accuracy and in memory, of the ranked stages."""

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report.charts.scatter import front
from pipeline.report.figure import Figure, drawn
from pipeline.report.formatting import clean, spoken

WIDE_RANGE = 20  # from the least to the most: on a linear axis all but the most would lie on the floor
Point = tuple[str, float, float, str]  # name, times as fast, value, place


def error_front(summary: RunSummary) -> Figure | None:
    """The share of pixels that change, or the relative L2, against speed; None where fewer than two stages have any."""
    accuracies = [(stage, stage.stage.accuracy) for stage in summary.ranked]
    if not summary.run.config.task.has_masks:
        errors = [(stage, found.relative_l2) for stage, found in accuracies if found and found.relative_l2 > 0]
        note = "Right and low is better. A stage that answers as fp32 does, bit for bit, has no place on this scale."
        return _front(summary, errors, ("Error against speed", "relative L2 against fp32"), note, log=True)
    shares = [(stage, 100 * found.flipped_share) for stage, found in accuracies if found and found.flipped_share]
    words = summary.run.words
    note = f"Right and low is better. A stage that changes no {words.point} has no place on this scale."
    titles = (f"{words.points.capitalize()} that change against speed", f"% of {words.points} that change")
    return _front(summary, shares, titles, note, log=True)


def memory_front(summary: RunSummary) -> Figure | None:
    """Memory against speed; None with fewer than two stages."""
    memory = [(stage, peak / 2**30) for stage in summary.ranked if (peak := stage.peak_bytes)]
    peaks = [peak for _, peak in memory] or [1.0]
    wide = max(peaks) > WIDE_RANGE * min(peaks)
    return _front(
        summary,
        memory,
        ("Memory against speed", "GiB of the device" if summary.on_gpu else "GiB resident at the peak"),
        "Right and low is better.",
        log=wide,
    )


def _front(
    summary: RunSummary, values: list[tuple[StageSummary, float]], titles: tuple[str, str], note: str, *, log: bool
) -> Figure | None:
    found = points(values)
    if len(found) < 2:
        return None
    fast = f"times as fast as {spoken(summary.baseline)}"
    return drawn(titles[0], front(found, (titles[0], fast, titles[1]), log), f"{note} The figures stand in the ladder.")


def points(values: list[tuple[StageSummary, float]]) -> list[Point]:
    """Those with a ratio."""
    return [(clean(stage.name), stage.ratio.value, value, stage.place) for stage, value in values if stage.ratio]

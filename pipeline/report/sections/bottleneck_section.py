"""What limits every stage, side by side, and for one stage in a line."""

from pipeline.analysis.bottleneck import FEW_LAUNCHES, FLAT_SLOPE, Bottleneck, Reason
from pipeline.analysis.roofline import Gap
from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.records.run_record import StageRecord
from pipeline.report.formatting import NOTHING, clean, share, significant
from pipeline.report.sections.source_text import bytes_text
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

DEFINITION = (
    "Overhead-bound: the GPU idles for more than half of the time, the time hardly grows with the batch (slope under "
    f"{FLAT_SLOPE:g}), or a layer far below its roofline has kernels that last less than {FEW_LAUNCHES:g} launches; on "
    "a CPU also a stage that is far below both roofs and hardly grows with the images' pixels (slope under "
    f"{FLAT_SLOPE:g}). Otherwise the nearer of the two measured roofs, arithmetic or memory, names the bottleneck; a "
    "stage that reaches less than a quarter of either is below both roofs."
)
REASONS: dict[Reason, str] = {
    "": "",
    "not measured": "the stage was not measured",
    "idle": "no kernel runs for most of the time",
    "flat with batch": "more images would take hardly more time",
    "flat with pixels": "a quarter of every image would take hardly less time",
    "a roof is unknown": "the bottleneck needs both roofs",
    "far below": "its kernels or operators are the limit, not the device",
}


def columns() -> list[Column[StageSummary]]:
    """The bottleneck's figures for each stage."""
    return [
        names("stage", lambda stage: clean(stage.name)),
        names("bottleneck", lambda stage: stage.bottleneck.kind),
        Column("measured peak", "", "TFLOP/s on this device, of the precision that ran", _peak),
        Column(
            "of the peak",
            "",
            "the net's FLOPs over the time of a call; above 100 %: the algorithm multiplies less often than counted",
            figure(lambda stage: stage.bottleneck.evidence.compute, share),
        ),
        Column(
            "of the bandwidth",
            "",
            "the bytes of a call over its time, of the measured copy",
            figure(lambda stage: stage.bottleneck.evidence.memory, share),
        ),
        Column(
            "GPU idle",
            "",
            "1 less the kernels' time over that of a call",
            figure(lambda stage: stage.bottleneck.evidence.idle, share),
        ),
        Column(
            "growth",
            "",
            "slope of the time with the batch: 1 grows with it, 0 does not",
            figure(lambda stage: stage.bottleneck.evidence.slope, _slope),
        ),
        Column(
            "by pixels",
            "",
            "the same with the images' pixels; on a CPU",
            figure(lambda stage: stage.bottleneck.evidence.image_slope, _slope),
        ),
    ]


def table(summary: RunSummary) -> Table:
    """One line for every ranked stage; the columns that none fills are left out."""
    return table_of(columns(), summary.ranked).without_empty_columns


def _peak(stage: StageSummary) -> Cell:
    roofline = stage.roofline
    if roofline is None:
        return Cell(NOTHING)
    return Cell(f"{roofline.precision} {significant(roofline.flops_per_s / 1e12)}", roofline.flops_per_s)


def _slope(value: float) -> str:
    return f"{value:.2f}"


def sentence(stage: StageSummary) -> str:
    """The bottleneck with all its figures; empty for a stage that was not measured."""
    if stage.seconds is None:
        return ""
    bottleneck = stage.bottleneck
    known = (
        _compute(bottleneck, stage.stage),
        _memory(bottleneck),
        _idle(bottleneck),
        _growth(bottleneck.evidence.slope),
    )
    said = [part for part in (*known, _image_growth(bottleneck.evidence.image_slope)) if part]
    reason = REASONS[bottleneck.reason]
    return f"{bottleneck.kind}: {', '.join(said)}{f'; {reason}' if reason else ''}"


def gap_text(gap: Gap, stage: StageRecord) -> str:
    """Why a stage has no roofline."""
    if gap == "no precision":
        unknown = stage.execution.unknown if stage.execution else ""
        return f"its precision is unknown: {clean(unknown) or 'nothing on record'}"
    return (
        "this run measured no peaks" if gap == "no measured peaks" else f"this run measured no {stage.precision} peak"
    )


def _compute(bottleneck: Bottleneck, stage: StageRecord) -> str:
    if bottleneck.gap:
        return f"shares of the roofs unknown ({gap_text(bottleneck.gap, stage)})"
    if bottleneck.evidence.compute is None or bottleneck.roofline is None:
        return "share of the arithmetic unknown (no FLOPs on record)"
    peak = f"{significant(bottleneck.roofline.flops_per_s / 1e12)} TFLOP/s"
    return f"{share(bottleneck.evidence.compute)} of the measured {bottleneck.roofline.precision} peak ({peak})"


def _memory(bottleneck: Bottleneck) -> str:
    if bottleneck.moved is None:
        return "share of the bandwidth unknown"
    if bottleneck.evidence.memory is None:
        return f"share of the bandwidth unknown ({bottleneck.moved.unknown or bytes_text(bottleneck.moved)})"
    return f"{share(bottleneck.evidence.memory)} of the bandwidth ({bytes_text(bottleneck.moved)})"


def _idle(bottleneck: Bottleneck) -> str:
    if not bottleneck.on_gpu:
        return "no GPU to idle"
    idle = bottleneck.evidence.idle
    return "GPU idle unknown (no profile)" if idle is None else f"GPU idle {share(idle)}"


def _growth(slope: float | None) -> str:
    if slope is None:
        return "growth with the batch unknown (it was timed at one batch only)"
    return f"time {_grows(slope)} with the batch (slope {slope:.2f})"


def _image_growth(slope: float | None) -> str:
    """Nothing is said where nothing was timed, as on a GPU."""
    return "" if slope is None else f"{_grows(slope)} with the images' pixels (slope {slope:.2f})"


def _grows(slope: float) -> str:
    return "hardly grows" if slope < FLAT_SLOPE else "grows"


def in_short(stage: StageSummary) -> str:
    """The bottleneck with the figures that decide it, for the first screen."""
    bottleneck = stage.bottleneck
    figures = _known(bottleneck)
    if bottleneck.kind == "unknown":
        return f"What limits it is unknown: {REASONS[bottleneck.reason]}{figures}."
    return f"It is {bottleneck.kind}{figures}."


def _known(bottleneck: Bottleneck) -> str:
    evidence, roofline = bottleneck.evidence, bottleneck.roofline
    peak = f"the measured {roofline.precision} peak" if roofline else "the arithmetic"
    quarter = None if evidence.image_slope is None else 4**-evidence.image_slope
    shares = [
        (evidence.compute, f"{{}} of {peak}"),
        (evidence.memory, "{} of the bandwidth"),
        (evidence.idle, "the GPU idle for {}"),
        (quarter, "{} of the time for a quarter of each image"),
    ]
    said = [text.format(share(value)) for value, text in shares if value is not None]
    return f" ({', '.join(said)})" if said else ""

"""Fewer bits: the stages with 8 bits a value beside those with more, in error, Dice, time and bytes."""

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.analysis.traffic import moved
from pipeline.records.run_record import EAGER, Precision
from pipeline.report.formatting import (
    NOTHING,
    clean,
    gibibytes,
    gigabytes,
    mebibytes,
    milliseconds,
    seconds,
    share,
    significant,
)
from pipeline.report.sections.accuracy_section import dice_by_class
from pipeline.report.sections.ladder_section import accuracy_of, mean_dice
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

TITLE = "Fewer bits"
EIGHT: tuple[Precision, ...] = ("int8", "fp8")
WEIGHTS = ("onnx", "data", "bin", "safetensors", "pt", "pt2")  # endings of files that hold a net's weights
NOTE = (
    "Error and Dice are of the evaluation {samples}; where there were enough, others gave scales and chose layers. "
    "The details of each stage name the layers that were kept, and each layer's sensitivity."
)


def table(summary: RunSummary) -> Table:
    """The stages with 8 bits, and for comparison eager and the fastest with more; no rows where none has 8 bits."""
    shown = compared(summary)
    return table_of(columns(summary), shown).without_empty_columns


def compared(summary: RunSummary) -> list[StageSummary]:
    """The rows of the table, in the ladder's order."""
    fewer = [stage for stage in summary.stages if stage.stage.precision in EIGHT]
    if not fewer:
        return []
    beside = {stage.name for stage in (summary.stage(EAGER), fastest(summary, fewer=False)) if stage}
    return [stage for stage in summary.stages if stage in fewer or stage.name in beside]


def fastest(summary: RunSummary, *, fewer: bool) -> StageSummary | None:
    """Of the ranked stages with 8 bits, or of those with more: by the ratio, which a drift moves less than times."""
    found = [stage for stage in summary.ranked if stage.ratio and (stage.stage.precision in EIGHT) == fewer]
    return max(found, key=lambda stage: stage.ratio.value if stage.ratio else 0.0, default=None)


def columns(summary: RunSummary) -> list[Column[StageSummary]]:
    """What fewer bits cost in accuracy, and what they save."""
    lost = "of Dice against the labels, in points of 100, in the class that loses most beside the fp32 net"
    held = "what the device sees of the process; on a CPU its resident peak"
    changing = f"{summary.run.words.points} that change"
    wide = "with so few bits, of those with matrix products"
    return [
        names("stage", lambda stage: clean(stage.name)),
        names("by", _provider, csv="provider"),
        names("bits", lambda stage: clean(stage.stage.precision or NOTHING), "of most matrix products", "precision"),
        Column("layers", help=wide, cell=lambda stage: layers(summary, stage), csv="layers_with_8_bits"),
        Column("error", help="relative L2 of the logits", cell=figure(_error, lambda value: significant(value, 2))),
        Column(changing, help="their class against the fp32 net", cell=figure(_flipped, share)),
        Column("Dice", help="mean over the classes, against the labels", cell=figure(mean_dice, "{:.4f}".format)),
        Column("Dice lost, points", help=lost, cell=figure(lambda stage: accuracy_of("max_dice_drop", stage), _points)),
        Column("ms", help="per call", cell=figure(lambda stage: stage.pace, milliseconds)),
        Column(f"× {clean(summary.baseline)}", help="times as fast", cell=figure(_ratio, significant)),
        Column("GB", help="through memory in a call", cell=figure(lambda stage: moved(stage.stage).amount, gigabytes)),
        Column("file MiB", help="left to be loaded", cell=figure(bytes_left, mebibytes), csv="file_bytes"),
        Column("GiB", help=held, cell=figure(lambda stage: stage.peak_bytes, gibibytes)),
        names("outcome", lambda stage: stage.compared.outcome or stage.status),
    ]  # fmt: skip


def _provider(stage: StageSummary) -> str:
    return clean(stage.stage.execution.provider) if stage.stage.execution else NOTHING


def layers(summary: RunSummary, stage: StageSummary) -> Cell:
    """Such as "19 of 23"; of a stage with more bits nothing."""
    found, reference = stage.stage.execution, summary.run.reference
    if found is None or found.precision not in EIGHT or reference is None:
        return Cell(NOTHING)
    every = [layer.name for layer in reference.layers if layer.flops]
    fewer = [name for name in every if found.layer_precision.get(name, found.precision) in EIGHT]
    return Cell(f"{len(fewer)} of {len(every)}", len(fewer)) if every else Cell(NOTHING)


def _error(stage: StageSummary) -> float | None:
    return stage.stage.accuracy.relative_l2 if stage.stage.accuracy else None


def _flipped(stage: StageSummary) -> float | None:
    found = stage.stage.accuracy
    return found.flipped_share if found and stage.masks_judged else None


def _ratio(stage: StageSummary) -> float | None:
    return stage.ratio.value if stage.ratio and stage.ranked else None


def _points(value: float) -> str:
    return significant(value, 2)


def bytes_left(stage: StageSummary) -> int | None:
    """Of the files that hold the net; generated code and traces hold no weights."""
    sizes = [file.size_bytes for file in stage.stage.artefacts if file.path.rpartition(".")[2] in WEIGHTS]
    return sum(sizes) if sizes else None


def sentences(summary: RunSummary) -> list[str]:
    """The fastest with 8 bits beside the fastest with more, with what it loses."""
    fewer, more = fastest(summary, fewer=True), fastest(summary, fewer=False)
    if fewer is None or more is None:
        return []
    said = []
    if not summary.ranking.unresolved:
        first = f"The fastest with 8 bits a value is {clean(fewer.name)}, {seconds(fewer.pace)} per call"
        said.append(f"{first}; the fastest with more is {clean(more.name)}, {seconds(more.pace)}.")
    found = fewer.stage.accuracy
    if found and fewer.masks_judged:
        scores = f" {dice_by_class(found.dice, found.reference_dice)}." if found.dice and found.reference_dice else ""
        points = f"{share(found.flipped_share)} of {clean(fewer.name)}'s {summary.run.words.points} change class"
        said.append(f"{points}.{scores}")
    return said

"""Fewer bits: the stages with 8 bits a value beside those with more, in error, Dice, time and bytes."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.analysis.bottleneck import moved
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import few
from pipeline.records.goals import accuracy_figure
from pipeline.records.run_record import EAGER, Precision
from pipeline.records.samples import Accuracy
from pipeline.report import WORDS, formatting
from pipeline.report.formatting import NOTHING, clean, method, milliseconds, seconds, share, significant, two
from pipeline.report.sections.accuracy import dice_by_class
from pipeline.report.sections.ladder import mean_dice
from pipeline.report.tables import Cell, Column, Section, explained, methods, names, number, table_of

EIGHT: tuple[Precision, ...] = ("int8", "fp8")
WEIGHTS = ("onnx", "data", "bin", "safetensors", "pt", "pt2")  # endings of files that hold a network's weights
MOST_NAMED = 100  # layers in a line
NOTE: str = WORDS["bits"]["note"]


def section(summary: RunSummary) -> Section:
    """Return the comparison of 8 bits with more."""
    said = sentences(summary)
    note, gist = summary.run.words.put_into(NOTE), said[0] if said else ""
    fewer = [stage for stage in summary.stages if stage.stage.precision in EIGHT]
    beside = {stage.name for stage in (summary.stage(EAGER), fastest(summary, fewer=False)) if stage}
    shown = [stage for stage in summary.stages if fewer and (stage in fewer or stage.name in beside)]
    table = table_of(columns(summary), shown).without_empty_columns
    return Section("bits", "Fewer bits", gist, note, said, table=table, table_in_markdown=True)


def fastest(summary: RunSummary, *, fewer: bool) -> StageSummary | None:
    """Return the fastest with 8 bits, or with more: by the ratio, which a drift moves less than times."""
    found = [stage for stage in summary.ranked if stage.ratio and (stage.stage.precision in EIGHT) == fewer]
    return max(found, key=lambda stage: stage.ratio.value if stage.ratio else 0.0, default=None)


def columns(summary: RunSummary) -> list[Column[StageSummary]]:
    """Return what fewer bits cost in accuracy, and what they save."""

    def of(read: Callable[[Accuracy], float | None]) -> Callable[[StageSummary], float | None]:
        return lambda stage: read(stage.stage.accuracy) if stage.stage.accuracy else None

    def points(found: Accuracy) -> float | None:
        lost = accuracy_figure("max_dice_drop", found)
        return None if lost is None else -lost

    def change(points: float) -> str:
        return f"{'−' if points < 0 else '+'}{two(abs(points))}" if points else "0"

    def ratio(stage: StageSummary) -> float | None:
        return stage.ratio.value if stage.ratio and stage.ranked else None

    def bytes_left(stage: StageSummary) -> int | None:
        sizes = [file.size_bytes for file in stage.stage.artefacts if file.path.rpartition(".")[2] in WEIGHTS]
        return sum(sizes) if sizes else None

    def layers(stage: StageSummary) -> Cell:  # such as 19 of 23
        found, reference = stage.stage.execution, summary.run.reference
        every = [layer.name for layer in reference.layers if layer.flops] if reference else []
        if found is None or found.precision not in EIGHT or not every:
            return Cell(NOTHING)
        fewer = [name for name in every if found.layer_precision.get(name, found.precision) in EIGHT]
        return Cell(f"{len(fewer)} of {len(every)}", len(fewer))

    shown: list[Column[StageSummary]] = [
        methods(lambda stage: stage.name),
        names("runtime", lambda of: clean(ran.provider) if (ran := of.stage.execution) else NOTHING, "provider"),
        names("bits", lambda stage: clean(stage.stage.precision or NOTHING), "precision"),
        Column("layers", layers, csv="layers_with_8_bits"),
        number("error", of(lambda found: found.relative_l2), two),
        number(
            f"{summary.run.words.points} that change",
            of(lambda found: None if summary.run.unjudged else found.flipped_share),
            share,
            help=WORDS["bits"]["flipped"],
        ),
        number("Dice", mean_dice, "{:.4f}".format),
        number("Dice change, points", of(points), change),
        number("ms", lambda stage: stage.pace, milliseconds),
        number(f"× {method(summary.baseline)}", ratio, significant, help="times as fast"),
        number("GB", lambda stage: moved(stage.stage).amount, formatting.gigabytes),
        number("file MiB", bytes_left, formatting.mebibytes, "file_bytes"),
        number("GiB", lambda stage: stage.peak_bytes, formatting.gibibytes),
        names("outcome", lambda stage: stage.compared.outcome or stage.status),
    ]
    return explained("bits", shown)


def sentences(summary: RunSummary) -> list[str]:
    """Return the fastest with 8 bits beside the fastest with more, with what it loses."""
    fewer, more = fastest(summary, fewer=True), fastest(summary, fewer=False)
    chosen = [line for stage in summary.stages for line in chosen_layers(stage.name, stage.stage.details)]
    if fewer is None or more is None:
        return chosen
    said = []
    if not summary.ranking.unresolved:
        first = f"The fastest with 8 bits a value is {method(fewer.name)}, {seconds(fewer.pace)} per call"
        said.append(f"{first}; the fastest with more is {method(more.name)}, {seconds(more.pace)}.")
    found = fewer.stage.accuracy
    if found and not fewer.unjudged:
        scores = f" {dice_by_class(found)}." if found.dice and found.reference_dice else ""
        points = f"{share(found.flipped_share)} of {method(fewer.name)}'s {summary.run.words.points} change class"
        said.append(f"{points}.{scores}")
    return [*said, *chosen]


def chosen_layers(name: str, details: Mapping[str, Any]) -> list[str]:
    """Return which layers a stage could have in fp8, and which its budget refused, by which figure; or nothing."""
    found = details.get("fp8_choice")
    if not isinstance(found, dict):
        return []
    reading, refused = found["in_fp8"], found["refused"]
    ran = "" if "stored_fp8" in details or not reading else ", but another form was faster or fp8 failed"
    said = [f"{method(name)}: {few(list(map(clean, reading)), MOST_NAMED) or 'no layer'} can be in fp8{ran}."]
    if refused:
        each = [clean(layer) + ("" if alone is None else f" ({two(alone)})") for layer, alone in refused.items()]
        figure = f"; in brackets what each alone takes of the {found['limit']}, and errors add up"
        said.append(f"{method(name)} keeps {few(each, MOST_NAMED)} in fp16{figure if any(refused.values()) else ''}.")
    if faster := found.get("faster_in_fp16"):
        said.append(f"{method(name)} keeps {few(list(map(clean, faster)), MOST_NAMED)} in fp16, which is faster there.")
    return said

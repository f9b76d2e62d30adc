"""The roofline: every layer and level against the measured peaks, and the layers by the time that could be saved."""

from dataclasses import replace
from functools import partial

from pipeline.analysis import roofline as peaks
from pipeline.analysis.bottleneck import of_layer
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import RunRecord
from pipeline.report.charts import ACCENT, PLAIN
from pipeline.report.charts.bars import stacked
from pipeline.report.formatting import clean, method, milliseconds, seconds, share, significant
from pipeline.report.run_text import LAYERS_FROM
from pipeline.report.tables import Column, Figure, Section, Table, explained, names, number, table_of

TOP_LAYERS = 12  # in a stage's own section
DATASHEET_SOURCE = "NVIDIA's H200 datasheet, SXM, without sparsity"
ON_ROOFLINE, ABOVE = "on the roofline, or with no work on record", "above it: could be saved"
GIST = "Each layer and level against what this device was measured to reach."

Layer = peaks.LayerFigures  # or a level
NAME: Column[Layer] = names("layer", lambda layer: clean(layer.name))
PRECISION: Column[Layer] = names("precision", lambda layer: layer.precision or "")
LEVEL: Column[Layer] = names("level", lambda layer: clean(layer.level))


def figures(roofline: peaks.Roofline) -> list[Column[Layer]]:
    """Return the columns of layers or levels under a roofline."""
    return [
        number("ms", lambda layer: layer.seconds, milliseconds),
        number("launches", lambda layer: layer.launches, "{:.4g}".format),
        number("GFLOP", lambda layer: layer.flops / 1e9 or None, significant),
        number("MB", lambda layer: layer.moved_bytes / 1e6 or None, significant),
        number("TFLOP/s", lambda of: of.flops / of.seconds / 1e12 or None if of.seconds else None, significant),
        number("of its roof", lambda layer: max(layer.shares) if layer.has_work else None, share),
        names("bottleneck", lambda layer: of_layer(layer, roofline)),
        number("ms above its roof", lambda layer: layer.seconds_above, milliseconds),
    ]


def sections(summary: RunSummary) -> list[Section]:
    """Return a section for the winner, or the fastest stage that shows its layers, and one for the baseline."""
    timed = [stage for stage in summary.ranked if stage.seconds and stage.roofline]
    shown = [stage for stage in timed if any(min(of.flops, of.moved_bytes, of.seconds) > 0 for of in stage.layers)]
    shown.sort(key=lambda stage: (stage is not summary.winner, stage.seconds.value if stage.seconds else 0.0))
    baseline = summary.stage(summary.baseline)
    found = [*shown[:1], *([baseline] if baseline in shown[1:] else [])]
    why = [""] * len(found)
    if found and summary.winner not in (None, found[0]):
        why[0] = f"{method(summary.ranking.winner or '')} hides its layers; this is the fastest that shows them. "
    return [of_stage(summary.run, stage, at, said) for at, (stage, said) in enumerate(zip(found, why, strict=True), 1)]


def of_stage(run: RunRecord, stage: StageSummary, at: int = 1, why: str = "") -> Section:
    """Return one stage's levels and its roofline as charts, and its layers as a table."""
    roofline, name = stage.roofline, method(stage.name)
    assert roofline is not None
    above, levels = peaks.seconds_above_by_level(stage.layers), peaks.levels_of(stage.layers)
    bars = []
    for level in levels:
        slow = 1e3 * above[level.level]
        bars.append((clean(level.name), {ON_ROOFLINE: 1e3 * level.seconds - slow, ABOVE: slow}))
    saved = "A level's time: on its layers' rooflines, and above them, which is what could be saved."
    if below := peaks.seconds_below(stage.layers):
        saved += f" Layers that are faster than theirs, by {seconds(below)} in all, save nothing elsewhere."
    order = sorted(levels, key=lambda level: -above.get(level.level, 0.0))
    by_level = table_of([replace(NAME, title="level"), *figures(roofline)], order)  # the layers' table explains them
    title, times = f"{name}, level by level", [milliseconds(level.seconds) for level in levels]
    palette, unit = {ON_ROOFLINE: PLAIN, ABOVE: ACCENT}, "milliseconds per call, by the profile"
    charts = [Figure(title, partial(stacked, bars, palette, (title, unit), times), saved, by_level)]
    note, table = why + _note(run, stage, roofline), layers_table(stage.layers, roofline)
    return Section(f"roofline-{at}", f"Layer by layer: {name}", GIST, note, charts=charts, table=table)


def _note(run: RunRecord, stage: StageSummary, roofline: peaks.Roofline) -> str:
    """Return the sources of the layers' times and of their roofs."""
    found = roofline.reached_peaks.get(roofline.precision, peaks.ReachedPeak(roofline.flops_per_s))
    what = f"{clean(found.layer)} in {method(found.stage)}" if found.layer else "a large matmul, faster than any layer"
    source = f"Times from {LAYERS_FROM[stage.stage.diagnostics.layers_source]}. " if stage.stage.diagnostics else ""
    most = f"{significant(roofline.flops_per_s / 1e12)} TFLOP/s and {significant(roofline.bytes_per_s / 1e12)} TB/s"
    said = peaks.datasheet(run, roofline.precision)
    rate, width = (said.flops_per_s / 1e12, said.bytes_per_s / 1e12) if said else (0, 0)
    sheet = f" {DATASHEET_SOURCE}: {significant(rate)} TFLOP/s and {significant(width)} TB/s." if said else ""
    reached = f"the most that anything reached here in {roofline.precision} ({what}) and of a copy"
    return f"{source}Roofs: {most}, {reached}.{sheet}"


def layers_table(layers: list[peaks.LayerFigures], roofline: peaks.Roofline, most: int | None = None) -> Table:
    """Return the layers by their time above the roofline, the most first; those without known work last."""
    order = sorted(layers, key=lambda of: (of.seconds_above is None, -(of.seconds_above or 0.0), -of.seconds))
    shown = [NAME, LEVEL, PRECISION, *explained("roofline", figures(roofline), believed=peaks.BELIEVED)]
    return table_of(shown, order[:most]).without_empty_columns


def peaks_text(run: RunRecord) -> str:
    """Return the measured peaks beside the datasheet's, in a line; empty where none was measured."""
    said, source, measured = [], "", run.measured_peaks
    rates, terabytes = peaks.DATASHEETS.get(run.environment.device_name if run.environment else "", ({}, None))
    own_peaks = {**measured.tflops, "copy": measured.bandwidth_bytes_per_s / 1e12} if measured else {}
    for name, value in own_peaks.items():
        own = f"{name} {significant(value)} {'TB/s' if name == 'copy' else 'TFLOP/s'}"
        if most := {**rates, "copy": terabytes}.get(name):
            own += f" ({share(value / most)} of {significant(most)})"
            source = f"; of what {DATASHEET_SOURCE} says"
        said.append(own)
    return ", ".join(said) + source

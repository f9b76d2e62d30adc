"""One stage's own section of the page."""

import json
from dataclasses import dataclass

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.run_record import EAGER, StageRecord
from pipeline.report import detail_lines, objective_text, run_text
from pipeline.report.formatting import clean, interval, seconds, significant, spoken, times
from pipeline.report.sections import (
    accuracy_section,
    bottleneck_section,
    fusion_section,
    host_time_section,
    layout_section,
    memory_section,
    roofline_section,
    traffic_section,
)
from pipeline.report.sections.source_text import layers_text, note_text
from pipeline.report.tables import Table
from pipeline.report.usage import Usage, usage


@dataclass(frozen=True)
class StageSection:
    """What the page of one stage shows; empty texts and tables are left out."""

    summary: StageSummary
    gist: str
    essentials: list[tuple[str, str]]
    usage: Usage | None
    host_time: list[tuple[str, str]]
    layers: Table | None
    layers_from: str
    notes: list[str]
    changes: Table
    generated: Table
    fusion: str
    sources: list[str]
    graphs: list[str]
    holders: str
    counted: str
    kernels: Table
    compile_facts: list[tuple[str, list[str]]]
    details: list[tuple[str, list[str]]]

    @property
    def stage(self) -> StageRecord:
        """Its record."""
        return self.summary.stage


def section(summary: RunSummary, stage: StageSummary) -> StageSection:
    """All that is known of one stage."""
    record, peaks = stage.stage, summary.run.measured_peaks
    diagnostics = record.diagnostics
    return StageSection(
        summary=stage,
        gist=_gist(summary, stage),
        essentials=[(name, text) for name, text in _essentials(summary, stage) if text],
        usage=usage(summary, stage) if stage.ranked else None,
        host_time=host_time_section.section(record),
        layers=roofline_section.top_layers(stage),
        layers_from=layers_text(diagnostics),
        notes=[note_text(note) for note in diagnostics.notes] if diagnostics else [],
        changes=layout_section.changes(record),
        generated=fusion_section.generated(stage),
        fusion=fusion_section.summary(stage),
        sources=fusion_section.sources(record),
        graphs=diagnostics.fusion.graphs if diagnostics and diagnostics.fusion else [],
        holders=memory_section.holders(stage),
        counted=traffic_section.summary(record),
        kernels=traffic_section.kernels(record, peaks.bandwidth_bytes_per_s if peaks else None),
        compile_facts=detail_lines.compile_lines(record.compile_facts),
        details=[(key.replace("_", " "), detail_lines.lines(value)) for key, value in record.details.items()],
    )


def _gist(summary: RunSummary, stage: StageSummary) -> str:
    """What is shown of a stage that is folded."""
    fast = f"{times(stage.ratio)} {spoken(summary.baseline)}" if stage.ratio and stage.ranked else ""
    fast += ", not resolved" if fast and stage.compared.outcome == "not resolved" else ""
    said = [fast, seconds(stage.pace) if stage.pace else "", clean(stage.stage.spec.adds)]
    return " · ".join(part for part in said if part)


def _essentials(summary: RunSummary, stage: StageSummary) -> list[tuple[str, str]]:
    """What one reads of a stage first; what isn't known is empty."""
    record, reason = stage.stage, f"Reason for this limit: {stage.stage.spec.tolerance.reason}."
    return [
        ("speed", _speed(summary, stage)),
        ("time", _time(summary, stage)),
        ("bottleneck", bottleneck_section.sentence(stage)),
        ("latency", _latency(stage)),
        ("right?", f"{accuracy_section.right(stage)} {reason}" if record.accuracy else ""),
        ("asked of the answer", objective_text.limits(summary.run.config.accuracy, record)),
        ("half precision", accuracy_section.precision_faults(record)),
        ("calibrated on", accuracy_section.calibrated_on(record, stage.words)),
        ("memory", run_text.memory_text(record) if record.memory else ""),
        ("energy", _energy(stage)),
        ("set-up", _setup(record)),
        ("asked", ", ".join(f"{key}={_value(value)}" for key, value in record.spec.options.items())),
        ("ran", record.description),
    ]  # fmt: skip


def _speed(summary: RunSummary, stage: StageSummary) -> str:
    found, eager = stage.ratio, stage.eager_ratio
    if not stage.ranked or found is None:
        return ""
    said = [f"{times(found)} {interval(found)} {spoken(summary.baseline)}, {stage.compared.outcome}"]
    if summary.baseline != EAGER and eager:
        said.append(f"{times(eager)} {interval(eager)} {EAGER} fp32")
    return f"{'; '.join(said)}. {run_text.remedy_of(stage)}".strip()


def _time(summary: RunSummary, stage: StageSummary) -> str:
    if stage.seconds is None:
        return ""
    text = f"{seconds(stage.seconds.value)} per call, interleaved with {clean(summary.run.baseline)}"
    if stage.sustained_seconds:
        text += f"; {seconds(stage.sustained_seconds)} at full load"
    rate = f", {significant(stage.images_per_second)} {stage.words.samples}/s" if stage.images_per_second else ""
    return f"{text}{rate}{'' if stage.ranked else ' (not ranked)'}"


def _latency(stage: StageSummary) -> str:
    own, host = stage.latency, stage.host_latency
    if own is None:
        return ""
    text = f"single calls: p50 {seconds(own.p50)}, p90 {seconds(own.p90)}, p99 {seconds(own.p99)}"
    return text + (f"; from host memory and back p50 {seconds(host.p50)}, p99 {seconds(host.p99)}" if host else "")


def _energy(stage: StageSummary) -> str:
    energy, each = stage.stage.energy, stage.joules_per_image
    if energy is None or not each:
        return ""
    return f"{significant(each)} J {stage.words.one}; the idle device draws {significant(energy.idle_watts, 2)} W"


def _setup(record: StageRecord) -> str:
    if record.build_seconds is None:
        return ""
    text = f"{seconds(record.build_seconds)} to build, {seconds(record.first_call_seconds)} for the first call"
    warm_up = record.warm_up
    if warm_up is None:
        return text
    end = "settle" if warm_up.steady else "warm up, still unsteady"
    return f"{text}, {plural(warm_up.calls, 'call')} in {seconds(warm_up.seconds)} to {end}"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

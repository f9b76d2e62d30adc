"""One stage's own section of the page."""

import json
from dataclasses import dataclass

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.records.run_record import StageRecord
from pipeline.report import detail_lines, first_screen
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


@dataclass(frozen=True)
class StageSection:
    """What the page of one stage shows; empty texts and tables are left out."""

    summary: StageSummary
    right: str
    calibrated: str
    memory: str
    unresolved: str
    bottleneck: str
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
    asked: list[tuple[str, str]]
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
        right=accuracy_section.right(stage) if record.accuracy else "",
        calibrated=accuracy_section.calibrated_on(record),
        memory=first_screen.memory_text(record) if record.memory else "",
        unresolved=first_screen.remedy_of(stage),
        bottleneck=bottleneck_section.sentence(stage),
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
        asked=[(key, _value(value)) for key, value in record.options.items()],
        compile_facts=detail_lines.compile_lines(record.compile_facts),
        details=[(key.replace("_", " "), detail_lines.lines(value)) for key, value in record.details.items()],
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

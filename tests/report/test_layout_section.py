"""What the report says of changes between NCHW and NHWC."""

from dataclasses import replace

import pytest

from pipeline.records.diagnostics import Diagnostics, LayoutChange, Note, PlaceKind
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.sections import layout
from pipeline.report.tables import Table
from tests.report import made_up_run as made_up

HIDDEN = made_up.HIDDEN
TRACED = [
    LayoutChange("void cudnn::nchwToNhwcKernel<float>(int)", "decoder.3", "trace", 2.0, 4e-3, "layer"),
    LayoutChange("void cudnn::nhwcToNchwKernel<float>(int)", "decoder.3", "trace", 1.0, 1e-3, "layer"),
    LayoutChange("void cudnn::nchwToNhwcKernel<float>(int)", "head", "trace", 1.0, 3e-3, "layer"),
]
COPIED = [LayoutChange("copy, NCHW → NHWC", "between layers", "trace", 1.0, 2e-5, "gap")]
GENERATED = [
    LayoutChange("triton_1", "convolution (its bias), relu", "generated code", 2.0, 9e-4, "operators"),
    LayoutChange("triton_2", "max_pool2d", "generated code", 1.0, 3e-4, "operators"),
]
EXPORTED = [
    LayoutChange("Transpose3DKernel", None, "trace", 2.0, 1e-4),
    LayoutChange("Transpose, NCHW → NHWC", "to_nhwc", "ONNX graph", 1.0, None, "node"),
]


def stage(name: str, ratio: float, changes: list[LayoutChange], notes: list[Note] | None = None) -> StageRecord:
    """A made-up stage with these changes."""
    return replace(
        made_up.stage(name, ratio, 0.1, 10**9, ""), diagnostics=Diagnostics(layout=changes, notes=notes or [])
    )


def run() -> RunRecord:
    """A stage that pays, one that is rid of it, a compiled one, one that hides its layers, and one with none."""
    return made_up.run(
        stages=[
            stage("eager", 1.0, []),
            stage("tf32", 2.0, TRACED),
            stage("channels_last", 4.0, COPIED),
            stage("compile", 8.0, GENERATED),
            stage("onnxruntime", 7.0, EXPORTED, [HIDDEN]),
        ]
    )


def rows(shown: Table) -> dict[str, list[str]]:
    """A table's texts by the first column."""
    return {str(row[0].value): [cell.text for cell in row[1:]] for row in shown.rows}


def test_every_stage_has_its_changes_and_their_price() -> None:
    found = rows(layout.section(made_up.summary(run())).table)
    assert found["tf32"][:2] == ["4", "8.00"]
    assert found["tf32"][2] == "20 %"
    assert found["tf32"][3:] == ["cudnn::nchwToNhwcKernel", "decoder.3"]
    assert found["eager"] == ["none found", "–", "–", "", ""]


def test_what_a_graph_names_is_not_counted_again() -> None:
    found = rows(layout.section(made_up.summary(run())).table)
    assert found["onnxruntime"][:2] == ["2, and 1 in the graph", "0.100"]
    graph_only = made_up.run(stages=[stage("eager", 1.0, EXPORTED[1:])])
    assert rows(layout.section(made_up.summary(graph_only)).table)["eager"][:3] == ["1 in the graph", "–", "–"]


def test_an_unknown_place_says_why() -> None:
    assert rows(layout.section(made_up.summary(run())).table)["onnxruntime"][4] == f"unknown: {HIDDEN.text}"
    silent = stage("onnxruntime", 8.0, EXPORTED)
    assert layout.place(silent, EXPORTED[0]) == "unknown: the trace names no layer around its launch"


def test_sentences_name_who_pays_and_who_was_rid_of_it() -> None:
    said = layout.sentences(made_up.summary(run()))
    assert len(said) == 3
    assert said[0].startswith("tf32 changes the layout 4 times per call, in 8.00 ms of 4")
    assert said[0].endswith("most at decoder.3, 5.00 ms.")
    assert said[1].startswith("compile: 3 generated kernels per call also convert between NCHW and NHWC.")
    assert "the conversion costs at most that" in said[1]
    assert said[2] == "tf32 → channels_last: from 4 changes per call in 8.00 ms to 1 in 20.0 µs."


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("layer", "most at between us, 2.00 ms"),
        ("gap", "most between us, 2.00 ms"),
        ("operators", "most in those for between us, 2.00 ms"),
    ],
)
def test_what_a_place_names_is_told_and_not_read_from_its_name(kind: PlaceKind, said: str) -> None:
    changes = [LayoutChange("copy", "between us", "trace", 1.0, 2e-3, kind)]
    assert said in layout.sentences(made_up.summary(made_up.run(stages=[stage("eager", 1.0, changes)])))[0]


def test_a_rung_that_keeps_them_is_not_said_to_be_rid_of_them() -> None:
    kept = made_up.run(stages=[stage("eager", 1.0, TRACED), stage("tf32", 2.0, TRACED[:1])])
    assert not [line for line in layout.sentences(made_up.summary(kept)) if "→" in line]


def test_a_stage_lists_each_of_its_changes() -> None:
    shown = layout.changes(run().stages[4])
    assert rows(shown)["Transpose, NCHW → NHWC"] == ["to_nhwc", "ONNX graph", "1", "–"]
    assert rows(layout.changes(run().stages[3]))["triton_1"][-1] == "900"

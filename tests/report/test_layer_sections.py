"""What the report says of NCHW and NHWC, of counters, of fewer bits, and of where the wall time goes."""

import re
from dataclasses import replace

import pytest

from pipeline.analysis.bottleneck import Evidence, moved
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records.diagnostics import CountedBytes, Diagnostics, LayerTime, LayoutChange, Note, PlaceKind, TimeSplit
from pipeline.records.run_record import Artefact, Execution, MeasuredPeaks, RunRecord, StageRecord
from pipeline.report.formatting import method
from pipeline.report.sections import bits, fusion, layout, way
from pipeline.report.sections.bottleneck import sentence
from pipeline.report.sections.host import columns, host_time_of, in_a_line, lines, meaning, path_section
from pipeline.report.tables import Table
from pipeline.stats.intervals import Ratio
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.made_up_request import changed
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
    assert found["onnxruntime"][4] == f"unknown: {HIDDEN.text}"
    silent = stage("onnxruntime", 8.0, EXPORTED)
    assert layout.place(silent, EXPORTED[0]) == "unknown: the trace names no layer around its launch"
    graph_only = made_up.run(stages=[stage("eager", 1.0, EXPORTED[1:])])
    assert rows(layout.section(made_up.summary(graph_only)).table)["eager"][:3] == ["1 in the graph", "–", "–"]


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
    shown = layout.changes(made_up.summary(run()).stages[4])
    assert rows(shown)["Transpose, NCHW → NHWC"] == ["to_nhwc", "ONNX graph", "1", "–"]
    assert rows(layout.changes(made_up.summary(run()).stages[3]))["triton_1"][-1] == "900"


INT8 = Execution("int8", {"encoder.0.0": "fp32"}, None, "ONNX Runtime", captured=False, fuses=True)


def with_int8() -> RunSummary:
    """Eager and half of the made-up ladder, and int8 with a layer in fp32, one of whose classes loses Dice."""
    lossy = made_up.accuracy(relative_l2=0.021, flipped_share=4e-4, dice=[0.98, 0.935])
    few = made_up.stage("int8", 9.0, 30.0, 10**9, "8 bits", execution=INT8, accuracy=lossy)
    files = [Artefact("int8/model.onnx", "onnx", 2**20, ""), Artefact("int8/code.py", "generated code", 2**20, "")]
    eager, half = made_up.run().stages[0], made_up.run().stages[4]
    stages: list[StageRecord] = [eager, half, replace(few, artefacts=files)]
    return summarize(made_up.run(stages=stages, aa_pairs=[]))


FOUND = with_int8()


def test_the_sentence_names_the_fastest_of_each_by_its_ratio_if_any() -> None:
    first, second = bits.sentences(FOUND)
    assert first.startswith("The fastest with 8 bits a value is int8, 9.0")
    assert "the fastest with more is half precision, 11." in first
    assert second.startswith("0.040 % of int8's pixels change class. Dice by class: class 0 0.9800 (fp32 ")
    late = [replace(stage, sustained_seconds=1e3) if stage.name == "half" else stage for stage in FOUND.stages]
    assert "the fastest with more is half precision, " in bits.sentences(replace(FOUND, stages=late))[0]
    busy = FOUND.ranking.noise.unresolved(Ratio(2.0, 1.0, 4.0, 3, doubt="few blocks"))
    (said,) = bits.sentences(replace(FOUND, ranking=replace(FOUND.ranking, unresolved=busy)))
    assert said.startswith("0.040 % of int8's pixels change class.")
    assert bits.section(made_up.summary(made_up.run())).table.rows == []
    assert bits.sentences(made_up.summary(made_up.run())) == []
    assert "<summary>Fewer bits</summary>" not in made_up.as_markdown(made_up.run())


PEAKS = MeasuredPeaks({}, 4e12, None, None, None)
MOVED = 8e9  # of a stage whose operators can't be counted


def counted(stage: StageRecord, share: float = 0.5) -> StageRecord:
    """The stage with counters that saw `share` of its operators' bytes, of which its longest kernel moved half."""
    own = stage.explained.fusion
    moved = round(share * ((own.bytes_per_call if own else None) or MOVED))
    by_kernel = {stage.profile.kernels[0].name: moved // 2}
    seen = CountedBytes(moved - moved // 4, moved // 4, 5 * moved, 100, 99, "ncu 2026.1", by_kernel)
    return replace(stage, diagnostics=replace(stage.diagnostics or Diagnostics(), counted=seen))


ALL = made_up.run(stages=[counted(stage) if stage.profile else stage for stage in made_up.run().stages])


def test_the_share_of_the_bandwidth_is_by_the_counters() -> None:
    shares = []
    for found in (made_up.summary(made_up.run()), made_up.summary(ALL)):
        row = found.stage("compile")
        assert row is not None
        shares.append(row.bottleneck.evidence.memory)
        assert ("(hardware counters)" in sentence(row)) == (found.run is ALL)
    assert shares[0] is not None
    assert shares[1] == pytest.approx(shares[0] / 2, rel=1e-6)


def test_the_table_has_columns_for_them_where_one_stage_has_them() -> None:
    titles = fusion.section(made_up.summary(ALL)).table.titles
    assert titles[-2:] == ["GB by counters", "GB of L2"]
    assert "GB by counters" not in fusion.section(made_up.summary(made_up.run())).table.titles
    stages = [counted(stage) if stage.name == "compile" else stage for stage in made_up.run().stages]
    one = made_up.run(stages=stages)
    rows = {row[0].value: row[-1].text for row in fusion.section(made_up.summary(one)).table.rows}
    assert rows["compile"] != "–" == rows["eager"]


def test_the_winner_is_said_to_move_what_the_counters_saw() -> None:
    winner = made_up.summary(ALL).winner
    assert winner is not None
    assert moved(winner.stage).amount == winner.stage.diagnostics.counted.moved_bytes
    said = way.of_winner(made_up.summary(ALL), winner)
    gigabytes = re.search(rf"{method(winner.name)} moves ([\d.]+) GB.* kernels per call, eager ", said)
    assert gigabytes
    assert f"moves {gigabytes[1]} GB" not in way.of_winner(made_up.summary(made_up.run()), winner)
    mixed = [counted(stage) if stage.name == winner.name else stage for stage in made_up.run().stages]
    assert " moves " not in way.of_winner(made_up.summary(made_up.run(stages=mixed)), winner)


@pytest.mark.parametrize(("share", "said"), [(0.5, "caches saved the rest"), (2.0, "more is moved"), (1.1, "")])
def test_a_sentence_where_counters_and_operators_tell_two_tales(share: float, said: str) -> None:
    compiled = next(counted(stage, share) for stage in made_up.run().stages if stage.name == "compile")
    lines = fusion.counter_sentences([compiled], winner=None)
    assert [said in line for line in lines] == ([True] if said else [])
    (line,) = fusion.counter_sentences([compiled], winner="compile")
    assert (said or "close to the 13.0 GB by Inductor's count of what its kernels read and write.") in line


def test_each_kernel_has_its_bytes_and_its_bandwidth_or_a_reason() -> None:
    note = Note("hardware counters", "not read", "ncu, of NVIDIA Nsight Compute, isn't installed")
    stages = [
        replace(stage, diagnostics=replace(stage.diagnostics or Diagnostics(), notes=[note]))
        for stage in made_up.run().stages[:3]
    ]
    assert fusion.counter_sentences(stages, None) == [f"hardware counters: {note.text}."]
    half = next(stage for stage in ALL.stages if stage.name == "half")
    table = fusion.kernels(half, PEAKS)
    kernel = half.profile.kernels[0]
    moved = half.diagnostics.counted.by_kernel[kernel.name]
    assert [cell.value for cell in table.rows[0][5:]] == [moved, pytest.approx(moved / kernel.seconds_per_call / 4e12)]
    assert [cell.text for cell in table.rows[1][5:]] == ["–", "–"]
    assert len(fusion.kernels(next(stage for stage in made_up.run().stages if stage.name == "half"), PEAKS).titles) == 5
    shown = made_up.page(ALL)
    assert "asked of the L2 cache (ncu 2026.1); 99 of its 100 kernels are the profile&#39;s." in shown
    assert "GB by counters" in shown


RUN = made_up.run()
WAITS = TimeSplit(4e-3, 1.2e-3, 1e-4, 1.65e-3, 1e-4, 0.0)  # under the profiler, of a call of 2 ms outside it
CPU = TimeSplit(10e-3, None, 0.0, 8e-3, 2e-3, 0.0)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (WAITS, "CPU-bound: the GPU waits for 40 % of a call outside the profiler; the host spends most in the fr"),
        (replace(WAITS, interpreter_seconds=2e-3), "the host spends most in the interpreter"),
        (replace(WAITS, framework_seconds=1.5e-3), "Not CPU-bound: launches are not the limit."),
        (replace(WAITS, device_seconds=1.85e-3), "Not CPU-bound: launches are not the limit."),
        (CPU, "No GPU: 20 % of the time is outside the framework's operators."),
        (replace(CPU, wall_seconds=0.0), "Nothing was recorded."),
    ],
)
def test_what_a_split_means(split: TimeSplit, said: str) -> None:
    found = host_time_of(stage_record("eager", steady_pair(1.0), diagnostics=Diagnostics(split=split)))
    assert found is not None
    assert said in meaning(found)


def test_what_the_profiler_or_the_clock_may_explain_is_not_told() -> None:
    shares = (Evidence(None, None, 0.6, None, unfilled=left).idle_told for left in (0.02, 0.5, None))
    assert [*shares] == [None, 0.6, 0.6]
    clocks = (Evidence(None, None, 0.3, None, unfilled=left, throttled=True) for left in (0.14, 0.16))
    assert [(each.idle_at_least, each.idle_told) for each in clocks] == [(None, None), (0.16, 0.3)]


def test_every_ranked_stage_s_split_is_a_line() -> None:
    assert [columns()[0].cell(one).value for one in lines(made_up.summary(RUN))] == [rung[0] for rung in made_up.LADDER]
    text = made_up.page(RUN)
    assert 'id="time-table"' not in text
    assert in_a_line(made_up.summary(RUN)) == "Launches limit no stage: the GPU waits for the CPU in none."
    assert in_a_line(made_up.summary(RUN)) in text
    took = made_up.BASELINE_SECONDS
    waits = replace(RUN.stages[0], diagnostics=Diagnostics(split=TimeSplit(2 * took, 0.5 * took, 0, took, 0, 0)))
    waiting = made_up.run(stages=[waits, *RUN.stages[1:]])
    assert in_a_line(made_up.summary(waiting)) == ""
    assert 'id="time-table"' in made_up.page(waiting)


def why_of(found: RunSummary) -> str:
    assert found.winner is not None
    return way.of_winner(found, found.winner)


def test_a_winner_that_shows_its_layers_names_the_level() -> None:
    found = made_up.summary(replace(RUN, stages=RUN.stages[:5]))
    assert "Largest headroom: decoder 0, " in why_of(found)
    assert way.QUESTION not in made_up.page(replace(RUN, stages=[]))
    bare = replace(RUN, measured_peaks=None, stages=[replace(RUN.stages[0], profile=None, diagnostics=None)])
    said = why_of(made_up.summary(bare))
    assert said == f"What limits {bare.stages[0].name} is unknown: the bottleneck needs both roofs."


def test_time_between_layers_is_named_where_it_is_the_most() -> None:
    half = RUN.stages[4]
    times = [LayerTime(time.name, 9e-3 if not time.name else 1e-4, 1.0) for time in half.diagnostics.layers]
    slow = replace(half, diagnostics=replace(half.diagnostics, layers=times))
    said = why_of(made_up.summary(replace(RUN, stages=[slow])))
    assert said.endswith("; another 9.00 ms lie between layers, which have no roofline.")


def summary(**fields: object) -> RunSummary:
    """A run whose winner takes 10 ms, and a stage whose path wasn't measured."""
    fast = changed(stage_record("fast", steady_pair(2.0, b="fast")), **fields)
    return summarize(run_record([fast, stage_record("eager", steady_pair(1.0, b="eager"))]))


def test_what_was_not_measured_says_why() -> None:
    assert path_section(summary(host_path_left_out="no copies")).sentences == ["Not measured: no copies."]
    assert path_section(summary()).empty

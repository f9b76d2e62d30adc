"""What the report says of changes of layout, of fusion and of memory."""

from dataclasses import replace

import pytest

from pipeline.reasons import FusedKernel, Fusion, LayoutChange, MemoryTimeline, Why
from pipeline.records import KernelRow, Profile, RunRecord, StageRecord
from pipeline.report import because, fusion, layout, memory
from pipeline.report.digest import digest
from pipeline.report.page import file_link, page
from tests.report import planted

MIB = 2**20
KERNELS = [KernelRow("triton_1", "pointwise", 2.0, 3e-4), KernelRow("conv", "convolution", 1.0, 7e-4)]


def stage(name: str, ratio: float, **why: object) -> StageRecord:
    """A planted stage with these reasons, whose kernels take a millisecond a call."""
    made = planted.stage(name, ratio, 0.1, 10**9, "", profile=Profile(10, 1e-3, 0.9, 3.0, KERNELS, None))
    return replace(made, why=Why(**why))  # type: ignore[arg-type]


def timeline(activations: int, workspace: int | None, points: int = 6) -> MemoryTimeline:
    """Of 100 MiB held, 60 of them weights, in bytes of so many MiB."""
    peak = 100 + activations + (workspace or 0)
    amounts = [100 * MIB, *[peak * MIB] * (points - 2), 100 * MIB]
    known = workspace is not None
    return MemoryTimeline(
        [1e-3 * at for at in range(points)], amounts, 60 * MIB if known else None, activations * MIB,
        workspace * MIB if workspace is not None else None, 100 * MIB, 400 * MIB,
        ["decoder.1: 9.0 MiB"] if known else [],
    )  # fmt: skip


CHANGES = [
    LayoutChange("void cudnn::nchwToNhwcKernel<float>(int)", "decoder.3", "trace", 2.0, 2e-4),
    LayoutChange("Transpose, NCHW → NHWC", "to_nhwc", "ONNX graph", 1.0, None),
]
WRITTEN = [
    FusedKernel("triton_1", ["relu", "max_pool2d"], "vertical", "compile/generated/a.py", True, 2),
    FusedKernel("triton_2", ["relu"], "single", "compile/generated/a.py", False, 1),
]


def run() -> RunRecord:
    """The baseline, a stage with changes of layout, and a compiled one."""
    compiled = stage(
        "compile", 8.0, fusion=Fusion(3.0, 10**9, "Inductor's count", WRITTEN, ["compile/generated/g.txt"])
    )
    facts = {"graphs": 1, "graph_breaks": 1, "graph_break_reasons": {"print <b>": 1}, "recompiles": 0}
    return planted.run(
        stages=[
            stage("eager", 1.0, fusion=Fusion(96.0, 4 * 10**9, "operators"), timeline=timeline(200, 4000)),
            stage("half", 4.0, layout=CHANGES, fusion=Fusion(70.0, None, "unknown"), timeline=timeline(100, 0)),
            replace(compiled, facts=facts),
        ]
    )


def test_changes_of_layout_are_counted_and_priced() -> None:
    """Those without a time count, but cost nothing that is known; a stage without any says so."""
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in layout.table(digest(run())).rows}
    assert rows["half"] == ["3", "0.200", "20 %", "cudnn::nchwToNhwcKernel", "decoder.3"]
    assert rows["eager"][0] == "none found"
    assert "half 200 µs for 3 a call (20 % of its kernels' time)" in layout.sentence(digest(run()))
    assert [cell.text for cell in layout.changes(run().stages[1]).rows[1]] == [
        "Transpose, NCHW → NHWC", "to_nhwc", "ONNX graph", "1.00", "–",
    ]  # fmt: skip


def test_fusion_is_told_in_kernels_and_bytes_against_the_baseline() -> None:
    """A quarter of the bytes; what can't be counted is a dash with its reason."""
    figure = fusion.figure(digest(run()))
    assert figure is not None
    assert figure.table is not None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in figure.table.rows}
    assert rows["compile"] == ["3.00", "1.00", "25 %", "Inductor's count", "1 a chain, 1 a single operator"]
    assert rows["half"][1:4] == ["–", "–", "unknown"]


def test_a_compiled_stage_names_its_kernels_and_its_graph_breaks() -> None:
    """Operators in order, time where the profile knows the kernel, and why the graph broke."""
    compiled = run().stages[2]
    first, second = fusion.generated(compiled).rows
    assert [cell.text for cell in first] == ["triton_1", "relu, max_pool2d", "a chain", "2", "300", "turned"]
    assert second[4].text == "–"
    assert fusion.sources(compiled) == ["compile/generated/a.py"]
    text = fusion.summary(compiled)
    assert "1 of them read in one layout and write in the other. Graphs: 1, graph breaks: 1" in text
    assert "print <b>" in text


def test_the_first_screen_says_what_the_winner_moves_and_launches() -> None:
    """Against the baseline; where bytes aren't known it says nothing of them."""
    found = digest(run())
    compiled, half = found.row("compile"), found.row("half")
    assert compiled is not None
    assert half is not None
    assert because.moved(found, compiled) == "It moves 954 MiB in 3 kernels a call, for eager's 3.73 GiB in 96."
    assert because.moved(found, half) == ""


def test_memory_is_told_apart_and_neighbours_are_compared() -> None:
    """Weights are no longer counted among what is held; workspace that dominates is named."""
    whole, first, *_ = memory.figures(digest(run()))
    assert whole.table is not None
    assert [cell.text for cell in whole.table.rows[0]][1:6] == [
        "60.0 MiB",
        "40.0 MiB",
        "200 MiB",
        "3.91 GiB",
        "400 MiB",
    ]
    assert "eager: 3.91 GiB of 4.59 GiB is workspace" in whole.note
    assert "eager → half: workspace −3.91 GiB" in whole.note
    assert "decoder.1: 9.0 MiB" in first.note


def test_a_stage_that_hides_its_layers_has_no_timeline_of_its_own() -> None:
    """Three points are a row of the table, not a chart."""
    hidden = planted.run(stages=[stage("eager", 1.0, timeline=timeline(200, None, points=3))])
    (whole,) = memory.figures(digest(hidden))
    assert whole.table is not None
    assert [cell.text for cell in whole.table.rows[0]][1:5] == ["–", "100 MiB", "200 MiB", "–"]


def test_the_page_holds_all_of_it_and_links_to_the_files() -> None:
    """Relative links into the run's folder; what a record says is text."""
    text = page(run())
    assert '<a href="compile/generated/g.txt">' in text
    assert '<a href="compile/generated/a.py">' in text
    assert "print &lt;b&gt;" in text
    assert "print <b>" not in text


@pytest.mark.parametrize(
    "path",
    ["javascript:alert(1)", "/etc/passwd", "../up.txt", "a/../../b", "https://example.org/x", 'a" onclick="b', ""],
)
def test_a_path_that_leads_elsewhere_is_no_link(path: str) -> None:
    """Wherever a record says that a file lies, a link goes into the run's folder only."""
    assert "<a" not in file_link(path)


def test_a_path_within_the_folder_is_a_link() -> None:
    """With its own name as its text."""
    assert file_link("compile/trace.json.gz") == '<a href="compile/trace.json.gz">compile/trace.json.gz</a>'

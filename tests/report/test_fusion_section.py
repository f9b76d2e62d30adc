"""What the report says of kernels, of the bytes they move, and of what a compiler fused."""

import re
from dataclasses import replace

from pipeline.records.diagnostics import BytesSource, CountedBytes, Diagnostics, FusedKernel, Fusion, KernelRow, Profile
from pipeline.records.run_record import CompileFacts, RunRecord, StageRecord
from pipeline.report import html
from pipeline.report.html import linked
from pipeline.report.sections import fusion
from pipeline.report.sections.stage import compile_lines
from tests.report import made_up_run as made_up

EVERYTHING = html.environment().from_string("").new_context({"present": lambda _: True})
OPERATORS: BytesSource = "operators"
KERNELS = [KernelRow("triton_1", "pointwise", 2.0, 3e-4), KernelRow("conv", "convolution", 1.0, 7e-4)]
WRITTEN = [
    FusedKernel("triton_1", ["relu", "max_pool2d"], "vertical", "compile/generated/a.py", True, 2),
    FusedKernel("triton_2", ["relu"], "single", "compile/generated/a.py", False, 1),
    FusedKernel("triton_3", ["add", "mul"], "horizontal", "compile/generated/b.py", False, 1),
]
COMPILE_FACTS = CompileFacts(2, {"print <b>": 2}, ["size 3 became 5"], generated_kernels=3)


def stage(name: str, ratio: float, found: Fusion) -> StageRecord:
    """A made-up stage with this fusion, whose kernels take a millisecond a call."""
    made = made_up.stage(name, ratio, 0.1, 10**9, "", profile=Profile(10, 1e-3, 0.9, 3.0, KERNELS, None))
    return replace(made, diagnostics=Diagnostics(fusion=found))


def run() -> RunRecord:
    """The baseline, a stage whose bytes nobody counted, a copy of the baseline, and a compiled one."""
    compiled = stage("compile", 8.0, Fusion(24.5, 10**9, "Inductor", "", WRITTEN, ["compile/generated/g.txt"]))
    return made_up.run(
        stages=[
            stage("eager", 1.0, Fusion(96.0, 4 * 10**9, OPERATORS)),
            stage("tf32", 3.0, Fusion(96.0, 4 * 10**9, OPERATORS)),
            stage("half", 5.0, Fusion(70.0, None, None, "no counter was read")),
            replace(compiled, compile_facts=COMPILE_FACTS),
        ]
    )


def test_kernels_and_bytes_stand_against_the_baselines() -> None:
    """A share of both, of bytes only where both were counted the same way; else, and where none are known, a dash."""
    shown = fusion.section(made_up.summary(run())).table
    rows = {row[0].value: [cell.text for cell in row[1:]] for row in shown.rows}
    assert rows["compile"] == [
        "24.5", "26 %", "1.00", "–", "Inductor's count of what its kernels read and write",
        "1 a chain, 1 siblings, 1 a single operator",
    ]  # fmt: skip
    assert rows["tf32"][1:4] == ["100 %", "4.00", "100 %"]
    assert rows["half"][2:5] == ["–", "–", "unknown: no counter was read"]


def test_the_chart_has_bars_of_bytes_and_kernels_beside_them() -> None:
    (drawn,) = fusion.charts(fusion.fusions(made_up.summary(run())))
    assert "4.00 GB, 96 kernels" in drawn.svg
    assert "by the inputs and outputs of torch's operators" in drawn.title
    assert "1.00 GB" not in drawn.svg
    assert "half" not in drawn.svg
    uncounted = made_up.run(stages=[stage("eager", 1.0, Fusion(3.0, None, None))])
    assert fusion.charts(fusion.fusions(made_up.summary(uncounted))) == []


def test_every_way_of_counting_has_a_chart_of_its_own() -> None:
    eager, tf32, half, compiled = run().stages
    seen = [
        replace(
            stage,
            diagnostics=replace(stage.diagnostics, counted=CountedBytes(10**9, at * 10**9, 10**10, 9, 9, "ncu", {})),
        )
        for at, stage in enumerate((eager, compiled), 6)
        if stage.diagnostics
    ]
    charts = fusion.charts(fusion.fusions(made_up.summary(made_up.run(stages=[seen[0], tf32, half, seen[1]]))))
    assert [chart.title.split(" by ")[1] for chart in charts] == [
        "hardware counters", "the inputs and outputs of torch's operators, each once",
    ]  # fmt: skip
    counters, operators = (chart.svg for chart in charts)
    assert ("7.00 GB, 96 kernels" in counters, "8.00 GB, 24.5 kernels" in counters) == (True, True)
    assert "4.00 GB, 96 kernels" in operators
    assert "7.00 GB" not in operators


def test_each_rung_on_the_way_says_what_it_did() -> None:
    """First the whole way; a rung that changed neither is left out; bytes by other counts are not held together."""
    said = fusion.sentences(made_up.summary(run()))
    assert said == [
        "eager → torch.compile: 96 → 24.5 kernels per call, bytes counted differently and so not comparable.",
        "eager (TF32) → half precision: 96 → 70 kernels per call, 4.00 GB → bytes unknown moved.",
        "half precision → torch.compile: 70 → 24.5 kernels per call, bytes unknown → 1.00 GB moved.",
        (
            "torch.compile: of the 3 kernels that its compiler wrote, launched 4 times per call, 1 fuse a chain, 1 "
            "fuse siblings, 1 do a single operator."
        ),
    ]


def test_what_the_profiler_does_not_see_is_not_counted() -> None:
    """A runtime that runs the net as one operator of its own hasn't one kernel; C++ doesn't say what it fuses."""
    eager, tf32, half, compiled = run().stages
    hidden = replace(compiled, profile=made_up.profile(1e-9))
    summary = made_up.summary(made_up.run(stages=[eager, tf32, half, hidden]))
    said = fusion.sentences(summary)
    assert [cell.text for cell in fusion.section(summary).table.rows[-1][1:3]] == ["–", "–"]
    assert fusion.of_stage(summary.stages[-1]).startswith("kernels not known, 1.00 GB moved")
    why = "the profiler doesn't see into torch.compile, so kernels and bytes can't be compared."
    assert f"half precision → torch.compile: {why}" in said
    found = compiled.diagnostics.fusion
    blind = [replace(kernel, direction="unknown") for kernel in found.kernels]
    vague = replace(compiled.diagnostics, fusion=replace(found, kernels=blind))
    said = fusion.sentences(made_up.summary(made_up.run(stages=[eager, replace(compiled, diagnostics=vague)])))
    assert said[-1].endswith("launched 4 times per call; what they fuse their sources don't say.")


def test_a_compiled_stage_names_its_kernels() -> None:
    summary = made_up.summary(run())
    compiled = summary.stages[3]
    first, second, _ = fusion.generated(compiled).rows
    assert [cell.text for cell in first] == ["triton_1", "relu, max_pool2d", "a chain", "2", "300", "converted"]
    assert second[4].text == "–"
    assert re.search(r"Sources:.*compile/generated/a.py.*compile/generated/b.py", made_up.page(run()))


def test_graph_breaks_and_recompiles_have_their_reasons_whole_in_the_details() -> None:
    text = fusion.of_stage(made_up.summary(run()).stages[3])
    assert "1 of them read one layout and write the other." in text
    assert "graph breaks: 2, recompiles: 1." in text
    assert "Graphs" not in fusion.of_stage(made_up.summary(run()).stages[0])
    facts = CompileFacts(graphs=4, graph_breaks={"a" * 101: 3, "sleep": 2, "print": 1}, recompile_reasons=[])
    assert "graph breaks: 6, recompiles: 0." in fusion.compiled(facts)
    assert dict(compile_lines(facts))["graph break reasons"] == [f"{'a' * 101}: 3", "sleep: 2", "print: 1"]
    assert compile_lines(None) == []


def test_many_files_are_counted_where_the_artefacts_list_them() -> None:
    eager, _, _, compiled = run().stages
    graphs = [f"compile/generated/g{at}.txt" for at in range(5)]
    many = replace(compiled.diagnostics, fusion=replace(compiled.diagnostics.fusion, graphs=graphs))
    text = made_up.page(made_up.run(stages=[eager, replace(compiled, diagnostics=many)]))
    assert '<a href="compile/generated/g2.txt">compile/generated/g2.txt</a> and 2 more, among the artefacts' in text
    assert "g3.txt" not in text


def test_only_a_path_within_the_folder_is_a_link() -> None:
    elsewhere = (
        "javascript:alert(1)",
        "/etc/passwd",
        "../up.txt",
        "a/../../b",
        "https://example.org/x",
        "a' onclick='b",
    )
    assert not any("<a" in linked(EVERYTHING, path) for path in (*elsewhere, 'a" onclick="b', ""))
    assert linked(EVERYTHING, "compile/trace.json.gz") == '<a href="compile/trace.json.gz">compile/trace.json.gz</a>'

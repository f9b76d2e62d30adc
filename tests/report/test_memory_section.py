"""What the report says of a stage's memory."""

from dataclasses import replace

from pipeline.records.diagnostics import Diagnostics, LayerWork, MemoryHolder, MemoryTimeline, Note
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Memory
from pipeline.report.formatting import held
from pipeline.report.sections import memory
from pipeline.report.sections.memory import memories
from tests.report import made_up_run as made_up

MIB = 2**20
ON_CPU = Note("memory timeline", "no allocator statistics", "torch keeps no statistics of what it allocates on a CPU")
HOLDERS = [MemoryHolder(["bottleneck.0"], 300 * MIB), MemoryHolder(["decoder.0.0", "decoder.0.1"], 200 * MIB)]


def timeline(activations: int, workspace: int | None, holders: list[MemoryHolder], points: int = 9) -> MemoryTimeline:
    """Of 100 MiB held, 60 of them weights, in bytes of so many MiB."""
    peak_at = 3 if points > 3 else 1  # after a layer; or the one reading between begin and end
    peak, known = 100 + activations + (workspace or 0), workspace is not None
    amounts = [100 * MIB] * points
    amounts[peak_at] = peak * MIB
    return MemoryTimeline(
        [1e-3 * at for at in range(points)], amounts, 60 * MIB if known else None, activations * MIB,
        workspace * MIB if workspace is not None else None, 100 * MIB, 400 * MIB,
        peak_layer=holders[-1].layers[0] if holders else None, holders=holders,
        watched="layers" if points > 3 else "ends",
    )  # fmt: skip


def stage(name: str, ratio: float, found: MemoryTimeline | None, seen: int | None = None) -> StageRecord:
    """A made-up stage with this timeline, of which GPU memory so many MiB, 50 of them nobody's."""
    reserved = None if seen is None else (seen - 450) * MIB
    memory = Memory(10**9, reserved, None if seen is None else seen * MIB, 400 * MIB, 0, 700 * MIB)
    return replace(made_up.stage(name, ratio, 0.1, 10**9, ""), memory=memory, diagnostics=Diagnostics(timeline=found))


def run(**fields: object) -> RunRecord:
    """A baseline full of workspace, one without, one that hides its layers, and one whose memory lies in a pool."""
    return made_up.run(
        stages=[
            stage("eager", 1.0, timeline(500, 4000, HOLDERS), 6000),
            stage("half", 4.0, timeline(300, 0, HOLDERS[:1]), 1000),
            stage("torchscript", 4.0, timeline(350, None, [], 3), 1000),
            stage("cuda_graph", 8.0, timeline(0, None, [], 3), 1100),
        ],
        **fields,
    )


def looked_into() -> RunRecord:
    """The same stages, of a record that knows which call each timeline is of; the graphs by their uncaptured form."""
    half, torchscript = timeline(300, 0, HOLDERS[:1]), timeline(350, None, [])
    graph, fused = timeline(320, 0, HOLDERS[:1]), timeline(250, None, [])
    return made_up.run(
        stages=[
            stage("eager", 1.0, timeline(500, 4000, HOLDERS), 6000),
            stage("half", 4.0, half, 1000),
            stage("torchscript", 4.0, replace(torchscript, watched="allocations"), 1000),
            stage("cuda_graph", 7.0, replace(graph, call="uncaptured"), 1100),
            stage("fused", 8.0, replace(fused, call="uncaptured", watched="allocations"), 1000),
            stage("onnxruntime", 6.0, replace(timeline(0, None, [], 3), watched="nothing allocated"), 900),
        ]
    )


def cells(shown: RunRecord | None = None) -> dict[str, list[str]]:
    return {
        str(row[0].value): [cell.text for cell in row[1:]]
        for row in memory.section(made_up.summary(shown or run())).table.rows
    }


def test_the_parts_add_up_to_what_the_device_sees_or_say_why() -> None:
    assert cells()["eager"][:9] == [
        "5.86 GiB", "0.0586 GiB", "0.0391 GiB", "0.488 GiB", "3.91 GiB", "0.928 GiB", "0.391 GiB", "0.0488 GiB",
        "0.931 GiB",
    ]  # fmt: skip
    parts = memories(made_up.summary(run()))[0]
    assert sum(amount or 0 for amount in parts.amounts.values()) == 6000 * MIB
    assert parts.allocated == 4600 * MIB
    hidden, pooled = cells()["torchscript"], cells()["cuda_graph"]
    assert hidden[1:5] == ["–", "0.0977 GiB", "0.342 GiB", "–"]
    assert "no layer can be watched" in hidden[-1]
    assert pooled[1:6] == ["–", "0.0977 GiB", "–", "–", "0.537 GiB"]
    assert "nothing is allocated in a call" in pooled[-1]
    assert cells()["eager"][-1] == ""


def test_workspace_that_dominates_is_named_with_its_layer() -> None:
    """The last of the layers whose outputs are alive is the one that ran; cuDNN is blamed for convolutions alone."""
    found = made_up.summary(run())
    text = memory.sentences(found)[0]
    assert text == (
        "eager: 3.91 GiB of the 4.49 GiB allocated at the peak is workspace, for an algorithm that cuDNN chose for "
        "decoder.0.0."
    )
    reference = found.run.reference
    linear = replace(reference, layers=[LayerWork("decoder.0.0", "Linear", "decoder", 1, 1, 1, 1)])
    for other in (linear, None):
        said = memory.sentences(made_up.summary(run(reference=other)))[0]
        assert "an algorithm that a library chose for decoder.0.0." in said


def test_other_moments_that_came_as_high_are_counted() -> None:
    made = timeline(500, 4000, HOLDERS)
    made.allocated_bytes[1] = round(0.95 * 4600) * MIB
    text = memory.sentences(made_up.summary(made_up.run(stages=[stage("eager", 1.0, made, 6000)])))[0]
    assert text.endswith("1 other moment of the call came within 10 % of it.")


def test_neighbours_are_compared_where_both_are_known() -> None:
    steps = [line for line in memory.sentences(made_up.summary(run())) if "→" in line]
    assert steps == [
        (
            "eager → half precision: GPU memory 5.86 GiB → 0.977 GiB. The allocator's peak of a call falls, "
            "4.49 GiB → 0.391 GiB: workspace −3.91 GiB; "
            "the peak is now at bottleneck.0, no longer at decoder.0.0."
        )
    ]
    same = made_up.run(stages=[stage(name, 1.0, timeline(500, 0, []), 900) for name in ("eager", "half")])
    seen, peak = "0.879 GiB → 0.879 GiB", "0.586 GiB → 0.586 GiB"
    said = f"eager → half precision: GPU memory {seen}. The allocator's peak of a call hardly changes, {peak}."
    assert said in memory.sentences(made_up.summary(same))


def test_the_winner_stands_beside_the_baseline_as_the_device_sees_them() -> None:
    assert memory.sentences(made_up.summary(run()))[-1] == "CUDA graph takes 1.07 GiB of GPU memory, eager 5.86 GiB."


def watched(title: str) -> str:
    return title.removeprefix("Memory of ").removesuffix(" through one call")


def test_timelines_of_graphs_and_of_hidden_layers_say_how_they_were_watched() -> None:
    shown = memory.through_a_call(made_up.summary(looked_into()))
    first, others = shown.pairs, shown.others
    assert [watched(figure.title) for figure in first] == ["eager", "own kernels (fp16)"]
    unwatched = memory.through_a_call(made_up.summary(replace(run(), baseline="amp")))
    assert unwatched.pairs == []
    notes = {watched(figure.title): figure.note for figure in [*first, *others]}
    assert set(notes) == {"eager", "half precision", "TorchScript", "CUDA graph", "own kernels (fp16)"}
    assert notes["eager"].startswith("Allocator statistics before and after every layer. Times are the host's")
    assert notes["TorchScript"].startswith("Every allocation that torch's allocator recorded. Times")
    by_layer = "Allocator statistics before and after every layer, of the same kernels launched one by one."
    assert notes["CUDA graph"].startswith(by_layer)
    assert "Outputs alive at the peak: bottleneck.0: 0.293 GiB" in notes["CUDA graph"]
    drawn = {watched(figure.title): figure.svg for figure in [*first, *others]}
    assert "0.410 GiB at bottleneck.0" in drawn["CUDA graph"]
    assert "0.342 GiB" in drawn["own kernels (fp16)"]


def test_a_graphs_pool_is_shown_by_what_its_kernels_take() -> None:
    shown = cells(looked_into())
    assert shown["cuda_graph"][:9] == [
        "1.07 GiB", "0.0586 GiB", "0.0391 GiB", "0.312 GiB", "0 GiB", "0.225 GiB", "0.391 GiB", "0.0488 GiB",
        "0.931 GiB",
    ]  # fmt: skip
    assert shown["fused"][1:6] == ["–", "0.0977 GiB", "0.244 GiB", "–", "0.195 GiB"]
    assert "no layer can be watched" in shown["fused"][-1]
    assert "nothing is allocated in a call" in shown["onnxruntime"][-1]
    lines = memory.sentences(made_up.summary(looked_into()))
    seen = "half precision → CUDA graph: GPU memory 0.977 GiB → 1.07 GiB."
    assert f"{seen} The allocator's peak of a call hardly changes, 0.391 GiB → 0.410 GiB." in lines
    assert [line for line in lines if "launched one by one" in line] == [
        (
            "CUDA graph and own kernels (fp16): a call allocates nothing, because the graph's pool holds what its "
            "kernels need at all times. The same kernels were launched one by one to show it as activations and "
            "workspace, not in reserve."
        )
    ]
    assert not any("launched one by one" in line for line in memory.sentences(made_up.summary(run())))


def test_a_bar_that_is_far_longer_than_the_others_is_cut_and_says_so() -> None:
    [drawn] = memory.chart(memory.memories(made_up.summary(run())))
    assert drawn.svg.count('class="cut"') == 1
    cut = next(row for row in drawn.svg.split('<div class="row') if 'class="cut"' in row)
    assert "5.86 GiB" in cut
    assert "a bar is cut here" in drawn.svg


def test_on_a_cpu_the_reason_stands_where_the_figures_would() -> None:
    blind = replace(stage("eager", 1.0, None), diagnostics=Diagnostics(notes=[ON_CPU]))
    blind = replace(blind, memory=Memory(None, None, None, None, 0, 700 * MIB))
    found = made_up.summary(made_up.run(stages=[blind]))
    shown = memory.section(found).table
    assert shown.titles == ["method", "resident", "why unknown"]
    assert [cell.text for cell in shown.rows[0]] == ["eager", "0.684 GiB", f"{ON_CPU.topic}: {ON_CPU.text}"]
    assert memory.chart(memory.memories(found)) == []
    assert ON_CPU.text in made_up.page(found.run)


def test_every_block_that_the_record_holds_is_named() -> None:
    many = [MemoryHolder([f"layer.{at}", f"act, {at}"], (20 - at) * MIB) for at in range(12)]
    (shown,) = made_up.summary(made_up.run(stages=[stage("eager", 1.0, timeline(500, 4000, many), 6000)])).stages
    said = "; ".join(f"layer.{at}, act, {at}: {held((20 - at) * MIB)}" for at in range(12))
    assert memory.holders(shown) == f"Outputs alive at the peak: {said}."

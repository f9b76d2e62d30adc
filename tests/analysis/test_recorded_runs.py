"""What the runs recorded on an H200 must show, read from their records as a user's report reads them."""

from pathlib import Path

import pytest

from pipeline.analysis.attribution import remaining, steps
from pipeline.analysis.host_time import class_sums
from pipeline.records import codec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stats.intervals import between_run_std, ratio
from tests.report import made_up_run as made_up

RECORDS = Path(__file__).parents[2] / "docs" / "h200"
COUNTED = [codec.load(RECORDS / "counters" / name) for name in ("winner", "rungs")]
LADDERS = [codec.load(RECORDS / name) for name in ("batch8", "batch1")]


def rungs(run: RunRecord) -> list[StageRecord]:
    """The twelve of the default ladder; the run at batch 1 tried two other runtimes after them."""
    assert len(run.stages) >= 12
    return run.stages[:12]


@pytest.mark.parametrize("run", LADDERS, ids=["batch 8", "batch 1"])
def test_every_rung_of_the_ladder_is_right_and_measured(run: RunRecord) -> None:
    """Twelve rungs, the project's own the fastest."""
    assert {stage.status for stage in rungs(run)} == {"ok"}
    found = made_up.summary(run)
    assert found.winner is not None
    assert found.winner.name == "fp8"


@pytest.mark.parametrize("run", LADDERS, ids=["batch 8", "batch 1"])
def test_the_classes_add_up_to_the_gpus_time(run: RunRecord) -> None:
    """Within 2 %, for every stage but the project's own, whose kernels begin while those before them end."""
    for stage in rungs(run):
        sums = class_sums(stage)
        assert sums is not None
        assert sums.apart is not None
        assert sums.apart < 0.02 or (stage.name in ("fused", "fp8") and sums.overlap), stage.name
        assert sums.apart < 0.2, stage.name


@pytest.mark.parametrize("run", LADDERS, ids=["batch 8", "batch 1"])
def test_the_layers_add_up_to_the_net(run: RunRecord) -> None:
    """Their FLOPs to the counted total, and their times to the kernels', in every stage."""
    assert run.reference is not None
    assert sum(layer.flops for layer in run.reference.layers) == run.reference.flops_per_image
    for stage in rungs(run):
        assert stage.diagnostics is not None
        assert stage.profile is not None
        layers = sum(layer.seconds_per_call for layer in stage.diagnostics.layers)
        kernels = sum(kernel.seconds_per_call for kernel in stage.profile.kernels)
        assert layers == pytest.approx(kernels, rel=0.05), stage.name


@pytest.mark.parametrize("run", COUNTED, ids=["to the winner", "rungs"])
def test_the_gpus_counters_were_read_for_every_stage(run: RunRecord) -> None:
    """Kernel by kernel; what a library chose anew in the process that was counted has no bytes of its own."""
    for stage in run.stages:
        assert stage.diagnostics is not None
        seen = stage.diagnostics.counted
        assert seen is not None
        assert seen.kernels > 0
        assert seen.alike >= 0.75 * seen.kernels, stage.name
        assert 0 < sum(seen.by_kernel.values()) <= seen.moved_bytes <= seen.cache_bytes


def test_what_the_projects_kernels_move_is_what_they_must() -> None:
    """Each operation's inputs and outputs once, within 3 %, by the GPU's own counters."""
    for stage in COUNTED[0].stages:
        if stage.name in ("fused", "fp8"):
            assert stage.diagnostics is not None
            assert stage.diagnostics.counted is not None
            assert stage.diagnostics.fusion is not None
            assert stage.diagnostics.counted.moved_bytes == pytest.approx(
                stage.diagnostics.fusion.bytes_per_call, rel=0.03
            )


@pytest.mark.parametrize(
    ("net", "kind"), [("overhead", "overhead-bound"), ("memory", "memory-bound"), ("compute", "compute-bound")]
)
def test_a_net_built_for_a_bottleneck_has_it(net: str, kind: str) -> None:
    """By its run on the GPU."""
    run = codec.load(RECORDS / "bottlenecks" / net)
    row = made_up.summary(run).stage("half")
    assert row is not None
    assert row.bottleneck.kind == kind


def test_the_bottleneck_is_the_same_by_operators_and_by_counters() -> None:
    """Of every rung that was run both with the GPU's counters and without; the unfused ones are two in series."""
    without, counted = (made_up.summary(codec.load(RECORDS / name)) for name in ("batch8", "counters/rungs"))
    words = {stage.name: stage.bottleneck.kind for stage in without.ranked}
    assert {stage.name: stage.bottleneck.kind for stage in counted.ranked} == {
        stage.name: words[stage.name] for stage in counted.ranked
    }
    assert words["half"] == "mixed"
    assert (words["fused"], words["fp8"]) == ("compute-bound", "compute-bound")
    assert words["eager"] == "below both roofs"  # FFT: fewer multiplications than are counted, and slow ones


def test_no_layer_is_over_its_arithmetic_roof() -> None:
    """Each under the peak of its own precision, the most that was reached; the first layer reads images in fp16."""
    found = made_up.summary(LADDERS[0])
    for stage in found.ranked:
        for layer in stage.layers:
            assert layer.compute_seconds <= layer.seconds * (1 + 1e-9), (stage.name, layer.name)
    winner = found.stage("fp8")
    assert winner is not None
    (kept,) = [layer for layer in winner.layers if layer.precision == "fp16"]
    assert kept.name == "encoder.0.0"
    left = remaining(winner)
    assert left is not None
    assert left.place == "upsample"


def test_a_composed_layer_is_no_reached_peak() -> None:
    """The most that was reached in fp16 is no more than a large product does, although `fused` multiplies less."""
    found = made_up.summary(LADDERS[0])
    (fused,) = (stage for stage in found.ranked if stage.name == "fused")
    assert fused.bottleneck.roofline is not None
    assert fused.bottleneck.roofline.reached_peaks["fp16"].flops_per_s < 830e12
    assert fused.bottleneck.evidence.shares is not None
    assert fused.bottleneck.evidence.shares.matrix > 0.95


def test_a_step_within_the_noise_of_the_profile_is_not_explained() -> None:
    """compile to compile_max took 0.18 ms away, where the kernels of the profile tell of 0.63 ms."""
    by_name = {step.name: step for step in steps(made_up.summary(LADDERS[0]))}
    assert by_name["compile_max"].finding == "unexplained"
    turns = {change.kind: change for change in by_name["tf32"].classes}["layout change"]
    assert turns.seconds == pytest.approx(5.53e-3, rel=0.01)
    assert (turns.launches_before, turns.launches_after) == (0, 62)


def test_nearly_all_pairs_of_the_baseline_against_itself_hold_one() -> None:
    """At least 35 of 40, all within 1 %."""
    aa_pairs = codec.load(RECORDS / "aa_pairs").aa_pairs
    ratios = [ratio([pair], between_run_std(aa_pairs)) for pair in aa_pairs]
    assert len(ratios) >= 40
    assert sum(each.low <= 1 <= each.high for each in ratios) >= 35
    assert all(abs(each.value - 1) <= 0.01 for each in ratios)


def test_the_full_ladder_s_report_is_small() -> None:
    """Under 3 MB, without its pictures."""
    text = made_up.page(LADDERS[0])
    assert len(text.encode()) < 3e6

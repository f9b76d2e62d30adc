"""The bottleneck of nets built to have each, of the layers in them, and at the borders of every rule."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analysis.bottleneck import (
    FAR_BELOW,
    FLAT_SLOPE,
    IDLE_MOST,
    MOST_OF_THE_TIME,
    Evidence,
    TimeShares,
    decide,
    of_layer,
)
from pipeline.analysis.roofline import LayerFigures
from pipeline.records.diagnostics import BatchGrowth, CountedBytes, Fusion, ImageGrowth, LayerTime, LayerWork
from pipeline.records.run_record import Execution, RunRecord
from pipeline.report.sections.bottleneck import in_short, sentence
from tests.analysis.made_up_nets import BATCH, PEAKS, ROOFLINE, net, summarized
from tests.report import made_up_run as made_up


def many_tiny_layers() -> RunRecord:
    """Three hundred layers of 3 µs that the host starts every 10 µs."""
    layers = [LayerWork(f"tiny.{n}", "Conv2d", "tiny", 10**6, 1000, 1000, 100) for n in range(300)]
    times = [LayerTime(layer.name, 3e-6, 1.0) for layer in layers]
    return net(layers, times, seconds=3e-3, slope=0.05)


def wide_pointwise_chain() -> RunRecord:
    """Ten ReLUs over 100 million elements, at 90 % of the bandwidth, after a small convolution."""
    elements = 10**8
    chain = [LayerWork(f"relu.{n}", "ReLU", "chain", 0, elements, elements, 0) for n in range(10)]
    first = LayerWork("conv", "Conv2d", "conv", 10**8, elements // 100, elements // 100, 100)
    at_the_roof = 2 * 2 * BATCH * elements / ROOFLINE.bytes_per_s
    times = [LayerTime("conv", 1e-4, 1.0), *(LayerTime(layer.name, at_the_roof / 0.9, 1.0) for layer in chain)]
    return net([first, *chain], times, seconds=sum(time.seconds_per_call for time in times) * 1.01)


def large_channel_counts() -> RunRecord:
    """Four convolutions of 1024 channels at 70 % of the matrix peak."""
    layers = [LayerWork(f"conv.{n}", "Conv2d", "convs", 10**11, 4 * 10**6, 4 * 10**6, 9 * 10**6) for n in range(4)]
    each = BATCH * 1e11 / ROOFLINE.flops_per_s / 0.7
    return net(layers, [LayerTime(layer.name, each, 1.0) for layer in layers], seconds=4 * each * 1.02)


@pytest.mark.parametrize(
    ("built", "kind", "figure"),
    [
        (many_tiny_layers(), "overhead-bound", "GPU idle for 70 %"),
        (wide_pointwise_chain(), "memory-bound", "of the bandwidth"),
        (large_channel_counts(), "compute-bound", "over the whole call 69 % of the fp16 peak (800 TFLOP/s)"),
        (large_channel_counts(), "compute-bound", "time grows with the batch (slope 1.00)"),
    ],
)
def test_a_net_built_for_a_bottleneck_has_it(built: RunRecord, kind: str, figure: str) -> None:
    found = summarized(built)
    assert found.bottleneck.kind == kind
    assert sentence(found).startswith(f"{kind}: ")
    assert figure in sentence(found)


JUST = 1e-6


def near(compute: float, memory: float, **fields: Any) -> Evidence:
    """A stage whose kernels spend such shares of their time near the two roofs, and the rest far below both."""
    return Evidence(
        **{"compute": 0.4, "memory": 0.4, "idle": 0.0, "slope": 1.0, **fields},
        shares=TimeShares(compute, memory, 1 - compute - memory, 0.5, 0.8, 0.8),
    )


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        (near(0.9, 0.1, idle=IDLE_MOST + JUST), "overhead-bound"),
        (near(0.9, 0.1, idle=IDLE_MOST), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=IDLE_MOST), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=0.0), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=IDLE_MOST + JUST), "overhead-bound"),
        (near(0.9, 0.1, slope=FLAT_SLOPE - JUST), "overhead-bound"),
        (near(0.9, 0.1, slope=FLAT_SLOPE), "compute-bound"),
        (near(MOST_OF_THE_TIME, 1 - MOST_OF_THE_TIME), "compute-bound"),
        (near(1 - MOST_OF_THE_TIME, MOST_OF_THE_TIME), "memory-bound"),
        (near(MOST_OF_THE_TIME - JUST, 1 - MOST_OF_THE_TIME), "mixed"),
        (near(1 - MOST_OF_THE_TIME, MOST_OF_THE_TIME - JUST), "mixed"),
        (near(0.2, 0.2), "below both roofs"),
        (near(0.2, 0.2 + JUST), "mixed"),
        (near(0.2, 0.2, image_slope=FLAT_SLOPE - JUST), "overhead-bound"),
        (near(0.2, 0.2, image_slope=FLAT_SLOPE), "below both roofs"),
        (near(0.7, 0.2, image_slope=0.0), "compute-bound"),
        (Evidence(MOST_OF_THE_TIME, None, None, None), "compute-bound"),
        (Evidence(MOST_OF_THE_TIME - JUST, 0.9, None, None), "unknown"),
        (Evidence(FAR_BELOW - JUST, FAR_BELOW - JUST, None, None), "below both roofs"),
        (Evidence(FAR_BELOW - JUST, FAR_BELOW, None, None), "unknown"),
        (Evidence(0.01, 0.1, None, 2.0, FLAT_SLOPE - JUST), "overhead-bound"),
        (Evidence(0.01, None, None, None), "unknown"),
        (Evidence(None, None, None, None), "unknown"),
        (Evidence(None, None, 0.8, None), "overhead-bound"),
    ],
)
def test_the_borders_of_the_rules(evidence: Evidence, kind: str) -> None:
    assert decide(evidence)[0] == kind


def test_more_images_that_cost_more_each_are_said() -> None:
    """The steepest step, not the last one alone: 1, 4 and 8 images in 13.8, 99.7 and 165 ms."""
    growth = BatchGrowth([1, 4, 8], [0.0138, 0.0997, 0.165])
    diagnostics = large_channel_counts().stages[0].diagnostics
    said = sentence(summarized(large_channel_counts(), diagnostics=replace(diagnostics, growth=growth)))
    assert "time grows with the batch (slope 0.73, 1.43 between smaller ones)" in said


def part(seconds: float, flops: float, moved: float, launches: float = 1.0) -> LayerFigures:
    compute, memory = flops / ROOFLINE.flops_per_s, moved / ROOFLINE.bytes_per_s
    return LayerFigures("a", "Conv2d", "level", seconds, launches, flops, moved, compute, memory)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (part(1e-3, 0.5 * 800e9, 1e6), "compute-bound"),
        (part(1e-3, 1e6, 0.5 * 4e9), "memory-bound"),
        (part(1e-3, 0.1 * 800e9, 0.1 * 4e9), "below both roofs"),
        (part(5e-6, 1e6, 1e4), "overhead-bound"),
        (part(6e-6, 1e6, 1e4), "below both roofs"),
        (part(60e-6, 1e6, 1e4, launches=20.0), "overhead-bound"),
        (part(5e-6, 0.5 * 4e9, 1e4), "compute-bound"),
        (part(1e-3, 0.0, 0.0), "unknown"),
        (part(5e-6, 0.0, 0.0), "overhead-bound"),
        (part(0.0, 1e6, 1e4, launches=0.0), "unknown"),
    ],
)
def test_a_layer_s_bottleneck(layer: LayerFigures, kind: str) -> None:
    """The roof over it, or neither; kernels under three launches of 2 µs are mostly start and end."""
    assert of_layer(layer, ROOFLINE) == kind


UNSEEN = Execution(unknown="its operators don't pass torch's dispatcher")


@pytest.mark.parametrize(
    ("changed", "of_stage", "said"),
    [
        ({"measured_peaks": None}, {}, "this run measured no peaks"),
        ({"measured_peaks": replace(PEAKS, tflops={"fp32": 60.0})}, {}, "no fp16 peak"),
        ({"reference": None}, {}, "no FLOPs on record"),
        ({}, {"execution": UNSEEN}, UNSEEN.unknown),
        ({}, {"pairs": []}, ""),
    ],
)
def test_a_gap_makes_it_unknown_and_is_named(changed: dict[str, Any], of_stage: dict[str, Any], said: str) -> None:
    found = summarized(replace(large_channel_counts(), **changed), **of_stage)
    assert found.bottleneck.kind == "unknown"
    assert said in sentence(found)
    assert (found.bottleneck.reason == "not measured") == (sentence(found) == "") == ("pairs" in of_stage)


@pytest.mark.parametrize(
    ("seconds", "kind", "said"),
    [
        ([0.000370, 0.000516], "overhead-bound", "hardly grows with the images' pixels (slope 0.24)"),
        ([0.000825, 0.004708], "below both roofs", "grows with the images' pixels (slope 1.26)"),
    ],
)
def test_on_a_processor_growth_with_the_pixels_shows_overhead(seconds: list[float], kind: str, said: str) -> None:
    """As measured at 16 and at 64 pixels a side, where one more image takes four and one and a half times as long."""
    whole = net([LayerWork("tiny", "Conv2d", "tiny", 10, 10, 10, 1)], [LayerTime("tiny", 1e-3, 1.0)], 1e-3, 2.1)
    run = made_up.on_a_processor(whole)
    diagnostics = run.stages[0].diagnostics
    found = summarized(run, diagnostics=replace(diagnostics, image_growth=ImageGrowth([64, 256], seconds)))
    assert (found.bottleneck.kind, found.bottleneck.evidence.idle) == (kind, None)
    assert said in sentence(found)
    assert "no GPU to idle" in sentence(found)
    assert f"{100 * seconds[0] / seconds[1]:.0f} % of the time for a quarter of each image" in in_short(found)
    without = summarized(run)
    assert without.bottleneck.kind == "below both roofs"
    assert "pixels" not in sentence(without)


def test_bytes_are_counted_ones_before_the_layers_and_those_before_a_guess() -> None:
    run = large_channel_counts()
    diagnostics = run.stages[0].diagnostics
    counted = replace(diagnostics, fusion=Fusion(10.0, 4 * 10**9, "operators"))
    hardly = replace(diagnostics, fusion=Fusion(10.0, None, None, "no counter"))
    found, uncounted, bare = (summarized(run, diagnostics=each) for each in (counted, hardly, None))
    assert found.bottleneck.evidence.memory == pytest.approx(4e9 / found.seconds.value / PEAKS.bandwidth_bytes_per_s)
    assert "the inputs and outputs of torch's operators" in sentence(found)
    assert "each layer's input and output once" in sentence(uncounted)
    assert "the rest fused" in sentence(bare)
    assert "timed at one batch only" in sentence(bare)


def two_in_series(matrix: float = 0.44, reach: float = 0.82, passes: float = 0.4) -> RunRecord:
    """Return a run of convolutions, so much of the 10 ms, and of passes over memory, each so near its roof."""
    seconds = 1e-2
    flops = round(matrix * seconds * reach * ROOFLINE.flops_per_s / BATCH)
    conv, relu = LayerWork("conv", "Conv2d", "a", flops, 0, 0, 0), LayerWork("relu", "ReLU", "a", 0, 10, 10, 0)
    times = [LayerTime("conv", matrix * seconds, 1.0), LayerTime("relu", (1 - matrix) * seconds, 1.0)]
    run = net([conv, relu], times, seconds)
    moved = round((1 - matrix) * seconds * passes * ROOFLINE.bytes_per_s)
    diagnostics = run.stages[0].diagnostics
    told = replace(diagnostics, fusion=Fusion(75.0, moved, "operators"))
    return replace(run, stages=[replace(run.stages[0], diagnostics=told)])


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (two_in_series(), "mixed"),
        (two_in_series(0.7), "compute-bound"),
        (two_in_series(0.3), "memory-bound"),
        (two_in_series(0.95, reach=0.38), "below both roofs"),
        (two_in_series(0.1, passes=0.2), "below both roofs"),
    ],
)
def test_the_time_near_each_roof_names_the_bottleneck(run: RunRecord, kind: str) -> None:
    """Two bottlenecks in series are mixed; slow convolutions, as by FFT, are near no roof, nor are slow passes."""
    assert summarized(run).bottleneck.kind == kind


@pytest.mark.parametrize("matrix", [0.1, 0.3, 0.44, 0.7, 0.95])
@pytest.mark.parametrize("more", [0.1, 8.0])
def test_the_bottleneck_does_not_depend_on_who_counted_the_bytes(matrix: float, more: float) -> None:
    """The same record with counters that saw more, or fewer, bytes than the operators have; both figures are shown."""
    run = two_in_series(matrix)
    diagnostics = run.stages[0].diagnostics
    seen = round(more * (diagnostics.fusion.bytes_per_call or 0))
    counted = replace(diagnostics, counted=CountedBytes(seen, 0, 5 * seen, 75, 75, "ncu", {}))
    by_operators, by_counters = summarized(run), summarized(run, diagnostics=counted)
    assert by_operators.bottleneck.kind == by_counters.bottleneck.kind
    assert by_operators.bottleneck.evidence.shares == by_counters.bottleneck.evidence.shares
    assert "(hardware counters)" in sentence(by_counters)
    assert "at least " in sentence(by_operators)

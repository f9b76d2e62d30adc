"""The bottleneck by the share of the kernels' time near each roof, whoever counted the bytes."""

from dataclasses import replace

import pytest

from pipeline.records.diagnostics import CountedBytes, Fusion, LayerTime, LayerWork
from pipeline.records.run_record import RunRecord
from pipeline.report.sections.bottleneck import in_short, sentence
from tests.analysis.made_up_nets import BATCH, ROOFLINE, net, summarized


def two_in_series(matrix: float = 0.44, reach: float = 0.82, passes: float = 0.4) -> RunRecord:
    """A net whose convolutions and passes over memory follow each other, as fp16 without fusion runs a U-Net.

    Args:
        matrix: share of the 10 ms in convolutions.
        reach: of their arithmetic roof.
        passes: of the bandwidth, by the bytes of the passes as the operators have them.
    """
    seconds = 1e-2
    flops = round(matrix * seconds * reach * ROOFLINE.flops_per_s / BATCH)
    conv, relu = LayerWork("conv", "Conv2d", "a", flops, 0, 0, 0), LayerWork("relu", "ReLU", "a", 0, 10, 10, 0)
    times = [LayerTime("conv", matrix * seconds, 1.0), LayerTime("relu", (1 - matrix) * seconds, 1.0)]
    run = net([conv, relu], times, seconds)
    moved = round((1 - matrix) * seconds * passes * ROOFLINE.bytes_per_s)
    diagnostics = run.stages[0].diagnostics
    assert diagnostics is not None
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
@pytest.mark.parametrize("more", [0.1, 1.0, 1.5, 8.0])
def test_the_bottleneck_does_not_depend_on_who_counted_the_bytes(matrix: float, more: float) -> None:
    """The same record with counters that saw more, or fewer, bytes than the operators have; both figures are shown."""
    run = two_in_series(matrix)
    diagnostics = run.stages[0].diagnostics
    assert diagnostics is not None
    assert diagnostics.fusion is not None
    seen = round(more * (diagnostics.fusion.bytes_per_call or 0))
    counted = replace(diagnostics, counted=CountedBytes(seen, 0, 5 * seen, 75, 75, "ncu", {}))
    by_operators, by_counters = summarized(run), summarized(run, diagnostics=counted)
    assert by_operators.bottleneck.kind == by_counters.bottleneck.kind
    assert by_operators.bottleneck.evidence.shares == by_counters.bottleneck.evidence.shares
    assert "(hardware counters)" in sentence(by_counters)
    assert "at least " in sentence(by_operators)


def test_the_sentence_says_where_the_time_goes() -> None:
    found = summarized(two_in_series())
    said = "44 % of the kernels' time in matrix work at 82 % of its roofs, 56 % in passes over memory at 40 % of"
    assert sentence(found).startswith(f"mixed: {said}")
    assert in_short(found).startswith(f"{found.name} is mixed ({said}")


def test_convolutions_under_the_bandwidth_s_roof_are_no_arithmetic() -> None:
    thin = LayerWork("thin", "Conv2d", "a", 10**6, 10**8, 10**8, 10)
    seconds = BATCH * 2 * 2 * 10**8 / ROOFLINE.bytes_per_s / 0.8
    found = summarized(net([thin], [LayerTime("thin", seconds, 1.0)], seconds))
    assert found.bottleneck.kind == "memory-bound"
    shares = found.bottleneck.evidence.shares
    assert shares is not None
    assert (shares.compute, shares.memory) == (0.0, pytest.approx(1.0))
    assert shares.matrix_reach == pytest.approx(0.8)

"""Layers and levels against the roofline: their work, the time that could be saved, and the charts of it."""

from dataclasses import replace

import pytest

from pipeline.analysis.roofline import (
    LayerFigures,
    ReachedPeak,
    Roofline,
    datasheet,
    layers_of,
    reached_peaks,
    roofline_of,
)
from pipeline.records.diagnostics import Diagnostics, LayerTime, LayerWork
from pipeline.records.run_record import Execution, MeasuredPeaks, RunRecord, StageRecord
from pipeline.report.sections.roofline import layers_table, of_stage, peaks_text, sections
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

RUN = made_up.run()
HALF = next(stage for stage in RUN.stages if stage.name == "half")
BOUNDS = Roofline("fp16", 750e12, 4.24e12, 2.1 / 1e6)  # as the made-up run's peaks say


def conv(name: str, flops: int = 100) -> LayerWork:
    """A layer that reads 10 elements an image, writes 20, and has 5 weights."""
    return LayerWork(name, "Conv2d", "net", flops, 10, 20, 5)


def timed_parts(layers: list[LayerWork], times: list[LayerTime]) -> list[LayerFigures]:
    """The parts of a stage with these layers, in fp16 and batches of 8."""
    run = replace(RUN, reference=replace(RUN.reference, layers=layers))
    return layers_of(run, replace(HALF, diagnostics=Diagnostics(times, "profile")), BOUNDS)


def in_fp8(stage: StageRecord, *others: StageRecord, seconds: float = 1e-6) -> RunRecord:
    """A run of three convolutions, of which a head is the last; each takes so long."""
    layers = [conv("first"), conv("middle"), conv("last"), conv("head", 7)]
    times = [LayerTime(name, seconds, 1.0) for name in ("first", "middle", "last")]
    stages = [replace(each, diagnostics=Diagnostics(times, "profile")) for each in (stage, *others)]
    peaks = MeasuredPeaks({"fp16": 800e-9, "fp8": 1600e-9}, 4e6, None, None, 2.0)
    return replace(RUN, reference=replace(RUN.reference, layers=layers), measured_peaks=peaks, stages=stages)


def roof_over(run: RunRecord) -> Roofline:
    found = roofline_of(run, run.stages[0], reached_peaks(run))
    assert found is not None
    return found


def test_the_reached_peak_is_the_most_that_anything_reached() -> None:
    """A layer that beats the matmul is the peak, and is named; one that beats it by far multiplies less often."""
    slow, fast, unbelievable = (
        in_fp8(changed(HALF, name="half", execution=Execution("fp16")), seconds=seconds)
        for seconds in (2e-3, 0.9e-3, 0.1e-3)
    )
    assert reached_peaks(slow)["fp16"] == ReachedPeak(800e3)
    found = reached_peaks(fast)["fp16"]
    assert (found.layer, found.stage) == ("last", "half")
    assert found.flops_per_s == pytest.approx(856 / 0.9e-3)
    assert reached_peaks(unbelievable)["fp16"] == ReachedPeak(800e3)
    wrong = replace(fast, stages=[replace(fast.stages[0], status="inaccurate")])
    assert reached_peaks(wrong)["fp16"] == ReachedPeak(800e3)
    roofline = roof_over(fast)
    note = of_stage(fast, made_up.summary(fast).stages[0]).note
    assert "the most that anything reached here in fp16 (last in half precision)" in note
    assert all((part.seconds_above or 0.0) > -1e-9 for part in layers_of(fast, fast.stages[0], roofline))


def test_what_lies_between_layers_is_nobodys_neighbour() -> None:
    """Its own time doesn't part a head from the convolution whose kernel does it, and it has no part in its FLOPs."""
    between = LayerWork("", "between layers", "between layers", 9, 0, 0, 0)
    times = [LayerTime(name, 1e-3, 1.0) for name in ("last", "")]
    found = timed_parts([conv("last"), conv("head", 7), between], times)
    assert [(part.name, part.flops) for part in found] == [("last with head", 8 * 107), ("between layers", 72)]
    untimed = timed_parts([conv("last"), conv("head", 7), between], [LayerTime("last", 1e-3, 1.0)])
    assert [part.name for part in untimed] == ["last with head"]


def test_time_of_what_the_net_has_no_layer_for_is_listed_without_work() -> None:
    found = timed_parts([conv("a")], [LayerTime("cat_1", 1e-3, 2.0), LayerTime("a", 1e-3, 1.0)])
    assert [part.name for part in found] == ["a", "cat_1"]
    assert not found[1].has_work
    assert found[1].seconds_above is None


def test_the_table_is_sorted_by_the_time_above_the_roofline() -> None:
    found = layers_of(RUN, HALF, BOUNDS)
    rows = layers_table(found, BOUNDS).rows
    won = [row[-1].value for row in rows]
    known = [float(value) for value in won if value is not None]
    assert known == sorted(known, reverse=True)
    assert rows[-1][0].text == "between layers"
    assert won[-1] is None
    assert rows[0][0].text == "decoder.0.0"
    assert layers_table(found, BOUNDS, 3).rows == rows[:3]


def test_the_rooflines_are_of_the_winner_or_its_nearest_and_of_the_baseline() -> None:
    found = sections(made_up.summary(RUN))
    assert [(each.title, [figure.title for figure in each.charts]) for each in found] == [
        ("Layer by layer: CUDA graph", ["CUDA graph, level by level"]),
        ("Layer by layer: eager", ["eager, level by level"]),
    ]
    alone = sections(made_up.summary(replace(RUN, stages=RUN.stages[:1])))
    assert [each.title for each in alone] == ["Layer by layer: eager"]
    assert sections(made_up.summary(replace(RUN, stages=[]))) == []
    bare = [replace(stage, diagnostics=None) for stage in RUN.stages]
    assert sections(made_up.summary(replace(RUN, stages=bare))) == []


def test_the_columns_of_layers_are_explained_once() -> None:
    found = sections(made_up.summary(RUN))
    assert "of a batch, 2 per multiply-add" in [column.help for column in found[-1].table.columns]
    levels = found[-1].charts[0].table
    assert not any(column.help for column in levels.columns)
    text = made_up.page(RUN)
    assert text.count("<dd>of a batch, 2 per multiply-add</dd>") == len(found)
    assert 'The columns are those under <a href="#roofline-1">Layer by layer</a>.' in text
    assert 'id="roofline-1"><summary><h3>Layer by layer: CUDA graph</h3>' in text


def test_a_roofline_names_its_peaks_levels_and_source() -> None:
    row = made_up.summary(RUN).stage("half")
    assert row is not None
    found = of_stage(RUN, row, why="A reason. ")
    assert "Roofs: 750 TFLOP/s and 4.24 TB/s, the most that anything reached here in fp16" in found.note
    assert "989 TFLOP/s and 4.80 TB/s" in found.note
    assert found.note.startswith("A reason. Times from the stage's own profile.")
    assert "decoder 0" in found.charts[0].svg


def test_an_unknown_device_has_only_measured_peaks_text() -> None:
    assert "% of 989" in peaks_text(RUN)
    other = replace(RUN, environment=replace(made_up.environment(), device_name="NVIDIA H200 NVL"))
    assert datasheet(other, "fp16") is None
    peaks = "fp32 51.0 TFLOP/s, tf32 404 TFLOP/s, fp16 750 TFLOP/s, bf16 781 TFLOP/s, copy 4.24 TB/s"
    assert peaks_text(other) == peaks
    assert peaks_text(replace(RUN, measured_peaks=None)) == ""

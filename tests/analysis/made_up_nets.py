"""Runs of one stage whose layers, kernels and times are made up, so that its bottleneck is known."""

from dataclasses import replace
from typing import Any

from pipeline.analysis.roofline import Roofline
from pipeline.analysis.stage_summary import StageSummary
from pipeline.records.diagnostics import BatchGrowth, Diagnostics, KernelRow, LayerTime, LayerWork, Profile, TimeSplit
from pipeline.records.run_record import MeasuredPeaks, RunRecord
from tests.report import made_up_run as made_up

ROOFLINE = Roofline("fp16", 800e12, 4e12, 2e-6)  # ridge at 200 FLOP per byte
PEAKS = MeasuredPeaks({"fp16": 800.0}, 4e12, None, None, 2.0)
BATCH = 8


def net(layers: list[LayerWork], times: list[LayerTime], seconds: float, slope: float = 1.0) -> RunRecord:
    """A run of one stage that takes so long per call, whose kernels take what its layers do."""
    busy, computing = sum(time.seconds_per_call for time in times), {layer.name for layer in layers if layer.flops}
    kernels = [
        KernelRow(time.name, "convolution" if time.name in computing else "pointwise", 1.0, time.seconds_per_call)
        for time in times
    ]
    growth = BatchGrowth([1, 4, BATCH], [seconds / 2**slope / 4, seconds / 2**slope, seconds])
    half = made_up.stage(
        "half", 1.0, 0.1, 10**9, "", pairs=[made_up.pair("eager", "half", (seconds, seconds))], energy=None,
        profile=Profile(10, seconds, 0.9, 10.0, kernels, None),
        diagnostics=Diagnostics(times, "profile", growth=growth, split=TimeSplit(seconds, busy, 1e-4, 1e-4, 1e-4, 0.0)),
    )  # fmt: skip
    whole = made_up.run(stages=[half], measured_peaks=PEAKS)
    reference = replace(whole.reference, layers=layers, flops_per_image=sum(layer.flops for layer in layers))
    return replace(whole, reference=reference)


def summarized(whole: RunRecord, **fields: Any) -> StageSummary:
    changed = replace(whole, stages=[replace(whole.stages[0], **fields)]) if fields else whole
    return made_up.summary(changed).stages[0]

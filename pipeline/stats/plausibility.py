"""A stage whose time leaves no room for the network's arithmetic has not done it."""

from dataclasses import replace
from typing import Any

from pipeline.records.run_record import MeasuredPeaks, RunRecord, StageRecord
from pipeline.stats.intervals import seconds_per_call

ABOVE_PEAK = 1.3  # a large matmul reaches less than the device can; so far above it nothing has been seen
# Multiplications of the untouched network over those that a rewrite leaves. 2×2 taps instead of 3×3 after an
# upsampling, and Winograd's F(2×2, 3×3), need 4/9 of them. So fp8 on an H200 reached 0.95 of its measured peak
# (docs/h200).
SAVED = 9 / 4


def within_physics(run: RunRecord, stage: StageRecord) -> StageRecord:
    """Return the stage, as inaccurate where it is faster than the device can be by the measured peaks of the run."""
    reason = beyond_peak(run, stage) if stage.status == "ok" else ""
    return replace(stage, status="inaccurate", failure="impossible", reason=reason) if reason else stage


def beyond_peak(run: RunRecord, stage: StageRecord) -> str:
    """Return why the stage's times are impossible, in one line; empty where they are possible or unknown."""
    if run.measured_peaks is None or run.reference is None or not run.measured_peaks.tflops:
        return ""
    flops = run.reference.flops_per_image * run.batch_size
    others = [each for each in run.stages if each.name != stage.name and each.status == "ok"]
    sustained = {
        each.name: flops / seconds_per_call(each.pairs).value / 1e12
        for each in others
        if any(pair.blocks for pair in each.pairs)
    }
    # the most that was seen in the run: a measured peak, or another right stage
    source, tflops = max({**sustained, **run.measured_peaks.tflops}.items(), key=lambda peak: peak[1])
    for what, seconds in _times(run, stage).items():
        if tflops and seconds * tflops * 1e12 * ABOVE_PEAK * SAVED < flops:
            rate = f"{flops / seconds / 1e12:.3g} TFLOP/s" if seconds else "no time at all"
            return (
                f"impossible: {what} makes {rate} of the network; the device's highest peak is {tflops:.3g} ({source})"
            )
    return ""


def larger(one: MeasuredPeaks, other: MeasuredPeaks) -> MeasuredPeaks:
    """Return the best of two measurements of one device."""
    best: dict[str, Any] = {}
    for name, value in vars(one).items():
        both = [part for part in (value, getattr(other, name)) if part is not None]
        best[name] = (min if name == "launch_us" else max)(both) if both and name != "tflops" else None
    rates = {name: max(rate, other.tflops.get(name, 0.0)) for name, rate in one.tflops.items()}
    return MeasuredPeaks(**{**best, "tflops": rates})


def _times(run: RunRecord, stage: StageRecord) -> dict[str, float]:
    """Return the seconds of a call by what measured them: the samples, and on a GPU the kernels of the profile."""
    times = {}
    if any(pair.blocks for pair in stage.pairs):
        times["its time in the samples"] = seconds_per_call(stage.pairs).value
    on_gpu = run.environment is not None and run.environment.device == "cuda"
    if on_gpu and stage.profile and stage.profile.kernels:
        times["its kernels' time in the profile"] = sum(row.seconds_per_call for row in stage.profile.kernels)
    return times

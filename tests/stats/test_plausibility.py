"""What is faster than the device can be is refused, and what a rewriting may honestly save is not."""

from dataclasses import replace

import pytest

from pipeline.records.run_record import MeasuredPeaks, RunRecord
from pipeline.stats.plausibility import ABOVE_PEAK, SAVED, within_physics
from pipeline.stats.ranking import ranking
from tests.fake_machine import CALLS, SAMPLE_SECONDS, run_record, stage_record, steady_pair
from tests.report import made_up_run as made_up

CALL = SAMPLE_SECONDS / CALLS  # seconds that the made-up stage takes
BATCH = 2


def run_at(times_peak: float) -> RunRecord:
    """A run whose stage makes so many times the device's highest peak."""
    peaks = MeasuredPeaks({"fp32": 1.0, "fp16": 10.0}, 1e12, None, None, None)
    reference = made_up.run().reference
    assert reference is not None
    flops = times_peak * 10e12 * CALL / BATCH
    record = run_record([stage_record("fast", steady_pair(1.5))])
    return replace(record, measured_peaks=peaks, reference=replace(reference, flops_per_image=int(flops)))


@pytest.mark.parametrize(("times_peak", "refused"), [(0.95, False), (2.9, False), (2.95, True), (1e4, True)])
def test_a_stage_may_not_beat_the_device(times_peak: float, refused: bool) -> None:
    """1.3 times the highest peak, after the most that a rewrite saves."""
    run = run_at(times_peak)
    found = within_physics(run, run.stages[0])
    assert pytest.approx(2.925) == ABOVE_PEAK * SAVED
    assert (found.status, found.failure) == (("inaccurate", "impossible") if refused else ("ok", None))
    assert ("impossible: its time in the samples makes" in found.reason) is refused
    assert (ranking(replace(run, stages=[found])).winner is None) is refused


def test_kernels_that_are_too_quick_for_the_net_are_refused_on_a_gpu() -> None:
    run = replace(run_at(0.5), environment=made_up.environment())
    quick = replace(run.stages[0], profile=made_up.profile(CALL / 1e3))
    slow = replace(run.stages[0], profile=made_up.profile(CALL))
    assert "its kernels' time in the profile makes" in within_physics(run, quick).reason
    assert within_physics(run, slow).status == "ok"


def test_without_measured_peaks_or_with_another_end_nothing_is_said() -> None:
    run = run_at(1e4)
    failed = replace(run.stages[0], status="failed", reason="its own")
    assert within_physics(replace(run, measured_peaks=None), run.stages[0]).status == "ok"
    assert within_physics(run, failed) == failed

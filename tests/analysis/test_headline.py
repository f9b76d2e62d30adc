"""The baseline of the headline ratio, and the samples it is from."""

from dataclasses import replace

import pytest

from pipeline.analysis.summary import summarize
from pipeline.records.run_record import RunRecord
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.report import made_up_run as made_up


def loaded(**ratios: float) -> RunRecord:
    """A GPU's run: every stage interleaved with autocast, at full load."""
    stages = [
        stage_record(name, replace(steady_pair(value, a="amp", b=name), sustained=True), host_latencies=[0.1 / value])
        for name, value in ratios.items()
    ]
    return run_record(stages, environment=made_up.environment(), baseline="amp")


def test_a_gpus_record_is_about_autocast_at_full_load() -> None:
    found = summarize(loaded(eager=0.1, amp=1.001, fused=2.6))
    fused, eager = found.stage("fused"), found.stage("eager")
    assert fused is not None
    assert eager is not None
    assert (found.baseline, found.ranking.winner) == ("amp", "fused")
    assert fused.ratio is not None
    assert fused.eager_ratio is not None
    assert (fused.ratio.value, fused.eager_ratio.value) == (pytest.approx(2.6), pytest.approx(26.0))
    assert fused.eager_ratio.bounded
    assert fused.seconds is not None
    assert fused.sustained_seconds == fused.pace == fused.seconds.value
    assert eager.eager_ratio is not None
    assert (eager.compared.outcome, eager.eager_ratio.value) == ("slower", 1.0)
    assert fused.host_ratio == pytest.approx(2.6 / 1.001)


def test_without_eager_or_the_baseline_beside_it_there_is_less_to_say() -> None:
    (only,) = summarize(loaded(fused=2.6)).stages
    assert only.ratio is not None
    assert (only.eager_ratio, only.host_ratio) == (None, None)


def test_a_baseline_that_is_no_stage_has_its_own_calls_from_host_to_host() -> None:
    (only,) = summarize(replace(loaded(fused=2.5), baseline_host_latencies=[0.3, 0.1, 0.2])).stages
    assert only.host_ratio == pytest.approx(0.2 / (0.1 / 2.5))


def test_a_cpus_record_is_about_eager() -> None:
    cpu = run_record([stage_record(name, steady_pair(1.5, b=name)) for name in ("amp", "compile")])
    found = summarize(cpu)
    first = found.stages[0]
    assert found.baseline == "eager"
    assert first.eager_ratio == first.ratio
    assert first.sustained_seconds is None

"""A run is summarized once for all that is drawn of it, and tables are lists of columns."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from pipeline.analysis import sweeps
from pipeline.analysis.attribution import remaining, steps
from pipeline.analysis.roofline import groups_of
from pipeline.analysis.summary import summarize
from pipeline.records import codec
from pipeline.records.diagnostics import LayerWork
from pipeline.records.run_record import Execution, RunRecord
from pipeline.report.write import main
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.report import made_up_run as made_up


def test_a_sweep_summarizes_each_job_once(tmp_path: Path) -> None:
    small = made_up.run(stages=made_up.run().stages[:1])
    for number, size in enumerate((256, 512)):
        codec.save(made_up.with_settings(small, data={"size": size}), tmp_path / str(number))
    with patch.object(sweeps, "summarize", wraps=summarize) as computed:
        assert main([str(tmp_path)]) == 0
    assert computed.call_count == 2


UP = LayerWork("up", "ConvTranspose2d", "decoder 0", 400, 10, 20, 30)
CONVOLUTION = LayerWork("conv", "Conv2d", "decoder 0", 600, 20, 20, 30)


@pytest.mark.parametrize(("own", "multiplied"), [({}, 8 * 1000), ({"conv": 450.0}, 8 * 450)])
def test_a_composed_layer_multiplies_less(own: dict[str, float], multiplied: float) -> None:
    (group,) = groups_of([UP, CONVOLUTION], {"conv"})
    assert group.multiplied(8, Execution("fp16", layer_flops=own)) == multiplied


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
    assert (found.baseline, found.ranking.winner) == ("amp", "fused")
    assert (fused.ratio.value, fused.eager_ratio.value) == (pytest.approx(2.6), pytest.approx(26.0))
    assert fused.eager_ratio.bounded
    assert fused.sustained_seconds == fused.pace == fused.seconds.value
    assert (eager.compared.outcome, eager.eager_ratio.value) == ("slower", 1.0)
    assert fused.host_ratio == pytest.approx(2.6 / 1.001)


def test_ratios_are_to_what_was_measured_beside_the_stage() -> None:
    (only,) = summarize(loaded(fused=2.6)).stages
    assert only.ratio is not None
    assert (only.eager_ratio, only.host_ratio) == (None, None)
    (only,) = summarize(replace(loaded(fused=2.5), baseline_host_latencies=[0.3, 0.1, 0.2])).stages
    assert only.host_ratio == pytest.approx(0.2 / (0.1 / 2.5))


RUN = made_up.recorded()


def test_classes_add_up_to_the_gpus_time_and_layers_to_the_net() -> None:
    """Within 2 %, for every stage but the project's own, whose kernels begin while those before them end."""
    for stage in RUN.stages:
        assert stage.profile
        assert stage.explained.split
        classes = sum(row.seconds_per_call for row in stage.profile.kernels)
        measured = stage.explained.split.device_seconds
        overlap = stage.name in ("fused", "fp8") and classes > measured
        assert abs(classes / measured - 1) < (0.2 if overlap else 0.02), stage.name
    assert RUN.reference is not None
    assert sum(layer.flops for layer in RUN.reference.layers) == RUN.reference.flops_per_image
    for stage in RUN.stages:
        assert stage.diagnostics is not None
        assert stage.profile is not None
        layers = sum(layer.seconds_per_call for layer in stage.diagnostics.layers)
        kernels = sum(kernel.seconds_per_call for kernel in stage.profile.kernels)
        assert layers == pytest.approx(kernels, rel=0.05), stage.name


def test_no_layer_is_over_its_arithmetic_roof() -> None:
    """Each under the peak of its own precision; the first layer reads images in fp16."""
    found = made_up.summary(RUN)
    for stage in found.ranked:
        for layer in stage.layers:
            assert layer.compute_seconds <= layer.seconds * (1 + 1e-9), (stage.name, layer.name)
    winner = found.stage("fp8")
    assert winner is not None
    assert "encoder.0.0" in {layer.name for layer in winner.layers if layer.precision == "fp16"}
    left = remaining(winner)
    assert left is not None
    assert left.place == "decoder 3"


def test_a_composed_layer_is_no_reached_peak() -> None:
    """The most that was reached in fp16 is no more than a large product does, although `fused` multiplies less."""
    found = made_up.summary(RUN)
    (fused,) = (stage for stage in found.ranked if stage.name == "fused")
    assert fused.bottleneck.roofline.reached_peaks["fp16"].flops_per_s < 830e12
    assert fused.bottleneck.evidence.shares.matrix > 0.95


def test_a_step_within_the_noise_of_the_profile_is_not_explained() -> None:
    """compile to compile_max took 0.25 ms away, where the kernels of the profile tell of 0.52 ms."""
    by_name = {step.name: step for step in steps(made_up.summary(RUN))}
    assert by_name["compile_max"].finding == "unexplained"
    assert by_name["fused"].finding == by_name["fp8"].finding == "attributed"

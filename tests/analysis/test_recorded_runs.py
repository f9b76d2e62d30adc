"""What the run recorded on an H200 must show, read from its record as a user's report reads it."""

from pathlib import Path

import pytest

from pipeline.analysis.attribution import remaining, steps
from pipeline.records import codec
from pipeline.report.sections.host import class_sums
from tests.report import made_up_run as made_up

RUN = codec.load(Path(__file__).parents[2] / "docs" / "h200" / "classic")


def test_every_stage_is_right_and_measured() -> None:
    """The project's own fp8 is the fastest."""
    assert {stage.status for stage in RUN.stages} == {"ok"}
    found = made_up.summary(RUN)
    assert found.winner is not None
    assert found.winner.name == "fp8"
    assert {stage.bottleneck.kind for stage in found.ranked} == {"compute-bound"}


def test_the_classes_add_up_to_the_gpus_time() -> None:
    """Within 2 %, for every stage but the project's own, whose kernels begin while those before them end."""
    for stage in RUN.stages:
        sums = class_sums(stage)
        assert sums is not None
        _, classes, measured = sums
        overlap = stage.name in ("fused", "fp8") and classes > measured
        assert abs(classes / measured - 1) < (0.2 if overlap else 0.02), stage.name


def test_the_layers_add_up_to_the_net() -> None:
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
    assert left.place == "upsample"


def test_a_composed_layer_is_no_reached_peak() -> None:
    """The most that was reached in fp16 is no more than a large product does, although `fused` multiplies less."""
    found = made_up.summary(RUN)
    (fused,) = (stage for stage in found.ranked if stage.name == "fused")
    assert fused.bottleneck.roofline is not None
    assert fused.bottleneck.roofline.reached_peaks["fp16"].flops_per_s < 830e12
    assert fused.bottleneck.evidence.shares is not None
    assert fused.bottleneck.evidence.shares.matrix > 0.95


def test_a_step_within_the_noise_of_the_profile_is_not_explained() -> None:
    """compile to compile_max took 0.25 ms away, where the kernels of the profile tell of 0.52 ms."""
    by_name = {step.name: step for step in steps(made_up.summary(RUN))}
    assert by_name["compile_max"].finding == "unexplained"
    assert by_name["fused"].finding == by_name["fp8"].finding == "attributed"


def test_the_report_is_small() -> None:
    """Under 3 MB, without its pictures."""
    assert len(made_up.page(RUN).encode()) < 3e6

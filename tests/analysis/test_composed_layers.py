"""A layer that is composed of two is held against what it multiplies, not against what the two would have."""

from dataclasses import replace

import pytest

from pipeline.analysis.roofline import groups_of, layer_rates
from pipeline.records.diagnostics import LayerWork
from pipeline.records.run_record import Execution
from tests.report import made_up_run as made_up

UP = LayerWork("up", "ConvTranspose2d", "decoder 0", 400, 10, 20, 30)
CONVOLUTION = LayerWork("conv", "Conv2d", "decoder 0", 600, 20, 20, 30)


@pytest.mark.parametrize(("own", "multiplied"), [({}, 8 * 1000), ({"conv": 450.0}, 8 * 450)])
def test_a_composed_layer_multiplies_less(own: dict[str, float], multiplied: float) -> None:
    (group,) = groups_of([UP, CONVOLUTION], {"conv"})
    assert group.multiplied(8, Execution("fp16", layer_flops=own)) == multiplied


def test_no_reached_peak_comes_from_products_that_nobody_made() -> None:
    run = made_up.run()
    stage = next(part for part in run.stages if [*layer_rates(run, part)])
    (precision, reached), *_ = layer_rates(run, stage)
    assert stage.execution is not None
    assert run.reference is not None
    nominal = next(layer.flops for layer in run.reference.layers if layer.name == reached.layer)
    halved = replace(stage, execution=replace(stage.execution, layer_flops={reached.layer: nominal / 2}))
    (same, now), *_ = layer_rates(run, halved)
    assert (same, now.flops_per_s) == (precision, pytest.approx(reached.flops_per_s / 2))

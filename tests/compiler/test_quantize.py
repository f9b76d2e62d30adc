"""In fp8 a net keeps its masks: scales, shared types, rounding, and the layers that stay in fp16."""

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.samples import load_dataset, to_batch
from pipeline.compiler.calibrate import Budget, keep_for, largest, mixed, quantisable
from pipeline.compiler.graph import Graph
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision, fp8_values, quantised, rounded
from pipeline.kernels.common.nhwc import FP8_MAX
from tests.compiler.nets import CPU, classic, image, traced

SHIPPED = ("models.unet.UNet", {"base": 16, "depth": 4}, "models/weights/unet_small.safetensors", 0)


@pytest.fixture(scope="module")
def trained() -> tuple[Graph, nn.Module, list[Tensor]]:
    """The shipped net, rewritten, and two batches of the tissue that it was trained for."""
    net = build_model(*SHIPPED)
    batches = list(to_batch(load_dataset("samples", None, None, 64, 4).images).split(2))
    graph = traced(net, batches[0])
    rewrite(graph)
    return graph, net, batches


@torch.no_grad()
def simulated(graph: Graph, batches: list[Tensor], keep: list[str]) -> tuple[Precision, Tensor]:
    """The precision that calibration gives, and the logits of all batches."""
    seen = largest(Program(graph, Precision("fp32"), CPU), batches)
    precision = mixed(graph, seen, keep, "fp32")
    program = Program(graph, precision, CPU)
    return precision, torch.cat([program(batch) for batch in batches])


def test_a_trained_net_keeps_its_masks_in_fp8(trained: tuple[Graph, nn.Module, list[Tensor]]) -> None:
    graph, net, batches = trained
    precision, logits = simulated(graph, batches, [])
    with torch.no_grad():
        exact = torch.cat([net(batch) for batch in batches])
    assert len(precision.fp8_values) == 29  # all values but the image and the logits
    assert 1e-3 < float((logits - exact).norm() / exact.norm()) < 3e-2
    assert float((logits.argmax(1) != exact.argmax(1)).float().mean()) < 5e-3


def test_what_is_kept_reads_no_fp8_and_answers_better(trained: tuple[Graph, nn.Module, list[Tensor]]) -> None:
    graph, net, batches = trained
    precision, logits = simulated(graph, batches, quantisable(graph))
    assert precision.fp8_values == set()
    with torch.no_grad():
        exact = torch.cat([net(batch) for batch in batches])
    assert float((logits - exact).norm() / exact.norm()) < 2e-3


@torch.no_grad()
def test_layers_are_kept_until_the_masks_are_within_the_budget(
    trained: tuple[Graph, nn.Module, list[Tensor]],
) -> None:
    graph, _, batches = trained
    seen = largest(Program(graph, Precision("fp32"), CPU), batches)

    def precision(keep: list[str]) -> Precision:
        return mixed(graph, seen, keep, "fp32")

    def flips(keep: list[str]) -> float:
        masks = [Program(graph, Precision("fp32"), CPU)(batch).argmax(1) for batch in batches]
        program = Program(graph, precision(keep), CPU)
        return float(
            torch.stack([program(b).argmax(1) != m for b, m in zip(batches, masks, strict=True)]).float().mean()
        )

    def make(given: Precision) -> Program:
        return Program(graph, given, CPU)

    every = flips([])
    kept, gains = keep_for(graph, make, precision, batches, Budget(0.6 * every, 1.0))
    assert 0 < len(kept) < len(quantisable(graph))
    assert set(gains) == set(quantisable(graph))
    assert flips(kept) <= 0.6 * every
    assert keep_for(graph, make, precision, batches, Budget(every, 1.0)) == ([], {})


@torch.no_grad()
def test_layers_are_kept_until_the_logits_are_within_the_budget(
    trained: tuple[Graph, nn.Module, list[Tensor]],
) -> None:
    """Although no pixel may be said to flip too much: masks can be right where the logits are far off."""
    graph, _, batches = trained
    seen = largest(Program(graph, Precision("fp32"), CPU), batches)

    def precision(keep: list[str]) -> Precision:
        return mixed(graph, seen, keep, "fp32")

    def make(given: Precision) -> Program:
        return Program(graph, given, CPU)

    exact = [make(Precision("fp32"))(batch) for batch in batches]
    every = Budget(1.0, 1.0).used(make(precision([])), batches, exact)
    kept, _ = keep_for(graph, make, precision, batches, Budget(1.0, 0.7 * every))
    assert kept
    assert Budget(1.0, 0.7 * every).used(make(precision(kept)), batches, exact) <= 1


def test_the_parts_of_a_join_share_type_and_scale() -> None:
    net, batch = classic(), image(1, 3, 32, 32)
    graph = traced(net, batch)
    rewrite(graph)
    for keep in ([], *([name] for name in quantisable(graph))):
        precision, _ = simulated(graph, [batch], keep)
        for part, (wide, _) in graph.places.items():
            assert precision.dtype(part) == precision.dtype(wide)
            assert precision.scale(part) == precision.scale(wide)
        for node in graph.nodes:
            if node.pooled and node.output:
                assert precision.dtype(node.pooled) == precision.dtype(node.output)
                assert precision.scale(node.pooled) == precision.scale(node.output)


def test_a_bilinear_net_is_fp8_throughout() -> None:
    net, batch = classic(upsampling="bilinear"), image(2, 3, 32, 48)
    graph = traced(net, batch)
    rewrite(graph)
    precision, logits = simulated(graph, [batch], [])
    written = {value for node in graph.nodes for value in (node.output, node.pooled) if value}
    assert precision.fp8_values == written
    with torch.no_grad():
        assert 1e-3 < float((logits - net(batch)).norm() / net(batch).norm()) < 0.1


def test_a_kept_layer_and_what_torch_reads_stay_in_fp16() -> None:
    graph = traced(classic(), image(1, 3, 32, 32))
    rewrite(graph)
    last = graph.nodes[-1]
    assert last.inputs[0] in fp8_values(graph, [])
    assert last.inputs[0] not in fp8_values(graph, [last.name])
    untouched = traced(classic(), image(1, 3, 32, 32))
    assert fp8_values(untouched, []) == set()


def test_the_largest_value_lands_at_the_end_of_e4m3() -> None:
    batch = image(1, 3, 32, 32)
    graph = traced(classic(), batch)
    rewrite(graph)
    with torch.no_grad():
        seen = largest(Program(graph, Precision("fp32"), CPU), [batch])
    scales = mixed(graph, seen, [], "fp32").scales
    assert max(seen[value] / scales[value] for value in seen if value in scales) == pytest.approx(FP8_MAX)


def test_taps_rounded_together_keep_their_sum() -> None:
    weight = image(9, 32, 16)
    apart, scale = quantised(weight, 1)
    together, same = quantised(weight, 1, summed=0)
    exact = (weight / scale[:, None]).sum(0)
    errors = [(q.float().sum(0) - exact).abs().mean() for q in (apart, together)]
    assert torch.equal(scale, same)
    assert errors[1] < errors[0] / 8
    assert float((together.float() * scale[:, None] - weight).norm() / weight.norm()) < 5e-2


def test_a_channel_without_weights_rounds_to_zero_and_too_large_a_value_saturates() -> None:
    weight = torch.zeros(9, 16, 16)
    packed, scale = quantised(weight, 1, summed=0)
    assert not packed.float().any()
    assert bool((scale > 0).all())
    assert rounded(torch.tensor([1e9, -1e9])).float().tolist() == [FP8_MAX, -FP8_MAX]

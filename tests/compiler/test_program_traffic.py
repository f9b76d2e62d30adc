"""What a rewritten graph moves through memory."""

import torch

from models.unet import UNet
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision
from pipeline.compiler.torch_export import trace
from pipeline.profiling.operator_bytes import counted


def test_a_rewritten_net_moves_less_than_the_untouched_one() -> None:
    """In fp32, so that only passes over memory make a difference; no less than the image and the logits is moved."""
    torch.manual_seed(0)
    net, image = UNet(base=8, depth=2).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        graph = trace(net, image)
        rewrite(graph)
        program = Program(graph, Precision("fp32"), image.device)
        moved, logits = program.moved(image), program(image)
    assert 4 * (image.numel() + logits.numel()) < moved < counted(net, image)


def test_each_operation_is_known_by_the_layer_whose_weights_it_uses() -> None:
    """Also where it ends in another layer's work, such as a folded head."""
    net, image = UNet(base=16, depth=2).eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        graph = trace(net, image)
        rewrite(graph)
    names = {name for name, _ in net.named_modules()}
    weighted = [node for node in graph.nodes if "weight" in node.tensors]
    assert len(weighted) > 5
    assert {node.layer for node in weighted} <= names

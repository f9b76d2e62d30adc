"""U-Nets of papers through the passes and the lowering, by references, and as a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import load, save
from pipeline.compiler.graph.layers import layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from tests.benchmarks.research_nets import GatedUNet, NAFNet, R2UNet, ResUNetA, U2Net, UNet3Plus, WarpedUNet
from tests.compiler.nets import image, lively
from tests.compiler.rewriting import rewritten_from

LAYERS: dict[Callable[[], nn.Module], int] = {
    U2Net: 88,
    UNet3Plus: 27,
    NAFNet: 44,
    R2UNet: 51,
    GatedUNet: 23,
    ResUNetA: 26,
    WarpedUNet: 14,
}


@pytest.mark.parametrize(("make", "layers"), LAYERS.items())
@torch.no_grad()
def test_it_answers_as_the_net_with_so_many_layers_by_kernels(
    make: Callable[[], nn.Module], layers: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, batch = lively(make()).eval(), image(2, 3, 32, 32)
    made = rewritten_from(net, batch, torch.float16)
    assert sum(layer_of(made.module, node) is not None for node in made.module.graph.nodes) == layers
    graph = lower(made, Plan())
    assert distance(graph(batch), net(batch)) < 2e-2
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path)(batch), graph(batch))

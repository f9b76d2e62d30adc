"""What a net's layers are; one of several paths is known by the first, whichever was called and however exported."""

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.graph.fx_graph import is_matrix_work, layers, module_of
from pipeline.profiling.layer_order import compute_layers
from pipeline.profiling.layers import layer_work

IMAGE = torch.zeros(1, 3, 8, 8)


class Block(nn.Module):
    """As nnU-Net's: a convolution called by its second path, and twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.all_modules = nn.Sequential(self.conv, nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        """[batch, 3, height, width] of the same."""
        return self.all_modules(self.all_modules(image)) + 1  # type: ignore[no-any-return]


def holding(name: str) -> nn.Module:
    """A net whose one module has this name."""

    class Holder(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return getattr(self, name)(image)  # type: ignore[no-any-return]

    holder = Holder()
    holder.add_module(name, Block())
    return holder.eval()


@pytest.mark.parametrize("name", ["block", "net", "network", "net_1"])
def test_each_exporter_calls_a_layer_by_its_first_path(name: str) -> None:
    """A net whose own module is called as ours, or begins so, keeps its name whole."""
    assert [layer.layer for layer in compute_layers(holding(name), IMAGE)] == [f"{name}.conv"] * 2
    nodes = export(holding(name), IMAGE, torch.float32).module.graph.nodes
    assert [module_of(node) for node in nodes if is_matrix_work(node)] == [f"{name}.conv"] * 2
    assert [module_of(node) for node in nodes if "add" in str(node.target)] == [name]


class Padded(nn.Conv2d):
    """As smp's EfficientNet has them: with a module of its own that pads."""

    def __init__(self) -> None:
        super().__init__(3, 4, 3)
        self.static_padding = nn.Sequential(nn.ZeroPad2d(1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """[batch, 4, height, width] of [batch, 3, height, width]."""
        return super().forward(self.static_padding(input))


def test_a_convolution_that_pads_by_a_module_of_its_own_is_one_layer() -> None:
    """It had been none, with all of an EfficientNet's encoder."""
    net = nn.Sequential(Padded(), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.Sequential())
    assert [name for name, _ in layers(net)] == ["0", "1", "2"]
    work = layer_work(net.eval(), IMAGE)
    assert [(layer.name, layer.flops) for layer in work if layer.flops] == [("0", 2 * 27 * 256), ("1", 2 * 4 * 256)]


def test_attention_is_one_layer() -> None:
    """Its last product is no call of the module that has the weights."""
    assert [name for name, _ in layers(nn.TransformerEncoderLayer(8, 2, 16))][:2] == ["self_attn", "linear1"]


def test_a_net_that_is_a_layer_has_no_path() -> None:
    assert [name for name, _ in layers(Padded())] == [""]

"""What is changed of a net before it is exported must not change its answer."""

import torch
from torch import nn

from pipeline.stages.common.onnx_models import BiasApart, biases_apart


class Twice(nn.Module):
    """Calls one transposed convolution under two names, one without a bias, one for a size, and reads a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.again = self.first
        self.other = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False), nn.ReLU())
        self.sized = nn.ConvTranspose2d(4, 3, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Four doublings."""
        raised = self.other(self.again(self.first(image)))
        return self.sized(raised, output_size=[81, 82]) + self.sized.weight.sum()  # type: ignore[no-any-return]


def test_biases_apart_give_the_same_answer() -> None:
    """Also where one convolution has two names, where another has no bias, and where the output's size is asked for."""
    net, image = Twice().eval(), torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        expected = net(image)
        found = biases_apart(net)(image)
    assert sum(isinstance(part, BiasApart) for part in net.modules()) == 3
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_bias_is_an_addition_in_the_exported_graph() -> None:
    """After the convolution, which has none."""
    net = biases_apart(nn.ConvTranspose2d(4, 3, 2, stride=2).eval())
    graph = torch.export.export(net, (torch.randn(1, 4, 5, 5),)).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    (raised,) = [node for node in calls if "conv_transpose" in str(node.target)]
    assert len(raised.args) < 3 or raised.args[2] is None
    assert any("add" in str(node.target) for node in calls)

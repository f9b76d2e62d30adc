"""What is changed of a net before it is exported must not change its answer."""

import torch
from torch import nn

from pipeline.stages.onnx_export import BiasApart, biases_apart


class Twice(nn.Module):
    """Calls one transposed convolution under two names, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.again = self.first
        self.other = nn.Sequential(nn.ConvTranspose2d(4, 3, 2, stride=2, bias=False), nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Three times as many doublings."""
        return self.other(self.again(self.first(image)))  # type: ignore[no-any-return]


def test_biases_apart_give_the_same_answer() -> None:
    """Also where one convolution has two names, and where another has no bias."""
    net, image = Twice().eval(), torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        expected = net(image)
        changed = biases_apart(net)
        found = changed(image)
    assert [type(part) for part in changed.children()] == [BiasApart, nn.Sequential]
    assert not any(part.bias is not None for part in changed.modules() if isinstance(part, nn.ConvTranspose2d))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_net_that_is_one_transposed_convolution() -> None:
    """It is replaced itself."""
    net, image = nn.ConvTranspose2d(4, 3, 2, stride=2), torch.randn(1, 4, 5, 5)
    with torch.inference_mode():
        expected = net(image)
        torch.testing.assert_close(biases_apart(net)(image), expected, rtol=1e-6, atol=1e-6)

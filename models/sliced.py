"""A network with fewer channels than its class makes, as `pipeline.slim` leaves it."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from models.build import maker_of_net, with_classes
from models.checkpoint import entries_of, stored
from models.weights_file import find


class OnBlocks(nn.Module):
    """A network that reads the values of a block of pixels as channels, and gives the logits of its pixels so."""

    def __init__(self, net: nn.Module, block: int) -> None:
        """Take a network of block ** axes times the channels at both ends; `block` is a block's side in pixels."""
        super().__init__()
        self.net, self.block = net, block

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes, ...] of images [batch, channels, ...]; the block divides all sides."""
        axes, answer = image.ndim - 2, self.net(gathered(image, self.block))
        if axes == 2:
            return functional.pixel_shuffle(answer, self.block)
        parts: Tensor = answer.unflatten(1, (-1, *[self.block] * axes))
        pairs = [place for axis in range(axes) for place in (2 + axes + axis, 2 + axis)]
        return parts.permute(0, 1, *pairs).reshape(*parts.shape[:2], *image.shape[2:])


def gathered(image: Tensor, block: int) -> Tensor:
    """Return [batch, channels × values of a block, blocks ...] of an image or a volume."""
    axes = image.ndim - 2
    if axes == 2:
        return functional.pixel_unshuffle(image, block)  # by whose name compilers know it
    parts = image.reshape(*image.shape[:2], *(size for side in image.shape[2:] for size in (side // block, block)))
    places = range(2, 2 + 2 * axes)
    return parts.permute(0, 1, *places[1::2], *places[::2]).flatten(1, 1 + axes)


def sliced_net(target: str, weights: str, options: Mapping[str, object] | None = None, block: int = 1) -> nn.Module:
    """Make a network of the class `target` with `options`, and each layer as wide as in the weights' file.

    With a block of several pixels a side it works on blocks.
    """
    net: nn.Module = maker_of_net(target)(**with_classes(options or {}, "model.options.options"))
    return with_weights(OnBlocks(net, block) if block > 1 else net, entries_of(stored(find(weights))))


def with_weights(net: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network with these tensors, of any shapes, and with the sizes of layers that follow."""
    other = copy.deepcopy(net)
    for name, part in other.state_dict(keep_vars=True).items():
        if name in weights:
            part.data = weights[name].to(part, copy=True)
    for layer in other.modules():
        if isinstance(getattr(layer, "weight", None), Tensor):
            fit_sizes(layer)
    return other


def fit_sizes(layer: Any) -> None:
    """Set a layer's own figures to the sizes of its weights."""
    weight: Tensor = layer.weight
    if isinstance(layer, nn.modules.conv._ConvNd):
        if layer.groups > 1 and weight.shape[1] == 1:  # each channel by itself
            layer.groups = layer.in_channels = layer.out_channels = weight.shape[0]
        elif layer.groups == 1:
            sizes = weight.shape[:2]
            layer.in_channels, layer.out_channels = sizes if layer.transposed else reversed(sizes)
    for name in ("num_features", "num_channels", "num_parameters"):
        if hasattr(layer, name):
            setattr(layer, name, weight.shape[0])

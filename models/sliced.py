"""A network with fewer channels than its class makes, as `pipeline.slim` leaves it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from models.build import maker_of_net, with_classes
from pipeline.errors import ModelError


class OnBlocks(nn.Module):
    """A network that reads the values of a block of pixels as channels, and gives the logits of its pixels so."""

    def __init__(self, net: nn.Module, block: int) -> None:
        """Take a network of block ** axes times the channels at both ends; `block` is a block's side in pixels."""
        super().__init__()
        self.net, self.block = net, block

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes, ...] of images [batch, channels, ...]; the block divides all sides."""
        answer: Tensor = self.net(gathered(image, self.block))
        return spread(answer, self.block)


def gathered(image: Tensor, block: int) -> Tensor:
    """Return [batch, channels × values of a block, blocks ...] of an image or a volume."""
    axes = image.ndim - 2
    if axes == 2:
        return functional.pixel_unshuffle(image, block)  # by whose name compilers know it
    parts = image.reshape(*image.shape[:2], *(size for side in image.shape[2:] for size in (side // block, block)))
    places = range(2, 2 + 2 * axes)
    return parts.permute(0, 1, *places[1::2], *places[::2]).flatten(1, 1 + axes)


def spread(values: Tensor, block: int) -> Tensor:
    """Return the image [batch, channels, ...] that `gathered` makes these values of."""
    axes, sides = values.ndim - 2, values.shape[2:]
    if axes == 2:
        return functional.pixel_shuffle(values, block)
    parts: Tensor = values.unflatten(1, (values.shape[1] // block**axes, *[block] * axes))
    pairs = [place for axis in range(axes) for place in (2 + axes + axis, 2 + axis)]
    return parts.permute(0, 1, *pairs).reshape(*parts.shape[:2], *(side * block for side in sides))


def sliced_net(target: str, weights: str, options: Mapping[str, object] | None = None, block: int = 1) -> nn.Module:
    """Make a network of the class `target` with `options`, and each layer as wide as in the weights' file.

    With a block of several pixels a side it works on blocks.
    """
    net: nn.Module = maker_of_net(target)(**with_classes(options or {}, "model.options.options"))
    try:
        with safe_open(weights, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(f"model.options.weights={weights}: {error}") from None
    net = OnBlocks(net, block) if block > 1 else net
    fit_layers(net, shapes)
    return net


def fit_layers(net: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give a network's tensors these shapes, and its layers the sizes that follow."""
    for path, layer in net.named_modules():
        for name, part in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            shape = shapes.get(f"{path}.{name}".lstrip("."))
            if shape is not None and list(part.shape) != list(shape):
                other = part.detach().new_zeros(list(shape))
                is_weight = isinstance(part, nn.Parameter)
                setattr(layer, name, nn.Parameter(other, part.requires_grad) if is_weight else other)
        fit_sizes(layer)


def fit_sizes(layer: Any) -> None:
    """Set a layer's own figures to the sizes of its weights."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return
    if isinstance(layer, nn.modules.conv._ConvNd):
        if layer.groups > 1 and weight.shape[1] == 1:  # each channel by itself
            layer.groups = layer.in_channels = layer.out_channels = weight.shape[0]
        elif layer.groups == 1:
            sizes = weight.shape[:2]
            layer.in_channels, layer.out_channels = sizes if layer.transposed else reversed(sizes)
    for name in ("num_features", "num_channels", "num_parameters"):
        if hasattr(layer, name):
            setattr(layer, name, weight.shape[0])

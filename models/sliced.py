"""A network with fewer channels than its class makes, as `pipeline.slim` leaves it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from models.build import maker_of_net, with_classes
from pipeline.errors import ModelError


def sliced_net(target: str, weights: str, options: Mapping[str, object] | None = None) -> nn.Module:
    """Make a network of the class `target` with `options`, and each layer as wide as in the weights' file."""
    net: nn.Module = maker_of_net(target)(**with_classes(options or {}, "model.options.options"))
    try:
        with safe_open(weights, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, SafetensorError) as error:
        raise ModelError(f"model.options.weights={weights}: {error}") from None
    fit_layers(net, shapes)
    return net


def fit_layers(net: nn.Module, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give a network's tensors these shapes, and its layers the sizes that follow."""
    for path, layer in net.named_modules():
        for name, part in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            shape = shapes.get(f"{path}.{name}".lstrip("."))
            if shape is not None and list(part.shape) != list(shape):
                cut = part.detach()[tuple(map(slice, shape))].clone()
                is_weight = isinstance(part, nn.Parameter)
                setattr(layer, name, nn.Parameter(cut, part.requires_grad) if is_weight else cut)
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

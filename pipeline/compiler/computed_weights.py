"""Weights that a layer computes at each call, as weight norm, spectral norm and pruning do: computed once.

In eval mode such a weight is the same at each call. A stage's copy holds it as a plain parameter, so that a batch norm
can be folded into it, no call computes it again, and in half precision it is rounded once, not computed so.
"""

import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm


def compute_once(net: nn.Module) -> nn.Module:
    """The net itself, in eval mode, with plain parameters where torch's own tools compute them at each call."""
    for layer in list(net.modules()):
        if parametrize.is_parametrized(layer):
            _without_parametrizations(layer)
        for hook in list(layer._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(layer, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(layer, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                prune.remove(layer, hook._tensor_name)
    return net


def _without_parametrizations(layer: nn.Module) -> None:
    """Give a layer the class that it had before, and the tensors that it computes.

    `parametrize.remove_parametrizations` deletes them from a class that the layer shares with all its copies (torch
    2.12), and with it from the net that a stage was given.
    """
    with torch.no_grad():
        computed = {name: getattr(layer, name).clone() for name in layer.parametrizations}  # type: ignore[union-attr]
    layer.__class__ = parametrize.type_before_parametrizations(layer)
    del layer.parametrizations
    for name, tensor in computed.items():
        layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

"""A copy of a network whose batch norms are part of the convolutions before them, and whose weights are plain."""

import copy
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.network_calls import answer_of, trial_copy, without_tf32

MOST_APART = 1e-2  # relative; folding rounds by 1e-6 in fp32, by 5e-3 where a net computes in bf16 within
FOLDED = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that a net that reads a norm's statistics is seen to


def folded(model: nn.Module, inputs: Tensor | Batch | None = None) -> tuple[nn.Module, int]:
    """Return a copy whose batch norms are part of the convolutions before them, and their number; weights are plain.

    Without inputs only what torch.fx traces is folded. With them, nothing is where the copy answers otherwise.
    """
    net = compute_once(copy.deepcopy(model))
    if inputs is None:
        return net, _fold(net, checked=False)
    few = batched(inputs).samples(0, 2)
    wanted = _answer(net, few)  # before torch.fx, so that what its code keeps in a global is no proxy
    count = _fold(net, checked=wanted is not None)
    if count and wanted is not None:
        answer = _answer(net, few)
        alike = answer is not None and answer.shape == wanted.shape
        if answer is None or not alike or not (answer - wanted).norm() <= MOST_APART * wanted.norm():
            return compute_once(copy.deepcopy(model)), 0
    return net, count


def _answer(net: nn.Module, inputs: Batch) -> Tensor | None:
    """Return what a copy answers in fp32; None where it fails, as a net may for so few samples."""
    with suppress(torch.OutOfMemoryError, MemoryError), without_tf32():
        return answer_of(net, inputs)
    return None


def _fold(net: nn.Module, *, checked: bool) -> int:
    try:
        pairs = _pairs(net)
    except Exception:  # noqa: BLE001 - a proxy makes a net's own code raise whatever it likes, such as a KeyError of einops
        return _fold_neighbours(net) if checked else 0
    count = 0
    for conv, norm in pairs:
        if (both := in_one(conv, norm)) is not None:
            conv._parameters = both._parameters
            _spent(norm)
            count += 1
    return count


def _pairs(net: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return the pairs of layers, each called once, of which the second alone reads what the first answers."""
    copied, copies = trial_copy(net)
    graph = _Tracer().trace(copied)
    originals = {copy_of: part for part, copy_of in copies.items()}
    called = {node: copied.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}
    read = {id(attrgetter(str(node.target))(copied)) for node in graph.nodes if node.op == "get_attr"}
    calls = Counter(called.values())
    pairs = []
    for node, layer in called.items():
        before = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if before is None or before not in called or len(before.users) > 1:
            continue
        pair = called[before], layer
        if any(calls[part] > 1 for part in pair):  # folded for one call, it would be wrong for the other
            continue
        if any(id(held) in read for part in pair for held in (*part.parameters(), *part.buffers())):
            continue  # such as a weight that a decoder is tied to
        pairs.append((originals[pair[0]], originals[pair[1]]))
    return pairs


def _spent(norm: nn.Module) -> nn.Module:
    """Make a norm do nothing from now on, and return it; it keeps what else a network may ask it, such as its eps."""
    norm._parameters, norm._buffers = {}, {}
    norm.__class__ = nn.Identity
    return norm


def _fold_neighbours(net: nn.Module) -> int:
    """Fold where a batch norm follows a convolution in a Sequential; the answer shows whether the net calls them so."""
    count = 0
    for block in [part for part in net.modules() if _computes_as(part, nn.Sequential)]:
        for (name, conv), (after, norm) in pairwise(list(block._modules.items())):
            both = None if conv is None or norm is None else in_one(conv, norm)
            if both is not None and norm is not None:
                setattr(block, name, both)
                setattr(block, after, _spent(copy.copy(norm)))
                count += 1
    return count


def in_one(conv: nn.Module, norm: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """Return a convolution that does what a convolution and a batch norm without hooks do; None for others."""
    fits = any(_computes_as(conv, kinds[0]) and _computes_as(norm, kinds[1]) for kinds in FOLDED)
    fits = fits and not (conv._forward_hooks or norm._forward_pre_hooks or norm._forward_hooks)
    if not fits or not isinstance(conv, nn.Conv2d | nn.Conv3d) or not isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d):
        return None
    if norm.running_mean is None or norm.running_var is None or "weight" not in conv._parameters:
        return None  # statistics of each batch, or a weight that a hook of the net's own computes
    known = BatchNorm(norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    both = copy.deepcopy(conv)
    with torch.no_grad():
        weight, bias = fold(conv.weight, conv.bias, known)
    both.weight, both.bias = nn.Parameter(weight.to(conv.weight.dtype)), nn.Parameter(bias.to(conv.weight.dtype))
    return both


def _computes_as(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is of one of torch's classes, or of one that is derived from it and computes alike."""
    names = [name for name in ("forward", "_conv_forward") if hasattr(kind, name)]
    own = [getattr(getattr(part, name, None), "__func__", None) for name in names]
    return isinstance(part, kind) and own == [getattr(kind, name) for name in names]


class BatchNorm(NamedTuple):
    """The constants of a batch norm in eval mode: vectors [channels]; without a scale it is 1, without a shift 0."""

    mean: Tensor
    variance: Tensor
    eps: float
    scale: Tensor | None = None
    shift: Tensor | None = None


def fold(weight: Tensor, bias: Tensor | None, norm: BatchNorm, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Return weight [out, in, k, k], or [in, out, k, k] if `transposed`, and bias [out] of both, in fp32 from float64.

    Weights of volumes have one more k.
    """
    exact: list[Any] = [one.double() if isinstance(one, Tensor) else one for one in (weight, bias, *norm, transposed)]
    both = fuse_conv_bn_weights(*exact)
    return both[0].detach().float(), both[1].detach().float()


def compute_once(net: nn.Module) -> nn.Module:
    """Return the net itself, in eval mode, with plain parameters where torch's own tools compute them at each call."""
    for layer in list(net.modules()):
        if parametrize.is_parametrized(layer):  # by its own class: torch 2.12 deletes them from copies' class, too
            with torch.no_grad():
                computed = {name: getattr(layer, name).clone() for name in layer.parametrizations}  # type: ignore[union-attr]
            layer.__class__ = parametrize.type_before_parametrizations(layer)
            del layer.parametrizations
            for name, tensor in computed.items():
                layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        for hook in list(layer._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(layer, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(layer, hook.name)
            elif isinstance(hook, prune.BasePruningMethod):
                prune.remove(layer, hook._tensor_name)
    return net

"""A denoising network in two parts: its outermost level, and the deep rest, whose features change slowly over steps.

Steps between two calls of the whole network call the outermost level alone, on the features that the last whole call
gave: DeepCache (Ma, Fang and Wang, CVPR 2024). The parts are twins of diffusers' networks and share their weights.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import InputError, plural

NETWORKS = ("UNet2DModel", "UNet2DConditionModel")  # of diffusers
RESIDUALS = "block_additional_residual"  # part of the names of inputs from another network, such as a ControlNet


class Kept:
    """The deep features, on their way between a network's blocks and its caller."""

    features: Tensor | None = None

    def take(self) -> Tensor:
        """Return the features once, so that none outlive the call."""
        features, self.features = self.features, None
        assert features is not None
        return features


class Recalling(nn.Module):
    """All deep blocks at once: answers with the kept features."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, *_: object, **__: object) -> Tensor:
        """Return the features [batch, channels, height, width]."""
        return self.kept.take()


class Whole(nn.Module):
    """The network, whose answer [batch, channels, height, width] is followed by the deep features as more channels."""

    def __init__(self, net: nn.Module, path: str) -> None:
        super().__init__()
        self.kept = Kept()
        *blocks, last = net.get_submodule(path).up_blocks  # type: ignore[misc]
        cls, twin = type(last), with_parts(last, "")

        def forward(block: Any, hidden_states: Tensor, *others: object, **named: object) -> object:
            block.kept.features = hidden_states
            return cls.forward(block, hidden_states, *others, **named)

        twin.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
        twin.kept = self.kept  # type: ignore[assignment]
        self.net = with_parts(net, path, up_blocks=nn.ModuleList([*blocks, twin]))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the answer and the features."""
        answer = self.net(*inputs)
        return torch.cat([answer, self.kept.take()], 1)


class Shallow(nn.Module):
    """The outermost level of the network, which takes the deep features as its last input."""

    def __init__(self, net: nn.Module, path: str) -> None:
        super().__init__()
        self.kept = Kept()
        inner: Any = net.get_submodule(path)
        down = nn.ModuleList([with_parts(inner.down_blocks[0], "", downsamplers=None)])
        up = nn.ModuleList([inner.up_blocks[-1]])
        self.net = with_parts(net, path, down_blocks=down, mid_block=Recalling(self.kept), up_blocks=up)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the answer [batch, channels, height, width]."""
        *own, self.kept.features = inputs
        answer: Tensor = self.net(*own)
        return answer


def parts_of(net: nn.Module, inputs: Sequence[str]) -> tuple[Whole, Shallow]:
    """Return the whole network, which also gives its deep features, and its outermost level.

    Args:
        net: one of `NETWORKS`, or a module around one.
        inputs: the names of what it takes.

    Raises:
        InputError: it can't be split so.
    """
    path, inner = next(((path, part) for path, part in net.named_modules() if is_known(part)), ("", None))
    if inner is None:
        raise InputError(f"{type(net).__name__}: cached steps are for diffusers' {' and '.join(NETWORKS)}")
    downs, ups, name = inner.down_blocks, inner.up_blocks, type(inner).__name__
    first, last = downs[0], ups[-1]
    if len(downs) < 2 or hasattr(first, "skip_conv") or len(last.resnets) != len(first.resnets) + 1:
        blocks = f"{plural(len(downs), 'level')}, {type(first).__name__} and {type(last).__name__} outermost"
        raise InputError(f"{name} ({blocks}): its outermost level doesn't run alone; it takes two levels or more")
    if strange := next((each for each in inputs if RESIDUALS in each), None):
        raise InputError(f"{name}: {strange} goes into the deep blocks at every step; measure without it")
    return Whole(net, path), Shallow(net, path)


def is_known(module: Any) -> bool:
    """Return whether a module is one of diffusers' networks, or of a class derived from one."""
    return any(cls.__name__ in NETWORKS and cls.__module__.startswith("diffusers.") for cls in type(module).__mro__)


def with_parts(net: nn.Module, path: str, **parts: nn.Module | None) -> nn.Module:
    """Return a twin of a network with other modules at a path; it shares the rest, and the network stays as it is."""
    twin = copy.copy(net)
    twin._modules = dict(net._modules)
    for part in parts:
        twin.__dict__.pop(part, None)  # None is no module, and lies there
    name, _, rest = path.partition(".")
    twin._modules |= {name: with_parts(net.get_submodule(name), rest, **parts)} if name else parts
    return twin

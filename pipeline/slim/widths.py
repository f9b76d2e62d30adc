"""Narrower forms of a network: by its class's own arguments, otherwise by slices of its layers."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from models.build import maker_of_net
from models.library_nets import _of_a_unet, arguments_of, imported, net_named
from models.nnunet_nets import defaults
from pipeline.errors import InputError, ModelError
from pipeline.records.request import ModelSpec
from pipeline.slim.channels import MULTIPLE, Channels, channels_of, kept, narrowed, sliced, widths_of
from pipeline.worker.workload import net_of_spec

SHARES = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(3, 4))  # of the widths, the most telling first
# Names of arguments that hold the width of each level, or the first level's, in PyTorch's libraries of U-Nets.
WIDTHS = ("base", "channels", "features", "filters", "features_per_stage", "init_filters")
LEVELS = ("depth", "n_stages", "encoder_depth")  # their number
PER_LEVEL = (*WIDTHS, "decoder_channels", "strides", "kernel_size", "kernel_sizes", "upsample_kernel_size", "n_conv_per_stage",
             "n_blocks_per_stage", "n_conv_per_stage_decoder", "blocks_down", "blocks_up")  # fmt: skip
BLOCKS = ("num_res_units", "n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder", "blocks_down")
SLICED = "models.sliced.sliced_net"
Change = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """Another form of the user's network.

    Attributes:
        name: for a reader.
        make: makes the network, on the CPU, in eval mode.
        share: of the widths; None of forms that differ otherwise.
    """

    name: str
    make: Callable[[], nn.Module]
    share: Fraction | None = None


@dataclass
class Full:
    """The user's network.

    Attributes:
        spec: of the request.
        net: with its weights, on the CPU.
        example: a batch of each input.
        seed: of random weights.
    """

    spec: ModelSpec
    net: nn.Module
    example: Sequence[Tensor]
    seed: int

    def forms(self) -> Iterator[Form]:
        """Yield the forms to compare: narrower ones, then ones of other shapes that the class's arguments allow."""
        sizes = {parameters(self.net)}
        for share in SHARES:
            if (size := parameters(self.narrow(share))) not in sizes:  # 8 channels are the fewest
                sizes.add(size)
                yield Form(f"{share} as wide", partial(self.narrow, share), share)
        taken = arguments(self.spec)
        for name, change in (
            ("one level fewer", shallower(taken)),
            ("flat widths", flat(taken)),
            ("fewer blocks", fewer_blocks(taken)),
        ):
            if change and self.made(change) is not None:
                yield Form(name, partial(self.remade, change))

    def narrow(self, share: Fraction) -> nn.Module:
        """Return a narrower network; of a share of 1 the same with other weights."""
        return self.slimmer(share)[1]

    @cached_property
    def channels(self) -> Channels:
        """The groups of its channels.

        Raises:
            ModelError: it can't be exported.
        """
        return channels_of(self.net, self.example)

    def slimmer(self, share: Fraction) -> tuple[ModelSpec, nn.Module]:
        """Return a narrower network with the full one's most important channels, and what makes it.

        Raises:
            ModelError: the class has no argument for it, and its layers can't be sliced.
        """
        channels = self.channels
        change = narrower(arguments(self.spec), share)
        if change and (slim := self.made(change)) is not None and fits(slim, channels, self.net):
            return replace(self.spec, name="custom", options={**self.spec.options, **change}, checkpoint=None), slim
        options = {"target": self.spec.target, "options": dict(self.spec.options)}
        spec = replace(self.spec, name="custom", target=SLICED, options=options, checkpoint=None)
        slim = sliced(self.net, channels, float(share))
        try:
            slim(*self.example)
        except Exception as error:  # noqa: BLE001 - a network's code may raise anything
            raise ModelError(f"slim: {type(self.net).__name__} can't run with fewer channels ({error})") from None
        return spec, slim

    def made(self, change: Change) -> nn.Module | None:
        """Return the network of changed arguments, or None if its class doesn't take them."""
        try:
            net = self.remade(change)
            net(*self.example)
        except (InputError, RuntimeError, ValueError, TypeError, LookupError, AssertionError):
            return None
        return net

    def remade(self, change: Change) -> nn.Module:
        """Return the network of changed arguments, with random weights."""
        spec = replace(self.spec, options={**self.spec.options, **change}, checkpoint=None)
        return net_of_spec(spec, self.seed)


def parameters(net: nn.Module) -> int:
    """Return the number of a network's parameters."""
    return sum(part.numel() for part in net.parameters())


def fits(slim: nn.Module, channels: Channels, full: nn.Module) -> bool:
    """Give a narrower network the full one's most important channels; return False if their layers differ."""
    own = slim.state_dict()
    try:
        given = kept(channels, full.state_dict(), widths_of(channels, {name: part.shape for name, part in own.items()}))
        unused = {
            name for name in own if name not in channels.axes and name not in channels.same
        }  # such as other heads
        slim.load_state_dict({name: own[name] if name in unused else part for name, part in given.items()})
    except (ModelError, RuntimeError):
        return False
    return True


def arguments(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that a network is made with: the user's and its class's defaults."""
    options, maker = dict(spec.options), maker_of_net(spec.target)
    if spec.target == "models.nnunet_nets.nnunet_net":
        return (
            {}
            if options.get("plans")
            else {**defaults(options.get("net", "PlainConvUNet"), options.get("configuration", "2d")), **options}
        )
    added: Mapping[str, object] = {}
    if spec.target == "models.library_nets.monai_net":
        maker = net_named(options.get("net", "UNet"), imported("monai.networks.nets", "monai", "monai"), "net")
        added = _of_a_unet(arguments_of(maker)[0], options)
    own = {
        name: part.default
        for name, part in arguments_of(maker)[0].items()
        if part.default is not inspect.Parameter.empty
    }
    return {**own, **added, **{key: part for key, part in options.items() if part is not None}}


def numbers(value: object) -> list[int] | None:
    """Return a list of several whole numbers; None for anything else."""
    found = list(value) if isinstance(value, list | tuple) else []
    return found if len(found) > 1 and all(isinstance(part, int) for part in found) else None


def narrower(taken: Change, share: Fraction) -> Change:
    """Return the arguments of a narrower network."""
    return widened(taken, lambda width: narrowed(width, float(share)))


def widened(taken: Change, changed: Callable[[int], int]) -> dict[str, Any]:
    """Return the arguments of widths, each changed."""
    found: dict[str, Any] = {}
    for key in WIDTHS:
        value = taken.get(key)
        if listed := numbers(value):
            found[key] = [changed(width) for width in listed]
        elif isinstance(value, int) and value > MULTIPLE:
            found[key] = changed(value)
    return found


def flat(taken: Change) -> Change:
    """Return arguments by which all levels are as wide as the second."""
    lists = {key: listed for key in WIDTHS if (listed := numbers(taken.get(key)))}
    return {key: [listed[1]] * len(listed) for key, listed in lists.items() if len(set(listed)) > 1}


def shallower(taken: Change) -> Change:
    """Return arguments of a network with one level fewer."""
    found: dict[str, Any] = {
        key: taken[key] - 1 for key in LEVELS if isinstance(taken.get(key), int) and taken[key] > 1
    }
    return found | {
        key: list(taken[key])[:-1]
        for key in PER_LEVEL
        if isinstance(taken.get(key), list | tuple) and len(taken[key]) > 1
    }


def fewer_blocks(taken: Change) -> Change:
    """Return arguments of a network with one block, or convolution, fewer in each level that has several."""
    found: dict[str, Any] = {}
    for key in BLOCKS:
        value = taken.get(key)
        if listed := numbers(value):
            found[key] = [max(1, part - 1) for part in listed]
        elif isinstance(value, int) and value > 1:
            found[key] = value - 1
    return {key: part for key, part in found.items() if part != taken[key]}

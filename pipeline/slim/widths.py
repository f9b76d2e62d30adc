"""Narrower forms of a network: by its class's own arguments, otherwise by slices of its layers."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.build import maker_of_net
from models.library_nets import arguments_of, imported, monai_net, net_named, of_a_unet
from models.nnunet_nets import defaults, nnunet_net
from pipeline.compiler.batch import batched
from pipeline.errors import InputError, ModelError
from pipeline.export.recorded_stage import check_net, check_weights, data_has_changed
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.slim.channels import Channels, channels_of, kept, narrowed, sliced, widths_of
from pipeline.worker.workload import example_of, net_of_spec

SHARES = (Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(3, 4))  # of the widths, the most telling first
# Names of arguments that hold the width of each level, or the first level's, in PyTorch's libraries of U-Nets.
WIDTHS = ("base", "channels", "features", "filters", "features_per_stage", "init_filters")
LEVELS = ("depth", "n_stages", "encoder_depth")  # their number
PER_LEVEL = (*WIDTHS, "decoder_channels", "strides", "kernel_size", "kernel_sizes", "upsample_kernel_size",
             "n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder", "blocks_down")  # fmt: skip
BLOCKS = ("num_res_units", "n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder", "blocks_down")
SLICED = "models.sliced.sliced_net"
Change = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """Another form of the user's network."""

    name: str  # for a reader
    make: Callable[[], nn.Module]  # gives it, on the CPU, in eval mode
    share: Fraction | None = None  # of the widths; None of forms that differ otherwise


@dataclass
class Full:
    """The user's network."""

    spec: ModelSpec
    net: nn.Module  # with its weights, on the CPU
    example: Sequence[Tensor]  # one sample of each input
    seed: int  # of random weights

    def forms(self) -> Iterator[Form]:
        """Yield narrower forms, then other shapes by the class's arguments; raise ModelError without a narrower one."""
        sizes = {parameters(self.net)}
        for share in SHARES:
            with suppress(ModelError) if len(sizes) > 1 else nullcontext():
                if (size := parameters(self.slimmer(share)[1])) not in sizes:  # 8 channels are the fewest
                    sizes.add(size)
                    yield Form(f"{share} as wide", lambda share=share: self.slimmer(share)[1], share)  # type: ignore[misc]
        for name, change in other_shapes(arguments(self.spec)).items():
            if change and (net := self.remade(change)) is not None:
                yield Form(name, partial(copy.deepcopy, net))

    @cached_property
    def channels(self) -> Channels:
        """The groups of its channels."""
        return channels_of(self.net, self.example)

    def slimmer(self, share: Fraction) -> tuple[ModelSpec, nn.Module]:
        """Return a narrower network with the full one's most important channels, and what makes it; of 1 the same."""
        if share == 1:
            return replace(self.spec, name="custom", checkpoint=None), copy.deepcopy(self.net)
        channels = self.channels
        change = narrower(arguments(self.spec), share)
        if change and (slim := self.remade(change)) is not None and fits(slim, channels, self.net):
            return replace(self.spec, name="custom", options={**self.spec.options, **change}, checkpoint=None), slim
        options = {"target": self.spec.target, "options": dict(self.spec.options)}
        spec = replace(self.spec, name="custom", target=SLICED, options=options, checkpoint=None)
        slim = sliced(self.net, channels, float(share))
        try:
            with torch.no_grad():
                slim(*self.example)
        except Exception as error:  # noqa: BLE001 - a network's code may raise anything
            raise ModelError(f"slim: {type(self.net).__name__} can't run with fewer channels ({error})") from None
        return spec, slim

    def remade(self, change: Change) -> nn.Module | None:
        """Return the network of changed arguments with random weights, or None if its class doesn't take them."""
        try:
            net = net_of_spec(replace(self.spec, options={**self.spec.options, **change}, checkpoint=None), self.seed)
            with torch.no_grad():
                net(*self.example)
        except (InputError, RuntimeError, ValueError, TypeError, LookupError, AssertionError):
            return None
        return net


def full_of(run: RunRecord, folder: Path, device: str) -> Full:
    """Return the run's network; raise one line if its weights have changed, or it answers otherwise than in the run."""
    check_weights(run)
    net = net_of_spec(run.config.model, run.config.seed)
    example = example_of(run.config.data)
    if not data_has_changed(run):
        check_net(folder, run, net.to(device), batched(example[0].to(device)))
    return Full(run.config.model, net.cpu(), [part[:1] for part in example], run.config.seed)


def parameters(net: nn.Module) -> int:
    """Return the number of a network's parameters."""
    return sum(part.numel() for part in net.parameters())


def fits(slim: nn.Module, channels: Channels, full: nn.Module) -> bool:
    """Give a narrower network the full one's most important channels; return False if their layers differ."""
    own = slim.state_dict()
    used = {*channels.axes, *channels.same}  # other tensors are of no use for the answer, such as further heads
    try:
        given = kept(channels, full.state_dict(), widths_of(channels, {name: part.shape for name, part in own.items()}))
        slim.load_state_dict({name: part if name in used else own[name] for name, part in given.items()})
    except (ModelError, RuntimeError, LookupError):
        return False
    return True


def arguments(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that a network is made with: the user's and its class's defaults."""
    given, maker = {key: part for key, part in spec.options.items() if part is not None}, maker_of_net(spec.target)
    if maker is nnunet_net:
        own = {} if "plans" in given else defaults(given.get("net", "PlainConvUNet"), given.get("configuration", "2d"))
        return {**own, **given} if own else {}
    added: Mapping[str, object] = {}
    if maker is monai_net:
        maker = net_named(given.get("net", "UNet"), imported("monai.networks.nets", "monai", "monai"), "net")
        added = of_a_unet(arguments_of(maker)[0], given)
    own = {name: part.default for name, part in arguments_of(maker)[0].items()}
    return {**own, **added, **given}


def changed(taken: Change, keys: Sequence[str], change: Callable[[int], int]) -> dict[str, Any]:
    """Return those of some arguments that are whole numbers, or lists of them, and that change."""
    found: dict[str, Any] = {}
    for key in keys:
        value = taken.get(key)
        several = list(value) if isinstance(value, list | tuple) else [value]
        other = [change(part) for part in several if isinstance(part, int)]
        if len(other) == len(several) and other != several:
            found[key] = other[0] if isinstance(value, int) else other
    return found


def narrower(taken: Change, share: Fraction) -> Change:
    """Return the arguments of a narrower network."""
    return changed(taken, WIDTHS, lambda width: narrowed(width, float(share)))


def other_shapes(taken: Change) -> dict[str, Change]:
    """Return the arguments of networks that differ otherwise than in width, by names for a reader."""
    lists = {key: list(part) for key, part in taken.items() if isinstance(part, list | tuple) and len(part) > 1}
    shorter = {key: lists[key][:-1] for key in PER_LEVEL if key in lists}
    widths = {key: lists[key] for key in WIDTHS if key in lists}
    return {
        "one level fewer": changed(taken, LEVELS, lambda count: max(1, count - 1)) | shorter,
        "flat widths": {key: [part[1]] * len(part) for key, part in widths.items() if len(set(part)) > 1},
        "fewer blocks": changed(taken, BLOCKS, lambda count: max(1, count - 1)),
    }

"""Narrower forms of a network: by its class's own arguments, otherwise by slices of its layers.

Either way groups of channels that belong together across the network are chosen together. A group begins where a
convolution makes channels. Additions join groups, concatenations put them side by side; both sides of a connection keep
the same channels, as in "DepGraph" (Fang et al., CVPR 2023).
"""

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from models.build import maker_of_net
from models.library_nets import arguments_of, imported, monai_net, net_named, of_a_unet
from models.nnunet_nets import defaults, nnunet_net
from models.sliced import OnBlocks, gathered, with_weights
from pipeline.compiler.batch import batched
from pipeline.compiler.network_calls import exported_program, refuses
from pipeline.errors import InputError, ModelError, first_line
from pipeline.export.recorded_stage import check_net, check_weights, data_has_changed
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.slim.command import Width, width_of
from pipeline.worker.workload import example_of, net_of_spec

WIDTHS_TRIED = (  # the most telling first
    "1/2", "1/4", "2x2,1", "2x2,1,1,1,1/2,1/4", "2x2,1/2", "1/4,1/2", "1/8", "2x2,3/4", "1/8,1/4", "3/4",
)  # fmt: skip
# Names of arguments that hold the width of each level, or the first level's, in PyTorch's libraries of U-Nets.
WIDTHS = ("base", "channels", "features", "filters", "features_per_stage", "init_filters")
LEVELS = ("depth", "n_stages", "encoder_depth")  # their number
BLOCKS = ("num_res_units", "n_conv_per_stage", "n_blocks_per_stage", "n_conv_per_stage_decoder", "blocks_down")
PER_LEVEL = (*WIDTHS, *BLOCKS, "decoder_channels", "strides", "kernel_size", "kernel_sizes", "upsample_kernel_size")
SLICED = "models.sliced.sliced_net"
Change = Mapping[str, Any]
ALIKE = 1e-3  # relative error of fp32 answers that are the same
MULTIPLE = 8  # of channels: fewer leave tensor cores idle
# Operations that keep the channels of their first argument, beside those that torch tags as pointwise: no release of
# torch tags all activations.
KEEPS = re.compile(
    r"(adaptive_)?(avg|max)_pool|upsample_|dropout|pad\b|clone|contiguous|_to_copy|to\b|mean|alias|detach|"
    r"(leaky_|p|r)?relu|[cs]?elu|gelu|hard(sigmoid|swish|tanh)|mish|threshold"
)


@dataclass(eq=False)
class Group:
    """Channels that are kept or left out together; `fixed` ones all stay."""

    size: int
    fixed: bool = False
    pixels: int = 0  # of the tensors that the group begins in, the most
    joined: "Group | None" = None  # the group that it became a part of

    @property
    def root(self) -> "Group":
        """The group that stands for all that were joined."""
        return self if self.joined is None else self.joined.root


Spans = list[Group]  # of one axis, side by side


@dataclass
class Channels:
    """The axes of a network's tensors that hold channels, and the groups of these."""

    axes: dict[tuple[str, int], Spans] = field(default_factory=dict)  # by the tensor's name and the axis
    makers: set[tuple[str, int]] = field(default_factory=set)  # axes in which a group begins
    unknown: list[str] = field(default_factory=list)  # operations whose channels all stay
    names: dict[str, list[str]] = field(default_factory=dict)  # all names of a tensor, which modules may share
    ends: Spans = field(default_factory=list)  # of the network's inputs and answers

    def put(self, names: Sequence[str], axis: int, spans: Spans) -> None:
        """Note an axis of tensors; one that is used twice joins both uses."""
        for name in names:
            join(self.axes.setdefault((name, axis), spans), spans)

    def groups(self) -> list[Group]:
        """Return each group once."""
        return list(dict.fromkeys(group.root for spans in self.axes.values() for group in spans))


def join(left: Spans, right: Spans) -> None:
    """Join two axes that are added to each other, or the same; ones that are cut otherwise stay whole."""
    if [group.size for group in left] != [group.size for group in right]:
        fix([*left, *right])
        return
    for one, other in zip(left, right, strict=True):
        first, second = one.root, other.root
        if first is not second:
            first.fixed |= second.fixed
            first.pixels = max(first.pixels, second.pixels)
            second.joined = first


def fix(spans: Spans) -> None:
    """Keep all channels of these groups."""
    for group in spans:
        group.root.fixed = True


def channels_of(net: nn.Module, example: Sequence[Tensor]) -> Channels:
    """Follow the channels through the network's graph; raise ModelError if it can't be exported as one."""
    try:
        program = exported_program(net, example)
    except Exception as error:  # noqa: BLE001 - torch.export raises any type on a network that it can't follow
        raise ModelError(f"slim: the network is no graph that can be sliced: {first_line(error)}") from None
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    found, spans = Channels(), dict[fx.Node, Spans]()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name not in names and isinstance(value, Tensor) and value.ndim > 1:
            spans[node] = [Group(value.shape[1], fixed=True)]
            found.ends += spans[node]
        elif node.op == "call_function":
            follow(node, found, spans, names)
        elif node.op == "output":
            found.ends += [group for given in node.all_input_nodes for group in spans.get(given, [])]
    fix(found.ends)
    held = net.state_dict(keep_vars=True)
    for key in [key for key in found.axes if key[0] not in held]:  # a buffer that no file holds
        fix(found.axes.pop(key))
    found.names = {known: [name for name, part in held.items() if part is held[known]] for known, _ in found.axes}
    return found


def follow(node: fx.Node, found: Channels, spans: dict[fx.Node, Spans], names: Mapping[str, str]) -> None:
    """Note the channels of an operation's answer, and of its weights."""
    name, value = str(node.target).removeprefix("aten.").rpartition(".")[0], node.meta.get("val")
    given = [part for part in node.all_input_nodes if part in spans]
    further = [part for part in node.args[1:] if isinstance(part, fx.Node)]
    weighted = bool(given) and all(part.name in names for part in further)
    if not isinstance(value, Tensor) or value.ndim < 2:
        fix([group for part in given for group in spans[part]])
    elif weighted and re.match(r"conv\w*\d", name):
        spans[node] = convolution(node, found, spans[given[0]], [names[part.name] for part in further])
    elif weighted and re.match(r"(batch|instance|group)_norm|prelu", name):
        spans[node] = spans[given[0]]
        if name == "group_norm" and node.args[1] != 1:
            fix(spans[node])
        own = [names[part.name] for part in further if part.meta["val"].numel() == value.shape[1]]
        found.put(own, 0, spans[node])
    elif name == "cat" and node.args[1:2] == (1,):
        spans[node] = [group for part in given for group in spans[part]]
    elif given and keeps_channels(node, name, value):
        whole = [part for part in given if sum(each.size for each in spans[part]) == value.shape[1]]
        for other in whole[1:]:
            join(spans[whole[0]], spans[other])
        spans[node] = spans[whole[0]]
        scales = [part for part in node.all_input_nodes if part.name in names and part.meta["val"].shape[1] > 1]
        found.put([names[part.name] for part in scales], 1, spans[node])
    else:
        fix([group for part in given for group in spans[part]])
        spans[node] = [Group(value.shape[1], fixed=True)]
        found.unknown += [name] * bool(given)


def keeps_channels(node: fx.Node, name: str, value: Tensor) -> bool:
    """Return whether the answer has the channels of the operation's inputs, in their order."""
    pointwise = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
    cropped = name == "slice" and node.args[1:2] != (1,)
    if not (pointwise or cropped or name == "cat" or KEEPS.match(name)):
        return False
    inputs = [part.meta["val"] for part in node.all_input_nodes if isinstance(part.meta.get("val"), Tensor)]
    sizes = {part.shape[1] if part.ndim == value.ndim else -1 for part in inputs}
    return value.shape[1] in sizes <= {1, value.shape[1]}


def convolution(node: fx.Node, found: Channels, given: Spans, weights: list[str]) -> Spans:
    """Begin a group, unless each channel is convolved by itself; `weights` names the filters and perhaps a bias."""
    axis = int("transpose" in str(node.target))  # of the filters' own channels
    groups: Any = dict(enumerate(node.args)).get(6, 1)
    size = node.meta["val"].shape[1]
    if groups == size == sum(group.size for group in given):
        made, axis = given, 0
    else:
        made = [Group(size, fixed=groups != 1, pixels=math.prod(node.meta["val"].shape[2:]))]
        found.makers.add((weights[0], axis))
    if groups == 1:
        found.put(weights[:1], 1 - axis, given)
    elif made is not given:
        fix(given)
    if groups == 1 or axis == 0:  # filters of transposed groups name their channels within the group
        found.put(weights[:1], axis, made)
    found.put(weights[1:], 0, made)
    return made


def narrowed(size: int, share: Fraction) -> int:
    """Return a share of a number of channels, as a multiple of 8, at least 8, and no more than there are."""
    return min(size, max(MULTIPLE, round(size * share / MULTIPLE) * MULTIPLE))


def kept(channels: Channels, state: Mapping[str, Tensor], widths: Mapping[Group, int]) -> dict[str, Tensor]:
    """Return the state of a network that keeps `widths` of each group: the most important channels, in their order.

    Those have the largest L1 norms of filters and scales of norms, each divided by its mean.
    """
    figures = {group: torch.zeros(group.size) for group in channels.groups()}
    for (name, axis), spans in channels.axes.items():
        part, group = state[name], spans[0].root
        is_scale = part.ndim == 1 and name.endswith("weight")
        if len(spans) == 1 and ((name, axis) in channels.makers or is_scale):
            size = part.abs().movedim(axis, 0).reshape(group.size, -1).sum(1)
            figures[group] = figures[group] + size / size.mean().clamp_min(1e-12)
    best = dict[Group, Tensor]()
    for group, figure in figures.items():
        first = figure.argsort(descending=True, stable=True)[: widths.get(group, group.size)]
        best[group] = first.sort().values
    return picked(channels, state, best)


def picked(channels: Channels, state: Mapping[str, Tensor], picks: Mapping[Group, Tensor]) -> dict[str, Tensor]:
    """Return the state of a network that has the channels `picks` of each group; filters read the mean of copies."""
    found = dict(state)
    for (known, axis), spans in channels.axes.items():
        starts = accumulate((group.size for group in spans[:-1]), initial=0)
        places = torch.cat([picks[group.root] + start for group, start in zip(spans, starts, strict=True)])
        part = found[known].index_select(axis, places)
        if part.ndim > 1 and (known, axis) not in channels.makers:
            part = part / places.bincount()[places].view(-1, *[1] * (part.ndim - 1 - axis))
        found |= dict.fromkeys(channels.names[known], part)
    return found


def sliced(net: nn.Module, channels: Channels, shares: Sequence[Fraction]) -> nn.Module:
    """Return a copy of the network with shares of each group's channels; raise ModelError if nothing can be sliced."""
    free = [group for group in channels.groups() if not group.fixed]
    levels = sorted({group.pixels for group in free}, reverse=True)
    own = dict(zip_longest(levels, shares[: len(levels)], fillvalue=shares[-1]))
    widths = {group: narrowed(group.size, own[group.pixels]) for group in free}
    if not any(width < group.size for group, width in widths.items()):
        why = f"; it holds {', '.join(sorted(set(channels.unknown))[:3])}" if channels.unknown else ""
        raise ModelError(f"slim: no channels of {type(net).__name__} can be sliced{why}; choose another network")
    return with_weights(net, kept(channels, net.state_dict(), widths))


def on_blocks(net: nn.Module, channels: Channels, example: Tensor, block: int) -> OnBlocks:
    """Return the network of an image's blocks, which answers as the full one their means; ModelError if it doesn't."""
    times = block ** (example.ndim - 2)
    picks = {group: torch.arange(group.size) for group in channels.groups()}
    picks |= {group.root: torch.arange(group.size).repeat_interleave(times) for group in channels.ends}
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            other = OnBlocks(with_weights(net, picked(channels, net.state_dict(), picks)), block)
            means = functional.interpolate(example, scale_factor=1 / block, mode="area")
            wanted = functional.interpolate(net(means), scale_factor=block)
            torch.testing.assert_close(other(example), wanted, rtol=ALIKE, atol=ALIKE * float(wanted.abs().max()))
    except Exception as error:  # noqa: BLE001 - a network's code may raise anything
        said = f"slim: {type(net).__name__} can't work on blocks of {block} pixels a side ({first_line(error)})"
        raise ModelError(said) from None
    return other


@dataclass(frozen=True)
class Form:
    """Another form of the user's network."""

    name: str  # for a reader
    net: nn.Module  # on the CPU, in eval mode
    width: Width | None = None  # None of forms that differ otherwise


@dataclass
class Full:
    """The user's network."""

    spec: ModelSpec
    net: nn.Module  # with its weights, on the CPU
    example: Tensor  # [1, channels, height, width] of an image, or of a volume with a depth before the height
    seed: int  # of random weights

    def forms(self) -> Iterator[Form]:
        """Yield narrower forms, then other shapes by the class's arguments; raise ModelError without a narrower one."""
        sizes, refused = {parameters(self.net)}, list[ModelError]()
        for width in map(width_of, WIDTHS_TRIED):
            try:
                net = self.slimmer(width)[1]
            except ModelError as error:
                refused.append(error)
                continue
            if parameters(net) not in sizes:  # 8 channels are the fewest
                sizes.add(parameters(net))
                yield Form(f"width {width.text}", net, width)
        if len(sizes) == 1 and refused:
            raise refused[0]
        for name, change in other_shapes(arguments(self.spec)).items():
            if change and (other := self.remade(change)) is not None:
                yield Form(name, other)

    @cached_property
    def channels(self) -> Channels:
        """The groups of its channels."""
        return channels_of(self.net, [self.example])

    def slimmer(self, width: Width) -> tuple[ModelSpec, nn.Module]:
        """Return a narrower network with the full one's most important channels, and what makes it; of 1 the same."""
        spec, shares, block = replace(self.spec, name="custom", checkpoint=None), width.shares, width.block
        options: dict[str, Any] = {"target": spec.target, "options": dict(spec.options)}
        full, is_narrower = self, set(shares) != {1}
        if block > 1:
            options["block"], net = block, on_blocks(self.net, self.channels, self.example, block).net
            full = Full(self.spec, net, gathered(self.example, block), self.seed)
        elif not is_narrower:
            return spec, copy.deepcopy(self.net)
        elif len(set(shares)) == 1:
            change = changed(arguments(self.spec), WIDTHS, partial(narrowed, share=shares[0]))
            if change and (slim := self.remade(change)) is not None and fits(slim, self.channels, self.net):
                return replace(spec, options={**spec.options, **change}), slim
        slim = sliced(full.net, full.channels, shares) if is_narrower else full.net
        slim = OnBlocks(slim, block) if block > 1 else slim
        try:
            with torch.no_grad():
                slim(self.example)
        except Exception as error:  # noqa: BLE001 - a network's code may raise anything
            raise ModelError(f"slim: {type(self.net).__name__} can't run with fewer channels ({error})") from None
        return replace(spec, target=SLICED, options=options), slim

    def remade(self, change: Change) -> nn.Module | None:
        """Return the network of changed arguments with random weights, or None if its class doesn't take them."""
        try:
            net = net_of_spec(replace(self.spec, options={**self.spec.options, **change}, checkpoint=None), self.seed)
        except InputError:
            return None
        return None if refuses(net, batched(self.example)) else net


def full_of(run: RunRecord, folder: Path, device: str) -> Full:
    """Return the run's network; raise one line if its weights have changed, or it answers otherwise than in the run."""
    check_weights(run)
    net = net_of_spec(run.config.model, run.config.seed)
    [example] = example_of(run.config.data)
    if not data_has_changed(run):
        check_net(folder, run, net.to(device), batched(example.to(device)))
    return Full(run.config.model, net.cpu(), example[:1], run.config.seed)


def parameters(net: nn.Module) -> int:
    """Return the number of a network's parameters."""
    return sum(part.numel() for part in net.parameters())


def fits(slim: nn.Module, channels: Channels, full: nn.Module) -> bool:
    """Give a narrower network the full one's most important channels; return False if their layers differ."""
    own, used = slim.state_dict(), {name for names in channels.names.values() for name in names}
    single = {key: spans[0].root for key, spans in channels.axes.items() if len(spans) == 1}
    try:
        given = kept(channels, full.state_dict(), {group: own[name].shape[at] for (name, at), group in single.items()})
        # Other tensors are of no use for the answer, such as further heads.
        slim.load_state_dict({name: part if name in used else own[name] for name, part in given.items()})
    except (RuntimeError, LookupError):
        return False
    return True


def arguments(spec: ModelSpec) -> dict[str, Any]:
    """Return the arguments that a network is made with: the user's and its class's defaults."""
    given, maker = {key: part for key, part in spec.options.items() if part is not None}, maker_of_net(spec.target)
    if maker is nnunet_net:
        plan = given.get("net", "PlainConvUNet"), given.get("configuration", "2d")
        return {} if "plans" in given else {**defaults(*plan), **given}
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

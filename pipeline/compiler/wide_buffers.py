"""Where the values lie that a net joins: in few wide buffers, of which a concatenation is some channels in a row.

A net may join a value with one more at a time, at either end (DenseNet, UNet++): all those concatenations are channels
of the last one's buffer. A value that several buffers want lies in the widest of them. For another, its own bytes are
copied when that is read, not those of what it is joined with.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import (
    BY_STORAGE,
    calls,
    channel_concatenations,
    joined,
    part_of_answer,
    shape_of,
)
from pipeline.compiler.kernel_layer import OUT, POOLED
from pipeline.compiler.layer_nodes import layer_behind, layer_of
from pipeline.kernels.common.kernel_op import CHANNELS


class Place(NamedTuple):
    """Channels of a wide buffer.

    Attributes:
        widest: the concatenation that fills the buffer.
        first: the first channel.
    """

    widest: fx.Node
    first: int


class Copy(NamedTuple):
    """So many channels that lie at one place and are wanted at another, too."""

    source: Place
    target: Place
    channels: int


@dataclass(frozen=True)
class Places:
    """Where the values lie that a graph joins.

    Attributes:
        homes: for each value that is joined the one place where it is written and read.
        joined: for each concatenation that never happens the place that its parts fill.
        copies: what is to be copied before such a concatenation is read.
    """

    homes: dict[fx.Node, Place] = field(default_factory=dict)
    joined: dict[fx.Node, Place] = field(default_factory=dict)
    copies: dict[fx.Node, list[Copy]] = field(default_factory=dict)


def find_places(net: ExportedNet, scales: Mapping[str, float]) -> Places:
    """Places for the parts of the concatenations that need not happen.

    The widest is taken first. One that is some channels of a buffer before is just that; another has a buffer of its
    own, where those of its parts are at home that aren't at home already; without any of them it stays a concatenation,
    as all would be copied. So a value is copied once for each further buffer, whichever is its home.

    Args:
        net: with its layers.
        scales: of the values in fp8, by their nodes' names.
    """
    if any(calls(net.module.graph, *BY_STORAGE)):  # it may read a value by where that lay as the net was exported
        return Places()
    found, filled, parts_of = Places(), dict[fx.Node, list[fx.Node]](), _flat(net, scales)
    for cat in sorted(parts_of, key=lambda cat: shape_of(cat)[1], reverse=True):
        parts = parts_of[cat]
        within = [Place(wide, first) for wide, there in filled.items() for first in _runs(parts, there)]
        if within:
            found.joined[cat] = within[0]
        elif not found.homes.keys() >= set(parts):
            found.joined[cat], filled[cat] = Place(cat, 0), parts
            for part, first in _with_firsts(parts):
                found.homes.setdefault(part, Place(cat, first))
    done: set[Place] = set()
    for cat in [cat for cat in parts_of if cat in found.joined]:
        found.copies[cat] = list(_missing(found, cat, parts_of[cat], done))
    return found


def _flat(net: ExportedNet, scales: Mapping[str, float]) -> dict[fx.Node, list[fx.Node]]:
    """For each concatenation that need not happen, in the graph's order, the values that it and those in it join."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for cat in channel_concatenations(net.module.graph):
        if _can_lie(net, cat, scales, found):
            found[cat] = [value for part in joined(cat) for value in found.get(part, [part])]
    return found


def _can_lie(net: ExportedNet, cat: fx.Node, scales: Mapping[str, float], inner: Collection[fx.Node]) -> bool:
    """Whether the parts of a concatenation are of one type and scale, and lie so that kernels write and read them.

    Args:
        net: with its layers.
        cat: the concatenation.
        scales: as of `find_places`.
        inner: concatenations that may lie in this one, whose parts begin at whole steps of their own.
    """
    if cat.meta["val"].dtype != net.dtype or 0 in shape_of(cat) or shape_of(cat)[1] % CHANNELS:
        return False
    if len({scales.get(value.name) for value in (cat, *joined(cat))}) > 1:
        return False
    bound = [first for part, first in _with_firsts(joined(cat)) if part in inner or _is_of_kernels(net, part)]
    return all(first % CHANNELS == 0 for first in bound)


def _is_of_kernels(net: ExportedNet, value: fx.Node) -> bool:
    """Whether a kernel writes a value or reads it where it lies: TMA moves whole steps of 16 bytes."""
    made = layer_behind(net.module, value) is not None
    readers = [layer_of(net.module, user) for user in value.users]
    read = any(layer is not None and not layer.op.reads_image for layer in readers)
    return read or (made and part_of_answer(value) in (OUT, POOLED))


def _with_firsts(parts: list[fx.Node]) -> Iterator[tuple[fx.Node, int]]:
    """The parts of a concatenation with their first channels."""
    first = 0
    for part in parts:
        yield part, first
        first += shape_of(part)[1]


def _runs(parts: list[fx.Node], wide: list[fx.Node]) -> Iterator[int]:
    """The channels of a buffer from which on values lie as they do in a concatenation, where kernels can read it."""
    for place, (_, first) in enumerate(_with_firsts(wide)):
        if wide[place : place + len(parts)] == parts and first % CHANNELS == 0:
            yield first


def _missing(places: Places, cat: fx.Node, parts: list[fx.Node], done: set[Place]) -> Iterator[Copy]:
    """What a concatenation lacks where it lies, and nobody before it copied; what lies in a row is copied at once."""
    widest, begin = places.joined[cat]
    run: Copy | None = None
    for part, first in _with_firsts(parts):
        home, target, channels = places.homes[part], Place(widest, begin + first), shape_of(part)[1]
        if home == target or target in done:
            continue
        done.add(target)
        if run is not None and _after(run) == (home, target):
            run = run._replace(channels=run.channels + channels)
            continue
        if run is not None:
            yield run
        run = Copy(home, target, channels)
    if run is not None:
        yield run


def _after(copy: Copy) -> tuple[Place, Place]:
    """Where what follows a copy lies, and where it would be wanted."""
    source, target, channels = copy
    return Place(source.widest, source.first + channels), Place(target.widest, target.first + channels)

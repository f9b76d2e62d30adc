"""Gives a lowered graph the project's kernels for its norms, as a pass or within the layer that reads it.

Tiles, and which of the two, are measured; whether the whole is faster than with Inductor's passes the stages find out,
at full load.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, fx

from pipeline.compiler.agreement import distance
from pipeline.compiler.autotune import NothingRunsError, Tuner
from pipeline.compiler.batch import Batch, batched
from pipeline.compiler.choose import RIGHT, untimed_library
from pipeline.compiler.custom_ops import layout, operation
from pipeline.compiler.norm_ops import RUNS, far_from_reference
from pipeline.compiler.norm_passes import (
    found_passes,
    layer_that_norms,
    norm_when_read,
    normed_arguments,
    put_pass,
)
from pipeline.compiler.ops import tile_of, tile_text
from pipeline.kernels import norm_pass

WHEN_READ, IN_A_PASS = "norm when read", "norm in a pass"


def put_own_norms(lowered: fx.GraphModule, inputs: Tensor | Batch, tuner: Tuner) -> dict[str, int]:
    """Put own kernels in the place of norms' passes; how many there are of each.

    Args:
        lowered: from `lowering.lower`; it is changed.
        inputs: a batch [batch, channels, height, width] as the user gives it, or all inputs of a net of several.
        tuner: measures each kernel on the values that it has at its place, and remembers on disk.

    Raises:
        NothingRunsError: a norm has no kernel that runs and is right.
    """
    if calls := put_passes(lowered):
        walk = _Measuring(lowered, calls, tuner)
        walk.run(*batched(inputs))
        for call, tile in walk.tiles.items():
            call.kwargs = {**call.kwargs, "tile": tile}
        for call, layer in walk.when_read:
            norm_when_read(call, layer)
        lowered.graph.lint()
        lowered.recompile()
        return {IN_A_PASS: len(calls) - len(walk.when_read), WHEN_READ: len(walk.when_read)}
    return {}


def put_passes(lowered: fx.GraphModule) -> list[fx.Node]:
    """Put the operation of a pass in every norm's place, without a tile yet; their nodes."""
    calls = [put_pass(found) for found in found_passes(lowered.graph)]
    if calls:
        lowered.graph.lint()
        lowered.recompile()
    return calls


def launches_of_pass(given: dict[str, Any], tuner: Tuner) -> list[Callable[[], None]]:
    """The launches that `put_own_norms` will measure for a pass with these arguments; none where its tile is known."""
    tiles = [] if tuner.known(_key("normalised", given)) else norm_pass.candidates(given["counted"])
    return [partial(RUNS["normalised"], given, tile) for tile in tiles]


class _Measuring(fx.Interpreter):
    """Runs a lowered graph once, measures each norm's pass, and beside it the layer that could do without.

    Attributes:
        tiles: the text of each pass's tile.
        when_read: passes that the layer after them is faster without, with that layer.
    """

    def __init__(self, module: fx.GraphModule, calls: list[fx.Node], tuner: Tuner) -> None:
        super().__init__(module)
        self.tuner = tuner
        self.tiles: dict[fx.Node, str] = {}
        self.when_read: list[tuple[fx.Node, fx.Node]] = []
        self.pass_before = {layer: call for call in calls if (layer := layer_that_norms(call)) is not None}
        self.passes = set(calls)
        self.given: dict[fx.Node, dict[str, Any]] = {}

    def run_node(self, n: fx.Node) -> object:
        if n in self.passes:
            (x,), given = self.fetch_args_kwargs_from_env(n)
            given = {"x": x, **given}
            self.tiles[n] = self._tile_of_pass(given)
            if n in self.pass_before.values():
                self.given[n] = {**given, "tile": self.tiles[n]}
            return None
        answer = super().run_node(n)
        if n in self.pass_before:
            self._choose_way(self.pass_before[n], n)
        return answer

    def _tile_of_pass(self, given: dict[str, Any]) -> str:
        """The text of the fastest tile that is right; its answer is left in the result."""
        name, options = _key("normalised", given), list(norm_pass.candidates(given["counted"]))
        while options:
            tile = self.tuner.best(name, options, lambda tile: RUNS["normalised"](given, tile))
            RUNS["normalised"](given, tile)
            if _right("normalised", given):
                return tile_text(tile)
            options.remove(tile)
        raise NothingRunsError(f"{name}: no candidate gives the reference's answer")

    def _choose_way(self, call: fx.Node, layer: fx.Node) -> None:
        """Note a pass that takes longer, with the layer after it, than the layer that norms what it reads."""
        before = self.given.pop(call)
        (x,), plain = self.fetch_args_kwargs_from_env(layer)
        normed: dict[str, Any] = normed_arguments(call, layer)
        normed |= {name: plain[name] for name in ("weight", "bias", "result", "statistics", "residual")}
        normed |= {name: before[name] for name in ("x", "counted", "norm_weight", "norm_bias")}

        def run(way: str) -> None:
            if way == WHEN_READ:
                RUNS["normed_conv3x3"](normed, tile_of(normed["tile"]))
            else:
                RUNS["normalised"](before, tile_of(before["tile"]))
                operation("conv3x3")(x, **plain)

        name = f"{_key('normed_conv3x3', normed)}; {before['tile']}"
        if self.tuner.best(name, [IN_A_PASS, WHEN_READ], run) == WHEN_READ:
            run(WHEN_READ)
            if _right("normed_conv3x3", normed):
                self.when_read.append((call, layer))
            run(IN_A_PASS)


def _right(name: str, given: dict[str, Any]) -> bool:
    """Whether the last image's part of what an operation wrote is what its reference gives."""
    maps = ("x", "counted", "result", "statistics", "residual")
    last = {role: part[-1:] for role, part in given.items() if role in maps and part is not None}
    with untimed_library():
        return far_from_reference(name, {**given, **last}, distance) <= RIGHT


def _key(name: str, given: dict[str, Any]) -> str:
    """What makes two calls of an operation the same for the tuner: everything but the values."""
    parts = [f"{role} {layout(part)}" for role, part in given.items() if isinstance(part, Tensor)]
    scaled = given.get("norm_scale", 1.0) != 1.0
    others = [str(given[role]) for role in ("phases", "norm_activation", "activation", "tile") if role in given]
    width = given.get("group_width", 1)
    marks = [*(["scaled"] if scaled else []), *([f"groups of {width}"] if width > 1 else [])]
    return "; ".join([name, *parts, *marks, *others])

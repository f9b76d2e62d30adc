"""Chooses for each layer the fastest of its kernel's tiles and the library, measured on real values."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import CHANNELS_LAST, Batch, batched
from pipeline.compiler.custom_ops import BY_REFERENCE, OUTPUTS, RUNS, WRITTEN, KernelCall, kernel_call, layout
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.layers import KernelLayer, TokensLayer
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.network_calls import untimed_library
from pipeline.compiler.ops import tile_text
from pipeline.compiler.tuning.autotune import NothingRunsError, Tuner
from pipeline.kernels import conv1x1
from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.kernel_op import LibraryParameters, Tile

# How far from its reference a layer's answer may be (relative L2). Right ones are at most 2e-3 off on an H200, where
# another order of sums rounds to another fp8 value; a tile that is wrong misplaces whole boxes.
RIGHT = 2e-2
LIBRARY: Final = "library"  # among a layer's candidates
Choice = Tile | Literal["library"]
Option = TypeVar("Option")


def choose(
    net: ExportedNet, scales: Mapping[str, float], inputs: Tensor | Batch, tuner: Tuner, say: Callable[[str], None]
) -> Plan:
    """Return how to lower the graph: each layer's fastest right tile, or the library; NothingRunsError without one."""
    walk = _Choosing(lower(net, Plan(scales)), net.dtype, tuner, say)
    walk.run(*batched(inputs))
    tiles = {name: tile_text(choice) for name, choice in walk.chosen.items() if not isinstance(choice, str)}
    by_library = [name for name, choice in walk.chosen.items() if choice == LIBRARY]
    return Plan(scales, tiles, by_library, walk.failed, walk.library_ms, walk.slower)


class _Choosing(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, dtype: torch.dtype, tuner: Tuner, say: Callable[[str], None]) -> None:
        super().__init__(module)
        self.dtype, self.tuner, self.say = dtype, tuner, say
        self.layers = sum("layer" in node.meta for node in module.graph.nodes)
        self.chosen: dict[str, Choice] = {}
        self.failed: dict[str, str] = {}
        self.slower: list[str] = []
        self.library_ms = 0.0

    def run_node(self, n: fx.Node) -> object:
        layer = n.meta.get("layer")
        if layer is None:
            with _Checked():  # type: ignore[no-untyped-call]
                return super().run_node(n)
        self.say(f"tiles of {layer.name} ({len(self.chosen) + 1} of {self.layers} layers)")
        (x,), given = self.fetch_args_kwargs_from_env(n)
        measured = MeasuredLayer(layer, {"x": x, **given}, layer.parameters_in(self.dtype))
        self.chosen[n.meta["origin"]] = choice = select(measured, self.tuner)
        entry = self.tuner.known(measured.key)
        tried = entry.get("tried_ms")
        timed = isinstance(tried, dict) and any(name != repr(LIBRARY) for name in tried)
        if choice == LIBRARY and not timed and "refused" in entry:  # no tile to set against the library
            self.failed[layer.name] = str(entry["refused"])
        library_ms = measured.library_ms(self.tuner)
        if isinstance(layer, TokensLayer) and choice != LIBRARY and float(str(entry["ms"])) > library_ms > 0.0:
            self.slower.append(layer.name)
        self.library_ms += library_ms
        return None


class _Checked(TorchDispatchMode):
    """Within it a kernel without tiles that doesn't answer as its reference does raises NothingRunsError."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        answer = func(*args, **(kwargs or {}))
        if func in BY_REFERENCE:
            wanted = BY_REFERENCE[func](*args, **(kwargs or {}))
            pairs = zip(answer, wanted, strict=True) if isinstance(wanted, tuple) else [(answer, wanted)]
            error = max(distance(got, want) for got, want in pairs)
            if error > RIGHT:
                raise NothingRunsError(f"{func}: {error:.3g} off the reference's answer (relative L2)")
        return answer


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer at its place in a net: what it reads, and where it writes."""

    layer: KernelLayer
    given: dict[str, Any]  # the operation's arguments
    parameters: list[LibraryParameters]  # the library's

    @property
    def call(self) -> KernelCall:
        """The kernel's operands."""
        return kernel_call(self.layer.op, self.given)

    @property
    def key(self) -> str:
        """The operation's name for the tuner."""
        return self.call.key(self.layer.op)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The tensors that it multiplies, by the operation's names: [N, in, H, W] each."""
        return {name: self.given[name] for name in ("x", "second") if self.given[name] is not None}

    def candidates(self) -> Iterator[Choice]:
        """Return what is worth measuring: the kernel's tiles, and the library where it computes the same.

        Tokens in fp16 are left to the library; no tile is measured for them.
        """
        call = self.call
        named = [self.given[name] for name in ("result", "pooled", "residual")]
        parts = [*self.inputs.values(), *(part for part in named if part is not None)]
        by_library = call.epilogue.scale is None and all(part.dtype.itemsize > 1 for part in parts)
        if not (by_library and isinstance(self.layer, TokensLayer)):
            yield from self.layer.op.candidates(*call.operands)
        if by_library:
            yield LIBRARY

    def library_ms(self, tuner: Tuner) -> float:
        """Return the least milliseconds that this layer takes a compiler that calls the library."""
        if self.layer.weight is None:
            return 0.0
        weight = self.parameters[0].weight
        inputs = [x.to(weight.dtype, memory_format=CHANNELS_LAST[x.dim()]) for x in self.inputs.values()]
        layer = self.layer

        def run(way: str) -> None:
            if way == "convolution":
                layer.least_by_library(self.parameters, inputs)
            else:
                torch.matmul(inputs[0].permute(0, 2, 3, 1), weight.flatten(1).T)

        ways = ["convolution", "matrix product"] if layer.op is conv1x1.OP else ["convolution"]
        if isinstance(layer, TokensLayer):
            ways = ["matrix product"]
        how = [str(part) for part in (layer.slices, layer.dilation, layer.activation != NONE, layer.stores_out)]
        how += [layer.padding_mode] if layer.padding_mode != "zeros" else []
        shapes = [layout(part) for part in [*inputs, weight]]
        name = f"library's {'; '.join([layer.op.name, *shapes, *how, str(layer.statistics)])}"
        try:
            tuner.best(name, ways, run)
        except NothingRunsError:  # of which nothing follows
            return 0.0
        return float(str(tuner.known(name)["ms"]))

    def run(self, choice: Choice) -> None:
        """Write the outputs, by a tile or the library."""
        if choice != LIBRARY:
            self.layer.op.launch(*self.call.operands, choice)
            return
        made = self.layer.by_library(self.parameters, [*self.inputs.values()], self.given["residual"])
        for name, part in zip(OUTPUTS, made, strict=True):
            if part is not None:
                self.given[name].copy_(part)


def select(measured: MeasuredLayer, tuner: Tuner) -> Choice:
    """Return the fastest candidate that is right, its answer left in the outputs; NothingRunsError without one."""
    signs = {name: with_random_signs(x) for name, x in measured.inputs.items()}
    signed = replace(measured, given=measured.given | signs)

    def answers(choice: Choice) -> bool:
        signed.run(choice)
        return is_right(measured.layer.op.name, signed.given)

    chosen = fastest_right(tuner, measured.key, list(measured.candidates()), measured.run, answers)
    measured.run(chosen)
    return chosen


def fastest_right(
    tuner: Tuner, name: str, options: list[Option], run: Callable[[Option], None], answers: Callable[[Option], bool]
) -> Option:
    """Return the fastest candidate by `run` that `answers` right; raise NothingRunsError without one."""
    while options:
        choice = tuner.best(name, options, run)
        if answers(choice):
            return choice
        tuner.refused[name] = f"{choice!r}: not the reference's answer"
        options.remove(choice)
    raise NothingRunsError(f"{name}: no candidate gives the reference's answer")


def with_random_signs(x: Tensor) -> Tensor:
    """Return x with random signs, on which a tile is checked: sums of one sign in fp8 are further off."""
    signs = torch.randint(0, 2, x.shape, dtype=torch.int8, device=x.device) * 2 - 1
    return torch.empty_like(x).copy_(x.float() * signs)


def is_right(operation: str, given: dict[str, Any]) -> bool:
    """Return whether the last image's part of what an operation has written is what its reference gives."""
    maps = ("x", "second", "counted", "residual", *WRITTEN[operation])
    last = {name: given[name][-1:] for name in maps if given.get(name) is not None}
    wanted = {name: torch.empty_like(last[name]) for name in WRITTEN[operation] if name in last}
    with untimed_library():
        RUNS[operation]({**given, **last, **wanted}, None)
    return all(distance(last[name], part) <= RIGHT for name, part in wanted.items())

"""The kernels in a plain `torch.compile(network)`: a pass over the graph that Inductor compiles.

    from pipeline.compiler import kernels_in_torch_compile
    kernels_in_torch_compile()
    compiled = torch.compile(network.half().to(memory_format=torch.channels_last).eval())

It takes convolutions of images that a kernel takes (`pipeline.compiler.ops`): on an NVIDIA GPU, in fp16 and
channels_last, of shapes that don't vary, channels in multiples of 8 but for the few of an image. That is 3×3, dilated
and in groups, 1×1, those of a stride of 2, depthwise, transposed, and the first one, on the image. With one goes what
its epilogue does and nothing else reads: factors and shifts for each channel, such as a batch norm's in eval mode, a
value that is added, and an activation, also one that torch has taken apart.

All else is Inductor's as before. Where a graph has convolutions and none is taken, a warning says why, once; else the
logger of this module's name says at INFO what was put in and what was left. A graph from torch's cache was told when it
was compiled.

Weights are a graph's inputs, so what is made of them is made at each call: a view where the layout is channels_last,
for few kernels a copy, if it is small beside its layer's work (`post_grad_choice.is_small`), and of each batch norm two
vectors, in one small kernel. Folding batch norms first spares that. The graphs of a training step are rewritten alike,
forwards. AOTInductor's are left alone, as a package must run where the operations aren't registered. `compile` does
more with a whole network: this pass sees it after its operations were taken apart.
"""

import logging
import operator
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument

import pipeline.kernels
from pipeline.compiler.custom_ops import MEASURED, NAMES, OUTPUTS, operation
from pipeline.compiler.graph.decomposed_activations import CAST, uncast
from pipeline.compiler.graph.fx_graph import MULTIPLICATION, arguments, calls, erase_unread
from pipeline.compiler.graph.post_grad_choice import (
    SUBTRACTION,
    TAKERS,
    Choice,
    Ends,
    can_read,
    choice_of,
    ends_of,
)
from pipeline.kernels.common.capability import barred_on
from pipeline.kernels.common.kernel_op import KernelOp

CONVOLUTION = "aten.convolution.default"
LOGGER = logging.getLogger(__name__)
# What the calls that it writes are made of: the compiler's room, and the kernels, which pack and say what they take.
SOURCES = tuple(
    str(path)
    for folder in (Path(__file__).parent, Path(str(pipeline.kernels.__file__)).parent)
    for path in sorted(folder.rglob("*.py"))
)


def kernels_in_torch_compile(wanted: bool = True, *, leave: Collection[str] = ()) -> None:
    """Have every later compilation use the kernels, or no longer: a switch of Inductor's configuration.

    From torch 2.12 on that is of the thread that sets it. Kernels named in `leave`, such as "conv1x1", are left out.

    Raises:
        RuntimeError: another pass has that place already.
        ValueError: it takes no such kernel.
    """
    config: Any = torch._inductor.config
    there = config.post_grad_custom_pre_pass
    if there is not None and not isinstance(there, Convolutions):
        raise RuntimeError(f"Inductor's post_grad_custom_pre_pass is {there} already")
    config.post_grad_custom_pre_pass = Convolutions(leave=leave) if wanted else None


class Convolutions(CustomGraphPass):
    """Puts a kernel's operation in the place of each convolution that one takes.

    `anywhere` does so also on a device without the kernels, where references compute; kernels to `leave` are left out.
    """

    def __init__(self, *, anywhere: bool = False, leave: Collection[str] = ()) -> None:
        self.anywhere, self.leave = anywhere, frozenset([leave] if isinstance(leave, str) else leave)
        if unknown := sorted(self.leave - {op.name for op in TAKERS}):
            names = ", ".join(op.name for op in TAKERS)
            raise ValueError(f"{', '.join(unknown)}: no kernel that the pass takes; leave any of {names}")

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a functional graph of ATen operations in place."""
        if V.aot_compilation:
            return
        taken: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for conv in calls(graph, CONVOLUTION):
            barred = None if self.anywhere else barred_on(conv.meta["val"].device, torch.float16)
            choice = barred or choice_of(conv, self.leave)
            if isinstance(choice, Choice):
                replace_convolution(conv, choice, ends_of(conv, choice.op, partial(can_read, choice.op)))
                taken[choice.op.name] += 1
            else:
                left[choice] += 1
        tell(taken, left)

    def uuid(self) -> bytes:
        """Return the name of this pass for Inductor's cache: its sources, and which kernels it puts where."""
        return bytes(get_hash_for_files(SOURCES, extra=f"anywhere: {self.anywhere}, leave: {sorted(self.leave)}"))


def tell(taken: Counter[str], left: Counter[str]) -> None:
    """Say how many of a graph's convolutions went to which kernels, and why others didn't; warn where none did."""
    reasons = "; ".join(f"{count} {why}" for why, count in left.most_common())
    if left and not taken:
        text = f"kernels_in_torch_compile(): all {left.total()} convolutions of a graph stay with Inductor: {reasons}"
        warnings.warn(text, stacklevel=2)
    elif taken:
        kinds = ", ".join(f"{count} {name}" for name, count in taken.most_common())
        rest = f"; with Inductor: {reasons}" if left else ""
        LOGGER.info("%d of %d convolutions: %s%s", taken.total(), (taken + left).total(), kinds, rest)


aten = torch.ops.aten


def replace_convolution(conv: fx.Node, choice: Choice, ends: Ends) -> None:
    """Put a kernel's operation in the place of a convolution and of what its epilogue does."""
    graph, given = conv.graph, arguments(conv)
    with graph.inserting_before(ends.last):
        scale, bias = _scale_and_bias(graph, given["bias"], ends.factors, conv.meta["val"])
        parts: dict[str, Argument] = {
            "x": _read(graph, given["input"], choice.op),
            "weight": _packed(graph, given["weight"], choice.packing),
            "scale": scale,
            "bias": bias,
            "slopes": None if ends.slopes is None else _vector(graph, ends.slopes, bias.meta["val"].numel()),
            "residual": ends.residual,
            "residual_scale": 1.0,
            "activation": ends.activation.name,
            "slope": ends.activation.slope,
            "layer": conv.name,
            "tile": MEASURED,
            "slices": 1,
            "dilation": choice.dilation,
        }
        answer = _operation(graph, choice.op, parts, conv.meta["val"])
    answer.meta = {**ends.last.meta, "val": answer.meta["val"]}
    ends.last.replace_all_uses_with(answer)
    erase_unread(ends.last)


def _operation(graph: fx.Graph, op: KernelOp, parts: Mapping[str, Argument], value: Tensor) -> fx.Node:
    """Return the operation's answer, a new map in channels_last, of the shape and type of a value [N, out, H, W]."""
    batch, channels, height, width = value.shape
    steps = [channels * height * width, 1, channels * width, channels]
    named: dict[str, Argument] = {"dtype": value.dtype, "device": value.device}
    buffer = call(graph, aten.empty_strided.default, ([batch, channels, height, width], steps), named)
    given = {name: parts.get(name) for name in NAMES if name not in OUTPUTS}
    given |= {"_result_base_index": 0, "_all_bases": [buffer]}
    given |= {f"_{name}_base_index": None for name in OUTPUTS[1:]}
    made = graph.call_function(auto_functionalized_v2, (operation(op.name),), given)
    made.meta["val"] = (None, buffer.meta["val"])
    answer = graph.call_function(operator.getitem, (made, 1))
    answer.meta["val"] = buffer.meta["val"]
    return answer


def _read(graph: fx.Graph, x: fx.Node, op: KernelOp) -> fx.Node:
    """Return the input as a kernel reads it: one of images takes fp32 and planar, which a user's may be already."""
    if not op.reads_image:
        return x
    image = uncast(x)
    if image.meta["val"].dtype != torch.float32:
        image = call(graph, CAST, (image, torch.float32))
    return _contiguous(graph, image)


def _packed(graph: fx.Graph, weight: fx.Node, packing: fx.Graph) -> fx.Node:
    """Return a weight as its kernel reads it, by the operations of its packing."""
    inside: dict[fx.Node, fx.Node] = {}
    for node in packing.nodes:
        if node.op == "placeholder":
            inside[node] = weight
        elif node.op != "output":
            inside[node] = graph.node_copy(node, inside.__getitem__)
    return inside[packing.output_node().all_input_nodes[0]]


def _scale_and_bias(
    graph: fx.Graph, bias: fx.Node | None, factors: Sequence[tuple[str, fx.Node]], value: Tensor
) -> tuple[fx.Node | None, fx.Node]:
    """Return scale, if any, and bias [out] in fp32 of a convolution's bias and the factors and shifts after it."""
    channels = value.shape[1]
    scale, shift = None, None if bias is None else _vector(graph, bias, channels)
    for name, given in factors:
        vector = _vector(graph, given, channels)
        if name == MULTIPLICATION:
            scale = vector if scale is None else call(graph, aten.mul.Tensor, (scale, vector))
            shift = None if shift is None else call(graph, aten.mul.Tensor, (shift, vector))
        elif shift is None:
            shift = call(graph, aten.neg.default, (vector,)) if name == SUBTRACTION else vector
        else:
            target = aten.sub.Tensor if name == SUBTRACTION else aten.add.Tensor
            shift = call(graph, target, (shift, vector))
    if shift is None:
        named: dict[str, Argument] = {"dtype": torch.float32, "device": value.device}
        shift = call(graph, aten.full.default, ([channels], 0.0), named)
    return scale, shift


def _vector(graph: fx.Graph, given: fx.Node, channels: int) -> fx.Node:
    """Return what has one number for each channel, or one for all, as [channels] in fp32."""
    flat = given if given.meta["val"].ndim == 1 else call(graph, aten.reshape.default, (given, [-1]))
    if flat.meta["val"].dtype != torch.float32:
        flat = call(graph, CAST, (flat, torch.float32))
    if len(flat.meta["val"]) != channels:
        flat = call(graph, aten.expand.default, (flat, [channels]))
    return _contiguous(graph, flat)


def _contiguous(graph: fx.Graph, given: fx.Node) -> fx.Node:
    """Return a value, or a copy of it that is contiguous."""
    if given.meta["val"].is_contiguous():
        return given
    return call(graph, aten.clone.default, (given,), {"memory_format": torch.contiguous_format})


def call(
    graph: fx.Graph, target: OpOverload, args: tuple[Argument, ...], named: dict[str, Argument] | None = None
) -> fx.Node:
    """Return a call with what it gives as a fake tensor, of any shape, in `meta["val"]`."""
    node = graph.call_function(target, args, named or {})
    fakes = (part.meta.get("val") for part in (*node.all_input_nodes, *graph.nodes))
    with next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)):
        node.meta["val"] = target(*fx.node.map_arg(args, lambda part: part.meta["val"]), **(named or {}))
    return node

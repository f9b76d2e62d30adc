"""The 3×3 convolution's kernel in a plain `torch.compile(net)`: a pass over the graph that Inductor compiles.

    from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
    kernels_in_torch_compile()
    compiled = torch.compile(net.half().to(memory_format=torch.channels_last).eval())

It takes what the kernel takes: on an NVIDIA GPU, fp16, channels_last, 3×3 with stride 1 and padding 1, channels in
multiples of 8, shapes that don't vary, with a ReLU where one follows. All else, batch norms among it, is Inductor's as
before; fold them first. The graphs of a training step are rewritten alike, forwards. AOTInductor's are left alone, as a
package must run where nobody knows the operation. A stage does more with a whole net (`pipeline.stages.fused`): this
pass sees it after its operations were taken apart.
"""

import operator
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import Argument

from pipeline.compiler.custom_ops import MEASURED, NAMES, OUTPUTS, operation
from pipeline.compiler.fx_graph import arguments, calls, is_call, only_user
from pipeline.devices.kinds import is_cuda
from pipeline.kernels.common.capability import supported
from pipeline.kernels.common.kernel_op import CHANNELS
from pipeline.measure.torch_device import vendor

aten = torch.ops.aten
CONVOLUTION, RELU = "aten.convolution.default", "aten.relu.default"
# What the calls that it writes are made of: this file, and the operation's schema.
SOURCES = (__file__, str(Path(__file__).with_name("custom_ops.py")))


def kernels_in_torch_compile(wanted: bool = True) -> None:
    """Have every later compilation use the kernel, or no longer: a switch of Inductor's configuration.

    From torch 2.12 on that is of the thread that sets it. A compiled net is compiled where it is first called.

    Raises:
        RuntimeError: another pass has that place already.
    """
    config: Any = torch._inductor.config
    there = config.post_grad_custom_pre_pass
    if there is not None and not isinstance(there, Convolutions):
        raise RuntimeError(f"Inductor's post_grad_custom_pre_pass is {there} already")
    config.post_grad_custom_pre_pass = Convolutions() if wanted else None


class Convolutions(CustomGraphPass):
    """Puts the kernel's operation in the place of each convolution that it takes.

    Attributes:
        anywhere: whether also on a device without the kernel, where the operation computes by its reference.
    """

    def __init__(self, *, anywhere: bool = False) -> None:
        self.anywhere = anywhere

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a functional graph of ATen operations in place."""
        if V.aot_compilation:
            return
        for conv in calls(graph, CONVOLUTION):
            if takes(conv) and (self.anywhere or runs_on(conv.meta["val"].device)):
                _replace(conv)

    def uuid(self) -> bytes:
        """What Inductor's cache knows this pass by: its sources, and where it puts the operation."""
        return bytes(get_hash_for_files(SOURCES, extra=f"anywhere: {self.anywhere}"))


def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device; of a GPU on which it doesn't a warning says why."""
    if not is_cuda(device.type):
        return False
    why = supported(torch.cuda.get_device_capability(device), torch.float16, vendor())
    if why is not None:
        warnings.warn(f"convolutions stay with Inductor: {why}", stacklevel=2)
    return why is None


def takes(conv: fx.Node) -> bool:
    """Whether the kernel computes a convolution of these values, as they are laid out."""
    given = arguments(conv)
    x, weight = given["input"].meta["val"], given["weight"].meta["val"]
    geometry = [list(given[name]) for name in ("stride", "padding", "dilation")]
    square = geometry == [[1, 1], [1, 1], [1, 1]] and not given["transposed"] and given["groups"] == 1
    if x.ndim != 4 or not square or tuple(weight.shape[2:]) != (3, 3):
        return False
    half = x.dtype == weight.dtype == torch.float16
    channels = weight.shape[0] % CHANNELS == 0 and weight.shape[1] % CHANNELS == 0
    return half and channels and _moves_in_bulk(x) and _moves_in_bulk(weight) and _in_nhwc(weight)


def _moves_in_bulk(value: Tensor) -> bool:
    """Whether TMA reads a value [N, C, H, W] as it is: channels side by side, steps of 16 bytes, nothing repeated."""
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not all(isinstance(number, int) for number in numbers) or value.numel() == 0 or value.stride(1) != 1:
        return False
    steps = [step for axis, step in enumerate(value.stride()) if axis != 1 and value.shape[axis] > 1]
    return value.storage_offset() % CHANNELS == 0 and all(step > 0 and step % CHANNELS == 0 for step in steps)


def _in_nhwc(weight: Tensor) -> bool:
    """Whether a weight [out, in, 3, 3] can be seen as [9, out, in] without a copy."""
    return weight.is_contiguous(memory_format=torch.channels_last)


def _replace(conv: fx.Node) -> None:
    """Put the operation, and the ReLU after it, in a convolution's place."""
    given, graph, user = arguments(conv), conv.graph, only_user(conv)
    last = user if user is not None and is_call(user, RELU) else conv
    value = conv.meta["val"]
    batch, channels, height, width = value.shape
    with graph.inserting_before(last):
        weight = _packed(graph, given["weight"])
        bias = _bias(graph, given["bias"], channels, value)
        pixels = channels * height
        steps = [pixels * width, 1, channels * width, channels]
        named = {"dtype": value.dtype, "device": value.device}
        buffer = _call(graph, aten.empty_strided.default, ([batch, channels, height, width], steps), named)
        parts: dict[str, Argument] = dict.fromkeys(NAMES) | {"x": given["input"], "weight": weight, "bias": bias}
        parts |= {"residual_scale": 1.0, "slope": 0.0, "activation": "relu" if last is not conv else "none"}
        parts |= {"layer": conv.name, "tile": MEASURED, "slices": 1, "dilation": 1}
        parts |= {"_result_base_index": 0, "_all_bases": [buffer]}
        parts |= {f"_{name}_base_index": None for name in OUTPUTS[1:]}
        kept = {name: part for name, part in parts.items() if name not in OUTPUTS}
        call = graph.call_function(auto_functionalized_v2, (operation("conv3x3"),), kept)
        call.meta["val"] = (None, buffer.meta["val"])
        answer = graph.call_function(operator.getitem, (call, 1))
    answer.meta = {**last.meta, "val": buffer.meta["val"]}
    last.replace_all_uses_with(answer)
    graph.erase_node(last)
    if last is not conv:
        graph.erase_node(conv)


def _packed(graph: fx.Graph, weight: fx.Node) -> fx.Node:
    """A weight [out, in, 3, 3] in channels_last as [9, out, in]: a view, no copy."""
    out, inner = weight.meta["val"].shape[:2]
    permuted = _call(graph, aten.permute.default, (weight, [2, 3, 0, 1]))
    return _call(graph, aten.view.default, (permuted, [9, out, inner]))


def _bias(graph: fx.Graph, bias: fx.Node | None, channels: int, value: Tensor) -> fx.Node:
    """A bias [out] in fp32; zeros where there is none."""
    if bias is None:
        return _call(graph, aten.full.default, ([channels], 0.0), {"dtype": torch.float32, "device": value.device})
    return _call(graph, torch.ops.prims.convert_element_type.default, (bias, torch.float32))


def _call(
    graph: fx.Graph, target: OpOverload, args: tuple[Argument, ...], named: dict[str, Argument] | None = None
) -> fx.Node:
    """A call with what it gives as a fake tensor, of any shape, in `meta["val"]`."""
    node = graph.call_function(target, args, named or {})
    fakes = [part.meta["val"] for part in node.all_input_nodes]
    modes = [part.fake_mode for part in fakes if isinstance(part, FakeTensor)]
    mode = modes[0] if modes else _mode_of(graph)
    with mode:
        node.meta["val"] = target(*fx.node.map_arg(args, lambda part: part.meta["val"]), **(named or {}))
    return node


def _mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The fake mode that the graph was traced in."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next(value.fake_mode for value in values if isinstance(value, FakeTensor))

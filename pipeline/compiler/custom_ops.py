"""The kernels as operations of torch, `torch.ops.unet_ladder`, which torch.compile and torch.export leave whole.

Each writes into tensors that it is given, such as a concatenation's buffer. On a CPU the reference runs, on a GPU the
tile that `tile` names. `normalised` is a norm's pass, `normed_conv3x3` a convolution that norms what it reads.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.profiler import record_function

from pipeline.compiler.ops import ANNOTATION, KERNELS, tile_of
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.kernels import conv3x3, norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import merged
from pipeline.kernels.common.capability import is_cuda
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import NO_WEIGHT, KernelOp, SecondSource, Tile
from pipeline.kernels.common.nhwc import by_pixels
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from pipeline.kernels.norm_pass import Excitation, Norm, NormPass, excitation, excitation_reference, merge_statistics

NAMESPACE = "unet_ladder"
REFERENCE = "reference"
MEASURED = "measured"  # as a tile: the fastest on this GPU, measured at the first call for a shape and kept on disk
# What an operation writes; not "out", which Dynamo takes for an argument of its own kind.
OUTPUTS = ("result", "pooled", "logits", "statistics")
SCHEMA = (
    "(Tensor x, Tensor? second, Tensor? weight, Tensor? scale, Tensor? bias, Tensor? second_weight, Tensor? border, "
    "Tensor? head_weight, Tensor? head_bias, Tensor? slopes, Tensor? residual, float residual_scale, "
    "str activation, float slope, str layer, str tile, int slices, int dilation, "
    "Tensor(a!)? result, Tensor(b!)? pooled, Tensor(c!)? logits, Tensor(d!)? statistics, str? padding_mode=None) -> ()"
)
GRADIENTS = torch.library.Library(NAMESPACE, "FRAGMENT")  # what autograd is told of the operations
NAMES = [part.name for part in torch._C.parse_schema(f"kernel{SCHEMA}").arguments]
Run = Callable[[dict[str, Any], Tile | str | None], None]  # of arguments by name; by torch for no tile, or `MEASURED`
RUNS: dict[str, Run] = {}  # of the operations that write into what they are given
WRITTEN: dict[str, list[str]] = {}  # the arguments that each of them writes


class KernelCall(NamedTuple):
    """The arguments of a kernel's operation as the kernel takes them."""

    x: Tensor  # [N, H, W, in], or the image [N, in, H, W]
    weight: Tensor  # packed, of any shape; empty for a kernel without weights
    epilogue: Epilogue  # what follows the sums
    outputs: Outputs  # out and pooled as [N, H, W, out]
    second: SecondSource | None = None  # only a kernel that takes one is given it

    @property
    def operands(self) -> tuple[object, ...]:
        """As the kernel's functions take them."""
        return self[:4] if self.second is None else self

    def key(self, op: KernelOp) -> str:
        """Return the tuner's name of a kernel's call: its inputs, the weight's shape, outputs, epilogue."""
        inputs = {"x": self.x, "second": None if self.second is None else self.second.map}
        named = {name: part for name, part in (inputs | self.outputs.given).items() if part is not None}
        layouts = "; ".join(f"{name} {layout(part)}" for name, part in named.items())
        return f"{op.name}: {layouts}; weight {list(self.weight.shape)}; {self.epilogue.key}"


def layout(value: Tensor) -> str:
    """Return shape, strides and dtype of a tensor of any shape."""
    return f"{list(value.shape)} {list(value.stride())} {str(value.dtype).removeprefix('torch.')}"


def kernel_call(op: KernelOp, given: Mapping[str, Any]) -> KernelCall:
    """Return an operation's arguments put together; a user's image, in any layout and type, becomes fp32 in NCHW."""
    x, weight, residual = given["x"], given["weight"], given["residual"]
    result, pooled, logits, statistics = (given[name] for name in OUTPUTS)
    head = None if given["head_weight"] is None else Head(given["head_weight"], given["head_bias"])
    epilogue = Epilogue(
        scale=given["scale"], bias=given["bias"], activation=Activation(given["activation"], given["slope"]),
        pool=pooled is not None, head=head, slopes=given["slopes"], residual=by_pixels(residual),
        residual_scale=given["residual_scale"], statistics=statistics is not None, phases=op.phases,
        early=given["tile"] != MEASURED,  # a lowered graph's weights are constants
        slices=given["slices"], dilation=given["dilation"], padding_mode=given.get("padding_mode") or "zeros",
    )  # fmt: skip
    seen = x.float().contiguous() if op.reads_image else by_pixels(x)
    outputs, second = Outputs(by_pixels(result), by_pixels(pooled), logits, statistics), None
    if op.takes_second:
        second = SecondSource(by_pixels(given["second"]), given["second_weight"], given["border"])
    return KernelCall(seen, NO_WEIGHT if weight is None else weight, epilogue, outputs, second)


def operation(name: str) -> OpOverload:
    """Return a kernel's operation as a graph calls it."""
    overload: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return overload


def _register(name: str, schema: str, run: Run) -> CustomOpDef:
    """Register an operation that writes into what it is given, with a fake implementation for tracing."""
    arguments = torch._C.parse_schema(f"{name}{schema}").arguments
    names = [part.name for part in arguments]
    RUNS[name], WRITTEN[name] = run, [part.name for part in arguments if part.alias_info]

    def call(*values: object) -> None:
        given: dict[str, Any] = dict(zip(names, values, strict=False))  # torch leaves out what is as by default
        x, tile = given["x"], given["tile"]
        if not len(x):  # TMA moves no empty tensor, and there is nothing to write
            return
        if tile == REFERENCE or not is_cuda(x.device):
            tile = None
        annotated = record_function(f"{ANNOTATION}{given['layer']}") if "layer" in given else nullcontext()
        with annotated, torch.cuda.device_of(x):  # Triton takes that one
            RUNS[name](given, tile if tile in (None, MEASURED) else tile_of(tile))

    registered = torch.library.custom_op(f"{NAMESPACE}::{name}", call, mutates_args=WRITTEN[name], schema=schema)
    registered.register_fake(lambda *_, **__: None)
    for key in ("AutogradCPU", "AutogradCUDA"):
        GRADIENTS.impl(name, partial(without_gradients, operation(name)), key, with_keyset=True)
    return registered


def _run_kernel(op: KernelOp, given: dict[str, Any], tile: Tile | str | None) -> None:
    call = kernel_call(op, given)
    if tile is None:
        op.reference(*call.operands)
    else:
        op.launch(*call.operands, measured(op, call) if tile == MEASURED else tile)


def without_gradients(op: OpOverload, keys: torch._C.DispatchKeySet, *given: object, **named: object) -> None:
    """Run an operation that writes into its operands; raise RuntimeError where gradients are wanted."""
    parts = [*given, *named.values()]
    dual = any(isinstance(part, Tensor) and forward_ad.unpack_dual(part).tangent is not None for part in parts)
    if dual or (torch.is_grad_enabled() and torch._C._any_requires_grad(*parts)):  # no_grad doesn't end forward mode
        raise no_gradient(op)
    with torch._C._AutoDispatchBelowAutograd():
        op.redispatch(keys & torch._C._after_autograd_keyset, *given, **named)


def no_gradient(op: object) -> RuntimeError:
    """Return what tells that an operation's gradients were asked for."""
    return RuntimeError(f"{op}: no gradient is defined; call it within torch.no_grad(), or detach its inputs")


KNOWN: dict[str, Tile] = {}  # tiles by what tells one call's operands from another's, in this process


def measured(op: KernelOp, call: KernelCall) -> Tile:
    """Return the fastest tile for a call; the likeliest while a CUDA graph is captured, which allows no measuring."""
    name, options = call.key(op), list(op.candidates(*call.operands))
    if name not in KNOWN and torch.cuda.is_current_stream_capturing():
        return options[0]
    if name not in KNOWN:
        KNOWN[name] = Tuner().best(name, options, lambda tile: op.launch(*call.operands, tile))
    return KNOWN[name]


OPERATIONS = {op.name: _register(op.name, SCHEMA, partial(_run_kernel, op)) for op in KERNELS}


# What the operations without tiles compute, by torch's own, of the same arguments.
BY_REFERENCE: dict[OpOverload, Callable[..., Tensor | tuple[Tensor, Tensor]]] = {}
Computed = Callable[..., Any]


def _register_plain(name: str, schema: str, on_gpu: Computed, by_torch: Computed, fake: Computed) -> CustomOpDef:
    def run(statistics: Tensor, *given: object) -> Any:
        if not is_cuda(statistics.device):
            return by_torch(statistics, *given)
        with torch.cuda.device_of(statistics):
            return on_gpu(statistics, *given)

    def refuse_backward(*_: object) -> None:
        raise no_gradient(f"{NAMESPACE}.{name}")

    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(fake)
    made.register_autograd(refuse_backward)
    BY_REFERENCE[operation(name)] = by_torch
    return made


def _pair(statistics: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    batch, channels = statistics.shape[0], statistics.shape[3]
    return statistics.new_empty(batch, channels), statistics.new_empty(batch, channels)


def _factors(
    compute: Computed, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, size: list[int],
    phases: int, width: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    factors: tuple[Tensor, Tensor] = compute(statistics, (size[0], size[1]), phases, Norm(weight, bias, eps, width))
    return factors


def _excited(
    compute: Computed, statistics: Tensor, weights: list[Tensor], name: str, slope: float, gate: str, *how: Any
) -> Tensor:
    size, phases = how
    reduce, reduce_bias, expand, expand_bias = weights
    layers = Excitation(reduce, reduce_bias, expand, expand_bias, Activation(name, slope), gate)
    factors: Tensor = compute(statistics, (size[0], size[1]), phases, layers)
    return factors.to(expand.dtype)


# Mean and variance [N, out] of a map.
merge = _register_plain(
    "merged_statistics",
    "(Tensor statistics, SymInt height, SymInt width, SymInt phases) -> (Tensor, Tensor)",
    lambda statistics, height, width, phases: merge_statistics(statistics, (height, width), phases),
    merged,
    _pair,
)
# Factor and shift [N, out] of a norm of a map of this size.
norm = _register_plain(
    "norm_factors",
    "(Tensor statistics, Tensor? weight, Tensor? bias, float eps, SymInt[] size, SymInt phases, SymInt group_width=1) "
    "-> (Tensor, Tensor)",
    partial(_factors, merge_statistics),
    partial(_factors, norm_pass.factors_reference),
    _pair,
)
# The factors [N, out] of squeeze-and-excitation, in the weights' type.
excite = _register_plain(
    "excitation",
    "(Tensor statistics, Tensor[] weights, str activation, float slope, str gate, SymInt[] size, SymInt phases) "
    "-> Tensor",
    partial(_excited, excitation),
    partial(_excited, excitation_reference),
    lambda statistics, weights, *_: weights[0].new_empty(statistics.shape[0], statistics.shape[3]),
)


# A norm of x [N, C, H, W]: what its statistics [N, blocks, 2, C] are of, weight and bias of C values, what follows.
NORM = (
    "Tensor counted, Tensor? norm_weight, Tensor? norm_bias, float eps, int phases, "
    "str norm_activation, float norm_slope"
)
# How many neighbouring channels are normed together; nets that were saved before group norms were taken don't say it.
GROUPS = "int group_width=1"
# A 1×1 convolution of what the norm gives, [classes, C] and [classes], whose logits are the result then.
HEAD = "Tensor? head_weight=None, Tensor? head_bias=None"
NORMALISED = f"(Tensor x, {NORM}, float norm_scale, str tile, Tensor(a!) result, {GROUPS}, {HEAD}) -> ()"
NORMED_CONV3X3 = (
    f"(Tensor x, {NORM}, Tensor weight, Tensor bias, str activation, float slope, str layer, str tile, "
    f"Tensor(a!) result, Tensor(b!)? statistics, {GROUPS}, Tensor? residual=None, float residual_scale=1.0, "
    "int slices=1) -> ()"
)


def _of_norm(given: dict[str, Any]) -> NormPass:
    weight, bias = (None if part is None else part.flatten() for part in (given["norm_weight"], given["norm_bias"]))
    activation = Activation(given["norm_activation"], given["norm_slope"])
    norm = Norm(weight, bias, given["eps"], given.get("group_width", 1))
    head = None if given.get("head_weight") is None else Head(given["head_weight"], given["head_bias"])
    return NormPass(norm, activation, given.get("norm_scale", 1.0), given["phases"], head)


def _normalise(given: dict[str, Any], tile: Tile | str | None) -> None:
    how, x = _of_norm(given), by_pixels(given["x"])
    out = given["result"] if how.head else by_pixels(given["result"])
    if tile is None:
        norm_pass.reference(x, given["counted"], how, out)
    else:
        assert isinstance(tile, norm_pass.Tile)
        norm_pass.norm_pass(x, given["counted"], how, out, tile)


def _convolve(given: dict[str, Any], tile: Tile | str | None) -> None:
    unused = {**dict.fromkeys(NAMES), "residual_scale": 1.0, "slices": 1, "dilation": 1}
    operands = Operands(*kernel_call(conv3x3.OP, unused | given)[:4])
    if tile is None:
        conv3x3.normed_reference(operands, given["counted"], _of_norm(given))
    else:
        assert isinstance(tile, conv3x3.NormingTile)
        conv3x3.normed_conv3x3(operands, given["counted"], _of_norm(given), tile)


normalised = _register("normalised", NORMALISED, _normalise)
normed_conv3x3 = _register("normed_conv3x3", NORMED_CONV3X3, _convolve)

"""Instance and group norms by the project's kernels, as operations of torch beside those of `custom_ops`.

`normalised` is a norm's pass, which may make a head's logits of it; `normed_conv3x3` a 3×3 convolution that applies the
norm to what it reads. Both take the statistics that the layer before has stored. On a CPU the reference runs, and on a
GPU where `tile` says so.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.profiler import record_function

from pipeline.compiler.custom_ops import NAMESPACE, REFERENCE, refuse_gradients
from pipeline.compiler.ops import ANNOTATION, tile_of
from pipeline.kernels import norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import Tile
from pipeline.kernels.common.nhwc import by_pixels
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_normed
from pipeline.kernels.conv3x3.conv3x3_operands import Operands
from pipeline.kernels.merged_statistics import Norm
from pipeline.kernels.norm_pass import NormPass

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
    f"Tensor(a!) result, Tensor(b!)? statistics, {GROUPS}, Tensor? residual=None, float residual_scale=1.0) -> ()"
)


def _of_norm(given: dict[str, Any]) -> NormPass:
    weight, bias = (None if part is None else part.flatten() for part in (given["norm_weight"], given["norm_bias"]))
    activation = Activation(given["norm_activation"], given["norm_slope"])
    norm = Norm(weight, bias, given["eps"], given.get("group_width", 1))
    head = None if given.get("head_weight") is None else Head(given["head_weight"], given["head_bias"])
    return NormPass(norm, activation, given.get("norm_scale", 1.0), given["phases"], head)


def _normalise(given: dict[str, Any], tile: Tile | None) -> None:
    """A norm's pass by a tile; by torch without one."""
    how, x = _of_norm(given), by_pixels(given["x"])
    out = given["result"] if how.head else by_pixels(given["result"])
    if tile is None:
        norm_pass.reference(x, given["counted"], how, out)
    else:
        assert isinstance(tile, norm_pass.Tile)
        norm_pass.norm_pass(x, given["counted"], how, out, tile)


def _convolve(given: dict[str, Any], tile: Tile | None) -> None:
    """A convolution of what a norm gives, by a tile; by torch without one."""
    x, out = (by_pixels(given[name]) for name in ("x", "result"))
    activation = Activation(given["activation"], given["slope"])
    residual, counted = given.get("residual"), given["statistics"]
    epilogue = Epilogue(
        bias=given["bias"],
        activation=activation,
        residual=None if residual is None else by_pixels(residual),
        residual_scale=given.get("residual_scale", 1.0),
        statistics=counted is not None,
        early=True,  # a lowered graph's weights are constants
    )
    operands = Operands(x, given["weight"], epilogue, Outputs(out, statistics=counted))
    with record_function(f"{ANNOTATION}{given['layer']}"):
        if tile is None:
            conv3x3_normed.reference(operands, given["counted"], _of_norm(given))
        else:
            assert isinstance(tile, conv3x3_narrow.Tile)
            conv3x3_normed.normed_conv3x3(operands, given["counted"], _of_norm(given), tile)


RUNS: dict[str, Callable[[dict[str, Any], Tile | None], None]] = {"normalised": _normalise, "normed_conv3x3": _convolve}
WRITTEN = {"normalised": ("result",), "normed_conv3x3": ("result", "statistics")}


def _register(name: str, schema: str) -> CustomOpDef:
    names = [part.split()[-1].partition("=")[0] for part in schema[1:].partition(") -> ")[0].split(", ")]

    def run(*values: object) -> None:
        given: dict[str, Any] = dict(zip(names, values, strict=False))  # torch leaves out what is as by default
        if not len(given["x"]):
            return
        by_torch = given["tile"] == REFERENCE or not given["x"].is_cuda
        with torch.cuda.device_of(given["x"]):
            RUNS[name](given, None if by_torch else tile_of(given["tile"]))

    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=WRITTEN[name], schema=schema)
    made.register_fake(lambda *_, **__: None)
    refuse_gradients(name)
    return made


normalised = _register("normalised", NORMALISED)
normed_conv3x3 = _register("normed_conv3x3", NORMED_CONV3X3)


def far_from_reference(name: str, given: dict[str, Any], distance: Callable[[Tensor, Tensor], float]) -> float:
    """How far what an operation has just written is from its reference's answer to the same arguments."""
    fresh = {role: torch.empty_like(given[role]) for role in WRITTEN[name] if given[role] is not None}
    RUNS[name]({**given, **fresh}, None)
    return max(distance(given[role], wanted) for role, wanted in fresh.items())

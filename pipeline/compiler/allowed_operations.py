"""The operations that a saved net may call: this project's own, and those of ATen that only compute."""

import re
from functools import cache
from importlib import import_module

import torch
import torch._inductor.inductor_prims  # registers prims::inductor_force_stride_order
from torch._ops import OpOverload
from torch.export import ExportedProgram

from pipeline.compiler.custom_ops import NAMESPACE, OPERATIONS
from pipeline.compiler.norm_ops import RUNS

OWN = {*OPERATIONS, *RUNS, "merged_statistics", "norm_factors", "excitation"}
# Beside those of which torch tags some overload as its core or as pointwise: what nets are written with before they
# are decomposed, and what torch decomposes them into. A name stands for all its overloads.
FURTHER = frozenset(
    [
        "_assert_tensor_metadata",
        "_fft_c2c",
        "_linalg_check_errors",
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_svd",
        "_trilinear",
        "_unsafe_index",
        "_unsafe_index_put",
        "_unsafe_view",
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "addbmm",
        "addmv",
        "alias_copy",
        "baddbmm",
        "batch_norm",
        "bernoulli",
        "broadcast_to",
        "broadcast_tensors",
        "bucketize",
        "channel_shuffle",
        "chunk",
        "column_stack",
        "complex",
        "concat",
        "concatenate",
        "contiguous",
        "conv1d",
        "conv_transpose1d",
        "conv2d",
        "conv_transpose2d",
        "conv3d",
        "conv_transpose3d",
        "cudnn_convolution_add_relu",
        "cudnn_convolution_relu",
        "cummax",
        "cummin",
        "cumprod",
        "detach",
        "diag",
        "diagonal_copy",
        "diagonal_scatter",
        "dist",
        "dropout",
        "dstack",
        "einsum",
        "empty_permuted",
        "expand_as",
        "exponential",
        "fake_quantize_per_channel_affine_cachemask",
        "fake_quantize_per_tensor_affine_cachemask",
        "feature_dropout",
        "flatten",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "glu",
        "group_norm",
        "gru",
        "hardswish",
        "histc",
        "hstack",
        "index_copy",
        "index_fill",
        "instance_norm",
        "kthvalue",
        "layer_norm",
        "lift_fresh_copy",
        "linalg_cholesky_ex",
        "linalg_cross",
        "linalg_inv_ex",
        "linalg_matrix_exp",
        "linalg_pinv",
        "linalg_qr",
        "linalg_solve_ex",
        "linear",
        "linalg_vector_norm",
        "linspace",
        "log_sigmoid",
        "log_sigmoid_forward",
        "log_softmax",
        "logcumsumexp",
        "logsumexp",
        "lstm",
        "matmul",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "median",
        "mish",
        "moveaxis",
        "mode",
        "movedim",
        "nanmedian",
        "narrow",
        "native_channel_shuffle",
        "new_full",
        "new_ones",
        "new_zeros",
        "norm",
        "one_hot",
        "ones_like",
        "outer",
        "pad",
        "permute_copy",
        "pixel_shuffle",
        "pixel_unshuffle",
        "polar",
        "prelu",
        "rand_like",
        "randint_like",
        "randn_like",
        "reflection_pad2d",
        "reflection_pad3d",
        "repeat_interleave",
        "replication_pad2d",
        "replication_pad3d",
        "reshape",
        "rms_norm",
        "rnn_relu",
        "rnn_tanh",
        "roll",
        "scaled_dot_product_attention",
        "searchsorted",
        "softmax",
        "split",
        "split_with_sizes",
        "stack",
        "std",
        "std_mean",
        "stft",
        "swapaxes",
        "swapdims",
        "tensor_split",
        "tile",
        "to",
        "transpose",
        "type_as",
        "unbind",
        "unflatten",
        "unfold",
        "upsample_bicubic2d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_linear1d",
        "upsample_trilinear3d",
        "upsample_bilinear2d",
        "var_mean",
        "view_as",
        "vstack",
        "view_as_complex",
        "view_as_real",
        "zeros_like",
        "zeros",
        "ones",
        "arange",
        "square",
    ]
)
# Operations of other libraries that compute and do nothing else, and the module that registers each.
LIBRARIES = {"torch.ops.torchvision.deform_conv2d.default": "torchvision.ops"}
WRITING = {"copy_.default"}  # into the buffers of concatenations
ATEN = re.compile(r"torch\.ops\.aten\.([a-zA-Z]\w*|_[a-zA-Z]\w*)\.([A-Za-z]\w*)")


def is_allowed(target: object) -> bool:
    """Whether a saved graph may call the operation of this name, such as "torch.ops.aten.relu.default".

    What registers a library's operation is imported, as torch finds it by its name when it reads the graph.
    """
    if not isinstance(target, str):
        return False
    if target in LIBRARIES:
        return _imports(LIBRARIES[target])
    if target in ("_operator.getitem", "torch.ops.prims.inductor_force_stride_order.default"):
        return True
    if target.startswith(f"torch.ops.{NAMESPACE}."):
        return target.removeprefix(f"torch.ops.{NAMESPACE}.").removesuffix(".default") in OWN
    named = ATEN.fullmatch(target)
    return named is not None and computes(*named.groups())


def _imports(module: str) -> bool:
    try:
        import_module(module)
    except Exception:  # noqa: BLE001 - it isn't there, or doesn't fit this torch
        return False
    return True


def computes(name: str, overload: str) -> bool:
    """Whether an operation of ATen computes on tensors and does nothing else.

    Gradients' operations don't: some read and write wherever the indices that they are given point.
    """
    if f"{name}.{overload}" in WRITING:
        return True
    if "_backward" in name:
        return False
    found = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if not isinstance(found, OpOverload) or found._schema.is_mutable:
        return False
    return name in FURTHER or bool(tags_of(name) & {torch.Tag.core, torch.Tag.pointwise})


@cache
def tags_of(name: str) -> set[torch.Tag]:
    """What torch tags any overload of an operation of ATen as: `sum` of all values is as harmless as that of some."""
    packet = getattr(torch.ops.aten, name)
    return {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}


def without_rare(program: ExportedProgram) -> ExportedProgram:
    """The program with operations that no saved net may call made of those that torch makes them of."""
    tried: set[OpOverload] = set()
    while rare := rare_operations(program) - tried:  # what one is made of may be rare itself
        known = torch.export.default_decompositions()
        if not (composed := rare & known.keys()):
            break  # for nothing torch would wrap what writes, as the kernels' operations do
        program = program.run_decompositions({target: known[target] for target in composed})
        tried |= rare
    return program


def rare_operations(program: ExportedProgram) -> set[OpOverload]:
    """The operations that a program calls and no saved net may."""
    called = {node.target for node in program.graph.nodes if isinstance(node.target, OpOverload)}
    return {target for target in called if not is_allowed(f"torch.ops.{target}")}

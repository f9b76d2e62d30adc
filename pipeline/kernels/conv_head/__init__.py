"""The network's last convolution, 3×3 or 1×1 with up to 8 classes: reads NHWC and writes fp32 logits in NCHW.

Memory is what takes the time, so the logits are written as the user gets them. Two kernels do it: `conv_head_triton`,
and `conv_head_gluon`, which is faster for 3×3. The tile says which.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import MOST_CLASSES, Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, flops_of
from pipeline.kernels.common.library import same_size_convolution
from pipeline.kernels.common.nhwc import check, check_counted, check_few_programs, check_vector, interpreted
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv_head import conv_head_gluon, conv_head_triton

Tile = conv_head_triton.Tile | conv_head_gluon.Tile
EIGHTH = 8  # channels of fp16 that 16 bytes hold


def pack(weight: Tensor) -> Tensor:
    """Return a weight [classes, in, k, k] as [k · k, classes, in]."""
    return weight.permute(2, 3, 0, 1).reshape(-1, *weight.shape[:2]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_head` in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, in].
        weight: [k · k, classes, in].
        epilogue: scale and bias [classes].
        outputs: logits [N, classes, H, W].
    """
    side = _side(weight)
    taps = weight.float().reshape(side, side, *weight.shape[1:]).permute(2, 3, 0, 1)
    sums = functional.conv2d(x.float().permute(0, 3, 1, 2), taps, padding=side // 2)
    _required(outputs).copy_(epilogue.of(sums.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def conv_head(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the convolution of x through the epilogue into `outputs.logits`; the padding keeps height and width.

    Args:
        x: [N, H, W, in], fp16 or fp8, may be a channel slice of a wider tensor.
        weight: [k · k, classes, in] of x's dtype, from `pack`; k is 1 or 3, and there are at most 8 classes.
        epilogue: scale and bias [classes], and an activation.
        outputs: logits [N, classes, H, W] fp32 contiguous, and nothing else.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    taps, classes = weight.shape[:2]
    if taps not in (1, 9) or classes > MOST_CLASSES:
        raise ValueError(f"weight must be [1 or 9, at most {MOST_CLASSES}, in], got {list(weight.shape)}")
    check("x", x, (batch, height, width, inner))
    check_counted("x", x)
    check_few_programs("x's batch", batch)
    if weight.dtype != x.dtype or tuple(weight.shape) != (taps, classes, inner) or not weight.is_contiguous():
        raise ValueError(f"weight must be {[taps, classes, inner]} {x.dtype}, got {list(weight.shape)} {weight.dtype}")
    if epilogue.bias is None or epilogue.parts:
        raise ValueError(f"the epilogue must have a bias and fold nothing, got {epilogue.key}")
    check_vector("bias", epilogue.bias, classes)
    if epilogue.scale is not None:
        check_vector("scale", epilogue.scale, classes)
    logits = _required(outputs)
    if tuple(logits.shape) != (batch, classes, height, width) or logits.dtype != torch.float32:
        raise ValueError(f"logits must be {[batch, classes, height, width]} float32, got {list(logits.shape)}")
    if not logits.is_contiguous():
        raise ValueError(f"logits must be contiguous, got strides {list(logits.stride())}")
    tile = tile or next(candidates(x, weight))
    if isinstance(tile, conv_head_gluon.Tile):
        conv_head_gluon.launch(x, weight, epilogue, logits, tile)
    else:
        conv_head_triton.launch(x, weight, epilogue, logits, tile)


def _side(weight: Tensor) -> int:
    return 3 if len(weight) == 9 else 1


def _required(outputs: Outputs) -> Tensor:
    if outputs.logits is None or outputs.stored:
        raise ValueError("logits must be given, and nothing else: this kernel writes nothing else")
    return outputs.logits


def candidates(x: Tensor, weight: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [k · k, classes, in], likeliest first."""
    narrow = _side(weight) == 3 and x.shape[3] <= conv3x3_narrow.MOST_IN
    if narrow and gluon_barred() is None and not interpreted():
        return conv_head_gluon.candidates(x)
    return conv_head_triton.candidates(x)


def accepts(layer: LayerDescription) -> bool:
    """Return whether the kernels take a layer: it keeps height and width, and has few classes."""
    square = layer.is_square(3, 1, 1) or layer.is_square(1, 1, 0)
    return layer.kind == "conv2d" and square and layer.outer <= MOST_CLASSES and layer.inner % EIGHTH == 0


OP: KernelOp = KernelOp(
    name="conv_head",
    accepts=accepts,
    reference=reference,
    launch=conv_head,
    candidates=candidates,
    library=same_size_convolution,
    flops=flops_of(9),
    tile_types=(conv_head_triton.Tile, conv_head_gluon.Tile),
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3),
    out_axis=1,
    tap_axis=0,
    writes=frozenset({"fp32"}),
    writes_logits=True,
)

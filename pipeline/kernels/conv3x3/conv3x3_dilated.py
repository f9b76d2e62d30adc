"""3×3 convolution whose taps lie several pixels apart, padded by as many, stride 1, by `conv3x3_triton`.

The idea: that kernel loads a box for each tap anyway, and the box of a dilated window begins further away. What lies
outside the image is zeros, however far. The kernels whose taps share a box are no candidates.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pipeline.kernels import conv3x3
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LayerDescription, LibraryParameters, flops_of
from pipeline.kernels.common.library import convolution
from pipeline.kernels.conv3x3 import conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_operands import FOLDS, Operands, check_operands

OWN_FOLDS = FOLDS | {"dilation"}


def conv3x3_dilated(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: conv3x3_triton.Tile | None = None
) -> None:
    """Write the dilated convolution of x through the epilogue into `outputs`.

    Args:
        x: [N, H, W, in], fp16 or fp8, may be a channel slice of a wider tensor.
        weight: [9, out, in] of x's dtype, from `conv3x3.pack`.
        epilogue: as of `conv3x3.conv3x3`.
        outputs: as of `conv3x3.conv3x3`.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands, OWN_FOLDS)
    conv3x3_triton.launch(operands, tile or next(candidates(x, weight, epilogue)))


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[conv3x3_triton.Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [9, out, in], likeliest first."""
    has_head = epilogue.head is not None
    return conv3x3_triton.candidates(x, weight.shape[1], head=has_head, statistics=epilogue.statistics)


def by_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, H, W] by weight [out, in, 3, 3]: [N, out, H, W]."""
    x = x.to(parameters.weight.dtype, memory_format=torch.channels_last)
    apart = (ends.dilation, ends.dilation)
    return convolution(x, parameters, ends, padding=apart, dilation=apart)


def _accepts(layer: LayerDescription) -> bool:
    (apart, across), plain = layer.dilation, (layer.stride, layer.groups) == ((1, 1), 1)
    same = layer.window == (3, 3) and apart == across and layer.padding == (apart, apart)
    return layer.kind == "conv2d" and plain and same and apart > 1 and layer.suits_bulk_copies


OP: KernelOp = KernelOp(
    name="conv3x3_dilated",
    accepts=_accepts,
    reference=conv3x3.reference,
    launch=conv3x3_dilated,
    candidates=candidates,
    library=by_library,
    flops=flops_of(9),
    tile_types=(conv3x3_triton.Tile,),
    pack=conv3x3.pack,
    weight_shape=lambda inner, outer: (outer, inner, 3, 3),
    out_axis=1,
    tap_axis=0,
    folds=OWN_FOLDS,
)

"""3×3 convolution, padding 1 or 0, stride 1, with bias, activation, max-pool and the 1×1 head in its epilogue.

The tile names the kernel: `conv3x3_triton`, also for taps that lie several pixels apart (`DILATED_OP`);
`conv3x3_gluon`, which is faster; and for few channels `conv3x3_narrow` and `conv3x3x3_narrow`, which can norm what they
read. Of volumes (`VOLUME_OP`) a slice is the sum of three 3×3 convolutions, with zeros before the first and behind the
last; with a window of 5×5×5 (`WIDE_VOLUME_OP`) of five 5×5. With at most 32 output channels, two neighbouring slices
share a product's 64 rows, and read one slice more.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, store_reference, sums_of
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, convolution, volume_convolution
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.common.strips import NormOnLoad
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_triton import FOLDS, FOLDS_OF_VOLUMES, STACKED, Operands, check_operands
from pipeline.kernels.norm_pass import Norm, NormPass, check_norm, merge_statistics
from pipeline.kernels.norm_pass import reference as pass_by_torch

NormingTile = conv3x3_narrow.Tile | conv3x3_narrow.VolumeTile  # of kernels that can norm what they read
Tile = conv3x3_triton.Tile | conv3x3_gluon.Tile | NormingTile
LAUNCHES: dict[type[Tile], Callable[..., None]] = {
    **{kernel.Tile: kernel.launch for kernel in (conv3x3_triton, conv3x3_gluon, conv3x3_narrow)},
    conv3x3_narrow.VolumeTile: conv3x3_narrow.launch_volumes,
}
DILATED_FOLDS = FOLDS | {"dilation"}
SLOPES = {"none": 1.0, "relu": 0.0}  # of max(y, slope · y); a leaky ReLU's is its own


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, k, k] or [out, in, k, k, k] with its taps first, [taps, out, in]."""
    return weight.flatten(2).permute(2, 0, 1).contiguous()


def stacked(weight: Tensor) -> Tensor:
    """Return a packed weight [27 or 125, out, in], out at most 32, as [36 or 150, 64, in].

    Of each 16 rows, 8 are of one slice and 8 of the next.
    """
    (count, outer, inner), side = weight.shape, 3 if len(weight) == 27 else 5
    both = weight.new_zeros(side + 1, side**2, STACKED // 8, 2, 8, inner)
    taps = weight.new_zeros(count, STACKED, inner)
    taps[:, :outer] = weight
    both[:-1, :, :, 0] = both[1:, :, :, 1] = taps.unflatten(0, (side, -1)).unflatten(2, (-1, 8))
    return both.flatten(2, 4).flatten(0, 1)


def unstacked(weight: Tensor, outer: int) -> Tensor:
    """Return the weight [27 or 125, out, in] of which `stacked` made another; return any other unchanged."""
    if len(weight) not in (36, 150):
        return weight
    both: Tensor = weight.unflatten(1, (-1, 2, 8))
    return both[: len(weight) - (9 if len(weight) == 36 else 25), :, 0].flatten(1, 2)[:, :outer]


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv3x3`, `conv3x3_valid` and `conv3x3_dilated` in plain PyTorch and fp32, on any device."""
    taps = unstacked(weight, len(weight[0]) if epilogue.bias is None else len(epilogue.bias))
    sums = sums_of(x, taps, dilation=epilogue.dilation, slices=epilogue.slices)
    sums = sums if Operands(x, weight, epilogue, outputs).edge else sums[:, 1:-1, 1:-1]
    store_reference(epilogue.of(sums), epilogue, outputs)


def conv3x3(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile) -> None:
    """Write the convolution of x through the epilogue into `outputs`, of which `out` may be None beside another.

    X is [N, H, W, in], fp16 or fp8, or volumes as `Operands` has them. Outputs are of its size, or of an image two rows
    and columns smaller, without padding. The weight [9, out, in] is from `pack`, of volumes [27 or 125, out, in], or
    from `stacked`. A head has at most 8 classes, and `out` channels of a tile.
    """
    operands = Operands(x, weight, epilogue, outputs)
    check_operands(operands, DILATED_FOLDS if isinstance(tile, conv3x3_triton.Tile) else FOLDS)
    LAUNCHES[type(tile)](operands, tile)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; where Gluon runs, plain Triton is the fastest of no layer."""
    outer, operands = weight.shape[1], Operands(x, weight, epilogue, outputs)
    if reaching_views_barred() is not None or interpreted() or epilogue.dilation > 1:
        head = epilogue.head is not None
        yield from conv3x3_triton.candidates(x, outer, head=head, statistics=epilogue.statistics)
        return
    if len(weight) == 9 and operands.edge and weight.is_contiguous() and conv3x3_narrow.suits(x, outer, epilogue):
        closed = outputs.out is None or outputs.out.stride(2) == outer
        dense = closed and not epilogue.parts & {"statistics", "residual"}
        yield from conv3x3_narrow.candidates(x, outer, ends=bool(epilogue.parts), dense=dense)
    yield from conv3x3_narrow.volume_candidates(operands)
    yield from conv3x3_gluon.candidates(operands)


def _is_plain(layer: LayerDescription, *, padding: int) -> bool:
    return layer.kind == "conv2d" and layer.is_square(3, 1, padding) and layer.suits_bulk_copies


def _is_dilated(layer: LayerDescription) -> bool:
    (apart, across), plain = layer.dilation, (layer.stride, layer.groups) == ((1, 1), 1)
    same = layer.window == (3, 3) and apart == across and layer.padding == (apart, apart)
    return layer.kind == "conv2d" and plain and same and apart > 1 and layer.suits_bulk_copies


def slope_of(activation: Activation) -> float | None:
    """Return the slope for which max(y, slope · y) is the activation; None if no slope from 0 to 1 is."""
    slope = SLOPES.get(activation.name, activation.slope if activation.name == "leaky_relu" else -1.0)
    return slope if 0 <= slope <= 1 else None


def normed_conv3x3(operands: Operands, counted: Tensor, how: NormPass, tile: NormingTile) -> None:
    """Write the convolution of activation(norm(x)), x in fp16; `counted` are its statistics [N, blocks, 2, in]."""
    check_operands(operands)
    _, height, width, _ = operands.x.shape
    slope, (weight, bias, eps, group) = slope_of(how.activation), how.norm
    if operands.x.dtype != torch.float16 or slope is None or eps is None or how.scale != 1.0:
        given = f"{operands.x.dtype}, {how.activation}"
        raise ValueError(f"x must be float16, after a norm with eps and a ReLU with a slope from 0 to 1, got {given}")
    check_norm(counted, (height, width), how.phases, how.norm)
    mean, variance = merge_statistics(counted, (height, width), how.phases, Norm(group_width=group), dependent=True)
    norm = NormOnLoad(mean, variance, weight, bias, eps, slope)
    LAUNCHES[type(tile)](operands, tile, norm)


def normed_reference(operands: Operands, counted: Tensor, how: NormPass) -> None:
    """Compute `normed_conv3x3` in plain PyTorch for x [N, H, W, in]; the normalised map is rounded to fp16."""
    x = torch.empty_like(operands.x)
    pass_by_torch(operands.x, counted, how, x)
    reference(x, *operands[1:])


OP: KernelOp = KernelOp(
    name="conv3x3",
    accepts=partial(_is_plain, padding=1), reference=reference, launch=conv3x3, candidates=candidates,
    library=convolution, taps=9, tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile, conv3x3_narrow.Tile), pack=pack,
    tap_axis=0, folds=FOLDS,
)  # fmt: skip
VALID_OP: KernelOp = replace(
    OP, name="conv3x3_valid", accepts=partial(_is_plain, padding=0), library=partial(convolution, edge=0),
    tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile),
)  # fmt: skip
DILATED_OP: KernelOp = replace(
    OP, name="conv3x3_dilated", accepts=_is_dilated, tile_types=(conv3x3_triton.Tile,), folds=DILATED_FOLDS
)  # fmt: skip
VOLUME_OP: KernelOp = replace(
    OP, name="conv3x3x3", accepts=None, library=volume_convolution, taps=27,
    tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile, conv3x3_narrow.VolumeTile), folds=FOLDS_OF_VOLUMES,
)  # fmt: skip
WIDE_VOLUME_OP: KernelOp = replace(
    VOLUME_OP, name="conv5x5x5", library=partial(volume_convolution, padding=2), taps=125,
    tile_types=(conv3x3_triton.Tile, conv3x3_gluon.Tile),
)  # fmt: skip

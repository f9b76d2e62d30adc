"""The network's first convolution, 3×3 to 7×7 with stride 1 or 2: reads the user's fp32 NCHW batch and writes NHWC.

With three channels the taps of a 3×3 window are 27 values a pixel, of 7×7 ones 147: a few steps of a matrix product.
Cast and change of layout happen on the way: the image is read once and the wide output written once. Three kernels do
it: `conv_first_triton`, `conv_first_gluon`, which is faster, and for 3×3 windows with a stride of 1 `conv_first_rows`.
The tile says which.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, required, store_reference
from pipeline.kernels.common.kernel_op import CHANNELS, Ends, KernelOp, LayerDescription, LibraryParameters, flops_of
from pipeline.kernels.common.library import convolution
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.conv_first import conv_first_gluon, conv_first_rows, conv_first_triton
from pipeline.kernels.conv_first.conv_first_operands import (
    MOST_CHANNELS,
    MOST_ENTRIES,
    WINDOWS,
    Operands,
    margin,
    span,
    stride_of,
)

FOLDS = frozenset({"statistics"})
Tile = conv_first_triton.Tile | conv_first_gluon.Tile | conv_first_rows.Tile


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, k, k] as fp16 [in, k, span, out]: a row of a window, then zeros about it."""
    window = weight.shape[2]
    first = margin(window) - window // 2
    about = (0, 0, first, span(window) - window - first)
    return functional.pad(weight.permute(1, 2, 3, 0).half(), about).contiguous()


def unpacked(packed: Tensor) -> Tensor:
    """Return the weight [out, in, k, k] of a packed one [in, k, span, out], in fp16."""
    window = packed.shape[1]
    first = margin(window) - window // 2
    return packed[:, :, first : first + window].permute(3, 0, 1, 2)


def reference(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_first` in plain PyTorch, on any device: inputs rounded to fp16, sums in fp32.

    Args:
        image: [N, in, H, W].
        weight: [in, k, span, out], from `pack`.
        epilogue: scale and bias [out].
        outputs: out [N, H', W', out], whose size tells the stride.
    """
    stride = stride_of(tuple(image.shape[2:]), tuple(required(outputs.out).shape[1:3]))
    padding = weight.shape[1] // 2
    sums = functional.conv2d(image.half().float(), unpacked(weight).float(), stride=stride, padding=padding)
    store_reference(epilogue.of(sums.permute(0, 2, 3, 1)), epilogue, outputs)


def conv_first(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the convolution of the image through the epilogue into `outputs.out`: products in fp16, sums in fp32.

    The padding is k // 2, and the stride is 1 or 2, as the output's size tells.

    Args:
        image: [N, in, H, W] fp32 contiguous, at most 14 channels; or volumes, as `conv_first_volumes` says.
        weight: [in, k, span, out] fp16, from `pack`.
        epilogue: scale and bias [out], an activation, and statistics.
        outputs: out [N, H', W', out] fp16 or fp8, may be a channel slice of a wider tensor, with H' = ⌈H / stride⌉;
            statistics [N, blocks, 2, out].
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    deep = 3 if image.ndim == 5 else 1
    batch, inner, (height, width) = image.shape[0], deep * image.shape[1], image.shape[-2:]
    if image.dtype != torch.float32 or not image.is_contiguous() or inner > MOST_CHANNELS:
        raise ValueError(f"image must be contiguous float32 of at most {MOST_CHANNELS} channels, got {image.dtype}")
    if image.numel() >= 2**31 * len(image):
        raise ValueError(f"image must have less than 2^31 values each, got {list(image.shape)}")
    window, outer = weight.shape[1], weight.shape[-1]
    if weight.dtype != torch.float16 or tuple(weight.shape) != (inner, window, span(window), outer):
        raise ValueError(f"weight must come from pack, for {inner} channels, got {list(weight.shape)} {weight.dtype}")
    out = required(outputs.out)
    stride = stride_of((height, width), tuple(out.shape[1:3]))
    batch *= image.shape[2] if deep == 3 else 1
    check_epilogue(epilogue, outputs, (batch, -(-height // stride), -(-width // stride), outer), FOLDS)
    tile = tile or next(candidates(image, weight, epilogue, outputs))
    operands = Operands(image, weight, epilogue, out, outputs.statistics)
    if isinstance(tile, conv_first_gluon.Tile):
        conv_first_gluon.launch(operands, tile)
    elif isinstance(tile, conv_first_rows.Tile):
        conv_first_rows.launch(operands, tile)
    else:
        conv_first_triton.launch(operands, tile)


def candidates(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[Tile]:
    """Yield tiles for an image [N, in, H, W], weight [in, k, span, out] and the answer, likeliest first.

    Volumes are an image of as many channels as their three slices have.
    """
    if gluon_barred() is not None or interpreted() or weight.shape[-1] > conv_first_gluon.MOST_OUT:
        yield from conv_first_triton.candidates(weight.shape[-1], statistics=epilogue.statistics)
        return
    operands = Operands(image, weight, epilogue, required(outputs.out))
    if conv_first_rows.suits(operands):
        yield from conv_first_rows.candidates(operands)
    yield from conv_first_gluon.candidates(weight, statistics=epilogue.statistics)


def _library(stride: int) -> Callable[[Tensor, LibraryParameters, Ends], Tensor]:
    def run(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
        weight = parameters.weight
        side = weight.shape[2] // 2
        x = x.to(weight.dtype, memory_format=torch.channels_last)
        return convolution(x, parameters, ends, stride=(stride, stride), padding=(side, side))

    return run


def _accepts(stride: int) -> Callable[[LayerDescription], bool]:
    def accepts(layer: LayerDescription) -> bool:
        window = layer.window[0]
        square = layer.is_square(window, stride, window // 2)
        if layer.kind != "conv2d" or not layer.reads_image or window not in WINDOWS or not square:
            return False
        few = layer.inner <= MOST_CHANNELS and layer.inner * window * span(window) <= MOST_ENTRIES
        return few and layer.outer % CHANNELS == 0

    return accepts


def _op(name: str, stride: int) -> KernelOp:
    """Return the kernel's description for one stride; operations are counted for a window of 3×3."""
    return KernelOp(
        name=name,
        accepts=_accepts(stride),
        reference=reference,
        launch=conv_first,
        candidates=candidates,
        library=_library(stride),
        flops=flops_of(9 / stride**2),
        tile_types=(conv_first_triton.Tile, conv_first_gluon.Tile, conv_first_rows.Tile),
        pack=pack,
        weight_shape=lambda inner, outer: (outer, inner, 3, 3),
        out_axis=3,
        folds=FOLDS,
        reads=frozenset({"fp32"}),
        reads_image=True,
        growth=1 / stride,
    )


OP = _op("conv_first", 1)
STRIDED_OP = _op("conv_first_strided", 2)

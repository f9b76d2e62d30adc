"""The network's first convolution, 3×3 to 7×7 with stride 1 or 2: reads the user's fp32 NCHW batch and writes NHWC.

The taps of a 3×3 window of three channels are 27 values a pixel: a few steps of a matrix product. The tile names the
kernel: `conv_first_triton`, and in Gluon `conv_first_gluon`, which is faster, and for 3×3 windows with a stride of 1
`conv_first_rows`. Of volumes with one channel (`VOLUME_OP`) a slice and its two neighbours are the three channels.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, store_reference
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription, convolution, volume_convolution
from pipeline.kernels.common.nhwc import interpreted, stride_of
from pipeline.kernels.common.program import stored_by_slice
from pipeline.kernels.conv_first import conv_first_gluon, conv_first_triton
from pipeline.kernels.conv_first.conv_first_triton import Operands, margin, span

FOLDS = frozenset({"statistics"})
MOST_CHANNELS, MOST_ENTRIES = 14, 256  # beyond, the gather is dearer than a padded copy in NHWC
WINDOWS = (3, 5, 7)
Tile = conv_first_triton.Tile | conv_first_gluon.Tile | conv_first_gluon.RowsTile


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
    """Compute `conv_first` in plain PyTorch, on any device: inputs rounded to fp16, sums in fp32."""
    stride = stride_of(image.shape[2:], outputs.required.shape[1:3])
    padding = weight.shape[1] // 2
    sums = functional.conv2d(image.half().float(), unpacked(weight).float(), stride=stride, padding=padding)
    store_reference(epilogue.of(sums.permute(0, 2, 3, 1)), epilogue, outputs)


def volume_reference(volumes: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_first_volumes` in plain PyTorch: each slice and its neighbours are an image [3 · in, H, W]."""
    padded = functional.pad(volumes, (0, 0, 0, 0, 1, 1))
    windows = padded.unfold(2, 3, 1).permute(0, 2, 5, 1, 3, 4)  # [N, D, 3, in, H, W]
    beside_each_other = windows.flatten(2, 3).flatten(0, 1).contiguous()
    reference(beside_each_other, weight, epilogue, stored_by_slice(outputs, volumes.shape[2]))


def conv_first(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the convolution of the image through the epilogue into `outputs.out`: products in fp16, sums in fp32.

    The image is [N, in, H, W] fp32 contiguous; the size of out [N, H', W', out] tells the stride, 1 or 2.
    """
    inner, size = (3 if image.ndim == 5 else 1) * image.shape[1], image.shape[-2:]
    if image.dtype != torch.float32 or not image.is_contiguous() or inner > MOST_CHANNELS:
        raise ValueError(f"image must be contiguous float32 of at most {MOST_CHANNELS} channels, got {image.dtype}")
    if image.numel() >= 2**31 * len(image):
        raise ValueError(f"image must have less than 2^31 values each, got {list(image.shape)}")
    window, outer = weight.shape[1], weight.shape[-1]
    if weight.dtype != torch.float16 or tuple(weight.shape) != (inner, window, span(window), outer):
        raise ValueError(f"weight must come from pack, for {inner} channels, got {list(weight.shape)} {weight.dtype}")
    operands = Operands(image, weight, epilogue, outputs.required, outputs.statistics)
    sides = (-(-side // operands.stride) for side in size)
    check_epilogue(epilogue, outputs, (len(image) * operands.slices, *sides, outer), FOLDS)
    tile = tile or next(candidates(image, weight, epilogue, outputs))
    if isinstance(tile, conv_first_triton.Tile):
        conv_first_triton.launch(operands, tile)
    else:
        conv_first_gluon.launch(operands, tile)


def candidates(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; volumes are an image of as many channels as three slices have."""
    if gluon_barred() is not None or interpreted() or weight.shape[-1] > conv_first_gluon.MOST_OUT:
        yield from conv_first_triton.candidates(weight.shape[-1], statistics=epilogue.statistics)
        return
    operands = Operands(image, weight, epilogue, outputs.required)
    if conv_first_gluon.suits_rows(operands):
        yield from conv_first_gluon.row_candidates(operands)
    if weight.shape[-1] > conv_first_gluon.BEST_BY_ROWS or not conv_first_gluon.suits_rows(operands):
        yield from conv_first_gluon.candidates(weight, statistics=epilogue.statistics)


def conv_first_volumes(
    volumes: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None
) -> None:
    """Write the convolution of volumes [N, in, D, H, W], in at most 4, into out [N, D · H, W, out]."""
    if volumes.ndim != 5:
        raise ValueError(f"volumes must be [N, in, D, H, W], got {list(volumes.shape)}")
    if epilogue.statistics and volumes.shape[3] % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {volumes.shape[3]}")
    conv_first(volumes, weight, epilogue, stored_by_slice(outputs, volumes.shape[2]), tile)


def _accepts(layer: LayerDescription, *, stride: int) -> bool:
    window = layer.window[0]
    square = layer.is_square(window, stride, window // 2)
    if layer.kind != "conv2d" or not layer.reads_image or window not in WINDOWS or not square:
        return False
    few = layer.inner <= MOST_CHANNELS and layer.inner * window * span(window) <= MOST_ENTRIES
    return few and layer.outer % CHANNELS == 0


OP: KernelOp = KernelOp(
    name="conv_first", accepts=partial(_accepts, stride=1), reference=reference, launch=conv_first,
    candidates=candidates, library=convolution, taps=9,
    tile_types=(conv_first_triton.Tile, conv_first_gluon.Tile, conv_first_gluon.RowsTile), pack=pack,
    out_axis=3, folds=FOLDS, reads=frozenset({"fp32"}), reads_image=True,
)  # fmt: skip
STRIDED_OP: KernelOp = replace(
    OP, name="conv_first_strided", accepts=partial(_accepts, stride=2), library=partial(convolution, stride=2),
    taps=9 / 4, growth=0.5,
)  # fmt: skip
VOLUME_OP: KernelOp = replace(
    OP, name="conv_first_volumes", accepts=None, reference=volume_reference, launch=conv_first_volumes,
    candidates=lambda x, weight, epilogue, outputs: candidates(
        x, weight, epilogue, stored_by_slice(outputs, x.shape[2])
    ),
    library=volume_convolution, taps=27,
    pack=lambda weight: pack(weight.transpose(1, 2).flatten(1, 2)),
)  # fmt: skip

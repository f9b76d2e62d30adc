"""1×1 convolution: a matrix product over the pixels of an NHWC tensor, with the common epilogue.

The idea: the pixels of all images lie in one line, so tiles know nothing of rows and columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, required, store_reference
from pipeline.kernels.common.kernel_op import KernelOp, flops_of
from pipeline.kernels.common.library import same_size_convolution
from pipeline.kernels.common.nhwc import check, descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.triton_epilogue import finish, rounded

FOLDS = frozenset({"slopes", "residual"})


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `pixels` × `out` channels, `depth` input channels a step."""

    pixels: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """A convolution's weight [out, in, 1, 1] as [out, in]."""
    return weight.reshape(weight.shape[:2]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """What `conv1x1` computes, in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, in].
        weight: [out, in].
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out].
        outputs: out [N, H, W, out].
    """
    store_reference(epilogue.of(functional.linear(x.float(), weight.float())), epilogue, outputs)


@triton.jit
def _conv1x1(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, residual_boxes, residual_scale, channels, tiles_out, tiles,
    IN: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [pixels, IN], weight [channels, IN], out [pixels, channels]."""
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        p0 = tile // tiles_out * PIXELS
        acc = tl.zeros((PIXELS, OUT), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([p0, step * DEPTH])
            taps = weight_boxes.load([o0, step * DEPTH])
            acc = tl.dot(box, taps.T, acc)
        channel = o0 + tl.arange(0, OUT)
        added = None
        if residual_boxes is not None:
            added = residual_boxes.load([p0, o0]).to(tl.float32) * residual_scale
        y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False, slopes, added)
        out_boxes.store([p0, o0], rounded(y, out_boxes.dtype))


def conv1x1(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """The product x · weightᵀ through the epilogue, written into `outputs.out`.

    Args:
        x: [N, H, W, in], fp16 or fp8; the pixels must follow each other at one step, as in a channel slice.
        weight: [out, in] of x's dtype, from `pack`.
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out] laid out as x; no other part.
        outputs: out [N, H, W, out], laid out as x.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[0]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (outer, inner))
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_epilogue(epilogue, outputs, (batch, height, width, outer), FOLDS)
    tile = tile or next(candidates(x, weight, epilogue))
    _launch(in_line("x", x), weight, epilogue, in_line("out", required(outputs.out)), tile)


def _launch(lines: Tensor, weight: Tensor, epilogue: Epilogue, out_lines: Tensor, tile: Tile) -> None:
    """Queue the product of lines [pixels, in] and weight [out, in] into out_lines [pixels, out]."""
    outer, inner = weight.shape
    tiles_out = -(-outer // tile.out)
    tiles = -(-len(lines) // tile.pixels) * tiles_out
    residual = epilogue.residual
    _conv1x1[min(tiles, multiprocessors(lines.device) * tile.programs),](
        descriptor(lines, [tile.pixels, tile.depth]),
        descriptor(weight, [tile.out, tile.depth]),
        descriptor(out_lines, [tile.pixels, tile.out]),
        epilogue.scale,
        epilogue.bias,
        epilogue.slopes,
        None if residual is None else descriptor(in_line("residual", residual), [tile.pixels, tile.out]),
        None if residual is None else epilogue.residual_scale,
        outer,
        tiles_out,
        tiles,
        IN=inner,
        PIXELS=tile.pixels,
        OUT=tile.out,
        DEPTH=tile.depth,
        ACTIVATION=epilogue.activation.expression,
        SLOPE=epilogue.activation.slope,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def in_line(name: str, tensor: Tensor) -> Tensor:
    """The tensor [N, H, W, C] as [N · H · W, C], without a copy.

    Raises:
        ValueError: its pixels don't follow each other at one step.
    """
    try:
        return tensor.view(-1, tensor.shape[3])
    except RuntimeError as error:
        steps = list(tensor.stride())
        raise ValueError(f"{name}'s pixels must follow each other at one step, got strides {steps}") from error


def candidates(x: Tensor, weight: Tensor, _: Epilogue) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and weight [out, in], the likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(256, max(16, next_power_of_two(len(weight))))
    yield Tile(128, out, depth)
    yield Tile(128, min(out, 128), depth, warps=4, programs=2)
    yield Tile(64, min(out, 64), depth, warps=4, stages=4, programs=2)


OP: KernelOp[Tile] = KernelOp(
    name="conv1x1",
    accepts=lambda layer: layer.kind == "conv2d" and layer.is_square(1, 1, 0) and layer.suits_bulk_copies,
    reference=reference,
    launch=conv1x1,
    candidates=candidates,
    library=same_size_convolution,
    flops=flops_of(1),
    tile_types=(Tile,),
    pack=pack,
    weight_shape=lambda inner, outer: (outer, inner, 1, 1),
    folds=FOLDS,
)

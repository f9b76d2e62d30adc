"""1×1 convolution: a matrix product over the pixels of an NHWC tensor, with the common epilogue.

The idea: the pixels of all images lie in one line, so tiles know nothing of rows and columns. Where each image has a
factor for each input channel, as squeeze-and-excitation asks for it (`GATED_OP`), the pixels of an image are a line,
and a tile is multiplied by its image's factors on its way to the product: the scaled map is never stored. It is that
product's second operand, which isn't fed from registers, for `conv3x3_triton`'s reasons.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.capability import fewest_rows
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, required, store_reference
from pipeline.kernels.common.kernel_op import (
    Ends,
    KernelOp,
    LayerDescription,
    LibraryParameters,
    SecondSource,
    flops_of,
)
from pipeline.kernels.common.library import same_size_convolution
from pipeline.kernels.common.nhwc import check, check_pixels, descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded

FOLDS = frozenset({"slopes", "residual"})


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` × `out` channels, `depth` input channels a step."""

    pixels: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, 1, 1] as [out, in]."""
    return weight.reshape(weight.shape[:2]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv1x1` in plain PyTorch and fp32, on any device.

    Args:
        x: [N, H, W, in].
        weight: [out, in].
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out].
        outputs: out [N, H, W, out].
    """
    store_reference(epilogue.of(functional.linear(x.float(), weight.float())), epilogue, outputs)


@triton.jit
def _conv1x1(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, gate, residual_boxes, residual_scale,
    channels, tiles_out, tiles_image, tiles,
    IN: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [lines, pixels, IN], weight [channels, IN] and gate [lines, IN]; write out [lines, pixels, channels]."""
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        p0 = tile // tiles_out % tiles_image * PIXELS
        line = tile // tiles_out // tiles_image
        acc = tl.zeros((PIXELS, OUT) if gate is None else (OUT, PIXELS), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([line, p0, step * DEPTH]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([o0, step * DEPTH])
            if gate is None:
                acc = tl.dot(box, taps.T, acc)
            else:
                entry = step * DEPTH + tl.arange(0, DEPTH)
                factor = tl.load(gate + line * IN + entry, mask=entry < IN, other=0.0)
                box = (box.to(tl.float32) * factor.to(tl.float32)[None, :]).to(taps.dtype)
                acc = tl.dot(taps, box.T, acc)
        if gate is not None:
            acc = acc.T
        channel = o0 + tl.arange(0, OUT)
        added = None
        if residual_boxes is not None:
            added = residual_boxes.load([line, p0, o0]).reshape(PIXELS, OUT).to(tl.float32) * residual_scale
        y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False, slopes, added)
        out_boxes.store([line, p0, o0], rounded(y, out_boxes.dtype).reshape(1, PIXELS, OUT))


def conv1x1(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the product x · weightᵀ through the epilogue into `outputs.out`.

    Args:
        x: [N, H, W, in], fp16 or fp8; the pixels must follow each other at one step, as in a channel slice.
        weight: [out, in] of x's dtype, from `pack`.
        epilogue: scale, bias and slopes [out], a residual [N, H, W, out] laid out as x; no other part.
        outputs: out [N, H, W, out], laid out as x.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    check_operands(x, weight, epilogue, outputs)
    launch(x, weight, epilogue, outputs, tile or next(candidates(x, weight)))


def gated_conv1x1(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, second: SecondSource, tile: Tile | None = None
) -> None:
    """Write the product (x · gate) · weightᵀ through the epilogue into `outputs.out`.

    Args:
        x: [N, H, W, in], fp16, as of `conv1x1`.
        weight: [out, in] fp16, from `pack`.
        epilogue: as of `conv1x1`.
        outputs: as of `conv1x1`.
        second: its map is the gate: [N, 1, 1, in], fp16.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    check_operands(x, weight, epilogue, outputs)
    gate, (batch, _, _, inner) = second.map, x.shape
    if gate is None or tuple(gate.shape) != (batch, 1, 1, inner) or gate.dtype != x.dtype or x.dtype.itemsize < 2:
        found = "none" if gate is None else f"{list(gate.shape)} {gate.dtype}"
        raise ValueError(f"gate must be {[batch, 1, 1, inner]}, float16 as x, got {found}")
    factors = gate.reshape(batch, inner).contiguous()
    launch(x, weight, epilogue, outputs, tile or next(gated_candidates(x, weight)), batch, factors)


def gated_reference(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, second: SecondSource
) -> None:  # fmt: skip
    """Compute `gated_conv1x1` of x [N, H, W, in] and weight [out, in], in plain PyTorch, on any device.

    The product with the gate [N, 1, 1, in] is rounded to the weight's type, as a map that is stored is.
    """
    assert second.map is not None
    gated = (x.float() * second.map.float()).to(weight.dtype)
    reference(gated, weight, epilogue, outputs)


def check_operands(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, folds: Collection[str] = FOLDS
) -> None:
    """Check x [N, H, W, in], weight [out, in], an epilogue that may ask for `folds`, and its outputs.

    Raises:
        ValueError: one of them isn't as it must be; the text begins with its name.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[0]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (outer, inner))
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_epilogue(epilogue, outputs, (batch, height, width, outer), folds)


def launch(
    x: Tensor,
    weight: Tensor,
    epilogue: Epilogue,
    outputs: Outputs,
    tile: Tile,
    lines: int = 1,
    gate: Tensor | None = None,
) -> None:
    """Queue the product of checked operands, whose pixels are `lines` lines; a gate is [lines, in]."""
    outer, inner = weight.shape
    seen, made = in_lines("x", x, lines), in_lines("out", required(outputs.out), lines)
    residual = epilogue.residual
    tiles_out, tiles_image = -(-outer // tile.out), -(-seen.shape[1] // tile.pixels)
    tiles = lines * tiles_image * tiles_out
    box = [1, tile.pixels, tile.out]
    on_grid(_conv1x1, min(tiles, multiprocessors(x.device) * tile.programs))(
        descriptor(seen, [1, tile.pixels, tile.depth]),
        descriptor(weight, [tile.out, tile.depth]),
        descriptor(made, box),
        epilogue.scale,
        epilogue.bias,
        epilogue.slopes,
        gate,
        None if residual is None else descriptor(in_lines("residual", residual, lines), box),
        None if residual is None else epilogue.residual_scale,
        outer,
        tiles_out,
        tiles_image,
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


def in_lines(name: str, tensor: Tensor, lines: int) -> Tensor:
    """Return the tensor [N, H, W, C] as [lines, N · H · W / lines, C], without a copy.

    Raises:
        ValueError: its pixels don't follow each other at one step, or a line has more than 32 bits can number.
    """
    check_pixels(name, tensor.shape[:3].numel() // lines)
    try:
        return tensor.view(lines, -1, tensor.shape[3])
    except RuntimeError as error:
        steps = list(tensor.stride())
        raise ValueError(f"{name}'s pixels must follow each other at one step, got strides {steps}") from error


def candidates(x: Tensor, weight: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [out, in], likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(256, max(16, next_power_of_two(len(weight))))
    yield Tile(128, out, depth)
    yield Tile(128, min(out, 128), depth, warps=4, programs=2)
    yield Tile(64, min(out, 64), depth, warps=4, stages=4, programs=2)


def gated_candidates(x: Tensor, weight: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], weight [out, in] and a gate, likeliest first.

    With a gate the output channels are the rows of the product.
    """
    for tile in candidates(x, weight):
        yield replace(tile, out=max(tile.out, fewest_rows()))


def gated_by_library(x: Tensor, gate: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Run the library and the epilogue on x [N, in, H, W] times gate [N, in, 1, 1], as [N, out, H, W]."""
    return same_size_convolution(x * gate, parameters, ends)


def _accepts(layer: LayerDescription) -> bool:
    """Any but those of one pixel, as squeeze-and-excitation has them."""
    wide = layer.suits_bulk_copies and layer.in_size != (1, 1)
    return layer.kind == "conv2d" and layer.is_square(1, 1, 0) and wide


OP: KernelOp = KernelOp(
    name="conv1x1",
    accepts=_accepts,
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
GATED_OP: KernelOp = replace(
    OP,
    name="gated_conv1x1",
    accepts=None,
    reference=gated_reference,
    launch=gated_conv1x1,
    candidates=gated_candidates,
    reads=frozenset({"fp16"}),
    takes_second=True,
)

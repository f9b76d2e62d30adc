"""1×1 convolution: a matrix product over the pixels of an NHWC tensor, with the common epilogue.

The pixels of all images lie in one line. With a factor for each image and input channel, as squeeze-and-excitation
asks for it (`GATED_OP`), those of an image do, and a tile is multiplied on its way to the product. With a stride of 2
(`STRIDED_OP`) every second pixel of every second row is a view that TMA steps through, and each row is a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.capability import fewest_rows
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_convolution, check_epilogue, store_reference
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, SecondSource, convolution
from pipeline.kernels.common.nhwc import check_pixels, depth_of, descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded

FOLDS = frozenset({"slopes", "residual"})
# Without a residual: the 3×3 convolution beside it adds this one's answer, as it does where the library gives it.
STRIDED_FOLDS = frozenset({"slopes"})
LEAST_PIXELS = 16  # rows of a product


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` × `out` channels, `depth` input channels a step."""

    kernel: ClassVar[str] = "conv1x1"
    pixels: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, 1, 1] as [out, in]."""
    return weight.reshape(weight.shape[:2]).contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, *, stride: int = 1) -> None:
    """Compute `conv1x1` of x [N, H, W, in] and weight [out, in] in plain PyTorch and fp32, on any device."""
    sums = functional.linear(x[:, ::stride, ::stride].float(), weight.float())
    store_reference(epilogue.of(sums), epilogue, outputs)


@triton.jit
def _conv1x1(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, gate, residual_boxes, residual_scale, channels, tiles_out,
    tiles_image, tiles, IN: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
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


def conv1x1(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile, *, stride: int = 1,
    gate: Tensor | None = None,
) -> None:  # fmt: skip
    """Write x [N, H, W, in] · weightᵀ through the epilogue into `outputs.out`; pixels of each are at one step.

    With a stride of 2 every second pixel both ways is read. A gate is [N, in], a factor for each image and channel.
    """
    seen, inner, outer, out = x[:, ::stride, ::stride], x.shape[3], len(weight), outputs.required
    check_convolution(seen, weight, (outer, inner))
    check_epilogue(epilogue, outputs, (*seen.shape[:3], outer), FOLDS if stride == 1 else STRIDED_FOLDS)
    lines = seen.shape[0] * seen.shape[1] if stride > 1 else 1 if gate is None else len(x)
    seen, made = _in_lines("x", seen, lines), _in_lines("out", out, lines)
    residual = None if epilogue.residual is None else _in_lines("residual", epilogue.residual, lines)
    tiles_out, tiles_image = -(-outer // tile.out), -(-seen.shape[1] // tile.pixels)
    tiles = lines * tiles_image * tiles_out
    box = [1, tile.pixels, tile.out]
    on_grid(_conv1x1, min(tiles, multiprocessors(x.device) * tile.programs))(
        descriptor(seen, [1, tile.pixels, tile.depth]), descriptor(weight, [tile.out, tile.depth]),
        descriptor(made, box), epilogue.scale, epilogue.bias, epilogue.slopes, gate, descriptor(residual, box),
        epilogue.residual_unit, outer, tiles_out, tiles_image, tiles, IN=inner, PIXELS=tile.pixels, OUT=tile.out,
        DEPTH=tile.depth, **epilogue.constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def gated_conv1x1(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, second: SecondSource, tile: Tile
) -> None:
    """Write (x · gate) · weightᵀ, all of fp16; the gate [N, 1, 1, in] is `second`'s map, the rest as of `conv1x1`."""
    gate, (batch, _, _, inner) = second.map, x.shape
    if gate is None or tuple(gate.shape) != (batch, 1, 1, inner) or gate.dtype != x.dtype or x.dtype.itemsize < 2:
        found = "none" if gate is None else f"{list(gate.shape)} {gate.dtype}"
        raise ValueError(f"gate must be {[batch, 1, 1, inner]}, float16 as x, got {found}")
    conv1x1(x, weight, epilogue, outputs, tile, gate=gate.reshape(batch, inner).contiguous())


def gated_reference(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, second: SecondSource
) -> None:  # fmt: skip
    """Compute `gated_conv1x1` in plain PyTorch; the product with the gate is rounded, as a map that is stored is."""
    assert second.map is not None
    reference((x.float() * second.map.float()).to(weight.dtype), weight, epilogue, outputs)


def _in_lines(name: str, tensor: Tensor, lines: int) -> Tensor:
    """Return the tensor [N, H, W, C] as [lines, pixels of each, C], without a copy; raise ValueError if none can be."""
    check_pixels(name, tensor.shape[:3].numel() // lines)
    try:
        return tensor.view(lines, -1, tensor.shape[3])
    except RuntimeError as error:
        steps = list(tensor.stride())
        raise ValueError(f"{name}'s pixels must follow each other at one step, got strides {steps}") from error


def candidates(x: Tensor, weight: Tensor, *_: object, stride: int = 1, gated: bool = False) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [out, in], likeliest first.

    With a stride none is wider than a row; with a gate the output channels are the rows of the product.
    """
    depth, out = depth_of(x), min(256, max(16, next_power_of_two(len(weight))))
    row = 128 if stride == 1 else max(LEAST_PIXELS, next_power_of_two(-(-x.shape[2] // stride)))
    tiles = [
        Tile(min(row, 128), out, depth),
        Tile(min(row, 128), min(out, 128), depth, warps=4, programs=2),
        Tile(min(row, 128), min(out, 128), depth, warps=4, stages=4),
        Tile(min(row, 64), min(out, 128), depth, warps=4, stages=4, programs=2),
        Tile(min(row, 64), min(out, 64), depth, warps=4, stages=4, programs=2),
    ]
    for tile in tiles:
        few = replace(tile, warps=4) if tile.pixels < 64 else tile
        yield replace(few, out=max(tile.out, fewest_rows())) if gated else few


def _accepts(layer: LayerDescription, *, stride: int) -> bool:
    suits = layer.in_size != (1, 1) if stride == 1 else layer.in_size[0] % 2 == 0
    return layer.kind == "conv2d" and layer.is_square(1, stride, 0) and layer.suits_bulk_copies and suits


OP: KernelOp = KernelOp(
    name="conv1x1", accepts=partial(_accepts, stride=1), reference=reference, launch=conv1x1, candidates=candidates,
    library=convolution, taps=1, tile_types=(Tile,), pack=pack, out_axis=0, folds=FOLDS,
)  # fmt: skip
GATED_OP: KernelOp = replace(
    OP, name="gated_conv1x1", accepts=None, reference=gated_reference, launch=gated_conv1x1,
    candidates=partial(candidates, gated=True), reads=frozenset({"fp16"}), takes_second=True,
)  # fmt: skip
STRIDED_OP: KernelOp = replace(
    OP, name="conv1x1_strided", accepts=partial(_accepts, stride=2), reference=partial(reference, stride=2),
    launch=partial(conv1x1, stride=2), candidates=partial(candidates, stride=2),
    library=partial(convolution, stride=2), taps=0.25, folds=STRIDED_FOLDS, growth=0.5,
)  # fmt: skip

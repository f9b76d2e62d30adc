"""Triton kernels at both ends of the network: windows of decoded JPEG files into a batch, and logits into classes."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.predict.gpu_decode import Decoded

BLOCK = 1024  # pixels of a program
FIELDS = tl.constexpr(7)  # of `Decoded.windows`
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


def put_windows(decoded: Decoded, first: int, table: Tensor | None, out: Tensor, *, reverses: bool = False) -> None:
    """Write windows of decoded files into a batch; beyond an image it is continued in its mirror image."""
    height, width = out.shape[2:] if table is not None else out.shape[1:3]
    windows_kernel[(triton.cdiv(height * width, BLOCK), len(out))](
        decoded.memory, decoded.windows, out if table is None else table, out, first, height, width,
        ACROSS=decoded.per_chroma[0], ALONG=decoded.per_chroma[1], AS_BYTES=table is None,
        REVERSES=reverses, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def mirrored(at, length):
    """Return the places of pixels in an image whose continuation is its mirror image, edge pixels twice."""
    within = at % (2 * length)
    return tl.where(within < length, within, 2 * length - 1 - within)


@triton.jit
def interpolated(plane, row, column, height, width, ACROSS: tl.constexpr, ALONG: tl.constexpr):
    """Return chroma at pixels of luma: libjpeg's triangle filter, 3/4 of the nearer sample and 1/4 of the farther one.

    libjpeg 6b (1998), jdsample.c, h2v1_fancy_upsample and h2v2_fancy_upsample: roundings alternate from column to
    column. Samples beyond the plane are those at its edge.
    """
    chroma_width = (width + ACROSS - 1) // ACROSS
    if ACROSS == 1:
        return tl.load(plane + row * chroma_width + column).to(tl.int32)
    odd = column % 2
    near = column // 2
    far = tl.minimum(tl.maximum(near + 2 * odd - 1, 0), chroma_width - 1)
    if ALONG == 1:
        base = plane + row * chroma_width
        return (3 * tl.load(base + near).to(tl.int32) + tl.load(base + far).to(tl.int32) + 1 + odd) >> 2
    chroma_height = (height + 1) // 2
    close = row // 2
    other = tl.minimum(tl.maximum(close + 2 * (row % 2) - 1, 0), chroma_height - 1)
    first, second = plane + close * chroma_width, plane + other * chroma_width
    nearer = 3 * tl.load(first + near).to(tl.int32) + tl.load(second + near).to(tl.int32)
    farther = 3 * tl.load(first + far).to(tl.int32) + tl.load(second + far).to(tl.int32)
    return (3 * nearer + farther + 8 - odd) >> 4


@triton.jit(do_not_specialize=["first"])
def windows_kernel(
    planes, windows, table, out, first, out_height, out_width,
    ACROSS: tl.constexpr, ALONG: tl.constexpr, AS_BYTES: tl.constexpr, REVERSES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write pixels of windows in red, green and blue: ITU-T T.871 (2011), in libjpeg's 16 bits behind the point."""
    sample = tl.program_id(1)
    window = windows + (first + sample) * FIELDS
    luma, blue, red = planes + tl.load(window), planes + tl.load(window + 1), planes + tl.load(window + 2)
    height, width = tl.load(window + 3).to(tl.int32), tl.load(window + 4).to(tl.int32)
    top, left = tl.load(window + 5).to(tl.int32), tl.load(window + 6).to(tl.int32)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < out_height * out_width
    row = mirrored(tl.where(inside, at // out_width + top, 0), height)
    column = mirrored(at % out_width + left, width)
    y = tl.load(luma + row * width + column).to(tl.int32)
    cb = interpolated(blue, row, column, height, width, ACROSS, ALONG) - 128
    cr = interpolated(red, row, column, height, width, ACROSS, ALONG) - 128
    r = y + ((91881 * cr + 32768) >> 16)
    g = y + ((-22554 * cb - 46802 * cr + 32768) >> 16)
    b = y + ((116130 * cb + 32768) >> 16)
    size = out_height * out_width
    out += sample.to(tl.int64) * 3 * size
    for channel in tl.static_range(3):
        value = r if channel == 0 else (g if channel == 1 else b)
        value = tl.minimum(tl.maximum(value, 0), 255)
        if AS_BYTES:
            tl.store(out + at * 3 + channel, value.to(tl.uint8), mask=inside)
        else:
            place = 2 - channel if REVERSES else channel
            tl.store(out + place * size + at, tl.load(table + place * 256 + value), mask=inside)


def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes of logits as `class_tensor` does, and of each sample and block 1 if all logits are numbers."""
    batch, number, *sides = logits.shape
    pixels = math.prod(sides)
    by_pixel = not logits.is_contiguous() and logits.movedim(1, -1).is_contiguous()
    logits = logits if by_pixel else logits.contiguous()
    classes = torch.empty((batch, *sides), dtype=torch.uint8, device=logits.device)
    finite = torch.empty((batch, triton.cdiv(pixels, BLOCK)), dtype=torch.uint8, device=logits.device)
    steps = (1, number) if by_pixel else (pixels, 1)
    choose_kernel[(finite.shape[1], batch)](
        logits, classes, finite, number, pixels, *steps, CUT=number == 1, BLOCK=BLOCK
    )
    return classes, finite


@triton.jit
def choose_kernel(logits, classes, finite, number, pixels, step, pixel_step, CUT: tl.constexpr, BLOCK: tl.constexpr):
    """Choose the first of the largest logits of each pixel; a single one is cut at 0."""
    sample = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < pixels
    place = logits + sample * number * pixels + at.to(tl.int64) * pixel_step
    best = tl.load(place, mask=inside, other=0).to(tl.float32)
    sound = tl.abs(best) <= LARGEST
    chosen = (best > 0).to(tl.int32) if CUT else tl.zeros((BLOCK,), tl.int32)
    for index in range(1, number):
        place += step
        value = tl.load(place, mask=inside, other=0).to(tl.float32)
        chosen = tl.where(value > best, index, chosen)
        best = tl.maximum(best, value)
        sound = sound & (tl.abs(value) <= LARGEST)
    tl.store(classes + sample * pixels + at, chosen, mask=inside)
    tl.store(finite + sample * tl.num_programs(0) + tl.program_id(0), tl.min(sound.to(tl.int32)).to(tl.uint8))

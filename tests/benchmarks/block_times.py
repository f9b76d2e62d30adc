"""EfficientNet's blocks and nnU-Net's norms, part by part, by the project's kernels and by Inductor.

Batch 8 of 512×512.

python -m tests.benchmarks.block_times --out blocks.json
python -m tests.benchmarks.block_times --parts norms --out norms.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler import custom_ops  # noqa: F401 - registers the operations
from pipeline.kernels import conv1x1, conv3x3, depthwise, norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.common.nhwc import FP8_MAX
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_normed
from pipeline.kernels.conv3x3.conv3x3_operands import Operands as Operands3x3
from pipeline.kernels.excitation import Excitation, excitation
from pipeline.kernels.merged_statistics import Norm
from pipeline.kernels.norm_pass import NormPass
from pipeline.measure.timers import graph_replay_ms

BANDWIDTH = 4.24e12  # bytes a second of a copy on an H200
SILU = Activation("silu")
Clock = Callable[[Callable[[], object]], float]
Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Block:
    """From the depthwise layer's input on: `size` is its height and width, `inner` the width of the narrow layer."""

    channels: int
    side: int
    stride: int
    size: int
    inner: int
    outer: int
    batch: int = 8


BLOCKS = [
    Block(32, 3, 1, 256, 8, 16),
    Block(96, 3, 2, 256, 4, 24),
    Block(144, 3, 1, 128, 6, 24),
    Block(144, 5, 2, 128, 6, 40),
    Block(240, 5, 1, 64, 10, 40),
    Block(240, 3, 2, 64, 10, 80),
    Block(480, 3, 1, 32, 20, 80),
    Block(480, 5, 1, 32, 20, 112),
    Block(672, 5, 1, 32, 28, 112),
    Block(672, 5, 2, 32, 28, 192),
    Block(1152, 5, 1, 16, 48, 192),
    Block(1152, 3, 1, 16, 48, 320),
]


@dataclass(frozen=True)
class Operands:
    """A block with values: x and y are the depthwise layer's input and output [N, H, W, channels]."""

    block: Block
    x: Tensor
    y: Tensor
    taps: Tensor
    mixed: Tensor
    layers: Excitation
    statistics: Tensor
    gate: Tensor


def operands(block: Block, device: torch.device) -> Operands:
    """Random values for a block."""
    torch.manual_seed(0)
    size, channels = block.size // block.stride, block.channels

    def half(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).half()

    biases = [torch.randn(length, device=device) for length in (block.inner, channels)]
    layers = Excitation(
        half(block.inner, channels) / channels, biases[0], half(block.inner, channels), biases[1], SILU, "sigmoid"
    )
    counted = torch.randn(block.batch, blocks_of(size, size), 2, channels, device=device)
    return Operands(
        block,
        half(block.batch, block.size, block.size, channels),
        half(block.batch, size, size, channels),
        half(channels, 1, block.side, block.side),
        half(block.outer, channels) / channels**0.5,
        layers,
        counted,
        half(block.batch, 1, 1, channels).sigmoid(),
    )


class Part(NamedTuple):
    """A part of a block: the bytes that it must move, the project's ways by their tiles, torch's way and its input."""

    name: str
    moved: float
    tiles: Mapping[str, Callable[[], object]]
    by_torch: Callable[..., Tensor]
    given: tuple[Tensor, ...]


def depthwise_part(given: Operands) -> Part:
    """The depthwise layer, its activation and, by the project's kernel, the sums."""
    block, bias = given.block, given.layers.expand_bias
    ends = Epilogue(bias=bias, activation=SILU, statistics=True)
    made, packed = Outputs(given.y.clone(), statistics=given.statistics.clone()), depthwise.pack(given.taps)

    def by_torch(x: Tensor) -> Tensor:
        geometry = (block.stride, block.side // 2, 1, block.channels)
        return functional.silu(functional.conv2d(x, given.taps, bias.half(), *geometry))

    tiles = {
        str(tile): partial(depthwise.depthwise, given.x, packed, ends, made, tile)
        for tile in depthwise.candidates(given.x, packed, ends)
    }
    return Part("depthwise", 2.0 * (given.x.numel() + given.y.numel()), tiles, by_torch, (nchw(given.x),))


def excitation_part(given: Operands) -> Part:
    """From the sums to the factors; torch takes the mean of the map itself."""
    layers, size = given.layers, (given.y.shape[1], given.y.shape[2])

    def by_torch(y: Tensor) -> Tensor:
        hidden = functional.silu(functional.linear(y.mean((2, 3)), layers.reduce, layers.reduce_bias.half()))
        return functional.linear(hidden, layers.expand.T, layers.expand_bias.half()).sigmoid()

    ours = {"": partial(excitation, given.statistics, size, 1, layers)}
    return Part("excitation", 4.0 * given.statistics.numel(), ours, by_torch, (nchw(given.y),))


def gated_part(given: Operands) -> Part:
    """The 1×1 convolution of the map times the factors."""
    outer, shape = given.block.outer, given.y.shape[:3]
    out, second = Outputs(given.y.new_empty(*shape, outer)), SecondSource(given.gate)
    ends = Epilogue(bias=torch.zeros(outer, device=given.x.device))

    def by_torch(y: Tensor, gate: Tensor) -> Tensor:
        return functional.conv2d(y * gate, given.mixed[..., None, None])

    tiles = {
        str(tile): partial(conv1x1.gated_conv1x1, given.y, given.mixed, ends, out, second, tile)
        for tile in conv1x1.candidates(given.y, given.mixed, ends)
    }
    moved = 2.0 * (given.y.numel() + shape.numel() * outer)
    return Part("gated 1×1", moved, tiles, by_torch, (nchw(given.y), nchw(given.gate)))


NORMS = [(32, 512), (64, 256), (128, 128), (256, 64), (512, 32), (512, 16), (512, 8)]  # channels, height and width


def norm_parts(channels: int, size: int, device: torch.device) -> Iterator[Part]:
    """A norm's pass, merging included, into fp16 and fp8; for 32 channels also the 3×3 layer after it."""
    torch.manual_seed(0)
    y = torch.randn(8, size, size, channels, device=device)
    x, counted, vector = y.half(), statistics_of(y), torch.rand(channels, device=device)
    how = NormPass(Norm(vector, vector, 1e-5), Activation("leaky_relu", 0.01))
    for dtype, scale in ((torch.float16, 1.0), (torch.float8_e4m3fn, 0.02)):
        out, rounding = torch.empty_like(x, dtype=dtype), replace(how, scale=scale)
        tiles = {
            str(tile): partial(norm_pass.norm_pass, x, counted, rounding, out, tile)
            for tile in norm_pass.candidates(counted)
        }
        by_torch = partial(normed_by_torch, size=size, dtype=dtype, scale=scale)
        moved = x.numel() * (2.0 + dtype.itemsize) + 4.0 * counted.numel()
        yield Part(f"norm {channels} @ {size} to {dtype}", moved, tiles, by_torch, (x, counted, vector))
    if channels <= conv3x3_narrow.MOST_OUT:
        yield norm_and_layer(x, counted, how)


def normed_by_torch(
    x: Tensor, counted: Tensor, vector: Tensor, *, size: int, dtype: torch.dtype, scale: float
) -> Tensor:
    """What Inductor makes a pass of, after the kernel that merges: a map [N, H, W, C]."""
    factor, shift = torch.ops.unet_ladder.norm_factors(counted, vector, vector, 1e-5, [size, size], 1)
    y = functional.leaky_relu((x.float() * factor[:, None, None] + shift[:, None, None]).half())
    return y if scale == 1.0 else (y.float() * (1.0 / scale)).clamp(-FP8_MAX, FP8_MAX).to(dtype)


def norm_and_layer(x: Tensor, counted: Tensor, how: NormPass) -> Part:
    """A norm and the 3×3 layer that reads it, with and without a pass between; by torch the layer's is cuDNN's."""
    size, channels = x.shape[1], x.shape[3]
    weight, bias = (
        torch.randn(9, channels, channels, device=x.device).half() * 0.05,
        torch.zeros(channels, device=x.device),
    )
    outputs = Outputs(torch.empty_like(x), statistics=torch.empty_like(counted))
    operands, between = Operands3x3(x, weight, Epilogue(bias=bias, statistics=True), outputs), torch.empty_like(x)
    taps = weight.reshape(3, 3, channels, channels).permute(2, 3, 0, 1).contiguous()

    def in_a_pass(tile: conv3x3_narrow.Tile) -> None:
        norm_pass.norm_pass(x, counted, how, between)
        conv3x3.conv3x3(between, *operands[1:], tile)

    def by_torch(x: Tensor, counted: Tensor, vector: Tensor) -> Tensor:
        y = normed_by_torch(x, counted, vector, size=size, dtype=x.dtype, scale=1.0)
        return functional.conv2d(nchw(y), taps, padding=1)

    tiles: dict[str, Callable[[], object]] = {}
    for tile in conv3x3_narrow.candidates(x, channels):
        tiles[f"in a pass, {tile}"] = partial(in_a_pass, tile)
        tiles[f"when read, {tile}"] = partial(conv3x3_normed.normed_conv3x3, operands, counted, how, tile)
    vector = how.norm.weight
    assert vector is not None
    return Part(f"norm and 3×3 of {channels} @ {size}", 4.0 * x.numel(), tiles, by_torch, (x, counted, vector))


def nchw(value: Tensor) -> Tensor:
    """A value [N, H, W, channels] as torch sees it."""
    return value.permute(0, 3, 1, 2)


def block_parts(block: Block, device: torch.device) -> Iterator[Part]:
    """The parts of a block."""
    given = operands(block, device)
    named = f"{block.channels} @ {block.size}, {block.side}×{block.side}, stride {block.stride}"
    for part in (depthwise_part(given), excitation_part(given), gated_part(given)):
        yield part._replace(name=f"{part.name} {named}")


def measured(parts: Iterator[Part], clock: Clock, compiled: Callable[..., Any]) -> Rows:
    """A row for each part, in milliseconds."""
    for part in parts:
        times = {tile: clock(call) for tile, call in part.tiles.items()}
        tile = min(times, key=times.__getitem__)
        yield {
            "part": part.name,
            "ms": times[tile],
            "tile": tile,
            "inductor_ms": clock(partial(compiled(part.by_torch), *part.given)),
            "bytes_ms": part.moved / BANDWIDTH * 1e3,
            "tried_ms": times,
        }


def main() -> None:
    """A line for each part, and all of it as JSON."""
    parser = argparse.ArgumentParser(description="Times the parts of EfficientNet's blocks, or nnU-Net's norms.")
    parser.add_argument("--parts", choices=["blocks", "norms"], default="blocks")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows, device = [], torch.device("cuda")
    of_norms = (norm_parts(*shape, device) for shape in NORMS)
    of_blocks = (block_parts(block, device) for block in BLOCKS)
    with torch.inference_mode():
        for parts in of_norms if asked.parts == "norms" else of_blocks:
            torch._dynamo.reset()
            for row in measured(parts, graph_replay_ms, torch.compile):
                rows.append(row)
                shown = ", ".join(f"{key} {row[key]:.4f}" for key in ("bytes_ms", "ms", "inductor_ms"))
                sys.stdout.write(f"{row['part']}: {shown}, {row['tile']}\n")
                asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

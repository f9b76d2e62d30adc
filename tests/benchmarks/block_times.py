"""The parts of EfficientNet-b0's blocks, each by the project's kernel and by Inductor, batch 8 of 512×512, in fp16.

python -m tests.benchmarks.block_times --out blocks.json
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv1x1, depthwise
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.excitation import Excitation, excitation
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


def nchw(value: Tensor) -> Tensor:
    """A value [N, H, W, channels] as torch sees it."""
    return value.permute(0, 3, 1, 2)


def measured(block: Block, device: torch.device, clock: Clock, compiled: Callable[..., Any]) -> Rows:
    """A row for each part of a block, in milliseconds."""
    given = operands(block, device)
    for part in (depthwise_part(given), excitation_part(given), gated_part(given)):
        times = {tile: clock(call) for tile, call in part.tiles.items()}
        tile = min(times, key=times.__getitem__)
        yield {
            "part": f"{part.name} {block.channels} @ {block.size}, {block.side}×{block.side}, stride {block.stride}",
            "ms": times[tile],
            "tile": tile,
            "inductor_ms": clock(partial(compiled(part.by_torch), *part.given)),
            "bytes_ms": part.moved / BANDWIDTH * 1e3,
            "tried_ms": times,
        }


def main() -> None:
    """A line for each part, and all of it as JSON."""
    parser = argparse.ArgumentParser(description="Times the parts of EfficientNet's blocks.")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    rows = []
    with torch.inference_mode():
        for block in BLOCKS:
            torch._dynamo.reset()
            for row in measured(block, torch.device("cuda"), graph_replay_ms, torch.compile):
                rows.append(row)
                shown = ", ".join(f"{key} {row[key]:.4f}" for key in ("bytes_ms", "ms", "inductor_ms"))
                sys.stdout.write(f"{row['part']}: {shown}, {row['tile']}\n")
                asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

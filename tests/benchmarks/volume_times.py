"""Times the 3×3×3 convolutions of volumes alone, every tile, beside the library's: microseconds of a call on this GPU.

    python -m tests.benchmarks.volume_times --out volumes.json

The layers are those of nnU-Net's net for volumes, batch 2, 128×128×128; each stores fp16 and the sums of its norm. The
library's convolution makes no sums. The strided ones read a part of a wider buffer, as behind a skip; the library reads
a copy without gaps, whose time is extra.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import triton
from torch import Tensor

from pipeline.compiler.autotune import build_side_by_side
from pipeline.kernels import conv3x3, conv3x3x3, conv_first_volumes
from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from pipeline.kernels.conv3x3.conv3x3_operands import STACKED
from pipeline.kernels.polyphase import candidates, polyphase, polyphase_layers
from pipeline.measure.timers import graph_replay_ms
from pipeline.records.atomic_json import write_json

HALF, FP8, BATCH = torch.float16, torch.float8_e4m3fn, 2
# Channels in, channels out, and voxels along each side.
LAYERS = (
    (32, 32, 128), (64, 32, 128), (64, 64, 64), (128, 64, 64), (128, 128, 32), (256, 128, 32), (256, 256, 16),
    (512, 256, 16), (320, 320, 8),
)  # fmt: skip
HALVING = ((32, 64, 128), (64, 128, 64), (128, 256, 32), (256, 320, 16))
FIRST = (1, 32, 128)
Ways = Iterator[tuple[str, Callable[[], object]]]


def ends(outer: int, slices: int, side: int, dtype: torch.dtype) -> tuple[Epilogue, Outputs]:
    """Of a layer whose input has so many slices: an answer of `side` voxels along each side, and its sums."""
    out = torch.empty(BATCH, side * side, side, outer, device="cuda", dtype=HALF)
    counted = torch.empty(BATCH, blocks_of(side * side, side), 2, outer, device="cuda")
    scale = torch.ones(outer, device="cuda") if dtype == FP8 else None
    bias = torch.randn(outer, device="cuda")
    return Epilogue(scale=scale, bias=bias, statistics=True, slices=slices), Outputs(out, statistics=counted)


def random_weight(inner: int, outer: int) -> Tensor:
    """A weight [out, in, 3, 3, 3]."""
    return 0.05 * torch.randn(outer, inner, 3, 3, 3, device="cuda")


def for_library(weight: Tensor, bias: Tensor | None) -> LibraryParameters:
    """A weight [out, in, 3, 3, 3] and a bias [out] as the library reads them in fp16."""
    assert bias is not None
    return LibraryParameters(weight.half().contiguous(memory_format=torch.channels_last_3d), bias.half())


def same_size(inner: int, outer: int, side: int, dtype: torch.dtype) -> Ways:
    """Each way to run a layer, by its name: one slice or two at a time, every tile; of fp16 the library's, too."""
    x = torch.randn(BATCH, side * side, side, inner, device="cuda", dtype=HALF).relu().to(dtype)
    weight = random_weight(inner, outer)
    packed = conv3x3x3.pack(weight).half()
    epilogue, outputs = ends(outer, side, side, dtype)
    ways = {"one slice": packed} | ({"two slices": conv3x3x3.stacked(packed)} if outer <= STACKED else {})
    for way, held in ways.items():
        taps = held.to(dtype)
        for tile in conv3x3.candidates(x, taps, epilogue, outputs):
            yield f"{way}, {tile}", partial(conv3x3.conv3x3, x, taps, epilogue, outputs, tile)
    if dtype == HALF:
        library = for_library(weight, epilogue.bias)
        yield "library", partial(conv3x3x3.by_library, x.permute(0, 3, 1, 2), library, Ends(NONE, slices=side))


def halving(inner: int, outer: int, side: int, dtype: torch.dtype) -> Ways:
    """Each way to run a layer of stride 2, by its name: every tile; of fp16 the library's, and the copy before it."""
    x = torch.randn(BATCH, side * side, side, 2 * inner, device="cuda", dtype=HALF).relu().to(dtype)[..., inner:]
    weight = random_weight(inner, outer)
    epilogue, outputs = ends(outer, side, side // 2, dtype)
    operands = polyphase_layers.operands(x, conv3x3x3.pack(weight).to(dtype), epilogue, outputs)
    for tile in candidates(operands):
        yield str(tile), partial(polyphase, operands, tile)
    if dtype == HALF:
        image, library = x.permute(0, 3, 1, 2), for_library(weight, epilogue.bias)
        dense = partial(image.contiguous, memory_format=torch.channels_last)
        run = polyphase_layers.STRIDED_VOLUMES.library
        yield "library", partial(run, dense(), library, Ends(NONE, slices=side))
        yield "copy for the library", dense


def first(inner: int, outer: int, side: int, dtype: torch.dtype) -> Ways:
    """Each way to run a net's first layer, by its name: every tile, and the library's of volumes in fp16."""
    volumes, weight = torch.randn(BATCH, inner, side, side, side, device="cuda"), random_weight(inner, outer)
    epilogue, outputs = ends(outer, side, side, dtype)
    packed = conv_first_volumes.pack(weight)
    for tile in conv_first_volumes.candidates(volumes, packed, epilogue, outputs):
        run = conv_first_volumes.conv_first_volumes
        yield str(tile), partial(run, volumes, packed, epilogue, outputs, tile)
    library = for_library(weight, epilogue.bias)
    yield "library", partial(conv_first_volumes.by_library, volumes.half(), library, Ends(NONE, slices=side))


def measured(call: Callable[[], object]) -> float | None:
    """Microseconds of a call; None where it can't run."""
    try:
        return 1e3 * graph_replay_ms(call)
    except (RuntimeError, ValueError, triton.TritonError):
        return None


def timed(name: str, made: Ways, operations: float) -> dict[str, float | None]:
    """Microseconds of each way to run a layer of so many operations, the best of them on a line."""
    ways = dict(made)
    ours = [way for way in ways if "library" not in way]
    build_side_by_side([ways[way] for way in ours])
    times = {way: measured(call) for way, call in ways.items()}
    ran = {way: took for way in ours if (took := times[way]) is not None}
    best = min(ran, key=ran.__getitem__, default=None)
    said = "none ran" if best is None else f"{ran[best]:.1f} us, {operations / ran[best] / 1e6:.0f} TFLOP/s, {best}"
    library = {way: took for way, took in times.items() if way not in ours}
    sys.stdout.write(f"{name}: {said}; {library}\n")
    return times


def main() -> None:
    """A line for each layer and type, and all of it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    found: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    layers = [(same_size, layer, dtype) for layer in LAYERS for dtype in (HALF, FP8)]
    layers += [(halving, layer, dtype) for layer in HALVING for dtype in (HALF, FP8)]
    for made, (inner, outer, side), dtype in [*layers, (first, FIRST, HALF)]:
        name = f"{made.__name__}: {inner} to {outer} at {side}, {str(dtype).removeprefix('torch.')}"
        products = 27 * inner * outer * BATCH * (side // 2 if made is halving else side) ** 3
        found[name] = timed(name, made(inner, outer, side, dtype), 2.0 * products)
        write_json(found, asked.out)


if __name__ == "__main__":
    main()

"""Times the 3×3×3 convolution of volumes alone, every tile, beside the library's: microseconds of one call on this GPU.

    python -m tests.benchmarks.volume_times --out volumes.json

The layers are those of nnU-Net's net for volumes, batch 2, 128×128×128; each stores fp16 and the sums of its norm. The
library's convolution makes no sums.
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
from pipeline.kernels import conv3x3, conv3x3x3
from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from pipeline.kernels.conv3x3.conv3x3_operands import STACKED
from pipeline.measure.timers import graph_replay_ms
from pipeline.records.atomic_json import write_json

HALF, FP8, BATCH = torch.float16, torch.float8_e4m3fn, 2
# Channels in, channels out, and voxels along each side.
LAYERS = (
    (32, 32, 128), (64, 32, 128), (64, 64, 64), (128, 64, 64), (128, 128, 32), (256, 128, 32), (256, 256, 16),
    (512, 256, 16), (320, 320, 8),
)  # fmt: skip


def calls(inner: int, outer: int, side: int, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each way to run a layer, by its name: one slice or two at a time, every tile; of fp16 the library's, too."""
    x = torch.randn(BATCH, side * side, side, inner, device="cuda", dtype=HALF).relu().to(dtype)
    weight = 0.05 * torch.randn(outer, inner, 3, 3, 3, device="cuda")
    bias, packed = torch.randn(outer, device="cuda"), conv3x3x3.pack(weight).half()
    out = torch.empty(BATCH, side * side, side, outer, device="cuda", dtype=HALF)
    counted = torch.empty(BATCH, blocks_of(side * side, side), 2, outer, device="cuda")
    scale = torch.ones(outer, device="cuda") if dtype == FP8 else None
    epilogue = Epilogue(scale=scale, bias=bias, statistics=True, slices=side)
    outputs = Outputs(out, statistics=counted)
    ways = {"one slice": packed} | ({"two slices": conv3x3x3.stacked(packed)} if outer <= STACKED else {})
    for way, held in ways.items():
        taps = held.to(dtype)
        for tile in conv3x3.candidates(x, taps, epilogue):
            yield f"{way}, {tile}", partial(conv3x3.conv3x3, x, taps, epilogue, outputs, tile)
    if dtype == HALF:
        library = LibraryParameters(weight.half().contiguous(memory_format=torch.channels_last_3d), bias.half())
        ends = Ends(NONE, slices=side)
        yield "library", partial(run_library, x.permute(0, 3, 1, 2), library, ends)


def run_library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> None:
    """The library's convolution of x [N, in, D · H, W], its answer forgotten."""
    conv3x3x3.by_library(x, parameters, ends)


def measured(call: Callable[[], None]) -> float | None:
    """Microseconds of a call; None where it can't run."""
    try:
        return 1e3 * graph_replay_ms(call)
    except (RuntimeError, ValueError, triton.TritonError):
        return None


def main() -> None:
    """A line for each layer and type, and all of it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    found: dict[str, object] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for inner, outer, side in LAYERS:
        for dtype in (HALF, FP8):
            ways = dict(calls(inner, outer, side, dtype))
            build_side_by_side([call for name, call in ways.items() if name != "library"])
            times = {name: measured(call) for name, call in ways.items()}
            name = f"{inner} to {outer} at {side}, {str(dtype).removeprefix('torch.')}"
            found[name] = times
            ran = {way: took for way, took in times.items() if took is not None}
            best = min(ran, key=ran.__getitem__)
            rate = 2 * 27 * inner * outer * side**3 * BATCH / ran[best] / 1e6
            sys.stdout.write(f"{name}: {ran[best]:.1f} us, {rate:.0f} TFLOP/s, {best}; library {ran.get('library')}\n")
            write_json(found, asked.out)


if __name__ == "__main__":
    main()

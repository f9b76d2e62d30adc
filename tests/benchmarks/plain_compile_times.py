"""Times a plain torch.compile of the classic net with and without this project's kernels, at full load on this GPU.

    python -m tests.benchmarks.plain_compile_times [--batch 8] [--size 512]

Batch norms are folded first, in fp16 and channels_last. Each side is a replayed CUDA graph, interleaved: 0.3 s of each
that aren't timed, then 0.3 s of each that are.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
from pipeline.measure.timers import full_load_ms
from pipeline.stages.common.precision import folded

SECONDS, SAMPLES = 0.3, 12
SIDES = {"plain": False, "kernels": True}


def captured(net: nn.Module, batch: Tensor, kernels: bool) -> tuple[torch.cuda.CUDAGraph, Tensor, float]:
    """The compiled net as a graph, its answer [batch, classes, height, width] in fp32, and the build's seconds."""
    torch._dynamo.reset()
    kernels_in_torch_compile(kernels)
    began = time.monotonic()
    run: Callable[[Tensor], Tensor] = torch.compile(net)
    answer = run(batch).float()
    built = time.monotonic() - began
    for _ in range(3):
        run(batch)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run(batch)
    return graph, answer, built


def main() -> int:
    """Print a line for each side: build, error, median and extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=512)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    net = UNet().cuda().eval()
    images = torch.rand(asked.batch, 3, asked.size, asked.size, device="cuda")
    with torch.no_grad():
        exact = net(images)
        half: nn.Module = folded(net)[0].half()
        half.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        batch = images.half().to(memory_format=torch.channels_last)
        sides = {name: captured(half, batch, kernels) for name, kernels in SIDES.items()}
        graphs = [graph for graph, _, _ in sides.values()]
        rounds = [full_load_ms(graphs, SECONDS, rounds=1) for _ in range(SAMPLES)]
        times = dict(zip(sides, zip(*rounds, strict=True), strict=True))
    sys.stdout.write(f"{torch.cuda.get_device_name()}\n")
    for name, (_, answer, built) in sides.items():
        error = float((answer - exact).norm() / exact.norm())
        low, middle, high = min(times[name]), statistics.median(times[name]), max(times[name])
        line = f"{name:8} {middle:.3f} ms [{low:.3f}, {high:.3f}], relative L2 {error:.1e}, built in {built:.1f} s\n"
        sys.stdout.write(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times a plain torch.compile of a net with and without this project's kernels, at full load on this GPU.

    python -m tests.benchmarks.plain_compile_times [--net smp] [--batch 8] [--size 512] [--norms kept] [--leave conv1x1]

In fp16 and channels_last, batch norms folded first, unless they are to be kept. Each side is a replayed CUDA graph,
interleaved: 0.3 s of each that aren't timed, then 0.3 s of each that are. Then which of the kernels' operations a call
consists of, and what the pass says of the convolutions that it left.
"""

import argparse
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from pipeline.compiler import post_grad_pass
from pipeline.compiler.custom_ops import NAMESPACE
from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
from pipeline.measure.timers import full_load_ms
from pipeline.stages.common.folding import folded
from tests.benchmarks.net_times import with_real_statistics
from tests.benchmarks.nets import NETS

SECONDS, SAMPLES = 0.3, 12
SIDES = {"plain": False, "kernels": True}
SHORT = {"smp": "smp Unet, ResNet-34"}


class Side(NamedTuple):
    """A net compiled in one way.

    Attributes:
        graph: a call of it.
        answer: [batch, classes, height, width] in fp32.
        built: seconds of the first call.
        operations: how often it calls which of the kernels' operations.
    """

    graph: torch.cuda.CUDAGraph
    answer: Tensor
    built: float
    operations: Counter[str]


def captured(net: nn.Module, batch: Tensor, kernels: bool, leave: Collection[str]) -> Side:
    """The compiled net as a graph, with what it answers and calls."""
    torch._dynamo.reset()
    kernels_in_torch_compile(kernels, leave=leave)
    began = time.monotonic()
    run: Callable[[Tensor], Tensor] = torch.compile(net)
    answer = run(batch).float()
    torch.cuda.synchronize()
    built = time.monotonic() - began
    for _ in range(3):
        run(batch)
    operations = operations_of(run, batch)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run(batch)
    return Side(graph, answer, built, operations)


def operations_of(run: Callable[[Tensor], Tensor], batch: Tensor) -> Counter[str]:
    """How often a call uses which of the kernels' operations: observed, as a graph of torch's cache tells nothing."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run(batch)
    counts = {event.key: event.count for event in seen.key_averages()}
    prefix = f"{NAMESPACE}::"
    return Counter({name.removeprefix(prefix): n for name, n in counts.items() if name.startswith(prefix)})


def prepared(name: str, batch: int, side: int, *, fold: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """A net in fp16 on this GPU, a batch for it, and what it answers in fp32.

    Args:
        name: in `nets.NETS`, or short for one.
        batch: images.
        side: pixels.
        fold: whether batch norms become part of the convolutions before them.
    """
    case = NETS[SHORT.get(name, name)]
    net, images = case.make().cuda().eval(), torch.rand(batch, case.shape[1], side, side, device="cuda")
    with_real_statistics(net, images)
    exact = net(images)
    half: nn.Module = (folded(net, images)[0] if fold else net).half()
    half.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return half, images.half().to(memory_format=torch.channels_last), exact


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--net", default="classic", choices=[*SHORT, *NETS], metavar="NAME", help="of tests.benchmarks.nets"
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--norms", choices=["folded", "kept"], default="folded")
    parser.add_argument("--leave", nargs="*", default=[], metavar="KERNEL", help="kernels to leave out")
    return parser.parse_args()


def main() -> int:
    """Print a line for each side: build, error, median and extremes, and the kernels' operations."""
    asked = arguments()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    logging.getLogger(post_grad_pass.__name__).setLevel(logging.INFO)
    with torch.no_grad():
        half, batch, exact = prepared(asked.net, asked.batch, asked.size, fold=asked.norms == "folded")
        sides = {name: captured(half, batch, kernels, asked.leave) for name, kernels in SIDES.items()}
        graphs = [side.graph for side in sides.values()]
        rounds = [full_load_ms(graphs, SECONDS, rounds=1) for _ in range(SAMPLES)]
        times = dict(zip(sides, zip(*rounds, strict=True), strict=True))
    sys.stdout.write(f"{asked.net}, {list(batch.shape)}, norms {asked.norms}, {torch.cuda.get_device_name()}\n")
    for name, side in sides.items():
        error = float((side.answer - exact).norm() / exact.norm())
        low, middle, high = min(times[name]), statistics.median(times[name]), max(times[name])
        line = f"{name:8} {middle:.3f} ms [{low:.3f}, {high:.3f}], relative L2 {error:.1e}, built in {side.built:.1f} s"
        kinds = ", ".join(f"{count} {kind}" for kind, count in side.operations.most_common()) or "none of the kernels"
        sys.stdout.write(f"{line}; {kinds}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

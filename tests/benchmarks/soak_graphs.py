"""Replay CUDA graphs of several networks and stages while others are compiled, recorded, deleted and built again.

    python -m tests.benchmarks.soak_graphs [--seconds 560] [--nets classic "Stable Diffusion 1.5"]

Each network is built in fp16 by `compile`, the first also in fp8, and each is recorded by torch.compile. A round takes
one step of `STEPS`, then calls all in random order ten times without waiting, and compares the last answers with the
first ones. Exit code 1 if an answer differs or a call fails; after an error of CUDA no further round is possible.
"""

import argparse
import copy
import gc
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler import compile as compile_network
from pipeline.compiler.agreement import distance
from tests.benchmarks.hard_nets import NETS, Conditioned, with_real_statistics

CALLS = 10  # of each graph in a round, without a synchronisation
SAME = 1e-3  # relative L2 by which an answer may differ from the first; cuDNN may choose another algorithm
FP16, FP8, RECORDED = "fp16", "fp8", "torch.compile, reduce-overhead"
DEFAULT = ("classic", "smp Unet, ResNet-34", "Stable Diffusion 1.5")


def made(name: str) -> tuple[nn.Module, list[Tensor]]:
    """Return a network on the GPU and its inputs."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        net, inputs = NETS[name].make().requires_grad_(False).cuda(), NETS[name].inputs()
    with_real_statistics(net, *inputs)
    return net, inputs


@dataclass
class Graph:
    """A network as one stage runs it."""

    net: nn.Module
    inputs: list[Tensor]
    stage: str
    cache: Path
    run: Callable[..., Tensor] = field(init=False)
    first: Tensor = field(init=False)
    replays: int = 0
    largest: float = 0.0  # by which an answer was off

    def __post_init__(self) -> None:
        self.build()
        self.first = self.run().clone()

    def build(self) -> None:
        """Compile the network; of an earlier graph nothing is left."""
        self.run = lambda: torch.empty(0)
        gc.collect()
        if self.stage == RECORDED:
            half = [part.half() if part.dim() > 1 else part for part in self.inputs]
            self.run = partial(torch.compile(copy.deepcopy(self.net).half(), mode="reduce-overhead"), *half)
            self.run()
            return
        options: dict[str, Any] = {"precision": self.stage, "cache": self.cache}
        options |= {"calibration": [self.inputs], "budget": None, "error_budget": 10.0} if self.stage == FP8 else {}
        self.run = partial(
            compile_network(self.net, *self.inputs, search="never", reuse_output=True, **options), *self.inputs
        )


def record_anew(graphs: list[Graph]) -> None:
    """Compile and record a network again after a reset of Dynamo."""
    torch._dynamo.reset()
    chosen = random.choice([graph for graph in graphs if graph.stage == RECORDED])
    for _call in range(2):
        chosen.run()


def build_again(graphs: list[Graph]) -> None:
    """Delete an own graph and build it from the cache; the Stable Diffusion network takes too long."""
    small = [graph for graph in graphs if graph.stage != RECORDED and not isinstance(graph.net, Conditioned)]
    random.choice(small or graphs).build()


def compile_another(_: list[Graph]) -> None:
    """Compile a further network, record it, and let it go."""
    net = nn.Sequential(nn.Linear(1280, random.randrange(64, 5120, 64)), nn.SiLU()).half().cuda()
    recorded = torch.compile(net, mode="reduce-overhead")
    for _call in range(3):
        recorded(torch.randn(154, 1280, device="cuda", dtype=torch.half))


def empty_cache(_: list[Graph]) -> None:
    """Clear cuBLAS's workspaces, as a recording does, and give all free memory back."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


STEPS: list[Callable[[list[Graph]], None]] = [record_anew, build_again, compile_another, empty_cache]


def one_round(graphs: list[Graph]) -> int:
    """Call all graphs and return how many answers differ from the first."""
    order = graphs * CALLS
    random.shuffle(order)
    answers = {}
    for graph in order:
        answer = graph.run()
        answers[id(graph)] = answer.clone() if graph.stage == RECORDED else answer
        graph.replays += 1
    torch.cuda.synchronize()
    off = [distance(answers[id(graph)], graph.first) for graph in graphs]
    for graph, each in zip(graphs, off, strict=True):
        graph.largest = max(graph.largest, each)
    return sum(not each <= SAME for each in off)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=560, help="after which no further round begins")
    parser.add_argument("--nets", nargs="+", default=DEFAULT, choices=NETS, metavar="NET")
    asked = parser.parse_args()
    random.seed(0)
    began, cache = time.monotonic(), Path(tempfile.mkdtemp())
    rounds, failures = 0, 0
    graphs: dict[str, Graph] = {}
    step: Callable[[list[Graph]], None] = compile_another
    torch.set_grad_enabled(False)
    try:
        for name in asked.nets:
            net, inputs = made(name)
            for stage in (FP16, FP8, RECORDED) if name == asked.nets[0] else (FP16, RECORDED):
                graphs[f"{name}: {stage}"] = Graph(net, inputs, stage, cache)
                sys.stdout.write(f"{time.monotonic() - began:.0f} s: built {name}: {stage}\n")
                sys.stdout.flush()
        while time.monotonic() - began < asked.seconds:
            step = STEPS[rounds % len(STEPS)]
            step(list(graphs.values()))
            failures += one_round(list(graphs.values()))
            rounds += 1
    except Exception:  # noqa: BLE001 - an error of CUDA ends the process's use of the GPU
        traceback.print_exc()
        failures += 1
        sys.stdout.write(f"FAILED in round {rounds + 1}, at or after {step.__name__}\n")
    for name, graph in graphs.items():
        sys.stdout.write(f"{name}: {graph.replays} replays, largest difference {graph.largest:.1e}\n")
    sys.stdout.write(f"{rounds} rounds, {failures} failures\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

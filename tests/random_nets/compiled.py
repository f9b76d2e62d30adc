"""Compiles what kernels would be tried on random nets' layers for a Hopper GPU that isn't there.

    python -m tests.random_nets.compiled FIRST LAST [TILES]

Of each seed's net, in fp16 and with all in fp8 that may be, each layer's operands and TILES of its kernel's candidates,
2 unless said otherwise, drawn by the seed; what was compiled for another layer isn't again. Run it with another Triton
before this one on PYTHONPATH, and TRITON_CACHE_DIR elsewhere, to compile by that. A line for each program; exit code 1
where one doesn't compile.
"""

import random
import sys
import traceback

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import cache
from triton.runtime.jit import JITFunction

from pipeline.compiler.compile_processes import TargetAlone
from pipeline.compiler.custom_ops import KernelCall
from pipeline.kernels.common.kernel_op import KernelOp, Tile
from tests.kernels.compiled import compile_instead
from tests.random_nets.layer_walk import LayerWalk, graphs_of

HOPPER = 90


class Compiling:
    """Compiles what it meets, and nothing twice; `failed` counts what doesn't compile."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.failed = 0

    def __call__(self, op: KernelOp, call: KernelCall, tiles: list[Tile]) -> None:
        """Launch each tile, which only compiles it."""
        for tile in tiles:
            kind = distinct(call, tile)
            if kind in self.done:
                continue
            self.done.add(kind)
            try:
                op.launch(*call.operands, tile)
            except Exception:  # noqa: BLE001 - it is what is looked for
                self.failed += 1
                sys.stdout.write(f"FAILED {call.key(op)} {tile}\n{traceback.format_exc()[-1500:]}\n")
            sys.stdout.flush()


def distinct(call: KernelCall, tile: Tile) -> str:
    """What makes two programs the same, nearly: the tile, types, channels and the epilogue, whatever the map's size."""
    return f"{tile} {call.x.dtype} {call.x.shape[-1]} {call.weight.shape} {call.epilogue.key}"


def main() -> int:
    """Every net of the seeds asked for."""
    first, last, tiles = (*map(int, sys.argv[1:3]), int(sys.argv[3]) if len(sys.argv) > 3 else 2)
    torch.set_num_threads(1)
    JITFunction.__getitem__ = compile_instead
    cache.triton_key = lambda: "this one"  # the cache is this process's alone
    triton.runtime.driver.set_active(TargetAlone(GPUTarget("cuda", HOPPER, 32)))
    compiling = Compiling()
    for seed in range(first, last + 1):
        for graph, inputs in graphs_of(seed):
            LayerWalk(graph, compiling, random.Random(seed), tiles).run(*inputs)
    sys.stdout.write(f"Triton {triton.__version__}: {len(compiling.done)} programs, {compiling.failed} failed\n")
    return int(compiling.failed > 0)


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())

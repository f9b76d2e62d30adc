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
from typing import Any

import pytest
import torch
import triton
from torch import fx
from triton.backends.compiler import GPUTarget
from triton.runtime import cache
from triton.runtime.jit import JITFunction

from pipeline.compiler.compile_processes import TargetAlone
from pipeline.compiler.custom_ops import kernel_call
from pipeline.compiler.fp8_values import fp8_groups
from pipeline.compiler.lowering import Plan, lower
from pipeline.kernels.common.kernel_op import Tile
from pipeline.measure.batch import Batch
from tests import quick_exports
from tests.kernels.compiled import compile_instead
from tests.random_nets.draw import Draw
from tests.random_nets.net import random_net
from tests.random_nets.trial import rewritten

HOPPER = 90


class _Compiling(fx.Interpreter):
    """Runs a lowered graph but for its layers, of which it compiles some tiles."""

    def __init__(self, module: fx.GraphModule, drawn: random.Random, tiles: int, done: set[str]) -> None:
        super().__init__(module)
        self.drawn, self.tiles, self.done = drawn, tiles, done
        self.failed = 0

    def run_node(self, n: fx.Node) -> object:
        layer = n.meta.get("layer")
        if layer is None:
            return super().run_node(n)
        (x,), given = self.fetch_args_kwargs_from_env(n)
        call = kernel_call(layer.op, {"x": x, **given})
        options = list(call.tiles(layer.op))
        for tile in self.drawn.sample(options, min(self.tiles, len(options))):
            self._compile(layer.op.launch, call.operands, tile, f"{call.key(layer.op)} {tile}", distinct(call, tile))
        return None

    def _compile(self, launch: Any, operands: tuple[object, ...], tile: Tile, named: str, kind: str) -> None:
        if kind in self.done:
            return
        self.done.add(kind)
        try:
            launch(*operands, tile)
        except Exception:  # noqa: BLE001 - it is what is looked for
            self.failed += 1
            sys.stdout.write(f"FAILED {named}\n{traceback.format_exc()[-1500:]}\n")
        sys.stdout.flush()


def distinct(call: Any, tile: Tile) -> str:
    """What makes two programs the same, nearly: the tile, types, channels and the epilogue, whatever the map's size."""
    return f"{tile} {call.x.dtype} {call.x.shape[-1]} {call.weight.shape} {call.epilogue.key}"


def compile_net(seed: int, tiles: int, done: set[str]) -> int:
    """How many programs of a net's layers don't compile."""
    net, (inputs, _) = random_net(Draw(seed))
    exported = rewritten(net, inputs, torch.float16)
    values = {value.name: 1.0 for group in fp8_groups(exported, []) for value in group}
    failed = 0
    for scales in ({}, values if len(inputs.tensors) == 1 else {}):
        walk = _Compiling(lower(exported, Plan(scales)), random.Random(seed), tiles, done)
        walk.run(*Batch(inputs.tensors, inputs.names))
        failed += walk.failed
    return failed


def main() -> int:
    """Every net of the seeds asked for."""
    first, last, tiles = (*map(int, sys.argv[1:3]), int(sys.argv[3]) if len(sys.argv) > 3 else 2)
    torch.set_num_threads(1)
    quick_exports.install(pytest.MonkeyPatch())
    JITFunction.__getitem__ = compile_instead
    cache.triton_key = lambda: "this one"  # the cache is this process's alone
    triton.runtime.driver.set_active(TargetAlone(GPUTarget("cuda", HOPPER, 32)))
    done: set[str] = set()
    failed = sum(compile_net(seed, tiles, done) for seed in range(first, last + 1))
    sys.stdout.write(f"Triton {triton.__version__}: {len(done)} programs, {failed} failed\n")
    return int(failed > 0)


if __name__ == "__main__":
    with torch.no_grad():
        sys.exit(main())

"""Compiles kernels for compute capabilities on any machine, and prints what it compiled: run as a process.

    python -m tests.kernels.compiled 90     the Gluon kernels
    python -m tests.kernels.compiled 80     the plain ones, as they are on a GPU for which no Gluon kernel is written
    python -m tests.kernels.compiled 80 90  one after the other

Triton takes target and device from its driver. The one here knows the target alone, and nothing is launched.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import cache
from triton.runtime.jit import JITFunction

from pipeline.compiler.compile_processes import CompilingProcesses, TargetAlone
from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv1x1, conv3x3, conv3x3x3, conv_first, conv_head, norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.capability import HOPPER
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.common.program import only_noted
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_normed, conv3x3_operands
from pipeline.kernels.conv_first.conv_first_gluon import Tile as GatherTile
from pipeline.kernels.excitation import Excitation, excitation
from pipeline.kernels.merged_statistics import Norm
from pipeline.kernels.polyphase import Operands, candidates, polyphase
from tests.kernels import polyphase_examples as phases
from tests.kernels.examples import FP8, HALF, Layer, example


def compile_instead(kernel: JITFunction, grid: Any) -> Any:
    """What a kernel's launch becomes."""

    def call(*args: Any, **kwargs: Any) -> None:
        kernel.device_caches.clear()  # they know the target of the first launch
        # Where kernels aren't debugged, its sums for checks of overflow are thrown away again by a later pass.
        built = kernel.run(*args, grid=grid, warmup=True, sanitize_overflow=False, **kwargs)
        text = built.asm["ptx"]
        product = next((name for name in ("wgmma", "tcgen05", "mma.sync") if name in text), "none")
        waits = "griddepcontrol.wait" in text and "griddepcontrol.launch_dependents" in text
        launch = " dependent" if built.metadata.launch_pdl and waits else ""
        capability = triton.runtime.driver.active.get_current_target().arch
        far = " far rows" if rows_in_64_bits(built.asm["ttgir"]) else ""
        sys.stdout.write(f"{capability} {kernel.fn.__name__} {product}{launch}{far}\n")

    return call


def rows_in_64_bits(program: str) -> bool:
    """Whether each use of a row's step makes 64 bits of it: a row times its step passes 2^31 in a map of 8192²."""
    used = [line for line in program.splitlines() if re.search(r"%\w*row_stride\b", line) and "tt.func" not in line]
    return bool(used) and all("arith.extsi" in line for line in used)


def main() -> None:
    """Every kernel that GPUs of the given compute capabilities have."""
    JITFunction.__getitem__ = compile_instead
    # The cache is this process's alone, and needs no digest of all of Triton, which takes seconds.
    with patch.object(cache, "triton_key", lambda: "this one"):
        for capability in map(int, sys.argv[1:]):
            all_kernels(capability)
    compile_elsewhere()


def all_kernels(capability: int) -> None:
    """Those of one compute capability, ten times its number."""
    triton.runtime.driver.set_active(TargetAlone(GPUTarget("cuda", capability, 32)))
    if capability // 10 == HOPPER:
        gluon_kernels()
    else:
        plain_kernels_for(capability)


def only_compiled(kernel: JITFunction, grid: Any) -> Any:
    """What a launch becomes that finds its program, or compiles it."""
    return partial(kernel.run, grid=grid, warmup=True)


def compile_beforehand() -> None:
    """A kernel that takes descriptors and one that takes addresses, from what is noted of a launch; then the launch."""
    for name in ("conv3x3", "depthwise"):
        made = example(BY_NAME[name], HALF, Layer(size=(32, 32), inner=32, outer=32))
        tile = made.candidates()[-1]
        with only_noted() as noted:
            made.run(tile)
        (program,) = noted.values()
        kernel = program.kernel
        assert isinstance(kernel, JITFunction)
        kernel.device_caches.clear()
        program.compile()
        with (
            patch.object(JITFunction, "__getitem__", only_compiled),
            patch.object(kernel, "compile", side_effect=AssertionError("compiled twice")),
        ):
            made.run(tile)
        capability = triton.runtime.driver.active.get_current_target().arch
        sys.stdout.write(f"{capability} {kernel.fn.__name__} beforehand\n")


def compile_elsewhere() -> None:
    """A kernel and one that can't be compiled, in processes; the kernel is then read from the cache.

    As after Inductor, the processes come upon another ptxas than this one has asked for its version.
    """
    made = example(BY_NAME["depthwise"], HALF, Layer(size=(32, 32), inner=32, outer=32))
    with only_noted() as noted:
        made.run(made.candidates()[0])
    (program,) = noted.values()
    kernel, said = program.kernel, list[bool]()
    assert isinstance(kernel, JITFunction)
    kernel.device_caches.clear()
    wrong = replace(program, options={**program.options, "no_such_option": 1})
    with another_ptxas():
        finished = list(CompilingProcesses([wrong, program]).finished())
    assert sorted(finished) == [0, 1], finished
    with patch.object(triton.knobs.compilation, "listener", lambda **told: said.append(told["cache_hit"])):
        program.compile()
    assert said == [True], said
    capability = triton.runtime.driver.active.get_current_target().arch
    sys.stdout.write(f"{capability} {kernel.fn.__name__} elsewhere\n")


@contextmanager
def another_ptxas() -> Iterator[None]:
    """Triton's own ptxas by another path, from where it tells another version."""
    ptxas = triton.knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "ptxas"
        other.write_text(f'#!/bin/sh\n[ "$1" != --version ] || echo of another build\nexec {ptxas} "$@"\n')
        other.chmod(0o700)
        with patch.dict(os.environ, TRITON_PTXAS_PATH=str(other)):
            yield


def plain_kernels_for(capability: int) -> None:
    """The plain kernels, as if a GPU of this compute capability were here."""
    found = torch.cuda.is_available, torch.cuda.get_device_capability
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: divmod(capability, 10)
    try:
        plain_kernels()
    finally:
        torch.cuda.is_available, torch.cuda.get_device_capability = found


def gluon_kernels() -> None:
    """One tile of each kernel that is written in Gluon, in both types, and one with all parts of an epilogue."""
    compile_beforehand()
    leaky, prelu = Activation("leaky_relu", 0.1), Activation("prelu")
    plain = Layer(size=(32, 32), inner=64, outer=64, activation=leaky)
    whole = replace(plain, activation=prelu, pool=True, residual=HALF, statistics=True)
    for name, dtype, layer in (("conv3x3", HALF, plain), ("conv3x3", FP8, whole), ("upconv2x2", FP8, plain)):
        made = example(BY_NAME[name], dtype, layer)
        made = replace(made, epilogue=replace(made.epilogue, early=layer is whole))
        made.run([tile for tile in made.candidates() if "gluon" in type(tile).__module__][-1])
    compile_volumes()
    compile_polyphase()
    from_registers()


def compile_volumes() -> None:
    """3×3×3 by two slices at a time, which is all that one takes and more; growing, with a stride, and the first."""
    layer = Layer(size=(16, 16), inner=32, outer=32, slices=2, statistics=True)
    made = example(BY_NAME["conv3x3x3"], HALF, layer)
    both = replace(made, weight=conv3x3x3.stacked(made.weight))
    both.run(both.candidates()[-1])
    grown = example(BY_NAME["upconv2x2x2"], HALF, replace(layer, statistics=False))
    grown.run([tile for tile in grown.candidates() if "gluon" in type(tile).__module__][-1])
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 32, counts=True, slices=3, step=1), FP8)
    polyphase(strided, [*candidates(strided)][-1])
    first = example(BY_NAME["conv_first_volumes"], HALF, replace(layer, inner=1))
    first.run([tile for tile in first.candidates() if "gluon" in type(tile).__module__][-1])


def plain_kernels() -> None:
    """Those that no other file compiles: 3×3, the phases of an up-sampling, depthwise, squeeze-and-excitation."""
    compile_beforehand()
    for name, slices in (("conv3x3", 1), ("conv3x3x3", 2)):
        made = example(BY_NAME[name], HALF, Layer(size=(32, 32), inner=16, outer=64, slices=slices))
        made.run(made.candidates()[-1])
    small, full = (torch.zeros(1, size, size, 32).half() for size in (16, 32))
    epilogue, taps = Epilogue(bias=torch.zeros(32)), torch.zeros(16, 32, 32).half()
    grown = Operands(epilogue, Outputs(torch.zeros_like(full)), small, taps, full, taps[:9], torch.zeros(3, 3, 32))
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 32, slices=2))
    halved, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 64, counts=True, window=4))
    for operands in (grown, strided, halved):
        polyphase(operands, next(candidates(operands)))
    squeezed = example(BY_NAME["depthwise_strided"], HALF, Layer(size=(32, 32), inner=40, outer=40, statistics=True))
    squeezed.run()
    layers = Excitation(taps[0, :4], torch.zeros(4), taps[1, :4], torch.zeros(32), Activation("silu"), "sigmoid")
    excitation(torch.zeros(1, blocks_of(16, 16), 2, 32), (16, 16), 1, layers)
    gate = SecondSource(torch.zeros(1, 1, 1, 32).half())
    conv1x1.gated_conv1x1(small, taps[0], epilogue, Outputs(torch.zeros_like(small)), gate)
    norm_small(small)
    norm_groups()


def norm_small(x: torch.Tensor) -> None:
    """A norm's pass over x [1, 16, 16, 32], which merges its statistics."""
    how = norm_pass.NormPass(Norm(torch.zeros(32), torch.zeros(32), 1e-5), Activation("leaky_relu", 0.1))
    norm_pass.norm_pass(x, torch.zeros(1, blocks_of(16, 16), 2, 32), how, torch.zeros_like(x))


def norm_groups() -> None:
    """A pass that merges groups' statistics, and one before which they are merged: in bands, of the widest groups."""
    for size, group_width, tile in ((16, 8, norm_pass.Tile(4096, 4, True)), (384, 64, norm_pass.Tile(4096, 4, False))):
        x, norm = torch.zeros(1, size, size, 64).half(), Norm(eps=1e-5, group_width=group_width)
        how = norm_pass.NormPass(norm, Activation("silu"))
        norm_pass.norm_pass(x, torch.zeros(1, blocks_of(size, size), 2, 64), how, torch.zeros_like(x), tile)


def compile_polyphase() -> None:
    """Both forms: up-sampling with a skip, corrections at the border and sums, in fp8; and plainly, a stride of 2."""
    bias, half = torch.zeros(32), torch.float16
    epilogue = Epilogue(scale=bias, bias=bias, activation=Activation("silu"))
    sums = replace(epilogue, statistics=True, phases=2)
    small, full, out = (torch.zeros(1, size, size, 32).to(torch.float8_e4m3fn) for size in (16, 32, 32))
    taps = torch.zeros(16, 32, 32).to(torch.float8_e4m3fn)
    counted = Outputs(out, statistics=torch.zeros(1, blocks_of(32, 32, 2), 2, 32))
    up = Operands(sums, counted, small, taps, full, taps[:9], torch.zeros(3, 3, 32))
    strided = Operands(epilogue, Outputs(small.to(half)), full=full.to(half), full_weight=taps[:9].to(half))
    for operands in (up._replace(epilogue=replace(sums, early=True)), strided):
        polyphase(operands, [*candidates(operands)][-1])


def from_registers() -> None:
    """The kernels that feed their products from registers."""
    for inner, outer, dtype in ((24, 16, torch.float16), (32, 32, torch.float8_e4m3fn)):
        x, weight = torch.zeros(1, 32, 32, inner).to(dtype), torch.zeros(9, outer, inner).to(dtype)
        epilogue, out = Epilogue(bias=torch.zeros(outer)), Outputs(torch.zeros(1, 32, 32, outer).to(dtype))
        conv3x3.conv3x3(x, weight, epilogue, out, conv3x3_narrow.Tile(16))
    x, weight = torch.zeros(1, 32, 32, 16).half(), torch.zeros(9, 3, 16).half()
    conv_head.conv_head(x, weight, Epilogue(bias=torch.zeros(3)), Outputs(logits=torch.zeros(1, 3, 32, 32)))
    counts = Epilogue(bias=torch.zeros(32), statistics=True)
    image, weight = torch.zeros(1, 3, 32, 32), conv_first.pack(torch.zeros(32, 3, 7, 7))
    small = Outputs(torch.zeros(1, 16, 16, 32).half(), statistics=torch.zeros(1, blocks_of(16, 16), 2, 32))
    conv_first.conv_first(image, weight, counts, small, GatherTile(8))
    x, weight = torch.zeros(1, 32, 32, 32).half(), torch.zeros(9, 32, 32).half()
    beside = Outputs(torch.zeros(1, 32, 32, 32).half(), statistics=torch.zeros(1, blocks_of(32, 32), 2, 32))
    conv3x3.conv3x3(x, weight, replace(counts, residual=x), beside, conv3x3_narrow.Tile(16, 4, 2, 3))
    how, counted = norm_pass.NormPass(Norm(eps=1e-5), Activation("relu")), beside.statistics
    operands = conv3x3_operands.Operands(x, weight, replace(counts, residual=x), beside)
    assert counted is not None
    conv3x3_normed.normed_conv3x3(operands, counted, how, conv3x3_narrow.Tile(16, 4, 2, 3))
    norm_small(x[:, :16, :16].contiguous())
    norm_groups()


if __name__ == "__main__":
    main()

"""Compiles kernels for compute capabilities on any machine, and prints what it compiled: run as a process.

    python -m tests.kernels.compiled 90     the Gluon kernels that this Triton builds, and what stands in for the others
    python -m tests.kernels.compiled 80     the plain ones, as they are on a GPU for which no Gluon kernel is written
    python -m tests.kernels.compiled 89     those in fp8
    python -m tests.kernels.compiled 80 90  one after the other

With another Triton before this one on PYTHONPATH, and TRITON_CACHE_DIR elsewhere, they are compiled by that one.
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

from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.tuning.compile_processes import CompilingProcesses, target_alone
from pipeline.kernels.common.capability import HOPPER, reaching_views_barred
from pipeline.kernels.common.nhwc import shared_bytes
from pipeline.kernels.common.program import only_noted
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, shared_by
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from tests.kernels import compiled_kernels
from tests.kernels.examples import HALF, Example, Layer, example
from tests.kernels.kinds import WIDE

AMPERE, ADA = 80, 89  # compute capabilities, ten times their numbers
SHARED: list[int] = []  # bytes of each program's shared memory


def compile_instead(kernel: JITFunction, grid: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> None:
        kernel.device_caches.clear()  # they know the target of the first launch
        # Where kernels aren't debugged, its sums for checks of overflow are thrown away again by a later pass.
        built = kernel.run(*args, grid=grid, warmup=True, sanitize_overflow=False, **kwargs)
        SHARED.append(built.metadata.shared)
        text = built.asm["ptx"]
        product = next((name for name in ("wgmma", "tcgen05", "mma.sync") if name in text), "none")
        waits = "griddepcontrol.wait" in text and "griddepcontrol.launch_dependents" in text
        launch = " dependent" if built.metadata.launch_pdl and waits else ""
        capability = triton.runtime.driver.active.get_current_target().arch
        far = " far rows" if rows_in_64_bits(built.asm["ttgir"]) else ""
        overtaken = " overtaken" if registers_in_flight(built.asm["ttgir"]) else ""
        sys.stdout.write(f"{capability} {kernel.fn.__name__} {product}{launch}{far}{overtaken}\n")

    return call


def rows_in_64_bits(program: str) -> bool:
    """Whether each use of a row's step makes 64 bits of it: a row times its step passes 2^31 in a map of 8192²."""
    used = [line for line in program.splitlines() if re.search(r"%\w*row_stride\b", line) and "tt.func" not in line]
    return bool(used) and all("arith.extsi" in line for line in used)


def registers_in_flight(program: str) -> bool:
    """Whether products read registers while the next step fills them: Triton 3.6 waits for the first of several alone.

    triton-lang/triton#9433, and "Traps" in docs/kernels.md.
    """
    products = [line for line in program.splitlines() if "warp_group_dot " in line and "isAsync = true" in line]
    return any("dot_op" in line for line in products) and bool(re.search(r"pendings = [1-9]", program))


def main() -> None:
    JITFunction.__getitem__ = compile_instead
    # The cache is this process's alone, and needs no digest of all of Triton, which takes seconds.
    with patch.object(cache, "triton_key", lambda: "this one"):
        for capability in map(int, sys.argv[1:]):
            all_kernels(capability)
    if str(AMPERE) in sys.argv:
        compile_elsewhere()


def all_kernels(capability: int) -> None:
    triton.runtime.driver.set_active(target_alone(GPUTarget("cuda", capability, 32)))
    if capability // 10 == HOPPER:
        on_hopper()
        return
    with as_if_here(capability):
        if capability == ADA:
            compiled_kernels.kernels_in_fp8()
        else:
            compile_beforehand()
            compiled_kernels.plain_kernels()


def on_hopper() -> None:
    """The Gluon kernels; where Triton doesn't build those whose views reach past a plane, what stands in for them."""
    compile_beforehand()
    if reaching_views_barred() is None:
        compiled_kernels.gluon_kernels()
        for kind in compiled_kernels.MIXED:
            check_shared(compiled_kernels.likeliest(kind, WIDE))
    else:
        compiled_kernels.plain_kernels()
    compiled_kernels.from_registers()
    compiled_kernels.products_of_boxes()


def only_compiled(kernel: JITFunction, grid: Any) -> Any:
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
    """A kernel and one that can't be compiled, in processes; the kernel is then read from the cache."""
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
    ptxas = triton.knobs.nvidia.ptxas.path
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "ptxas"
        other.write_text(f'#!/bin/sh\n[ "$1" != --version ] || echo of another build\nexec {ptxas} "$@"\n')
        other.chmod(0o700)
        with patch.dict(os.environ, TRITON_PTXAS_PATH=str(other)):
            yield


@contextmanager
def as_if_here(capability: int) -> Iterator[None]:
    """As if a GPU of this compute capability were here: its kernels are then the plain ones."""
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "get_device_capability", lambda device=None: divmod(capability, 10)),
    ):
        yield


def check_shared(made: Example) -> None:
    """What was compiled last takes as much shared memory as its tile was chosen by, and no more than there is."""
    operands = Operands(made.x, made.weight, made.epilogue, made.outputs)
    reckoned = shared_by(made.candidates()[0], operands)
    assert reckoned <= SHARED[-1] <= reckoned + RESERVED_BYTES, (reckoned, SHARED[-1])
    assert SHARED[-1] <= shared_bytes(made.x.device)


if __name__ == "__main__":
    main()

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
from pipeline.kernels import conv1x1, conv3x3, conv_first, conv_head, norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.capability import HOPPER, reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.common.nhwc import shared_bytes
from pipeline.kernels.common.program import only_noted
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, shared_by
from pipeline.kernels.conv_first import GatherTile, RowsTile
from pipeline.kernels.norm_pass import Excitation, Norm, excitation
from pipeline.kernels.polyphase import candidates, polyphase, polyphase_triton
from pipeline.kernels.polyphase.polyphase_triton import Operands
from tests.kernels import examples as phases
from tests.kernels.examples import FP8, HALF, Example, Layer, example
from tests.kernels.kinds import KINDS, WIDE, Kind, made_of

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
            kernels_in_fp8()
        else:
            compile_beforehand()
            plain_kernels()


def on_hopper() -> None:
    """The Gluon kernels; where Triton doesn't build those whose views overlap, what stands in for them."""
    compile_beforehand()
    if reaching_views_barred() is None:
        gluon_kernels()
        for kind in MIXED:
            check_shared(likeliest(kind, WIDE))
        narrow_kernels()
    else:
        plain_kernels()
    first_kernels()
    norm_small(torch.zeros(1, 16, 16, 32).half())
    norm_and_head()
    norm_groups()
    products_of_boxes()


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
        elsewhere = CompilingProcesses()
        elsewhere.give([wrong, program])
        finished = list(elsewhere.finished())
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
    operands = conv3x3_triton.Operands(made.x, made.weight, made.epilogue, made.outputs)
    reckoned = shared_by(made.candidates()[0], operands)
    assert reckoned <= SHARED[-1] <= reckoned + RESERVED_BYTES, (reckoned, SHARED[-1])
    assert SHARED[-1] <= shared_bytes(made.x.device)


# Of the plain kernels those that nothing below compiles, each by its likeliest tile.
PLAIN = ("conv_first", "conv_head", "conv3x3_few", "transposed3x3_few", "upsample2x", "upconv2x2", "conv1x1_strided",
         "conv3x3_dilated", "conv3x3_grouped", "conv3x3_grouped_strided", "depthwise_dilated")  # fmt: skip
SMALL = Layer(size=(32, 32), inner=32, outer=32)
# In fp8, as GPUs have it from 8.9 on: what is read and stored in it, or in one of both alone, and a residual.
IN_FP8 = [
    Kind("conv3x3", "fp8", "fp8", frozenset({"result", "fp8-residual"})),
    Kind("conv3x3_dilated", "fp8", "fp16", frozenset({"result", "statistics"})),
    Kind("conv3x3_grouped", "fp16", "fp8", frozenset({"result", "fp16-residual"})),
    Kind("conv1x1", "fp8", "fp8", frozenset({"result", "fp16-residual"})),
    Kind("upconv2x2", "fp8", "fp16", frozenset({"result"})),
    Kind("conv3x3_strided", "fp8", "fp8", frozenset({"result"})),
    Kind("upsampled_conv3x3", "fp8", "fp16", frozenset({"result", "second", "border"})),
    Kind("transposed3x3_few", "fp8", "fp16", frozenset({"result"})),
    Kind("conv_first", "fp32", "fp8", frozenset({"result"})),
    Kind("depthwise", "fp16", "fp8", frozenset({"result"})),
    Kind("upsample2x", "fp8", "fp8", frozenset({"result"})),
]
# Types of which one is narrower than another: what a tile takes is told by the one that is stored.
MIXED = [
    Kind("conv3x3", "fp8", "fp16", frozenset({"result", "fp8-residual"})),
    Kind("conv3x3", "fp16", "fp8", frozenset({"result", "pooled", "fp8-residual"})),
    Kind("conv3x3", "fp16", "fp32", frozenset({"logits", "fp8-residual"})),
]


def gluon_kernels() -> None:
    """One tile of each kernel by bulk copies, in both types, and one with all parts of an epilogue."""
    leaky, prelu = Activation("leaky_relu", 0.1), Activation("prelu")
    plain = Layer(size=(32, 32), inner=64, outer=64, activation=leaky)
    whole = replace(plain, activation=prelu, pool=True, residual=HALF, statistics=True)
    kinds = [("conv3x3", HALF, plain), *((f"conv3x3{end}", FP8, whole) for end in ("", "_valid"))]
    for name, dtype, layer in (*kinds, ("upconv2x2", FP8, plain)):
        made = example(BY_NAME[name], dtype, layer)
        made = replace(made, epilogue=replace(made.epilogue, early=layer is whole))
        made.run([tile for tile in made.candidates() if "gluon" in tile.kernel][-1])
    compile_volumes()
    compile_polyphase()


def likeliest(kind: Kind, layer: Layer = SMALL) -> Example:
    made = made_of(kind, layer)
    made.run(made.candidates()[0])
    return made


def compile_volumes() -> None:
    """3×3×3 by two slices at a time, which is all that one takes and more; growing, with a stride, and the first."""
    layer = Layer(size=(16, 16), inner=32, outer=32, slices=2, statistics=True)
    made = example(BY_NAME["conv3x3x3"], HALF, layer)
    both = replace(made, weight=conv3x3.stacked(made.weight))
    both.run(both.candidates()[-1])
    few = example(BY_NAME["conv3x3x3"], HALF, replace(layer, inner=16, outer=16))
    few = replace(few, weight=conv3x3.stacked(few.weight))
    few.run(few.candidates()[0])
    grown = example(BY_NAME["upconv2x2x2"], HALF, replace(layer, statistics=False))
    grown.run([tile for tile in grown.candidates() if "gluon" in tile.kernel][-1])
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 32, counts=True, slices=3, step=1), FP8)
    polyphase(strided, [*candidates(strided)][-1])
    first = example(BY_NAME["conv_first_volumes"], HALF, replace(layer, inner=1))
    first.run(first.candidates()[0])


def kernels_in_fp8() -> None:
    """The plain kernels' products of fp8, and what stores it; a norm's pass that rounds to it."""
    for kind in IN_FP8:
        likeliest(kind)
    norm_small(torch.zeros(1, 16, 16, 32).half(), FP8)


def plain_kernels() -> None:
    for name in PLAIN:
        likeliest(next(kind for kind in KINDS if kind.op == name))
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
    tile = next(conv1x1.candidates(small, taps[0], gated=True))
    conv1x1.gated_conv1x1(small, taps[0], epilogue, Outputs(torch.zeros_like(small)), gate, tile)
    norm_small(small)
    norm_and_head()
    norm_groups()
    wide_head()


def products_of_boxes() -> None:
    """The plain kernels that Hopper has beside the Gluon ones, or alone, in whose products boxes of pixels are."""
    for name in ("conv3x3_dilated", "conv3x3_grouped", "upconv2x2", "gated_conv1x1"):
        made = made_of(next(kind for kind in KINDS if kind.op == name), replace(WIDE, inner=80, outer=208))
        made.run([tile for tile in made.candidates() if "gluon" not in tile.kernel][-1])
    masked, _ = phases.operands(phases.Phases(1, (16, 16), 0, 80, 80), FP8)
    polyphase(masked, next(polyphase_triton.candidates(masked)))
    wide_head()


def norm_small(x: torch.Tensor, stored: torch.dtype = HALF) -> None:
    scale = 0.5 if stored == FP8 else 1.0
    how = norm_pass.NormPass(Norm(torch.zeros(32), torch.zeros(32), 1e-5), Activation("leaky_relu", 0.1), scale)
    counted = torch.zeros(1, blocks_of(16, 16), 2, 32)
    norm_pass.norm_pass(x, counted, how, torch.zeros_like(x, dtype=stored), next(norm_pass.candidates(counted)))


def norm_and_head() -> None:
    """A pass that makes the logits of three classes of 32 channels, and merges its statistics."""
    how = norm_pass.NormPass(Norm(eps=1e-5), head=Head(torch.zeros(3, 32), torch.zeros(3)))
    x, counted = torch.zeros(1, 16, 16, 32).half(), torch.zeros(1, blocks_of(16, 16), 2, 32)
    norm_pass.norm_pass(x, counted, how, torch.zeros(1, 3, 16, 16), next(norm_pass.candidates(counted)))


def norm_groups() -> None:
    """A pass that merges groups' statistics, and one before which they are merged: in bands, of the widest groups."""
    for size, group_width, tile in ((16, 8, norm_pass.Tile(4096, 4, True)), (384, 64, norm_pass.Tile(4096, 4, False))):
        x, norm = torch.zeros(1, size, size, 64).half(), Norm(eps=1e-5, group_width=group_width)
        how = norm_pass.NormPass(norm, Activation("silu"))
        norm_pass.norm_pass(x, torch.zeros(1, blocks_of(size, size), 2, 64), how, torch.zeros_like(x), tile)


def compile_polyphase() -> None:
    """Up-sampling with a skip, corrections at the border and sums, in fp8; and plainly, a stride of 2."""
    up, _ = phases.operands(phases.Phases(1, (16, 16), 32, 32, 32, activation=Activation("silu"), counts=True), FP8)
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 32, 32, activation=Activation("silu")), HALF, FP8)
    for operands in (up._replace(epilogue=replace(up.epilogue, early=True)), strided):
        tiles = [*candidates(operands)]
        polyphase(operands, tiles[0])
        polyphase(operands, tiles[-1])
    few, _ = phases.operands(phases.Phases(1, (16, 16), 32, 16, 16, alone=True), FP8)
    few = few._replace(full=torch.zeros(1, 32, 32, 16).to(FP8))
    polyphase(few, next(candidates(few)))


def narrow_kernels() -> None:
    """3×3 of few channels: plainly, pooled with a head by units of two pixels, and with sums, a residual and a norm."""
    by_slots, layer = conv3x3_narrow.Tile(16, 4, 2, slots=4), Layer(size=(32, 32), inner=32, outer=32)
    example(BY_NAME["conv3x3"], HALF, replace(layer, inner=24, outer=16)).run(by_slots)
    example(BY_NAME["conv3x3"], FP8, layer).run(conv3x3_narrow.Tile(16))
    mixed = example(BY_NAME["conv3x3"], HALF, replace(layer, inner=8, outer=8, pool=True, classes=3))
    dense = {name: part.contiguous() for name, part in mixed.outputs.given.items()}
    replace(mixed, x=mixed.x.contiguous(), outputs=Outputs(**dense)).run(replace(by_slots, fold=2))
    head = next(kind for kind in KINDS if kind.op == "conv_head")
    made_of(head, replace(layer, inner=16)).run()
    added = example(BY_NAME["conv3x3"], HALF, replace(layer, statistics=True, residual=HALF, activation=Activation()))
    added.run(conv3x3_narrow.Tile(16, 4, 2))
    operands = conv3x3_triton.Operands(added.x, added.weight, added.epilogue, added.outputs)
    assert operands.outputs.statistics is not None
    how = norm_pass.NormPass(Norm(eps=1e-5), Activation("relu"))
    conv3x3.normed_conv3x3(operands, operands.outputs.statistics.clone(), how, by_slots)


def first_kernels() -> None:
    """The first convolution of a wide window with sums and mirrored edges, and by rows; the last with such edges."""
    counts = Epilogue(bias=torch.zeros(32), statistics=True, padding_mode="reflect")
    image, weight = torch.zeros(1, 3, 32, 32), conv_first.pack(torch.zeros(32, 3, 7, 7))
    small = Outputs(torch.zeros(1, 16, 16, 32).half(), statistics=torch.zeros(1, blocks_of(16, 16), 2, 32))
    conv_first.conv_first(image, weight, counts, small, GatherTile(8))
    example(BY_NAME["conv_first"], HALF, phases.for_kernel(BY_NAME["conv_first"], SMALL)).run(RowsTile(16, 4, 1))


def wide_head() -> None:
    x, weight = torch.zeros(1, 32, 32, 32).half(), torch.zeros(49, 3, 32).half()
    ends, logits = Epilogue(bias=torch.zeros(3), padding_mode="reflect"), Outputs(logits=torch.zeros(1, 3, 32, 32))
    conv_head.conv_head(x, weight, ends, logits, next(conv_head.candidates(x, weight, ends)))


if __name__ == "__main__":
    main()

"""Kernels compile for GPUs that aren't there: the Gluon ones, which no interpreter runs, and the plain ones."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

import pytest

from pipeline.kernels.common.capability import reaching_views_barred
from tests.fork_server import torch_alone

SCRIPT = Path(__file__).with_name("compiled.py")
BEFOREHAND, ELSEWHERE = " beforehand", " elsewhere"
AMPERE, ADA, HOPPER = 80, 89, 90  # compute capabilities, ten times their numbers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """Of a compute capability each kernel that was compiled, before the name of its matrix products."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folder = str(tmp_path_factory.mktemp("triton"))
    unoptimised = dict.fromkeys(("DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "TRITON_DISABLE_LINE_INFO"), "1")
    ours = {"TRITON_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path), **unoptimised}

    @cache
    def lines_of(capability: int) -> list[str]:
        command = [sys.executable, str(SCRIPT), str(capability)]
        with torch_alone():
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=clean | ours)
        assert done.returncode == 0, done.stderr
        found = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
        return [kernel for target, kernel in found if int(target) == capability]

    return lines_of


def programs(lines: list[str]) -> list[str]:
    return [kernel for kernel in lines if not kernel.endswith((BEFOREHAND, ELSEWHERE))]


FAR = dict.fromkeys(
    ("_conv_first_gluon", "_conv_first_rows", "_conv3x3_few", "_transposed3x3_few", "_upsample2x"), " far rows"
)
GROUPS = [*["_norm_pass"] * 2, *["_merged_statistics"] * 2, "_norm_pass"]  # a head before them
# What is fed from registers, where views may reach; and by any Triton, with norms, which have no products.
NARROW = [*["conv3x3_rows"] * 5, "_merged_statistics", "conv3x3_rows"]
FIRST = ["_conv_first_gluon", "_conv_first_rows", "_norm_pass", *GROUPS]
# Whose products are of boxes of pixels, none of which may be on its way through registers that the next step fills.
OF_BOXES = ["_conv3x3_triton", "_conv3x3_triton", "_upconv2x2", "_conv1x1", "_polyphase_triton", "_conv_head_triton"]
WITHOUT = {"_merged_statistics", "_norm_pass", "_depthwise", "_excitation", "_conv3x3_few", "_upsample2x"}  # products
OTHERS = dict.fromkeys(WITHOUT, "none") | {"_conv_first_rows": "mma.sync"}  # of 16 pixels or pairs, by each warp alone
PLAIN = [
    "_conv_first_triton", "_conv_head_triton", "_conv3x3_few", "_transposed3x3_few", "_upsample2x", "_upconv2x2",
    "_conv1x1", *["_conv3x3_triton"] * 2, "_polyphase_triton", "_depthwise", *["_conv3x3_triton"] * 2,
    *["_polyphase_triton"] * 3, "_depthwise", "_excitation", "_conv1x1", "_norm_pass", *GROUPS, "_conv_head_triton",
]  # fmt: skip
IN_FP8 = [
    *["_conv3x3_triton"] * 3, "_conv1x1", "_upconv2x2", *["_polyphase_triton"] * 2, "_transposed3x3_few",
    "_conv_first_triton", "_depthwise", "_upsample2x", "_norm_pass",
]  # fmt: skip
IN_GLUON = {"_conv_first_triton": "_conv_first_rows", "_upconv2x2": "_upconv2x2_gluon"}  # by any Triton
DEPENDENT = {"_conv_first_gluon", "_conv_first_rows", "_upconv2x2_gluon", "_norm_pass", "_merged_statistics"}


def with_products(names: list[str], products: str, dependent: Collection[str] = ()) -> list[str]:
    """The lines of programs with matrix products of a name, of which some begin while the one before ends."""
    early = dict.fromkeys(dependent, " dependent")
    return [f"{name} {OTHERS.get(name, products)}{early.get(name, '')}{FAR.get(name, '')}" for name in names]


@pytest.mark.slow
@pytest.mark.skipif(reaching_views_barred() is not None, reason=str(reaching_views_barred()))
def test_the_gluon_kernels_compile_for_hopper(compiled: Callable[[int], list[str]]) -> None:
    """To matrix products of Hopper's own, with a leaky ReLU in their ends or with every part; each begins early."""
    kernels = [
        *["_conv3x3_gluon"] * 3, "_upconv2x2_gluon", "_conv3x3_gluon", "_conv3x3x3_rows", "_upconv2x2_gluon",
        "_polyphase_gluon", "_conv_first_rows", *["_polyphase_gluon"] * 4, "_polyphase_rows", *["_conv3x3_gluon"] * 3,
    ]  # fmt: skip
    every = [*kernels, *NARROW, *FIRST]
    assert programs(compiled(HOPPER)) == with_products([*every, *OF_BOXES], "wgmma", every)


@pytest.mark.slow
@pytest.mark.skipif(reaching_views_barred() is None, reason="this Triton builds all Gluon kernels")
def test_where_views_may_not_reach_other_gluon_kernels_compile_for_hopper(compiled: Callable[[int], list[str]]) -> None:
    """And plain ones stand in for those that this Triton doesn't build."""
    stand_in = with_products([IN_GLUON.get(name, name) for name in PLAIN], "wgmma", DEPENDENT)
    stand_in[PLAIN.index("_conv1x1")] = "_conv1x1 mma.sync"  # of 16 pixels, where wgmma has 64
    wanted = stand_in + with_products([*FIRST, *OF_BOXES], "wgmma", DEPENDENT)
    assert programs(compiled(HOPPER)) == wanted


@pytest.mark.slow
def test_before_hopper_the_plain_kernels_compile(compiled: Callable[[int], list[str]]) -> None:
    assert programs(compiled(AMPERE)) == with_products(PLAIN, "mma.sync")
    assert programs(compiled(ADA)) == with_products(IN_FP8, "mma.sync")


@pytest.mark.slow
def test_a_launch_finds_what_was_compiled_beforehand(compiled: Callable[[int], list[str]]) -> None:
    """With nothing but its types and alignments at hand; the process fails where a launch compiles again."""
    found = {line for target in (AMPERE, HOPPER) for line in compiled(target) if line.endswith(BEFOREHAND)}
    hopper = "_conv3x3_triton" if reaching_views_barred() else "_conv3x3_gluon"
    assert found == {f"{kernel}{BEFOREHAND}" for kernel in ("_conv3x3_triton", "_depthwise", hopper)}


@pytest.mark.slow
def test_a_program_compiled_in_another_process_is_read_here(compiled: Callable[[int], list[str]]) -> None:
    """And one that can't be compiled keeps nobody waiting; the process fails where the first is compiled again."""
    found = [line for line in compiled(AMPERE) if line.endswith(ELSEWHERE)]
    assert found == [f"_depthwise{ELSEWHERE}"]

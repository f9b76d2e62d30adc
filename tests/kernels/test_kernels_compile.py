"""Kernels compile for GPUs that aren't there: the Gluon ones, which no interpreter runs, and the plain ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.kernels.common.capability import reaching_views_barred
from tests.fork_server import torch_alone

SCRIPT = Path(__file__).with_name("compiled.py")
BEFOREHAND, ELSEWHERE = " beforehand", " elsewhere"
AMPERE, HOPPER = 80, 90  # compute capabilities, ten times their numbers


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Each kernel that was compiled, after the compute capability and before the name of its matrix products.

    In one process for all. Nothing is optimised that nobody runs, by LLVM or by ptxas, which checks the programs that
    it is given; and no instruction is told the line that it came from.
    """
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = str(tmp_path_factory.mktemp("triton"))
    unoptimised = dict.fromkeys(("DISABLE_LLVM_OPT", "DISABLE_PTXAS_OPT", "TRITON_DISABLE_LINE_INFO"), "1")
    ours = {"TRITON_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(sys.path), **unoptimised}
    targets = [AMPERE, *([] if reaching_views_barred() else [HOPPER])]
    command = [sys.executable, str(SCRIPT), *map(str, targets)]
    with torch_alone():
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=clean | ours)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def compiled_for(capability: int, compiled: list[str]) -> list[str]:
    """The kernels of one compute capability, with their matrix products' names."""
    return [kernel for kernel in lines_of(capability, compiled) if not kernel.endswith((BEFOREHAND, ELSEWHERE))]


def lines_of(capability: int, compiled: list[str]) -> list[str]:
    """What was printed of one compute capability."""
    found = [line.split(maxsplit=1) for line in compiled]
    return [kernel for target, kernel in found if int(target) == capability]


@pytest.mark.slow
@pytest.mark.skipif(reaching_views_barred() is not None, reason=str(reaching_views_barred()))
def test_the_gluon_kernels_compile_for_hopper(compiled: list[str]) -> None:
    """To matrix products of Hopper's own, with a leaky ReLU in their ends or with every part; each begins early.

    So do those of norms, of which one is within a convolution, and the others have no products.
    The first layer's, whose output is the widest and has no bulk copies, reckons in 64 bits where a row begins.
    """
    kernels = [
        *["_conv3x3_gluon"] * 2,
        "_upconv2x2_gluon",
        "_conv3x3_gluon",
        "_upconv2x2_gluon",
        "_polyphase_gluon",
        "_conv_first_gluon",
        *["_polyphase_gluon"] * 2,
        *["conv3x3_rows"] * 3,
        "_conv_first_gluon",
        "conv3x3_rows",
    ]
    norms = ["_merged_statistics none dependent", "conv3x3_rows wgmma dependent", "_norm_pass none dependent"]
    groups = ["_norm_pass none dependent", *["_merged_statistics none dependent"] * 2, "_norm_pass none dependent"]
    far = {"_conv_first_gluon": " far rows"}
    products = [f"{name} wgmma dependent{far.get(name, '')}" for name in kernels]
    assert compiled_for(HOPPER, compiled) == [*products, *norms, *groups]


@pytest.mark.slow
def test_before_hopper_the_plain_kernels_compile(compiled: list[str]) -> None:
    """To matrix products that Ampere has."""
    kernels = [
        *["_conv3x3_triton mma.sync"] * 2,
        *["_polyphase_triton mma.sync"] * 3,
        "_depthwise none",
        "_excitation none",
    ]
    groups = ["_norm_pass none", *["_merged_statistics none"] * 2, "_norm_pass none"]
    assert compiled_for(AMPERE, compiled) == [*kernels, "_conv1x1 mma.sync", "_norm_pass none", *groups]


@pytest.mark.slow
def test_a_launch_finds_what_was_compiled_beforehand(compiled: list[str]) -> None:
    """With nothing but its types and alignments at hand; the process fails where a launch compiles again."""
    found = {line for target in (AMPERE, HOPPER) for line in lines_of(target, compiled) if line.endswith(BEFOREHAND)}
    hopper = set() if reaching_views_barred() else {"_conv3x3_gluon"}
    assert found == {f"{kernel}{BEFOREHAND}" for kernel in {"_conv3x3_triton", "_depthwise"} | hopper}


@pytest.mark.slow
def test_a_program_compiled_in_another_process_is_read_here(compiled: list[str]) -> None:
    """And one that can't be compiled keeps nobody waiting; the process fails where the first is compiled again."""
    found = [line for target in (AMPERE, HOPPER) for line in lines_of(target, compiled) if line.endswith(ELSEWHERE)]
    assert found == [f"_depthwise{ELSEWHERE}"]

"""Kernels compile for GPUs that aren't there: the Gluon ones, which no interpreter runs, and the plain ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.kernels.common.capability import reaching_views_barred

SCRIPT = Path(__file__).with_name("compiled.py")


def compiled(capability: int, cache: Path) -> list[str]:
    """Each kernel that was compiled for a compute capability, ten times its number, and its matrix products' name."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = clean | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(SCRIPT), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(reaching_views_barred() is not None, reason=str(reaching_views_barred()))
def test_the_gluon_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """To matrix products of Hopper's own, with a leaky ReLU in their ends or with every part."""
    kernels = [
        *["_conv3x3_gluon"] * 2,
        "_upconv2x2_gluon",
        *["_polyphase_gluon"] * 2,
        *["conv3x3_rows"] * 3,
        "_conv_first_gluon",
    ]
    assert compiled(90, tmp_path) == [f"{name} wgmma" for name in kernels]


@pytest.mark.slow
def test_before_hopper_the_plain_kernels_compile(tmp_path: Path) -> None:
    assert compiled(80, tmp_path) == ["_conv3x3_triton mma.sync", "_polyphase_triton mma.sync"]

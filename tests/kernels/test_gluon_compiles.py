"""The Gluon kernels, which no interpreter runs, compile for Hopper wherever their versions of Triton are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.kernels.common.tma import missing

SCRIPT = Path(__file__).with_name("compiled.py")


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_gluon_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """To matrix products of Hopper's own, with a leaky ReLU in their ends or with every part."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = clean | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, timeout=240, env=environment
    )
    kernels = [
        *["_conv3x3_gluon"] * 2,
        "_upconv2x2_gluon",
        *["_polyphase_gluon"] * 3,
        *["conv3x3_rows"] * 3,
        "_conv_first_gluon",
        "conv3x3_rows",
    ]
    assert done.stdout.split("\n") == [*(f"{name} True" for name in kernels), ""], done.stderr

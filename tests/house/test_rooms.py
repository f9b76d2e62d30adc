"""The rooms of the house, as they are when the program runs: what import-linter reads, tried."""

import pkgutil
import subprocess
import sys

import pytest

import pipeline

TORCH_FREE = ("cli", "config", "records", "devices", "orchestrate", "stats", "analysis", "report")
BARRED = ("torch", "triton", "onnxruntime", "openvino", "nncf", "jax", "torchax", "torchao", "tvm", "thunder")


@pytest.mark.parametrize("room", TORCH_FREE)
def test_importing_a_torch_free_room_loads_no_framework(room: str) -> None:
    """Every module of the room, in a process of its own."""
    [folder] = pipeline.__path__
    modules = [found.name for found in pkgutil.walk_packages([f"{folder}/{room}"], f"pipeline.{room}.")]
    names = [name for name in modules if not name.endswith("__main__")]
    code = f"import sys, {', '.join(names)}; print([name for name in {BARRED} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.strip() == "[]"

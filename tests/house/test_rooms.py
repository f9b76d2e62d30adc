"""The rooms of the house, as they are when the program runs: what import-linter reads, tried."""

import json
import pkgutil
import subprocess
import sys

import pytest

import pipeline

TORCH_FREE = ("cli", "config", "records", "devices", "orchestrate", "stats", "analysis", "report")
BARRED = ("torch", "triton", "onnxruntime", "openvino", "nncf", "jax", "torchax", "torchao", "tvm", "thunder")


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """For each room the frameworks that were loaded after its modules, room by room in one process."""
    [folder] = pipeline.__path__
    code = "import importlib, json, sys\nloaded = {}\n"
    for room in TORCH_FREE:
        found = pkgutil.walk_packages([f"{folder}/{room}"], f"pipeline.{room}.")
        names = [module.name for module in found if not module.name.endswith("__main__")]
        assert names
        code += f"for name in {names}:\n    importlib.import_module(name)\n"
        code += f"loaded[{room!r}] = [name for name in {BARRED} if name in sys.modules]\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(json.dumps(loaded))"], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("room", TORCH_FREE)
def test_importing_a_torch_free_room_loads_no_framework(room: str, loaded: dict[str, list[str]]) -> None:
    """Neither it, nor a room that was imported before it."""
    assert loaded[room] == []

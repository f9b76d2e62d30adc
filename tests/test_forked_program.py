"""A program in a fork is told what a fresh interpreter would have told it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fork_server import torch_alone

SAYS = """
import json, sys
loaded = [name for name in ("torch", "triton", "pipeline", "models", "tests") if name in sys.modules]
print(json.dumps([__name__, sys.argv[1:], loaded, sys.path]))
sys.exit(3)
"""


def said(*words: str, folder: Path) -> list[Any]:
    """What the program says, called with this folder for PYTHONPATH."""
    with torch_alone():
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    return json.loads(done.stdout)


def test_a_program_finds_torch_imported_and_nothing_of_the_project(tmp_path: Path) -> None:
    """Its text or its file is the main module, has its arguments and its exit status, and looks where it is told to."""
    script = tmp_path / "script" / "says.py"
    script.parent.mkdir()
    script.write_text(SAYS)
    for words, first in ((["-c", SAYS], ""), ([str(script)], str(script.parent))):
        name, arguments, loaded, places = said(*words, "one", folder=tmp_path)
        assert (name, arguments, loaded) == ("__main__", ["one"], ["torch"])
        assert places[:2] == [first, str(tmp_path)]


def test_an_isolated_program_looks_at_what_is_installed_alone(tmp_path: Path) -> None:
    *_, places = said("-I", "-B", "-c", SAYS, folder=tmp_path)
    assert str(tmp_path) not in places
    assert "" not in places
    assert places

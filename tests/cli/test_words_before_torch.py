"""Errors in the words of a command line are reported before torch is imported, which takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT

NOWHERE = "nowhere/at-all"
ASKED = {  # words that name nothing on the disk, and the message
    "pipeline.report": ([NOWHERE], f"{NOWHERE}/results.json: no such file"),
    "pipeline.compare": ([NOWHERE, NOWHERE], f"{NOWHERE}/results.json: no such file"),
    "pipeline.export": ([NOWHERE, "--to", "bundle"], f"{NOWHERE}/results.json: no such file"),
    "pipeline.verify": ([NOWHERE], f"{NOWHERE}/contract.json: no such file"),
    "pipeline.predict": ([NOWHERE, "images", "--out", "masks"], f"{NOWHERE}/results.json: no such file"),
    "pipeline.lessons": (["--draw", NOWHERE], f"{NOWHERE}/lessons.json: no such file"),
    "models.train": (["model=unett", "--out", "a.safetensors"], "did you mean 'unet'?"),
    "models.made_inputs": (["a=3", "--out", f"{NOWHERE}/a.safetensors"], f"there is no folder {NOWHERE}"),
}
MISSPELT = (["--only", "chian"], "--only chian: no such lesson; did you mean 'chain'?")  # of the lessons, as well
# Of each command line its exit code and what it wrote, from one process in which torch can't be imported.
PROGRAM = """
import contextlib, io, json, runpy, sys
sys.modules["torch"] = None
said = []
for module, words in json.load(sys.stdin):
    sys.argv[1:] = words
    told, code = io.StringIO(), 0
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as left:
            code = left.code
    said.append((code, told.getvalue()))
print(json.dumps(said))
"""


@pytest.mark.fresh_process
def test_no_wrong_word_waits_for_torch(tmp_path: Path) -> None:
    """Nor does --help; a missing folder or a misspelt network is reported as early."""
    asked = [(module, words) for module, (wrong, _) in ASKED.items() for words in (["--help"], ["--hlep"], wrong)]
    asked.append(("pipeline.lessons", MISSPELT[0]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(asked),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = iter(json.loads(done.stdout))
    for module, (_, line) in ASKED.items():
        (helped, usage), (mistaken, flag), (wrong, told) = next(found), next(found), next(found)
        assert (helped, mistaken, wrong) == (0, 2, 2), (module, usage, flag, told)
        assert usage.startswith(f"usage: python -m {module}")
        assert flag.startswith("error: --hlep: no such flag")
        assert line in told
        assert told.count("\n") == 1
    assert next(found) == [2, f"error: {MISSPELT[1]}\n"]

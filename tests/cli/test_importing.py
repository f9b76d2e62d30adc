"""The program before it has imported what it needs to tell of anything in a line."""

import gc
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.config.importing import undisturbed
from tests.cli.conftest import ROOT

INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
SCRIPT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["unet-ladder"]
MODULE, _, FUNCTION = SCRIPT.partition(":")
STARTS = {
    "module": ["-m", "pipeline"],
    "console script": ["-c", f"import sys; from {MODULE} import {FUNCTION}; sys.exit({FUNCTION}())"],
}


@pytest.mark.fresh_process
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_an_interruption_while_it_imports_is_no_traceback(start: str, ignored: bool, tmp_path: Path) -> None:
    """It ends at once, by the signal; where a shell has it ignored, it goes on to import."""
    (tmp_path / "hydra.py").write_text(INTERRUPTED.replace("60", "0") if ignored else INTERRUPTED)
    found = subprocess.run(
        [sys.executable, *STARTS[start], "stage=eager"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
        capture_output=True,
        text=True,
        check=False,
    )
    if ignored:
        assert "No module named 'hydra.core'" in found.stderr
    else:
        assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.fresh_process
@pytest.mark.parametrize("program", ["report", "compare", "track", "export", "verify", "predict", "lessons"])
def test_no_other_program_ends_in_a_traceback_either(program: str, tmp_path: Path) -> None:
    """Each imports what tells of an error within what lets the system end it."""
    (tmp_path / "msgspec.py").write_text(INTERRUPTED)
    found = subprocess.run(
        [sys.executable, "-m", f"pipeline.{program}", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.usefixtures("at_a_terminal")
def test_garbage_is_collected_and_interruptions_heeded_once_it_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within, neither; nor is anything changed where the program was imported before."""
    heeded = signal.getsignal(signal.SIGINT)
    assert heeded is signal.default_int_handler
    with undisturbed("no_such_module"):
        assert (gc.isenabled(), signal.getsignal(signal.SIGINT)) == (False, signal.SIG_DFL)
    assert (gc.isenabled(), signal.getsignal(signal.SIGINT)) == (True, heeded)
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("what is there would never be collected"))
    with undisturbed("sys"):
        assert (gc.isenabled(), signal.getsignal(signal.SIGINT)) == (True, heeded)

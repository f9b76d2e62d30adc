"""The program before it has imported what it needs to tell of anything in a line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT

INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"


@pytest.mark.fresh_process
@pytest.mark.parametrize("ignored", [False, True])
def test_an_interruption_while_it_imports_is_no_traceback(ignored: bool, tmp_path: Path) -> None:
    """It ends at once, by the signal; where a shell has it ignored, it goes on to import."""
    (tmp_path / "hydra.py").write_text(INTERRUPTED.replace("60", "0") if ignored else INTERRUPTED)
    found = subprocess.run(
        [sys.executable, "-m", "pipeline", "stage=eager"],
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

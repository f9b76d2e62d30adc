"""A bundle's own loader in a fresh process, in which nothing of this project can be imported."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.deploy.bundle_files import LOADER

LIMIT_SECONDS = 600
# In the place of the project's packages stands nothing, which import takes for "not there".
ALONE = """
import runpy, sys
sys.modules |= dict.fromkeys(["pipeline", "models", "conf"])
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class BundleFails(Exception):  # noqa: N818 - named for what was found
    """The loader gave no answer; the text is the last line that it wrote."""


def ask(folder: Path, *words: str) -> dict[str, Any]:
    """What the loader of a bundle prints for these words of its command line.

    Raises:
        BundleFails: it printed nothing that it should.
    """
    command = [sys.executable, "-I", "-B", "-c", ALONE, str(folder / LOADER), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BundleFails(f"no answer within {LIMIT_SECONDS} s") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BundleFails(lines[-1].strip() if lines else f"it ended with {done.returncode} and no word") from None
    return found

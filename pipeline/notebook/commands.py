"""Runs this program's own commands from a notebook: what they say shows there, and what they refuse is an exception."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline.command_line import INTERRUPTED, tell
from pipeline.config.request_error import RequestError

ROOT = Path(__file__).resolve().parents[2]
SETTLES_IN = 20.0  # seconds in which an interrupted run has saved what it has
ERROR = "error: "


def command(module: str, words: Iterable[object], folders: Iterable[Path] = ()) -> tuple[int, str]:
    """Run `python -m module words…`; return its exit code, 0 or 1, and its last line. All lines go to stderr.

    Args:
        module: such as "pipeline.predict".
        words: its arguments.
        folders: where it finds further modules.
    """
    found = [str(ROOT), *map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")]), *own_folders()]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
    )
    last = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            tell(line.rstrip("\n"))
            last = line.strip().removeprefix(ERROR) or last
        code = process.wait()
    finally:
        ended(process)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (0, 1):
        raise RequestError(last or f"python -m {module} ended with {code}")
    return code, last


def own_folders() -> list[str]:
    """Return the folders that the notebook added to Python's path, in which the class of a network may lie."""
    installed = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    added = (Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir())
    return [str(folder) for folder in added if not installed & {folder, *folder.parents}]


def ended(process: subprocess.Popen[str]) -> None:
    """Have a process that still runs save what it has, and end."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(SETTLES_IN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()

"""Runs the smoke preset again and again in one process, and counts what it leaves behind.

    python -m tests.benchmarks.soak [--runs 200] [overrides]

Counts this process's children, descriptors, threads and resident memory, and the files of the temporary folder and of
/dev/shm, before and after; the first run is left out, as it imports and caches. Exit code 1 where one has grown.
"""

import argparse
import contextlib
import gc
import io
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from pipeline.__main__ import main as program
from pipeline.orchestrate import processes
from pipeline.records import codec

SHARED_MEMORY = Path("/dev/shm")
MEMORY_BYTES_A_RUN = 64 * 2**10  # of growth that is the allocator's, not a leak's
MEMORY_BYTES = 16 * 2**20  # likewise, whatever the number of runs
SMOKE = ["preset=smoke", "stage=eager", "measure.aa_pairs=0", "threads=1"]


def counted(temporary: Path) -> dict[str, int]:
    """What there is now of all that a run could leave."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "children": len(processes.descendants([os.getpid()], processes.parents())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "temporary files": sum(1 for _ in temporary.rglob("*")),
        "shared memory files": sum(1 for _ in SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else 0,
        "resident bytes": resident,
    }


def leaks(before: dict[str, int], after: dict[str, int], runs: int) -> list[str]:
    """What has grown beyond what is admitted: memory a little, anything else not at all."""
    admitted = {"resident bytes": MEMORY_BYTES + runs * MEMORY_BYTES_A_RUN}
    return [
        f"{name}: {before[name]:,} before, {after[name]:,} after"
        for name in before
        if after[name] - before[name] > admitted.get(name, 0)
    ]


def one_run(words: list[str], folder: Path) -> str:
    """Run the program in this process; why it came to no good end, or nothing."""
    sys.argv = ["pipeline", *SMOKE, *words, f"hydra.run.dir={folder}"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            program()
        except SystemExit as ended:
            code = ended.code
    finished = code == 0 and codec.load(folder).finished
    shutil.rmtree(folder, ignore_errors=True)
    return "" if finished else f"exit code {code}: {out.getvalue()[-500:]}"


def main() -> int:
    """The runs, and what they left; 1 where that is anything."""
    parser = argparse.ArgumentParser(description="Runs the smoke preset again and again, and counts what it leaves.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("overrides", nargs="*", help="of the runs, in place of the stage eager alone")
    asked = parser.parse_args()
    temporary = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    began = time.monotonic()
    failed = [one_run(asked.overrides, temporary / "first")]
    before = counted(temporary)
    runs = asked.runs
    failed += [one_run(asked.overrides, temporary / f"run{number}") for number in range(runs)]
    after = counted(temporary)
    found = leaks(before, after, runs)
    failed = [line for line in failed if line]
    shutil.rmtree(temporary, ignore_errors=True)
    seconds = time.monotonic() - began
    for name, value in after.items():
        sys.stdout.write(f"{name}: {before[name]:,} before, {value:,} after {runs} runs\n")
    for line in [*failed[:3], *(f"LEAK {line}" for line in found)]:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{len(failed)} of {runs + 1} runs failed, {len(found)} leaks, {seconds:.0f} s\n")
    return 1 if failed or found else 0


if __name__ == "__main__":
    sys.exit(main())

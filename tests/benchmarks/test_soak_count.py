"""The soak sees what a run leaves behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.benchmarks.soak import counted, leaks


def test_what_is_left_behind_is_counted(tmp_path: Path) -> None:
    """A process, a descriptor, a thread, a file; memory only beyond what an allocator keeps."""
    before = counted(tmp_path)
    assert not leaks(before, before | {"resident bytes": before["resident bytes"] + 2**20}, 10)
    child = subprocess.Popen([sys.executable, "-SEc", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    after = counted(tmp_path)
    grown = {line.partition(":")[0] for line in leaks(before, after | {"resident bytes": 2**40}, 10)}
    os.close(descriptor)
    ended.set()
    thread.join()
    child.communicate()
    assert grown == {"children", "descriptors", "threads", "temporary files", "resident bytes"}

"""The benchmarks' programs: a page's figures follow from its inputs, and the soak sees what a run leaves."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.benchmarks.fleet import Inputs, drawn, table
from tests.benchmarks.soak import counted, leaks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "a-billion-images.md"


def test_twice_the_rate_takes_half_the_gpus() -> None:
    once, twice = ({name: value for name, _, value in table(Inputs(rate=rate))} for rate in (500.0, 1000.0))
    assert (once["GPUs"], twice["GPUs"]) == ("29", "15")
    assert once["network in, Gbit/s"] == twice["network in, Gbit/s"] == "5.8"
    assert once["GPU hours, price a day"] == "2,088"


def test_the_page_has_the_table_of_its_inputs() -> None:
    assert drawn(Inputs()) in PAGE.read_text(encoding="utf-8")


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

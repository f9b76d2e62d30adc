"""kill -9 at random moments: no finished mask is lost or written twice, and the next call makes the rest."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.predict.made_up_runs import write_image

IMAGES, KILLS = 1500, 20


def command(run: Path, images: Path, out: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pipeline.predict",
        str(run),
        str(images),
        "--out",
        str(out),
        "--overlap",
        "0",
        *words,
    ]


def masks(out: Path) -> dict[str, int]:
    """The files that hold the masks, by name: a mask that is written again lies in another file."""
    return {path.name: path.stat().st_ino for path in out.glob("*.png")}


@pytest.mark.slow
@pytest.mark.fresh_process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shards", [1, 2])
def test_no_mask_is_lost_or_written_twice(run: Path, tmp_path: Path, shards: int) -> None:
    (images := tmp_path / "images").mkdir()
    for number in range(IMAGES):
        write_image(images / f"{number:04d}.png", 24, 40, seed=number)
    words = [["--shard", f"{number}/{shards}"] for number in range(shards)] if shards > 1 else [[]]
    whole, out, rng = tmp_path / "whole", tmp_path / "masks", np.random.default_rng(shards)
    assert subprocess.run(command(run, images, whole), check=False, capture_output=True).returncode == 0
    kills = 0
    while kills < KILLS:
        before = masks(out)
        assert len(before) < IMAGES, "all masks were made before the last kill"
        processes = [subprocess.Popen(command(run, images, out, *word), stderr=subprocess.DEVNULL) for word in words]
        until = len(before) + int(rng.integers(1, IMAGES // KILLS // 2))
        while len(masks(out)) < until and any(process.poll() is None for process in processes):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        for process in processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.wait()
        assert before.items() <= masks(out).items(), "a finished mask is lost, or written again"
    seen = masks(out)
    for word in words:
        assert subprocess.run(command(run, images, out, *word), check=False, capture_output=True).returncode == 0
    assert seen.items() <= masks(out).items()
    assert not list(out.rglob("*.part*"))
    there = {path.name: path.read_bytes() for path in out.glob("*.png")}
    assert there == {path.name: path.read_bytes() for path in whole.glob("*.png")}
    assert len(there) == IMAGES

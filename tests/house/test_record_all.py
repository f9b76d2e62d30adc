"""The script that records everything: what it does next, and on which GPU."""

import argparse
import time
from pathlib import Path

import pytest

from tests.benchmarks.record_all import BUILDS, README, Recorder, Step, left_of, plan


def test_the_rows_of_the_readme_are_built_several_times_after_everything_was_built_once() -> None:
    steps = plan(BUILDS)
    assert len(set(steps)) == len(steps)
    for name in README:
        assert [step.build for step in steps if (step.kind, step.name) == ("net", name)] == [1, 2, 3]
    builds = [step.build for step in steps if step.kind == "net"]
    assert builds == sorted(builds)


@pytest.mark.parametrize(("gpu", "minutes", "taken"), [("a", 9.0, 3), ("b", 9.0, 2), ("b", 1.0, None)])
def test_a_gpu_takes_no_second_build_and_nothing_that_has_no_time(
    gpu: str, minutes: float, taken: int | None, tmp_path: Path
) -> None:
    """Build 1 is finished, on GPU a; build 2 fits another GPU, and of another network anything does."""
    steps = [Step("net", "smp", 1), Step("net", "smp", 2), Step("net", "fpn", 3)]
    steps[0].folder(tmp_path).mkdir(parents=True)
    (steps[0].folder(tmp_path) / "gpu.txt").write_text("a")
    (steps[0].folder(tmp_path) / "results.json.xz").write_bytes(b"")
    left = left_of(steps, tmp_path)
    assert left == steps[1:]
    recorder = Recorder(tmp_path, left, time.monotonic() + 60 * minutes, argparse.Namespace(pace=1.0))
    found = recorder.taken(gpu, gpu)
    assert (found.build if found else None) == taken
    assert len(left) == (1 if taken else 2)

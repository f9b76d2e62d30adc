"""The choice of a tile: by time, once, kept on disk, and honest where nothing runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.compiler.autotune import NothingRunsError, Tuner

TIMES = {"slow": 3.0, "fast": 1.0, "middling": 2.0}


def clock(call: Callable[[], None]) -> float:
    """A fake clock: a candidate's name is what its call leaves behind."""
    ran.clear()
    call()
    return TIMES[ran[0]]


ran: list[str] = []


def run(name: str) -> None:
    if name == "too big":
        raise RuntimeError("out of resource: shared memory\nand more")
    ran.append(name)


def test_the_fastest_is_chosen(tmp_path: Path) -> None:
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"


def test_a_choice_is_measured_once_and_found_on_disk(tmp_path: Path) -> None:
    """A second process, with the same GPU and versions, measures nothing."""
    Tuner(tmp_path, clock).best("conv 64", TIMES, run)
    again = Tuner(tmp_path, clock)
    assert again.best("conv 64", TIMES, run) == "fast"
    assert again.measured == 0
    assert again.best("conv 128", ["slow"], run) == "slow"
    assert again.measured == 1


def test_a_choice_that_is_no_longer_offered_is_measured_anew(tmp_path: Path) -> None:
    Tuner(tmp_path, clock).best("conv 64", TIMES, run)
    assert Tuner(tmp_path, clock).best("conv 64", ["slow", "middling"], run) == "middling"


def test_a_candidate_that_cannot_run_is_passed_over(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, clock)
    assert tuner.best("conv 64", ["too big", "slow"], run) == "slow"
    assert tuner.refused["conv 64"] == "'too big': out of resource: shared memory"


def test_where_nothing_runs_the_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NothingRunsError, match="shared memory"):
        Tuner(tmp_path, clock).best("conv 64", ["too big"], run)


def test_a_torn_file_is_as_good_as_none(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, clock)
    tuner.path().write_text('{"conv 64": {"cho')
    assert tuner.best("conv 64", TIMES, run) == "fast"

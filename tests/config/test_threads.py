"""How many threads may be asked for: as many as the program may use processors."""

import os
import sys

import pytest

from pipeline.config.request_error import RequestError
from pipeline.config.threads_request import OMP, check_threads, omp_note
from pipeline.devices.host import processors


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({0, 3}, "threads=1000: this program may use 2 processors; expected at most 2, or null for torch's own choice"),
        ({7}, "threads=1000: this program may use 1 processor; expected at most 1, or null for torch's own choice"),
    ],
)
def test_more_threads_than_processors_are_refused(there: set[int], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By those that `taskset` or a scheduler leaves, not the machine's."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: there, raising=False)
    with pytest.raises(RequestError) as refused:
        check_threads(1000)
    assert str(refused.value) == said
    check_threads(len(there))
    check_threads(None)


def test_where_the_system_has_no_affinity_the_machine_s_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert processors() == 6


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "1.5", "2,", "2x", "9" * 20])
def test_what_openmp_takes_no_number_from_is_noted(value: str) -> None:
    """Its library says so in the workers' logs, and takes as many threads as it likes."""
    said = f"note: {OMP}={value}: expected an integer ≥ 1; it is as if it weren't set, and threads=N asks for a number"
    assert omp_note({OMP: value}) == said


@pytest.mark.parametrize("value", ["1", " 2 ", "+3", "007", "2, 1"])
def test_what_openmp_takes_is_not(value: str) -> None:
    assert omp_note({OMP: value}) == omp_note({}) == ""

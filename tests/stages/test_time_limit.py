"""Work that takes too long is given up, whatever it makes of the alarm."""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.stages.common.time_limit import TooLongError, within


def forever() -> None:
    """Sleeps in steps, as a search works in steps."""
    while True:
        time.sleep(0.01)


def test_what_takes_too_long_is_given_up_in_one_line() -> None:
    with pytest.raises(TooLongError, match=r"^given up after 0\.05 s$"):
        within(0.05, forever)


def test_work_that_catches_every_exception_is_given_up_too() -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):  # as compilers do
                forever()

    with pytest.raises(TooLongError):
        within(0.05, stubborn)


def test_an_alarm_that_something_kept_to_itself_rings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.common.time_limit.AGAIN", 0.05)
    swallowed = []

    def careless() -> None:
        try:
            forever()
        except BaseException as error:  # noqa: BLE001 - as a callback of C does
            swallowed.append(error)
        forever()

    with pytest.raises(TooLongError):
        within(0.05, careless)
    assert len(swallowed) == 1


@pytest.fixture
def alarms() -> Iterator[list[float]]:
    """When somebody else's alarm rang; the tests' own is put off meanwhile."""
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    yield rang
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


@pytest.mark.parametrize("seconds", [None, 0.1])
def test_what_ends_in_time_is_left_alone_and_nothing_rings_later(seconds: float | None, alarms: list[float]) -> None:
    assert within(seconds, lambda: "made") == "made"
    time.sleep(0.2)
    assert alarms == []
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_somebody_else_s_alarm_rings_when_it_was_to_ring(alarms: list[float]) -> None:
    due = time.monotonic() + 0.2
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(TooLongError):
        within(0.05, forever)
    while not alarms:
        time.sleep(0.01)
    assert due - 0.05 < alarms[0] < due + 5.0


def test_work_that_ends_as_the_alarm_rings_leaves_nothing_behind(alarms: list[float]) -> None:
    """Neither an alarm that leaves the limit as itself, nor one that stays set."""
    ended = {"in time": 0, "given up": 0}
    until = time.monotonic() + 0.5

    def busy() -> None:
        seconds, began = random.uniform(3e-4, 7e-4), time.perf_counter()
        while time.perf_counter() - began < seconds:
            pass

    while time.monotonic() < until:
        try:
            within(5e-4, busy)
            ended["in time"] += 1
        except TooLongError:
            ended["given up"] += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert alarms == []
    assert all(ended.values())


def test_an_alarm_within_what_the_limit_calls_ends_nothing(
    alarms: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the work has ended, and its answer is there."""
    real = signal.setitimer

    def ringing(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        if seconds == 0:
            signal.raise_signal(signal.SIGALRM)
        return real(which, seconds, interval)

    with monkeypatch.context() as patched:
        patched.setattr(signal, "setitimer", ringing)
        assert within(5, lambda: "made") == "made"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert len(alarms) == 1  # the last, as the other handler is back by then


def test_its_own_errors_pass() -> None:
    def wrong() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        within(5, wrong)


def test_another_thread_has_no_limit() -> None:
    done = []

    def work() -> None:
        within(0.01, lambda: time.sleep(0.05))
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]

"""The loop that says how long a run-in has to be sees a pace that settles."""

import math

from tests.benchmarks.pace_times import RUN_INS, faster_after, loop


def test_a_pace_that_settles_is_seen() -> None:
    """A call of 10 ms that is 5 % faster at first, and settles by half every 1.4 s."""
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.01 * (1 - 0.05 * math.exp(-now / 2))

    windows = list(loop(call, 25.0, None, lambda: None, lambda: now))
    shares = [faster_after(windows, run_in, 0.5) for run_in in RUN_INS]
    assert shares == sorted(shares, reverse=True)
    assert 0.04 < shares[0] < 0.05
    assert 0.005 < shares[RUN_INS.index(3.0)] < 0.015
    assert abs(shares[-1]) < 0.001
    assert math.isnan(faster_after(windows, 30.0, 0.5))


def test_a_whole_swing_is_no_faster_than_the_loop() -> None:
    """A call that is 2 % faster and slower in turn, half a second each: half a swing is, a whole one isn't."""
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.01 * (1.02 if now % 1 >= 0.5 else 0.98)

    windows = list(loop(call, 25.0, None, lambda: None, lambda: now))
    assert faster_after(windows, 3.0, 0.5) > 0.01
    assert abs(faster_after(windows, 3.0, 1.0)) < 0.003

"""Where the wall time of a call went."""

import pytest

from pipeline.profiling.profiler import split
from tests.profiling.traced import event, launched


def test_the_hosts_time_is_split_by_what_it_is_inside_of() -> None:
    """20 µs in a call: 10 in an operator, 2 of them launching; one launch outside operators; the rest is Python's."""
    events = [
        event("user_annotation", "call", 0, 20),
        event("cpu_op", "aten::conv2d", 2, 10),
        *launched(1, "conv", 4, 16, 30),
        *launched(2, "triton", 15, 46, 10),
        event("cuda_runtime", "cudaDeviceSynchronize", 20, 36),
    ]
    found = split(events, 1)
    assert found is not None
    assert found.wall_seconds == pytest.approx(56e-6)
    assert found.device_seconds == pytest.approx(40e-6)
    assert found.launch_seconds == pytest.approx(4e-6)
    assert found.framework_seconds == pytest.approx(8e-6)
    assert found.interpreter_seconds == pytest.approx(8e-6)
    assert found.waiting_seconds == pytest.approx(36e-6)


def test_without_annotated_calls_nothing_is_claimed() -> None:
    assert split(launched(1, "conv", 0, 5, 5), 1) is None


def test_a_cpus_split_has_no_device() -> None:
    found = split([event("user_annotation", "call", 0, 10), event("cpu_op", "aten::relu", 1, 6)], 1)
    assert found is not None
    assert found.device_seconds is None
    assert found.framework_seconds == pytest.approx(6e-6)

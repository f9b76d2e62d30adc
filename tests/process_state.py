"""The switches of a process that torch keeps for everybody: what a test changes, the next test would inherit."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.worker.contract import process_state

SWITCHES = [
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
]
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def switches() -> dict[str, object]:
    """What a stage may set in its own process: the precision of fp32, the search for algorithms, the caches."""
    found: dict[str, object] = {f"{name} of {type(owner).__name__}": getattr(owner, name) for owner, name in SWITCHES}
    return found | {name: place_of(name) for name in CACHES}


def place_of(cache: str) -> str | None:
    """Where a cache was put; None for its usual place, which torch names in the environment when it first compiles."""
    place = os.environ.get(cache)
    return None if place is None or Path(place).parent == Path(tempfile.gettempdir()) else place


@contextlib.contextmanager
def own_switches() -> Iterator[None]:
    """For code that plays a worker: its switches are put back, and the caches' places are unset within."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in SWITCHES]
    places = {name: os.environ.pop(name, None) for name in CACHES}
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
        for name, place in places.items():
            os.environ.pop(name, None)
            if place is not None:
                os.environ[name] = place


@pytest.fixture(autouse=True)
def process_switches() -> Iterator[None]:
    """Stages and exports own the switches of their process, and its threads: put those back."""
    threads = torch.get_num_threads()
    with own_switches():
        yield
    torch.set_num_threads(threads)


@contextlib.contextmanager
def nothing_leaks() -> Iterator[None]:
    """Raise AssertionError where a switch or a lasting state is another one afterwards, with both values."""
    before = switches() | process_state()
    yield
    after = switches() | process_state()
    changed = {name: (value, after[name]) for name, value in before.items() if value != after[name]}
    assert not changed, f"left behind, with the value before and after: {changed}"

"""Fixtures for every test here."""

from collections.abc import Iterator

import pytest
import torch

from tests.process_state import own_switches


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """A stage or an export owns the switches of its process: put those back."""
    threads = torch.get_num_threads()
    with own_switches():
        yield
    torch.set_num_threads(threads)

"""What makes many exports and runs of small nets quick."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch.export import exported_program


@pytest.fixture(scope="session", autouse=True)
def operators_listed_once() -> Iterator[None]:
    """Each export of torch 2.12 asks some twelve thousand operators again whether they are composed of others."""
    name = "_collect_all_valid_cia_ops"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported_program, name, cache(getattr(exported_program, name)))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small nets are faster on one thread than on several that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""What makes many exports of small nets quick: a fixture for the rooms that export."""

import typing
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
        # It gives each of them some twenty kernels, by a function whose annotations are made anew at each call;
        # `typing` remembers what it made of them, `collections.abc` doesn't.
        patch.setattr(torch._ops, "Callable", typing.Callable)
        yield

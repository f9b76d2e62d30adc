"""Page-locked memory, by torch, and by CUDA where torch asks another backend for it."""

import pytest
import torch
from torch import Tensor

from pipeline.measure.latency import page_locked


class Runtime:
    """CUDA's runtime, as far as it is called: an error code, and what is locked."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, start: int, length: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        assert flags == 0
        self.locked[start] = length
        return self.code

    def cudaHostUnregister(self, start: int) -> None:  # noqa: N802 - CUDA's name
        del self.locked[start]


@pytest.fixture
def other_backend(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """A torch whose pin_memory asks a backend that can't."""

    def refused(_: Tensor) -> Tensor:
        raise RuntimeError("Please register PrivateUse1HooksInterface")

    runtime = Runtime(0)
    monkeypatch.setattr(Tensor, "pin_memory", refused)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return runtime


def test_cuda_locks_what_torch_cannot_and_lets_it_go(other_backend: Runtime) -> None:
    given = torch.rand(2, 3)
    found = page_locked(given)
    assert torch.equal(found, given)
    assert other_backend.locked == {found.data_ptr(): 24}
    del found
    assert other_backend.locked == {}


def test_memory_that_cannot_be_locked_is_refused(other_backend: Runtime) -> None:
    other_backend.code = 2
    with pytest.raises(torch.cuda.CudaError):
        page_locked(torch.rand(2))


def test_torch_locks_it_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = torch.rand(2)
    monkeypatch.setattr(Tensor, "pin_memory", lambda _: pinned)
    assert page_locked(torch.rand(2)) is pinned

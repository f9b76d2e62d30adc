"""The interpreter as the tests have it still sees an overflow."""

import os
from typing import Any

import pytest
import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _add(one: Any, other: Any, out: Any) -> None:
    tl.store(out, tl.load(one) + tl.load(other))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="a GPU runs the kernels, and checks no overflow")
def test_an_overflow_is_seen() -> None:
    one, out = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    _add[1,](one, one, out)
    assert out.item() == 2
    with pytest.raises(Exception, match="int32 overflow detected for operation add"):
        _add[1,](one, torch.full((1,), 2**31 - 1, dtype=torch.int32), out)

"""Where held taps lie that neighbouring matrices share, against what each product of `polyphase_gluon` is to read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.experimental.gluon import language as gl

from pipeline.kernels.polyphase import polyphase_loads
from pipeline.kernels.polyphase.polyphase_gluon import pairs_are_rows
from pipeline.kernels.polyphase.polyphase_operands import FULL_BLOCKS, FULL_PITCH, SMALL_BLOCKS, SMALL_PITCH

NO_TAP = {"small": 16, "full": 9}
SMALL_CHUNKS, FULL_CHUNKS = 3, 2
Places = tuple[Callable[..., Any], Callable[..., Any]]
HELD = SMALL_BLOCKS * SMALL_CHUNKS + FULL_BLOCKS * FULL_CHUNKS


def plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


class OnTheHost:
    constexpr = gl.constexpr

    @staticmethod
    def where(condition: Any, one: Any, other: Any) -> Any:
        return plain(one) if plain(condition) else plain(other)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(polyphase_loads, "gl", OnTheHost)
    return polyphase_loads.small_base.fn, polyphase_loads.plane_base.fn


def held() -> dict[int, tuple[str, int, int]]:
    """Of each block which map's tap it holds, and of which chunk of channels."""
    blocks: dict[int, tuple[str, int, int]] = {}
    for chunk in range(SMALL_CHUNKS):
        for block in range(SMALL_BLOCKS):
            tap = plain(polyphase_loads._small_tap(block))
            blocks[chunk * SMALL_BLOCKS + block] = ("small", tap, chunk)
    for chunk in range(FULL_CHUNKS):
        for block in range(FULL_BLOCKS):
            tap = plain(polyphase_loads._full_tap(block))
            blocks[SMALL_CHUNKS * SMALL_BLOCKS + chunk * FULL_BLOCKS + block] = ("full", tap, chunk)
    assert sorted(blocks) == list(range(HELD))
    return blocks


def test_each_product_over_the_small_map_reads_its_taps(places: Places) -> None:
    """Of row phase a and vertical tap i: for column phase b at an offset the tap j = offset − b, if there is one."""
    small_base, _ = places
    blocks = held()
    for step in range(3 * SMALL_CHUNKS):
        chunk, across = divmod(step, 3)
        base = plain(small_base(0, step, HELD, 2))
        for matrix in range(4):
            for b in range(2):
                a, i, j = matrix // 2, matrix % 2, across - b
                tap = 8 * a + 4 * b + 2 * i + j if 0 <= j < 2 else NO_TAP["small"]
                assert blocks[base + matrix * SMALL_PITCH + b] == ("small", tap, chunk)


def test_each_product_over_the_full_map_reads_its_taps(places: Places) -> None:
    """Of a row of the window: for column phase b at an offset the tap offset − b, if there is one; on both planes."""
    _, plane_base = places
    blocks = held()
    for step in range(4 * FULL_CHUNKS):
        chunk, across = divmod(step, 4)
        for plane in range(2):
            base = plain(plane_base(0, step, 3 * SMALL_CHUNKS, plane, HELD, 2, False, False))
            for row in range(3):
                for b in range(2):
                    tap = 3 * row + across - b if 0 <= across - b < 3 else NO_TAP["full"]
                    assert blocks[base + row * FULL_PITCH + b] == ("full", tap, chunk)


@pytest.mark.parametrize(
    ("out", "spread", "rows"),
    [
        (torch.empty(2, 6, 8, 32), 2, True),
        (torch.empty(2, 12, 8, 32)[:, ::2], 2, True),
        (torch.empty(2, 6, 8, 64)[..., 32:], 2, False),
        (torch.empty(2, 6, 8, 24), 2, False),
        (torch.empty(2, 6, 8, 32), 1, False),
    ],
    ids=["dense", "every second row", "a slice of channels", "24 channels", "one column phase"],
)
def test_two_pixels_are_one_row_where_nothing_lies_between_them(out: torch.Tensor, spread: int, rows: bool) -> None:
    assert pairs_are_rows(out, spread) == rows

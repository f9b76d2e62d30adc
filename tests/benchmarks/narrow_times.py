"""`conv3x3_narrow` with rows that wait in shared memory beside rows that come straight to registers: each tile's time.

python -m tests.benchmarks.narrow_times --out narrow.json

Batch 8 at 512×512, on random values; the answers of both are compared bit for bit.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.norm_on_load import NormOnLoad
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.measure.timers import graph_replay_ms
from tests.benchmarks.case_table import write_cases

BATCH, SIZE = 8, 512
HALF, FP8 = torch.float16, torch.float8_e4m3fn
WAYS = [(2, 3, 0), (3, 2, 0), (4, 1, 0), (2, 0, 4), (2, 0, 6), (3, 0, 3), (3, 0, 4), (4, 0, 3), (4, 0, 4)]


@dataclass(frozen=True)
class Case:
    """A layer: whether it norms what it reads, and whether it stores sums for the next norm."""

    inner: int
    outer: int
    dtype: torch.dtype
    norm: bool = False
    sums: bool = False

    def __str__(self) -> str:
        parts = [*(["norm on load"] if self.norm else []), *(["sums"] if self.sums else [])]
        return ", ".join([f"{self.inner} to {self.outer} {str(self.dtype).removeprefix('torch.')}", *parts])


CASES = [
    Case(32, 32, HALF, norm=True, sums=True),
    Case(32, 32, HALF, sums=True),
    Case(32, 32, HALF),
    Case(32, 32, FP8),
    Case(64, 32, FP8),
    Case(64, 16, HALF),
    Case(32, 16, HALF),
    Case(16, 16, HALF),
    Case(16, 16, FP8),
]


def times_of(case: Case) -> dict[str, Any]:
    """Microseconds of each tile, the fastest first, and whether the fastest of either kind store the same bits."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, SIZE, SIZE, case.inner, device="cuda").to(case.dtype)
    weight = (torch.randn(9, case.outer, case.inner, device="cuda") / (9 * case.inner) ** 0.5).to(case.dtype)
    out = torch.empty(BATCH, SIZE, SIZE, case.outer, device="cuda", dtype=HALF if case.sums else case.dtype)
    sums = torch.empty(BATCH, blocks_of(SIZE, SIZE), 2, case.outer, device="cuda") if case.sums else None
    zeros, ones = torch.zeros(BATCH, case.inner, device="cuda"), torch.ones(BATCH, case.inner, device="cuda")
    norm = NormOnLoad(zeros, ones, ones[0].clone(), zeros[0].clone(), 1e-5, 0.01) if case.norm else None
    ends = Epilogue(
        scale=torch.ones(case.outer, device="cuda") if case.dtype == FP8 else None,
        bias=torch.zeros(case.outer, device="cuda"),
        activation=NONE if case.sums else RELU,
        statistics=case.sums,
    )

    def run(tile: conv3x3_narrow.Tile) -> None:
        conv3x3_narrow.queue(x, weight, ends, out, tile, statistics=sums, norm=norm)

    found: dict[conv3x3_narrow.Tile, float] = {}
    for rows, (programs, ahead, slots) in itertools.product((16, 64, 88, 136), WAYS):
        tile = conv3x3_narrow.Tile(rows, 4, programs, ahead, slots)
        found[tile] = 1e3 * graph_replay_ms(lambda tile=tile: run(tile))  # type: ignore[misc]
    order = sorted(found, key=lambda tile: found[tile])
    answers: list[Tensor] = []
    for tile in (next(tile for tile in order if tile.slots), next(tile for tile in order if not tile.slots)):
        run(tile)
        answers.append(out.clone())
    same = torch.equal(*(answer.view(torch.uint8) for answer in answers))
    return {"same_bits": same, "microseconds": {repr(tile): found[tile] for tile in order}}


def told(timed: dict[str, Any]) -> str:
    """The fastest tile of either kind, and whether they store the same."""
    straight = {tile: us for tile, us in timed["microseconds"].items() if "slots=0" in tile}
    waiting = [us for tile, us in timed["microseconds"].items() if tile not in straight]
    fastest = f"{min(straight.values()):.1f} µs to registers, {min(waiting):.1f} by shared memory"
    return f"{fastest}, same bits: {timed['same_bits']}"


if __name__ == "__main__":
    write_cases("Times conv3x3_narrow with and without shared memory for its rows.", CASES, times_of, told)

"""The net's first 3×3 convolution by rows that are gathered once, beside whole windows: each tile's time.

python -m tests.benchmarks.first_times --out first.json

Batch 8 on random images; each tile's answer is compared with the reference.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pipeline.kernels import conv_first
from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.conv_first import conv_first_gluon, conv_first_rows
from pipeline.measure.accuracy import distance
from pipeline.measure.timers import graph_replay_ms
from tests.benchmarks.case_table import write_cases

BATCH = 8
HALF, FP8 = torch.float16, torch.float8_e4m3fn
FAR = {HALF: 1e-3, FP8: 3e-2}  # relative L2 that rounding an answer may cost
WAYS = {32: [(4, 1), (4, 3), (3, 3), (4, 0)], 64: [(2, 3), (2, 1), (3, 1), (2, 0)]}  # programs, rows ahead


@dataclass(frozen=True)
class Case:
    """A layer of `inner` to `outer` channels, and whether it stores sums for the next norm."""

    inner: int
    outer: int
    dtype: torch.dtype
    sums: bool = False
    size: tuple[int, int] = (512, 512)

    def __str__(self) -> str:
        ends = ", sums" if self.sums else ""
        height, width = self.size
        return f"{self.inner} to {self.outer} @ {height}×{width} {str(self.dtype).removeprefix('torch.')}{ends}"

    def tiles(self, weight: torch.Tensor) -> Iterator[conv_first.Tile]:
        """Those of whole windows, and those of rows."""
        yield from conv_first_gluon.candidates(weight, statistics=self.sums)
        for rows, (programs, ahead) in itertools.product((16, 40, 64, 88), WAYS[32 if self.outer <= 32 else 64]):
            yield conv_first_rows.Tile(rows, programs, ahead)


CASES = [
    Case(3, 32, HALF, sums=True),
    Case(3, 32, HALF),
    Case(3, 16, HALF),
    Case(3, 64, FP8),
    Case(3, 64, HALF, sums=True),
    Case(3, 64, HALF),
    Case(4, 24, HALF, sums=True, size=(131, 77)),
]


def times_of(case: Case) -> dict[str, float]:
    """Microseconds of each tile, the fastest first.

    Raises:
        SystemExit: a tile's answer is far from the reference's.
    """
    torch.manual_seed(0)
    image = torch.randn(BATCH, case.inner, *case.size, device="cuda")
    weight = conv_first.pack(torch.randn(case.outer, case.inner, 3, 3, device="cuda") / (9 * case.inner) ** 0.5)
    ones = torch.ones(case.outer, device="cuda")
    ends = Epilogue(ones if case.dtype == FP8 else None, 0 * ones, NONE if case.sums else RELU, statistics=case.sums)
    blocks = (BATCH, blocks_of(*case.size), 2, case.outer)
    found, wanted = (
        Outputs(
            torch.empty(BATCH, *case.size, case.outer, device="cuda").to(case.dtype),
            statistics=torch.empty(blocks, device="cuda") if case.sums else None,
        )
        for _ in range(2)
    )
    conv_first.reference(image, weight, ends, wanted)
    times = {}
    for tile in case.tiles(weight):
        ms = graph_replay_ms(lambda tile=tile: conv_first.conv_first(image, weight, ends, found, tile))  # type: ignore[misc]
        for name, part in wanted.given.items():
            if (far := distance(found.given[name].float(), part.float())) > FAR[part.dtype if name == "out" else HALF]:
                raise SystemExit(f"{case}: {name} of {tile} is {far:.1e} from the reference's")
        times[repr(tile)] = ms * 1e3
    return dict(sorted(times.items(), key=lambda item: item[1]))


def told(timed: dict[str, float]) -> str:
    """The fastest tile of either kind."""
    rows = [us for tile, us in timed.items() if "ahead" in tile]
    windows = [us for tile, us in timed.items() if "ahead" not in tile]
    return f"{min(windows):.1f} µs by whole windows, {min(rows):.1f} by rows"


if __name__ == "__main__":
    write_cases("Times the first convolution's tiles.", CASES, times_of, told)

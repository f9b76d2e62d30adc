"""A cut of the work that kernels share whose pixels are boxes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BoxTile:
    """A program's share: `rows` × `cols` pixels by `out` output channels, `depth` input channels a step."""

    rows: int
    cols: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor

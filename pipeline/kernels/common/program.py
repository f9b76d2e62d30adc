"""Kernels on their way to the GPU: each is launched by `on_grid`, so that its program can also be compiled beforehand.

Two tiles are two programs; two layers that differ in their sizes most often share one.

A kernel's start costs some 3 µs, on small batches a fifth of the net. So one with `DEPENDENT` comes as the programs of
the one before say `gdc_launch_dependents`, once they have asked for all that they read. Each group of its warps calls
`gdc_wait` before it touches memory, also where it needs nothing, as the kernel after it relies on that. Sooner it may
read constants, such as a lowered graph's weights, and, past the L1, what was written before a kernel that itself waits
before it lets the next one begin, as the merging of statistics does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, TypeGuard

import torch
from torch import Tensor
from triton.runtime import JITFunction, driver

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Outputs
from pipeline.kernels.common.nhwc import Map

DEPENDENT = {"launch_pdl": True}  # programmatic dependent launch, of compute capability 9.0
ALIGNED = 16  # bytes of an address, and what Triton tells sizes apart by: whether they are multiples of it, or 1
WIDE = 31  # bits; Triton takes a larger number in 64


@dataclass(frozen=True)
class Program:
    """A launch that was noted, without the memory that it would read and write."""

    kernel: JITFunction  # of Triton or Gluon
    given: list[object]  # the runtime arguments, each tensor as a `StandIn`
    grid: tuple[int, ...]  # of programs
    options: dict[str, object]  # the kernel's constants, and how it is compiled

    def compile(self, *, launcher: bool = False) -> None:
        """Put it into the kernel's own cache, where a launch of such arguments finds it, and into Triton's on disk."""
        compiled = self.kernel.warmup(*self.given, grid=self.grid, **self.options)
        if launcher:  # which is only left on disk: in Triton 3.6 a thread may be given another program's
            driver.active.launcher_cls(compiled.src, compiled.metadata)


Programs = dict[object, Program]
_noted: ContextVar[Programs | None] = ContextVar("noted programs", default=None)


def on_grid(kernel: JITFunction, *grid: int) -> Callable[..., object]:
    """Return the launcher of a kernel on a grid; within `only_noted` it only notes how the program is compiled."""
    programs = _noted.get()
    return kernel[grid] if programs is None else partial(_note, programs, kernel, grid)


@contextmanager
def only_noted() -> Iterator[Programs]:
    """Within it this thread launches no kernel, and each program is noted once; any thread may compile it."""
    programs: Programs = {}
    token = _noted.set(programs)
    try:
        yield programs
    finally:
        _noted.reset(token)


@dataclass(frozen=True)
class StandIn:
    """As much of a tensor as compiling asks for: its type, and how its address is aligned."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        """Return an address that is aligned as the tensor's."""
        return self.address


def _note(programs: Programs, kernel: JITFunction, grid: tuple[int, ...], *args: object, **options: object) -> None:
    given = [_stand_in(value) for value in args]
    parameters = kernel.params if isinstance(kernel, JITFunction) else ()
    by_value = [not part.do_not_specialize for part in parameters] or repeat(True)  # whether a program is for one value
    told_apart = tuple(map(_told_apart, given, by_value))
    key = (kernel, told_apart, repr(sorted(options.items())))
    programs.setdefault(key, Program(kernel, given, grid, options))


def _stand_in(value: object) -> object:
    if isinstance(value, Tensor):
        return StandIn(value.dtype, value.data_ptr() % ALIGNED)
    return replace(value, base=_stand_in(value.base)) if _is_descriptor(value) else value


def _told_apart(value: object, by_value: bool) -> object:
    """Return what makes another program of a runtime argument without memory, as a hashable value."""
    if _is_descriptor(value):
        return value.base, tuple(value.block_shape), repr(getattr(value, "layout", None))
    if isinstance(value, int):
        wide = value.bit_length() > WIDE
        return (type(value), value == 1, value % ALIGNED == 0, wide) if by_value else (type(value), wide)
    return type(value) if isinstance(value, float) else value


def _is_descriptor(value: object) -> TypeGuard[Any]:
    return is_dataclass(value) and hasattr(value, "block_shape")


def by_slice(value: Map, slices: int) -> Map:
    """Return a value [N, D · H, W, channels] as [N · D, H, W, channels], the same memory; None for None."""
    if value is None or slices == 1:
        return value
    return value.view(-1, value.shape[1] // slices, *value.shape[2:])


def stored_by_slice(outputs: Outputs, slices: int) -> Outputs:
    """Where [N, D · H, W, out] and [N, blocks, 2, out] are stored, for N · D images; ValueError of blocks over two."""
    counted, height = outputs.statistics, 0 if outputs.out is None else outputs.out.shape[1] // slices
    if slices > 1 and counted is not None and height % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {height}")
    counted = None if counted is None else counted.view(len(counted) * slices, -1, *counted.shape[2:])
    return Outputs(by_slice(outputs.out, slices), statistics=counted)


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

    @property
    def constants(self) -> dict[str, int]:
        """The constants and options with which a kernel is compiled for this tile."""
        share = {"ROWS": self.rows, "COLS": self.cols, "OUT": self.out, "DEPTH": self.depth}
        return {**share, "num_warps": self.warps, "num_stages": self.stages}


STRIPS = (64, 16, 40, 88, 112, 136)  # rows: of whole blocks of the statistics, and two less than a multiple of 3


def evenest(size: Sequence[int], at_once: int, strips: Sequence[int] = STRIPS) -> list[int]:
    """Return the two heights of strips, 64 pixels wide, that share maps [N, H, W] most evenly; one costs four rows."""
    batch, height, width = size
    columns = batch * -(-width // 64)
    return sorted(strips, key=lambda rows: -(-(columns * -(-height // rows)) // at_once) * (rows + 4))[:2]

"""The allocator's books through one call: where the peak is, what is alive there, and what libraries work in."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipeline.explain.announce import leaves
from pipeline.explain.traffic import size
from pipeline.reasons import MemoryTimeline
from pipeline.stages import Runner

NAMED = 6  # blocks at the peak


class Books(Protocol):
    """An allocator's books, in bytes."""

    def allocated(self) -> int:
        """What is allocated now."""

    def peak(self) -> int:
        """The most since the last call of `reset`."""

    def reset(self) -> None:
        """Forget the peak."""


class CudaBooks:
    """Those of torch's CUDA allocator, which keeps them on the host: no synchronisation is needed to read them."""

    allocated = staticmethod(torch.cuda.memory_allocated)
    peak = staticmethod(torch.cuda.max_memory_allocated)
    reset = staticmethod(torch.cuda.reset_peak_memory_stats)


@dataclass
class Watch:
    """Reads the books before and after each layer."""

    books: Books
    started: float = field(default_factory=time.perf_counter)
    seconds: list[float] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    outputs: list[tuple[str, int, weakref.ref[Tensor]]] = field(default_factory=list)
    highest: int = -1
    workspace: int = 0
    holders: list[str] = field(default_factory=list)

    def note(self, amount: int) -> None:
        """One point of the timeline."""
        self.seconds.append(time.perf_counter() - self.started)
        self.allocated.append(amount)

    def look(self, name: str = "", output: Tensor | None = None) -> None:
        """Note the peak since the last look and what stands now; `output` is what layer `name` has just written."""
        peak, now = self.books.peak(), self.books.allocated()
        if output is not None:
            self.outputs.append((name, size(output), weakref.ref(output)))
        if peak > self.highest:
            self.highest, self.workspace = peak, peak - now if output is not None else 0
            self.holders = self.alive()
        self.note(peak)
        self.note(now)
        self.books.reset()

    def alive(self) -> list[str]:
        """The largest outputs that somebody still holds, each block once: what is changed in place has many names."""
        blocks: dict[int, tuple[int, str]] = {}
        for name, amount, held in self.outputs:
            if (part := held()) is not None:
                place = part.untyped_storage().data_ptr()
                blocks[place] = (amount, f"{blocks[place][1]}, {name}" if place in blocks else name)
        largest = sorted(blocks.values(), reverse=True)[:NAMED]
        return [f"{name}: {amount / 2**20:.1f} MiB" for amount, name in largest]


def memory_timeline(runner: Runner, batch: Tensor, books: Books, context_bytes: int | None) -> MemoryTimeline:
    """The timeline of one call of a warm stage.

    Args:
        runner: the stage.
        batch: one input.
        books: of the allocator.
        context_bytes: what the process held of the device before its first tensor.
    """
    layered = runner.module if runner.twin is None else None
    weights = [] if layered is None else [*layered.parameters(), *layered.buffers()]
    books.reset()
    held, watch = books.allocated(), Watch(books)
    watch.note(held)
    with torch.inference_mode(), watched(layered, watch):
        runner.run(batch)
    watch.look()
    return MemoryTimeline(
        seconds=watch.seconds,
        allocated_bytes=watch.allocated,
        weights_bytes=sum(map(size, weights)) if weights else None,
        activations_bytes=watch.highest - held - watch.workspace,
        workspace_bytes=watch.workspace if layered is not None else None,
        held_bytes=held,
        context_bytes=context_bytes,
        peak_holders=watch.holders,
    )


@contextmanager
def watched(net: nn.Module | None, watch: Watch) -> Iterator[None]:
    """Within, the books are read before and after every leaf of the net."""
    handles = [hook for name, leaf in leaves(net) for hook in _hooks(leaf, name, watch)] if net is not None else []
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(leaf: nn.Module, name: str, watch: Watch) -> list[Any]:
    def before(_: nn.Module, __: Any) -> None:
        watch.look()

    def after(_: nn.Module, __: Any, output: Any) -> None:
        watch.look(name, output if isinstance(output, Tensor) else None)

    return [leaf.register_forward_pre_hook(before), leaf.register_forward_hook(after)]

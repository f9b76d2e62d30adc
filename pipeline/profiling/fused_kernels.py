"""How much is left to launch, how much is moved, and what a compiler put into one kernel."""

from collections import defaultdict
from itertools import zip_longest
from typing import get_args

from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.profiling.inductor_source import compile_fusion
from pipeline.profiling.operator_bytes import counted
from pipeline.records.chrome_trace import TraceEvent, of
from pipeline.records.diagnostics import BytesSource, Fusion, LayoutChange, PlaceKind
from pipeline.records.error_line import first_line, shortened
from pipeline.stages.api import Runner, Traffic
from pipeline.stages.common.inductor_files import KEPT, graphs, programs

UNSEEN = "its operators don't pass torch's dispatcher"


def fusion(runner: Runner, batch: Batch | Tensor, events: list[TraceEvent], calls: int, shown: str) -> Fusion:
    """Kernels and bytes of one call, and what a compiler fused.

    Args:
        runner: the stage, whose functions take a Batch.
        batch: the inputs of one call, each [batch, ...].
        events: of its profile of `calls` calls.
        calls: how many.
        shown: the stage's folder, as the record names it.
    """
    work = of(events, "kernel") if batch.is_cuda else innermost(of(events, "cpu_op"))
    moved, source, unknown = traffic(runner, batch)
    cache, kept = runner.generated_code, f"{shown}/{KEPT}"
    return Fusion(
        kernels_per_call=len(work) / calls,
        bytes_per_call=moved,
        bytes_source=source,
        bytes_unknown=unknown,
        kernels=compile_fusion(programs(cache), kept) if cache else [],
        graphs=[f"{kept}/{path.name}" for path in graphs(cache)] if cache else [],
    )


def traffic(runner: Runner, batch: Batch | Tensor) -> tuple[int | None, BytesSource | None, str]:
    """Bytes that one call on a batch [batch, ...] moves and who counted them; or why not."""
    try:
        found: Traffic | None
        found = runner.traffic(batch) if runner.traffic else (counted(runner.one_by_one, batch), "operators")
    except RuntimeError as error:
        return None, None, f"torch's dispatcher can't count it ({first_line(error)})"
    if not found:
        return None, None, UNSEEN
    if [*map(type, found)] != [int, str] or found[1] not in get_args(BytesSource):
        return None, None, shortened(f"Runner.traffic gave {found!r}; bytes and who counted them are wanted")
    return (*found, "") if found[0] else (None, None, UNSEEN)


def innermost(operators: list[TraceEvent]) -> list[TraceEvent]:
    """Of the operators of a CPU, by their beginnings, those that call no other."""
    threads: dict[int | str, list[TraceEvent]] = defaultdict(list)
    for event in operators:
        threads[event.thread].append(event)
    return [
        event
        for thread in threads.values()
        for event, following in zip_longest(thread, thread[1:])
        if following is None or following.start_us >= event.end_us
    ]


def compiled_layout_changes(
    found: Fusion, events: list[TraceEvent], calls: int, spots: dict[int, str]
) -> list[LayoutChange]:
    """The kernels that a compiler wrote which read in one layout and write in the other, with their times.

    Args:
        found: what the compiler wrote.
        events: of the profile of `calls` calls.
        calls: how many.
        spots: where in the call an event is, by its id; a kernel that is at none is told by what it does.
    """
    work = of(events, "kernel") or of(events, "cpu_op")  # on a GPU the operator of that name is the launch
    changes = []
    for kernel in [kernel for kernel in found.kernels if kernel.turns_layout]:
        ran = [event for event in work if event.name == kernel.name]
        at: dict[str, list[float]] = defaultdict(list)
        for event in ran:
            at[spots.get(event.index, "")].append(event.duration_us / 1e6)
        if ran and "" not in at:
            changes += [
                LayoutChange(kernel.name, spot, "generated code", len(times) / calls, sum(times) / calls, "gap")
                for spot, times in at.items()
            ]
            continue
        seconds = sum(sum(times) for times in at.values()) / calls if ran else None
        where, times_per_call = ", ".join(kernel.operators) or None, float(kernel.launches_per_call)
        kind: PlaceKind | None = "operators" if where else None
        changes.append(LayoutChange(kernel.name, where, "generated code", times_per_call, seconds, kind))
    return sorted(changes, key=lambda change: -(change.seconds_per_call or 0.0))

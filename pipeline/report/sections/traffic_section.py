"""What the GPU's own counters saw, and the longest kernels with what they move."""

from collections import defaultdict

from pipeline.analysis.traffic import BY_COUNTERS, KernelFigures, agreement, counted, kernels_of
from pipeline.records.run_record import StageRecord
from pipeline.report.formatting import clean, gigabytes, listed, milliseconds, share, significant
from pipeline.report.sections.source_text import COUNTED_BY, note_text
from pipeline.report.tables import Column, Table, figure, names, table_of

KERNELS_SHOWN = 12
NAME_LETTERS = 160


def sentences(stages: list[StageRecord], winner: str | None) -> list[str]:
    """What the counters saw of the winner, and where they differ from the operators; or why they weren't read."""
    who: dict[str, list[str]] = defaultdict(list)
    for stage in stages:
        who[_against_operators(stage, stage.name == winner)].append(clean(stage.name))
    notes = [
        note_text(note)
        for stage in stages
        if stage.diagnostics
        for note in stage.diagnostics.notes_on("hardware counters")
    ]
    said = [f"{listed(names)}: {text}" for text, names in who.items() if text]
    return [*said, *(f"{note}." for note in dict.fromkeys(notes))]


def _against_operators(stage: StageRecord, always: bool) -> str:
    """Such as "the GPU's counters saw 18 GB per call, 140 % of the 13 GB by the inputs and outputs of …"."""
    found = agreement(stage)
    if found is None:
        return ""
    text = f"the GPU's counters saw {gigabytes(found.counted)} GB per call"
    expected = f"{gigabytes(found.expected)} GB by {COUNTED_BY[found.source]}"
    if found.close:
        return f"{text}, close to the {expected}." if always else ""
    reason = "caches saved the rest" if found.share < 1 else "inside of them more is moved, or the same more than once"
    return f"{text}, {share(found.share)} of the {expected}: {reason}."


def summary(stage: StageRecord) -> str:
    """Such as "3.10 GB read and 2.02 GB written, of 14.1 GB asked of the L2 cache (ncu 2025.3)"; empty if unknown."""
    seen = counted(stage)
    if seen is None:
        return ""
    read, written, cache = (f"{gigabytes(part)} GB" for part in (seen.read_bytes, seen.written_bytes, seen.cache_bytes))
    text = f"{read} read and {written} written, of {cache} asked of the L2 cache ({clean(seen.tool)})"
    same = "" if seen.alike == seen.kernels else f"; {seen.alike} of its {seen.kernels} kernels are the profile's"
    return f"{text}{same}."


def kernels(stage: StageRecord, bytes_per_second: float | None) -> Table:
    """The longest kernels with their time per call and, where it was counted, what they move.

    Args:
        stage: the profiled stage.
        bytes_per_second: of the copy measured on this device.
    """
    columns: list[Column[KernelFigures]] = [
        names("kernel", lambda kernel: clean(kernel.name)[:NAME_LETTERS]),
        names("class", lambda kernel: kernel.kind),
        Column("ms", cell=figure(lambda kernel: kernel.seconds, milliseconds)),
        Column("of the kernels' time", cell=figure(lambda kernel: kernel.share, share)),
        Column("launches", cell=figure(lambda kernel: kernel.launches, significant)),
    ]
    if (seen := counted(stage)) and seen.by_kernel:
        columns += [
            Column(
                "GB",
                help=f"to and from device memory, by {BY_COUNTERS}",
                cell=figure(lambda kernel: kernel.moved_bytes, gigabytes),
            ),
            Column(
                "of the bandwidth",
                help="those bytes over the kernel's time, of the measured copy",
                cell=figure(lambda kernel: kernel.bandwidth_share, share),
            ),
        ]
    return table_of(columns, kernels_of(stage, bytes_per_second)[:KERNELS_SHOWN])

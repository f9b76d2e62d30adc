"""Bytes that a stage moves: by the GPU's own counters where they were read, else as counted from its operators."""

from collections import defaultdict

from pipeline.records.diagnostics import CountedBytes
from pipeline.records.run_record import StageRecord
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table

BY_COUNTERS = "hardware counters"
KERNELS_SHOWN = 12
APART = 1.25  # times as many bytes by one count as by the other: worth a sentence
NAME_LETTERS = 160


def counted(stage: StageRecord) -> CountedBytes | None:
    """What the counters saw of one call."""
    return stage.diagnostics.counted if stage.diagnostics else None


def moved(stage: StageRecord) -> tuple[int | None, str]:
    """Bytes through device memory in one call and how they are known; None and why they aren't."""
    if seen := counted(stage):
        return seen.moved_bytes, BY_COUNTERS
    fusion = stage.diagnostics.fusion if stage.diagnostics else None
    return (fusion.bytes_per_call, words.clean(fusion.bytes_from)) if fusion else (None, "nothing on record")


def sentences(stages: list[StageRecord], winner: str | None) -> list[str]:
    """What the counters saw of the winner, and where they differ from the operators; or why they weren't read."""
    who: dict[str, list[str]] = defaultdict(list)
    for stage in stages:
        who[_against_operators(stage, stage.name == winner)].append(words.clean(stage.name))
    notes = [
        note
        for stage in stages
        if stage.diagnostics
        for note in stage.diagnostics.notes
        if note.startswith(BY_COUNTERS)
    ]
    said = [f"{words.listed(names)}: {text}" for text, names in who.items() if text]
    return [*said, *(f"{words.clean(note)}." for note in dict.fromkeys(notes))]


def _against_operators(stage: StageRecord, always: bool) -> str:
    """Such as "the GPU's counters saw 18 GB a call, 140 % of the 13 GB by the inputs and outputs of …"."""
    seen, fusion = counted(stage), stage.diagnostics.fusion if stage.diagnostics else None
    if seen is None or fusion is None or not fusion.bytes_per_call:
        return ""
    part = seen.moved_bytes / fusion.bytes_per_call
    text = f"the GPU's counters saw {words.significant(seen.moved_bytes / 1e9)} GB a call"
    theirs = f"{words.significant(fusion.bytes_per_call / 1e9)} GB by {words.clean(fusion.bytes_from)}"
    if 1 / APART < part < APART:
        return f"{text}, close to the {theirs}." if always else ""
    why = "caches saved the rest" if part < 1 else "inside of them more is moved, or the same more than once"
    return f"{text}, {words.share(part)} of the {theirs}: {why}."


def summary(stage: StageRecord) -> str:
    """Such as "3.10 GB read and 2.02 GB written, of 14.1 GB asked of the L2 cache (ncu 2025.3)"; empty if unknown."""
    seen = counted(stage)
    if seen is None:
        return ""
    read, written, cache = (
        f"{words.significant(part / 1e9)} GB" for part in (seen.read_bytes, seen.written_bytes, seen.cache_bytes)
    )
    text = f"{read} read and {written} written, of {cache} asked of the L2 cache ({words.clean(seen.tool)})"
    same = "" if seen.alike == seen.kernels else f"; {seen.alike} of its {seen.kernels} kernels are the profile's"
    return f"{text}{same}."


def kernels(stage: StageRecord, bytes_per_second: float | None) -> Table:
    """The longest kernels with their time, and where it was counted what they move.

    Args:
        stage: profiled.
        bytes_per_second: of the copy that was measured on this device; None leaves shares of it out.
    """
    rows = stage.profile.kernels if stage.profile else []
    total, seen = sum(row.seconds_per_call for row in rows), counted(stage)
    by_kernel = seen.by_kernel if seen else {}
    titles = [
        ("kernel", ""),
        ("class", ""),
        ("ms", "a call"),
        ("share", "of the kernels' time"),
        ("launches", "a call"),
    ]
    if by_kernel:
        titles += [
            ("GB", "to and from device memory, by the GPU's counters"),
            ("of the bandwidth", "those bytes over the kernel's time, of the copy measured here"),
        ]
    cells = []
    for row in rows[:KERNELS_SHOWN]:
        share, through = row.seconds_per_call / total if total else None, by_kernel.get(row.name)
        reached = _reached(through, row.seconds_per_call, bytes_per_second)
        cells.append(
            [
                Cell(words.clean(row.name)[:NAME_LETTERS]),
                Cell(row.kind),
                Cell(words.milliseconds(row.seconds_per_call), row.seconds_per_call),
                Cell(words.share(share), share),
                Cell(words.significant(row.launches_per_call), row.launches_per_call),
                Cell(words.NOTHING if through is None else words.significant(through / 1e9), through),
                Cell(words.share(reached), reached),
            ][: len(titles)]
        )
    return Table(titles, cells)


def _reached(through: int | None, seconds: float, bytes_per_second: float | None) -> float | None:
    return through / seconds / bytes_per_second if through is not None and seconds and bytes_per_second else None

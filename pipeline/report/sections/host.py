"""The host's part in a call: where its wall time goes, and the path from the host's memory and back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.analysis.bottleneck import moves, net_share
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import TimeSplit
from pipeline.records.run_record import StageRecord
from pipeline.report import WORDS
from pipeline.report.formatting import clean, method, milliseconds, seconds, share, significant
from pipeline.report.sections.way import classes_figures
from pipeline.report.tables import Column, Section, Table, explained, methods, names, number, table_of
from pipeline.stats.ranking import waiting_share

NOTE: str = WORDS["host"]["note"]
PATH_NOTE: str = WORDS["host"]["path_note"]
MOVED = "ms, with the moves so far"
MOVES = ("as it is", "uint8 in", "classes out", "ring")

Finding = Literal["nothing recorded", "no GPU", "GPU waits", "GPU busy"]
HostPart = Literal["launches", "the framework", "the interpreter"]


@dataclass(frozen=True)
class HostTime:
    """A call's wall time: on the GPU, in launches, in the framework, in the interpreter."""

    split: TimeSplit
    finding: Finding
    share: float = 0.0  # without a GPU: of the time, outside of operators; with one: of a call, that the GPU waits
    longest: HostPart = "launches"  # of the host's parts

    @property
    def idle(self) -> float | None:
        """Seconds without any kernel; None without a GPU."""
        busy = self.split.device_seconds
        return None if busy is None else max(0.0, self.split.wall_seconds - busy)


def host_time(split: TimeSplit, waits: float | None) -> HostTime:
    """Read a split beside the share of a call outside the profiler in which the GPU waits for the CPU."""
    if split.device_seconds is None and split.wall_seconds > 0:
        return HostTime(split, "no GPU", split.interpreter_seconds / split.wall_seconds)
    if waits is None:
        return HostTime(split, "nothing recorded")
    parts: dict[HostPart, float] = {
        "launches": split.launch_seconds,
        "the framework": split.framework_seconds,
        "the interpreter": split.interpreter_seconds,
    }
    longest = max(parts, key=lambda part: parts[part])
    return HostTime(split, "GPU waits", waits, longest) if waits else HostTime(split, "GPU busy")


def host_time_of(stage: StageRecord) -> HostTime | None:
    """Return what the stage's split shows; None where none is on record."""
    split = stage.explained.split
    return host_time(split, waiting_share(stage)) if split else None


Line = tuple[str, HostTime]  # a stage's name and its time
PARTS: tuple[tuple[str, str, Callable[[HostTime], float | None]], ...] = (
    ("wall", "ms per call, under the profiler, which slows the host", lambda time: time.split.wall_seconds),
    ("GPU", "ms in which some kernel ran", lambda time: time.split.device_seconds),
    ("idle", "ms in which none did", lambda time: time.idle),
    ("launches", "ms of the host inside calls to the driver that start work", lambda time: time.split.launch_seconds),
    ("framework", "ms of the host inside operators, without those launches", lambda time: time.split.framework_seconds),
    ("interpreter", "ms of the host inside the call, but in no operator", lambda time: time.split.interpreter_seconds),
    ("waiting", "ms of the host in synchronisation", lambda time: time.split.waiting_seconds),
)


def section(summary: RunSummary) -> Section:
    """Return where the time goes; one sentence stands for the table where launches limit no stage."""
    line, charts = in_a_line(summary), classes_figures(summary)
    gist = "By class of work on the device, and by what the host does meanwhile."
    said, table = ([line], Table()) if line else ([], table_of(columns(), lines(summary)))
    return Section("time", "Where the time goes", gist, "" if line else NOTE, said, charts, table)


def columns() -> list[Column[Line]]:
    """Return the parts of the wall time, and their meaning; in results.csv in seconds."""

    def part(title: str, said: str, read: Callable[[HostTime], float | None]) -> Column[Line]:
        return number(title, lambda line: read(line[1]), milliseconds, f"profiled_{title.lower()}_s", help=said)

    parts = [part(*each) for each in PARTS]
    stage: Column[Line] = methods(lambda line: line[0])
    return [stage, *parts, names("what it means", lambda line: meaning(line[1]), "host_time_meaning")]


def lines(summary: RunSummary) -> list[Line]:
    """Return every ranked stage whose split is on record."""
    return [(stage.name, time) for stage in summary.ranked if (time := host_time_of(stage.stage))]


def in_a_line(summary: RunSummary) -> str:
    """Return that launches limit no stage, where that is all that the table would say; empty where some GPU waits."""
    findings = {time.finding for _, time in lines(summary)}
    return "Launches limit no stage: the GPU waits for the CPU in none." if findings == {"GPU busy"} else ""


def of_stage(stage: StageRecord) -> list[tuple[str, str]]:
    """Return the lines of a stage's own part of the page."""
    time = host_time_of(stage)
    if time is None:
        return []
    titled = {"idle": "idle between kernels"}
    parts = [(titled.get(title, title), read(time)) for title, _, read in PARTS[1:]]
    said = ", ".join(f"{title} {seconds(value)}" for title, value in parts if value is not None)
    return [("host and GPU", f"{seconds(time.split.wall_seconds)} under the profiler: {said}. {meaning(time)}")]


def meaning(time: HostTime) -> str:
    """Return what the split shows, in a sentence."""
    text: str = WORDS["host"]["meanings"][time.finding]
    return text.format(idle=share(time.share), longest=time.longest)


def path_section(summary: RunSummary) -> Section:
    """Return the path from the host's memory and back, with each further move."""
    said = path_sentences(summary)
    table = table_of(path_columns(), on_the_path(summary)).without_empty_columns
    note = summary.run.words.put_into(PATH_NOTE) if table.rows else ""
    return Section("around", "Around the network", said[0] if said else "", note, said, table=table)


def path_columns() -> list[Column[StageSummary]]:
    """Return the network alone, and the path around it with each further move."""

    def seconds_of(stage: StageSummary) -> dict[str, float]:
        return {move.name: move.seconds for move in moves(stage.stage)}

    def move(name: str) -> Column[StageSummary]:
        csv = f"host_path_{name.replace(' ', '_')}_s"
        return number(name, lambda stage: seconds_of(stage).get(name), milliseconds, csv, help=MOVED)

    def alone(stage: StageSummary) -> float | None:
        return stage.seconds.value if stage.seconds else None

    def as_it_is(stage: StageSummary) -> float | None:
        return net_share(stage.stage, seconds_of(stage).get(MOVES[0], 0.0))

    stage: Column[StageSummary] = methods(lambda stage: stage.name)
    network = number("network alone", alone, milliseconds)
    whole = number("network's share", as_it_is, share, "host_path_net_share")
    return explained("host", [stage, network, *map(move, MOVES), whole])


def on_the_path(summary: RunSummary) -> list[StageSummary]:
    """Return every ranked stage whose path was measured."""
    return [stage for stage in summary.ranked if stage.stage.host_path]


def path_sentences(summary: RunSummary) -> list[str]:
    """Return what the network is of the winner's path, and what each move buys; or why nothing is known."""
    stage = summary.winner or next(iter(summary.ranked), None)
    if stage is None:
        return []
    if not stage.stage.host_path:
        reason = stage.stage.host_path_left_out
        return [f"Not measured: {clean(reason)}."] if reason else []
    found = moves(stage.stage)
    part, last = net_share(stage.stage, found[0].seconds), found[-1]
    network = f"; the network itself is {share(part)} of it" if part is not None else ""
    pinned = f"{seconds(found[0].seconds)} per call, back to back, including transfers to and from the GPU"
    first = f"{method(stage.name)}: {pinned}{network}."
    bought = ", ".join(f"{move.name} {significant(move.bought)} ×" for move in found if move.bought)
    left = net_share(stage.stage, last.seconds)
    after = f", of which the network is {share(left)}" if left is not None else ""
    whole = f"Together {significant(found[0].seconds / last.seconds)} ×: {seconds(last.seconds)} per call{after}"
    return [first, f"Speed-up of each move: {bought}. {whole}."]

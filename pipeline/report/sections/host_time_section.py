"""Where a call's wall time goes, in a table and in sentences."""

from collections.abc import Callable

from pipeline.analysis.host_time import HostTime, Sums, class_sums, flops_sums, host_time_of
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.formatting import clean, milliseconds, seconds, share, significant
from pipeline.report.tables import Column, Table, figure, names, table_of

Line = tuple[str, HostTime]  # a stage's name and its time
NOTE = (
    "Milliseconds of one call under the profiler, which makes the host slower. The host's parts overlap the GPU's time."
)


def columns() -> list[Column[Line]]:
    """The parts of the wall time, and what they mean."""
    return [
        names("stage", lambda line: clean(line[0])),
        _part("wall", "ms per call, under the profiler, which slows the host", lambda time: time.split.wall_seconds),
        _part("GPU", "ms in which some kernel ran", lambda time: time.split.device_seconds),
        _part("idle", "ms in which none did", lambda time: time.idle),
        _part(
            "launches",
            "ms of the host inside calls to the driver that start work",
            lambda time: time.split.launch_seconds,
        ),
        _part(
            "framework",
            "ms of the host inside operators, without those launches",
            lambda time: time.split.framework_seconds,
        ),
        _part(
            "interpreter",
            "ms of the host inside the call, but in no operator",
            lambda time: time.split.interpreter_seconds,
        ),
        _part("waiting", "ms of the host in synchronisation", lambda time: time.split.waiting_seconds),
        names("what it means", lambda line: meaning(line[1]), csv="host_time_meaning"),
    ]


def _part(title: str, said: str, read: Callable[[HostTime], float | None]) -> Column[Line]:
    """One of them, in milliseconds; in results.csv in seconds."""

    def seconds_of(line: Line) -> float | None:
        return read(line[1])

    return Column(title, help=said, cell=figure(seconds_of, milliseconds), csv=f"profiled_{title.lower()}_s")


def lines(summary: RunSummary) -> list[Line]:
    """Every ranked stage whose split is on record."""
    return [(stage.name, time) for stage in summary.ranked if (time := host_time_of(stage.stage))]


def table(summary: RunSummary) -> Table:
    """All of them, each part of their wall time."""
    return table_of(columns(), lines(summary))


def shown(summary: RunSummary) -> tuple[str, Table]:
    """The line that stands for the table, empty where it doesn't, and the table."""
    return in_a_line(summary), table(summary)


def in_a_line(summary: RunSummary) -> str:
    """That launches limit no stage, where that is all that the table would say; empty where some GPU waits."""
    times = [time for _, time in lines(summary)]
    if not times or any(time.finding not in ("GPU busy", "profiler waits") for time in times):
        return ""
    most = max(time.share if time.finding == "GPU busy" else time.unfilled or 0.0 for time in times)
    beside = "" if all(time.finding == "GPU busy" for time in times) else ", or of a call outside it,"
    return f"Launches limit no stage: under the profiler{beside} the GPU idles for at most {share(most)} of the time."


def section(stage: StageRecord) -> list[tuple[str, str]]:
    """The lines of a stage's own section."""
    time = host_time_of(stage)
    if time is None:
        return []
    split = time.split
    parts = [
        ("GPU", split.device_seconds),
        ("idle between kernels", time.idle),
        ("launches", split.launch_seconds),
        ("framework", split.framework_seconds),
        ("interpreter", split.interpreter_seconds),
        ("waiting", split.waiting_seconds),
    ]
    said = ", ".join(f"{name} {seconds(value)}" for name, value in parts if value is not None)
    lines = [("host and GPU", f"{seconds(split.wall_seconds)} under the profiler: {said}. {meaning(time)}")]
    return [*lines, *([("adds up?", classes)] if (classes := classes_text(stage)) else [])]


def meaning(time: HostTime) -> str:
    """What the split shows, in a sentence."""
    if time.finding == "nothing recorded":
        return "Nothing was recorded."
    if time.finding == "no GPU":
        return f"No GPU: {share(time.share)} of the time is outside the framework's operators."
    if time.finding == "profiler waits":
        left = f"outside it the call's kernels leave {share(time.unfilled)} of the time"
        return f"The GPU waits for the profiler; {left}: launches are not the limit."
    if time.finding == "GPU waits":
        return f"The GPU waits for {share(time.share)} of the time; on the host, {time.longest} takes the most."
    return f"The GPU idles for only {share(time.share)}: launches are not the limit."


def classes_text(stage: StageRecord) -> str:
    """The sum of the profile's classes beside the time that they were measured in; empty without either."""
    sums = class_sums(stage)
    return f"classes and {sums.what}: {_both(sums, seconds)}" if sums else ""


def flops_text(run: RunRecord) -> str:
    """The layers' FLOPs beside those counted for the whole net; empty without layers on record."""
    sums = flops_sums(run)
    return _both(sums, lambda value: f"{significant(value / 1e9, 6)} GFLOP") if sums else ""


def _both(sums: Sums, shown: Callable[[float], str]) -> str:
    if sums.apart is None:
        return f"{shown(sums.first)}, against nothing on record"
    said = f"{share(sums.apart)} apart" if sums.apart else "the same"
    overlap = ", as kernels overlap" if sums.apart and sums.overlap else ""
    return f"{shown(sums.first)}, {shown(sums.second)}: {said}{overlap}"

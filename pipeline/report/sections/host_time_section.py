"""Where a call's wall time goes: on the GPU, in launches, in the framework, in the interpreter."""

from collections.abc import Callable

from pipeline.analysis.summary import Digest
from pipeline.records.diagnostics import TimeSplit
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table

IDLE_WORTH_NAMING = 0.1  # of the wall time under the profiler
LEAD_WORTH_NAMING = 5.0  # launches: with so many queued the GPU never waits for the next one
ROUNDING = 1e-4  # of two sums that ought to agree
TITLES = [
    ("stage", ""),
    ("wall", "ms per call, under the profiler, which slows the host"),
    ("GPU", "ms in which some kernel ran"),
    ("idle", "ms in which none did"),
    ("launches", "ms of the host inside calls to the driver that start work"),
    ("framework", "ms of the host inside operators, without those launches"),
    ("interpreter", "ms of the host inside the call, but in no operator"),
    ("waiting", "ms of the host in synchronisation"),
    ("queue lead", "median µs between a launch and the start of what it launched"),
    ("what it means", ""),
]


def table(found: Digest) -> Table:
    """Every ranked stage whose split is on record."""
    launch = found.run.measured_peaks.launch_us if found.run.measured_peaks else None
    whys = [(row.name, row.stage.diagnostics) for row in found.rows if row.ranked and row.stage.diagnostics]
    return Table(TITLES, [cells(name, why.split, launch) for name, why in whys if why.split])


def section(run: RunRecord, stage: StageRecord) -> list[tuple[str, str]]:
    """What a stage's own page says of it."""
    found = stage.diagnostics.split if stage.diagnostics else None
    if found is None:
        return []
    parts = [
        ("GPU", found.device_seconds),
        ("idle between kernels", idle(found)),
        ("launches", found.launch_seconds),
        ("framework", found.framework_seconds),
        ("interpreter", found.interpreter_seconds),
        ("waiting", found.waiting_seconds),
        ("queue lead", found.queue_lead_seconds),
    ]
    said = ", ".join(f"{name} {words.seconds(value)}" for name, value in parts if value is not None)
    launch = run.measured_peaks.launch_us if run.measured_peaks else None
    lines = [("split", f"{words.seconds(found.wall_seconds)} under the profiler: {said}. {meaning(found, launch)}")]
    return [*lines, *([("adds up?", classes)] if (classes := classes_sum(stage)) else [])]


def cells(name: str, split: TimeSplit, launch_us: float | None) -> list[Cell]:
    """One line of the table."""
    parts = [
        split.wall_seconds, split.device_seconds, idle(split), split.launch_seconds, split.framework_seconds,
        split.interpreter_seconds, split.waiting_seconds,
    ]  # fmt: skip
    lead = split.queue_lead_seconds
    return [
        Cell(words.clean(name)),
        *(Cell(words.milliseconds(part), part) for part in parts),
        Cell(words.NOTHING) if lead is None else Cell(words.significant(lead * 1e6), lead),
        Cell(meaning(split, launch_us)),
    ]


def idle(split: TimeSplit) -> float | None:
    """Seconds without any kernel; None without a GPU."""
    return None if split.device_seconds is None else max(0.0, split.wall_seconds - split.device_seconds)


def meaning(split: TimeSplit, launch_us: float | None) -> str:
    """What the split says, in a sentence."""
    if split.wall_seconds <= 0:
        return "Nothing was recorded."
    gap = idle(split)
    if gap is None:
        share = split.interpreter_seconds / split.wall_seconds
        return f"No GPU: {words.share(share)} of the time is outside the framework's operators."
    lead, share = split.queue_lead_seconds, gap / split.wall_seconds
    ahead = lead is not None and launch_us is not None and lead * 1e6 >= LEAD_WORTH_NAMING * launch_us
    if share >= IDLE_WORTH_NAMING:
        host = {
            "launches": split.launch_seconds,
            "the framework": split.framework_seconds,
            "the interpreter": split.interpreter_seconds,
        }
        longest = max(host, key=lambda name: host[name])
        return f"The GPU waits for {words.share(share)} of the time; of the host's, {longest} takes the most."
    if ahead:
        return f"The host runs {words.seconds(lead)} ahead of the GPU: launches are not what limits."
    return f"The GPU idles for only {words.share(share)}: launches are not what limits."


def classes_sum(stage: StageRecord) -> str:
    """The sum of the profile's classes beside the time that they were measured in; empty without either."""
    split = stage.diagnostics.split if stage.diagnostics else None
    if split is None or stage.profile is None or not stage.profile.kernels:
        return ""
    classes = sum(kernel.seconds_per_call for kernel in stage.profile.kernels)
    if split.device_seconds is not None:
        return f"classes and GPU time: {_both(classes, split.device_seconds, words.seconds)}"
    operators = split.framework_seconds + split.launch_seconds
    return f"classes and time inside operators: {_both(classes, operators, words.seconds)}"


def layers_flops(run: RunRecord) -> str:
    """The layers' FLOPs beside those counted for the whole net; empty without layers on record."""
    if run.reference is None or not run.reference.layers:
        return ""
    total = sum(layer.flops for layer in run.reference.layers)
    return _both(total, run.reference.flops_per_image, lambda value: f"{words.significant(value / 1e9, 6)} GFLOP")


def _both(first: float, second: float, shown: Callable[[float], str]) -> str:
    if not second:
        return f"{shown(first)}, against nothing on record"
    apart = abs(first / second - 1)
    said = "the same" if apart < ROUNDING else f"{words.share(apart)} apart"
    return f"{shown(first)}, {shown(second)}: {said}"

"""Why the winner wins and what still limits it: the time that each step took away, by class of work."""

from collections.abc import Iterable
from functools import partial

from pipeline.analysis import attribution
from pipeline.analysis.bottleneck import BY_COUNTERS, moved
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report import WORDS
from pipeline.report.charts import CLASSES
from pipeline.report.charts.bars import stacked, waterfall
from pipeline.report.formatting import clean, gigabytes, listed, method, milliseconds, seconds, share, signed
from pipeline.report.sections.bottleneck import in_short
from pipeline.report.sections.cost import DOUBTS
from pipeline.report.tables import Column, Figure, Section, explained, methods, names, number, table_of

ByClass = tuple[StageSummary, dict[str, float]]  # a stage, and its seconds per call by class of work

QUESTION = "Why does it win, and what limits it?"
NOTE: str = WORDS["way"]["note"]
NO_CLASS = "no class of work changed by much"
WORTH_SAYING = 0.05  # of what could be saved: what layers beat their rooflines by


def section(summary: RunSummary) -> Section:
    """Return the way to the winner."""
    aside, charts = [*map(method, attribution.way(summary)[1])], way_figures(summary)
    left_out = f" Left out, as not measurably faster than the best earlier stage: {listed(aside)}." if aside else ""
    gist = of_winner(summary, summary.winner) if summary.winner else ""
    note = f"{NOTE}{left_out}" if charts else ""
    return Section("way", QUESTION, gist, note, step_sentences(summary), charts, gist_in_markdown=True)


def of_winner(summary: RunSummary, winner: StageSummary) -> str:
    """Return text such as "The largest step to it was tf32, −59 ms per call. fp8 is compute-bound …"."""
    step = attribution.largest_step(summary)
    largest = f"The largest step to it was {method(step.name)}, {signed(step.change)} per call." if step else ""
    return " ".join(filter(None, (largest, _moved(summary, winner), in_short(winner), _still(winner))))


def step_sentences(summary: RunSummary) -> list[str]:
    """Return a sentence for each step on the way to the winner; or why none is told."""
    if summary.winner and summary.doubt == "baseline drifted":
        return [f"The saving of each step is unknown: {DOUBTS[summary.doubt]}."]
    return [sentence(step) for step in attribution.steps(summary)]


def _moved(summary: RunSummary, winner: StageSummary) -> str:
    """Return what the winner moves and launches beside the baseline; empty where unknown, or counted differently."""
    baseline = summary.stage(summary.run.baseline)
    if baseline is None or baseline is winner:
        return ""
    ours, theirs = (moved(stage.stage) for stage in (winner, baseline))
    fusions = [stage.stage.explained.fusion for stage in (winner, baseline)]
    kernels = [fusion.kernels_per_call for fusion in fusions if fusion]
    if not ours.amount or not theirs.amount or len(kernels) < 2 or ours.source != theirs.source:
        return ""
    what = "kernels" if summary.on_gpu else "operators"
    least = "" if ours.source == BY_COUNTERS else "at least "
    own = f"{method(winner.name)} moves {least}{gigabytes(ours.amount)} GB in {kernels[0]:.0f} {what} per call"
    return f"{own}, {method(summary.baseline)} {least}{gigabytes(theirs.amount)} GB in {kernels[1]:.0f}."


def _still(winner: StageSummary) -> str:
    """Return where most time could still be saved, and by how much other layers are below their rooflines."""
    left = attribution.remaining(winner)
    if left is None:
        return ""
    if not left.total:
        place = "work of other kinds" if left.place == "other" else left.place
        return f"After its matrix work, most time goes into {place}: {seconds(left.seconds)}."
    text = f"Largest headroom: {clean(left.place)}, {seconds(left.seconds)} of the {seconds(left.total)}"
    text += " that layers take above their rooflines"
    if left.below > WORTH_SAYING * left.total:
        text += f" (others are {seconds(left.below)} faster than theirs)"
    if left.between > left.total:
        return f"{text}; another {seconds(left.between)} lie between layers, which have no roofline."
    return f"{text}."


def sentence(step: attribution.Step) -> str:
    """Return text such as "half → compile: −3.2 ms per call. By the profile: pointwise −2.6 ms (46 → 23 launches)."."""
    named = ", ".join(
        f"{each.kind} {signed(each.seconds)} ({each.launches_before:.0f} → {each.launches_after:.0f} launches)"
        for each in step.classes
    )
    idle = ""
    if step.idle:
        before, after = map(share, step.idle)
        idle = f", while under the profiler the GPU idles for {after} of the time instead of {before}"
    figures = {"unseen": step.unseen, "seen": share(step.seen_share), "rest": signed(step.rest), "idle": idle}
    why = WORDS["way"]["findings"][step.finding].format(named=named or NO_CLASS, **figures)
    return f"{method(step.previous)} → {method(step.name)}: {signed(step.change)} per call. {why}"


def way_figures(summary: RunSummary) -> list[Figure]:
    """Draw the way to the winner as a waterfall."""
    path = attribution.steps(summary)
    if not path:
        return []
    bars = [(f"+ {method(step.name)}", step.before, step.after) for step in path]
    alike = [f"+ {method(step.name)}" for step in path if step.finding == "no difference"]
    ends = (method(path[0].previous), 0.0, path[0].before), ("→ the winner", 0.0, path[-1].after)
    draw = partial(waterfall, [ends[0], *bars, ends[1]], "milliseconds per call", alike)
    columns: list[Column[attribution.Step]] = [
        names("step", lambda step: method(step.name)),
        number("before", lambda step: step.before, seconds),
        number("after", lambda step: step.after, seconds),
        number("change", lambda step: step.change, signed),
    ]
    return [Figure(f"From {ends[0][0]} to the winner", draw, "", table_of(columns, path))]


def classes_figures(summary: RunSummary) -> list[Figure]:
    """Draw where the time goes, by class of work."""
    every = profiled(summary)
    kinds = [kind for kind in CLASSES if any(kind in classes for _, classes in every)]
    bars = [(method(stage.name), {kind: 1e3 * value for kind, value in classes.items()}) for stage, classes in every]
    title = "Where the time goes: milliseconds per call by class of work"
    draw = partial(stacked, bars, CLASSES, (title, "milliseconds per call, under the profiler"))
    note = "From a separate pass under the profiler. Time that the profiler cannot see into has no class."
    return [Figure("Where the time goes", draw, note, table_of(class_columns(kinds), every))] if every else []


def profiled(summary: RunSummary) -> list[ByClass]:
    """Return every ranked stage whose kernels are on record, with the seconds per call of each class of work."""
    profiles = [(stage, stage.stage.profile) for stage in summary.ranked]
    classes = [(stage, attribution.by_class(profile)) for stage, profile in profiles if profile and profile.kernels]
    return [(stage, {str(kind): seconds for kind, seconds in spent.items()}) for stage, spent in classes]


def class_columns(kinds: Iterable[str] = CLASSES) -> list[Column[ByClass]]:
    """Return what each of these classes takes, and how much of the stage's time all of them are."""

    def column(kind: str) -> Column[ByClass]:
        csv = f"profiled_{kind.replace(' ', '_')}_s"
        return number(kind, lambda each: each[1].get(kind, 0.0), milliseconds, csv, help="ms per call")

    shown: list[Column[ByClass]] = [
        methods(lambda each: each[0].name),
        *map(column, kinds),
        number("seen", lambda of: attribution.seen_share(of[0]), share, "profiled_classes_share"),
    ]
    return explained("way", shown)

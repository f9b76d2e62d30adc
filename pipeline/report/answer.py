"""The answer: one sentence that a person would say, the few numbers behind it, and the stages to choose from.

The page, Markdown and the terminal open with the same words. Plain text throughout.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.analysis.choices import choices
from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.report.first_screen import judged
from pipeline.report.formatting import (
    NOTHING,
    clean,
    gibibytes,
    images,
    interval,
    listed,
    milliseconds,
    plural,
    seconds,
    share,
    significant,
    size,
)
from pipeline.report.sections.ladder_section import MARKS
from pipeline.report.standing import Standing, baseline_name, baseline_stage, spoken, standing
from pipeline.report.tables import Cell, Column, Table, figure, table_of

LONGER = "measure=thorough"
NOT_JUDGED = "masks not judged: the net's weights are random"


@dataclass(frozen=True)
class Number:
    """A large number with what it is."""

    value: str
    label: str
    note: str = ""


def resolved(summary: RunSummary) -> bool:
    """Whether the run names a stage that is faster than the baseline."""
    winner = summary.winner
    return winner is not None and winner.name != baseline_name(summary) and winner.compared.outcome == "faster"


def headline(summary: RunSummary) -> str:
    """Such as "Use fp8: 4.8 × as fast as autocast, 0.054 % of pixels change"."""
    winner = summary.winner
    if not summary.stages:
        return "Nothing is measured yet: no stage is on record"
    if summary.ranking.winner is None:
        return "No answer: no stage is both right and measured"
    others = [stage for stage in summary.ranked if stage.name not in (summary.run.baseline, baseline_name(summary))]
    if not others:
        return f"Only the baseline was measured: {_only(summary)}"
    if winner is None or winner.name in (summary.run.baseline, baseline_name(summary)):
        return f"Stay with {spoken(summary.ranking.winner)}: nothing measured here is faster"
    if not resolved(summary):
        return "Not resolved: measure longer, or on an idle machine"
    found = standing(summary, winner).ratio
    fast = f"{significant(found.value, 2)} × as fast as {spoken(baseline_name(summary))}" if found else "the fastest"
    return f"Use {spoken(winner.name)}: {fast}, {_pixels(summary, winner)}"


def _only(summary: RunSummary) -> str:
    pace = summary.ranked[0].pace if summary.ranked else None
    name = spoken(summary.ranked[0].name if summary.ranked else summary.run.baseline)
    return f"{name}, {seconds(pace)} for {plural(summary.run.batch_size, 'image')}" if pace else name


def _pixels(summary: RunSummary, stage: StageSummary) -> str:
    if not judged(summary.run):
        return NOT_JUDGED
    accuracy = stage.stage.accuracy
    if accuracy is None:
        return "its answer was not checked"
    return f"{share(accuracy.flipped_share)} of pixels change" if accuracy.flipped_share else "no pixel changes"


def numbers(summary: RunSummary) -> list[Number]:
    """Three or four: how much faster, how long, how right, how much memory."""
    winner = summary.winner
    if winner is None or winner.pace is None:
        return []
    found, base = standing(summary, winner), baseline_stage(summary)
    beside = base if base and base is not winner else None
    name = spoken(baseline_name(summary))
    every = [
        _speed(summary, found, name) if beside and resolved(summary) else None,
        Number(
            seconds(winner.pace),
            f"for {plural(summary.run.batch_size, 'image')}{_load(winner)}",
            f"{name} takes {seconds(beside.pace)}" if beside and beside.pace else "",
        ),
        _accuracy(summary, winner),
        Number(
            size(winner.peak_bytes),
            "of the device's memory" if summary.on_gpu else "of memory",
            f"{name} takes {size(beside.peak_bytes)}" if beside and beside.peak_bytes else "",
        )
        if winner.peak_bytes
        else None,
    ]
    return [number for number in every if number]


def _load(stage: StageSummary) -> str:
    return ", at full load" if stage.sustained_seconds else ""


def _speed(summary: RunSummary, found: Standing, name: str) -> Number | None:
    if found.ratio is None:
        return None
    eager = summary.stage("eager")
    against = f"{significant(eager.pace / found.stage.pace)} × eager" if eager and eager.pace and found.stage.pace else ""
    notes = [
        f"95 % interval {interval(found.ratio)}" if found.ratio.bounded else "",
        f"{against} fp32" if against and name != "eager" else "",
    ]
    return Number(f"{significant(found.ratio.value)} ×", f"as fast as {name}", "; ".join(note for note in notes if note))


def _accuracy(summary: RunSummary, stage: StageSummary) -> Number | None:
    found, limit = stage.stage.accuracy, stage.stage.tolerance
    if found is None:
        return None
    if not judged(summary.run):
        said = f"relative L2 of the logits (limit {significant(limit.relative_l2, 2)})"
        return Number(significant(found.relative_l2, 2), said, NOT_JUDGED)
    label = f"of pixels change (limit {share(limit.flipped_share)})"
    return Number(share(found.flipped_share), label, f"on {plural(found.images, 'image')}, against fp32")


def paragraph(summary: RunSummary) -> list[str]:
    """What the numbers leave out, in sentences: ties, set-up, the runner-up, and what to do where nothing is resolved."""
    winner = summary.winner
    if not resolved(summary) or winner is None:
        return _unresolved(summary)
    lines = []
    if summary.ranking.ties:
        verb = "is" if len(summary.ranking.ties) == 1 else "are"
        lines.append(f"{listed([spoken(name) for name in summary.ranking.ties])} {verb} not shown to be slower.")
    host = standing(summary, winner).host_ratio
    if host and baseline_stage(summary):
        lines.append(f"From host memory and back: {significant(host)} × {spoken(baseline_name(summary))}.")
    if winner.setup_seconds is not None:
        lines.append(f"It is set up in {seconds(winner.setup_seconds)}{paid(summary, winner)}.")
    return lines


def paid(summary: RunSummary, stage: StageSummary) -> str:
    """After how many images the set-up has paid for itself; empty where there is nothing to say."""
    after, name = stage.break_even, spoken(summary.run.baseline)
    if stage.name == summary.run.baseline or after is None:
        return ""
    if after < 1:
        return f", which pays for itself against {name} from the first image"
    return f", which has paid for itself against {name} after {images(after)} images"


def _unresolved(summary: RunSummary) -> list[str]:
    command = clean(summary.run.command)
    longer = command if LONGER in command else f"{command} {LONGER}"
    if not summary.ranked:
        return ["The table below gives the status of each stage, and why."]
    others = [stage for stage in summary.ranked if stage.name not in (summary.run.baseline, baseline_name(summary))]
    if not others:
        return ["Ask for a stage, or for the whole ladder, to compare it with."]
    if all(stage.compared.outcome in ("same", "slower") for stage in others):
        return []
    return [f"No stage is shown to be faster. To measure longer, with nothing else running: {longer}"]


def chosen(summary: RunSummary) -> list[Standing]:
    """The stages to choose from, and the baseline that they are compared with."""
    shown = choices(summary)
    base = baseline_stage(summary)
    if base and base.ranked and base not in shown:
        shown = [*shown, base]
    return [standing(summary, stage) for stage in shown]


def choice_table(summary: RunSummary) -> Table:
    """What each of them costs and gives; a column that none fills is left out."""
    return table_of(choice_columns(summary), chosen(summary)).without_empty_columns


def choice_columns(summary: RunSummary) -> list[Column[Standing]]:
    """Time, ratios, pixels, memory and set-up."""
    base, batch = baseline_name(summary), summary.run.settings.data.batch_size
    quality = _dice if all(_scores(each.stage) for each in chosen(summary)) else None

    def of_stage(read: Callable[[StageSummary], float | None]) -> Callable[[Standing], float | None]:
        return lambda each: read(each.stage)

    columns: list[Column[Standing]] = [
        Column("stage", help="▸ the winner, = a tie with it", cell=_name, kind="text"),
        Column(
            "ms at full load" if any(each.stage.sustained_seconds for each in chosen(summary)) else "ms",
            help=f"per call of {batch} images, called back to back",
            cell=figure(lambda each: each.seconds, milliseconds),
        ),
        Column(f"× {spoken(base)}", help=f"times as fast as {spoken(base)}", cell=lambda each: _ratio(each, base)),
        Column(
            "× host to host",
            help="the same for single calls from pinned host memory and back",
            cell=figure(lambda each: each.host_ratio, lambda value: f"{significant(value)} ×"),
        ),
    ]
    if judged(summary.run):
        columns += [Column("pixels that change", help="their class, against the fp32 net", cell=figure(of_stage(_flipped), share))]
        columns += [Column("Dice", help="mean over the classes, against the labels", cell=quality)] if quality else []
    return [
        *columns,
        Column("memory GiB", help="of the device, the whole process", cell=figure(of_stage(lambda s: s.peak_bytes), gibibytes)),
        Column("set-up", help="build and first call", cell=figure(of_stage(lambda s: s.setup_seconds), seconds)),
    ]  # fmt: skip


def _name(each: Standing) -> Cell:
    name = clean(each.stage.name)
    said = spoken(each.stage.name)
    return Cell(f"{MARKS.get(each.stage.place, '')}{name}{f' ({said})' if said != name else ''}", name)


def _ratio(each: Standing, base: str) -> Cell:
    if each.stage.name == base:
        return Cell("1 ×", 1.0)
    return Cell(f"{significant(each.ratio.value)} ×", each.ratio.value) if each.ratio else Cell(NOTHING)


def _flipped(stage: StageSummary) -> float | None:
    return stage.stage.accuracy.flipped_share if stage.stage.accuracy else None


def _scores(stage: StageSummary) -> list[float]:
    accuracy = stage.stage.accuracy
    return (accuracy.dice or []) if accuracy else []


def _dice(each: Standing) -> Cell:
    scores = _scores(each.stage)
    mean = sum(scores) / len(scores)
    return Cell(f"{mean:.4f}", mean)

"""The answer: one sentence that a person would say, the few numbers behind it, and the stages to choose from.

The page, Markdown and the terminal open with the same words. Plain text throughout.
"""

from collections.abc import Callable

from pipeline.analysis.choices import choices
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.run_record import EAGER
from pipeline.records.samples import Accuracy
from pipeline.report import objective_text
from pipeline.report.formatting import (
    NOTHING,
    clean,
    gibibytes,
    listed,
    milliseconds,
    remedy,
    samples,
    seconds,
    share,
    significant,
    spoken,
    times,
    times_as_fast,
)
from pipeline.report.sections import task_text
from pipeline.report.sections.ladder_section import MARKS, mean_dice
from pipeline.report.tables import Cell, Column, Table, figure, table_of

NOT_JUDGED = "masks not judged (random weights)"
NOBODY_SAYS = "masks not judged (no checkpoint: model.trained=true where the net loads its own weights)"


def resolved(summary: RunSummary) -> bool:
    """Whether the run names a stage to use in the baseline's place: a faster one, or what else was asked for."""
    winner = summary.winner
    if winner is None or winner.name == summary.baseline:
        return False
    choice = summary.choice
    instead = choice is not None and (not choice.by_speed or summary.baseline not in choice.held)
    return winner.compared.outcome == "faster" or instead


def speed_is_told(summary: RunSummary) -> bool:
    """Whether the winner's ratio to the baseline is resolved, and so said; that of the least memory may not be."""
    return resolved(summary) and summary.winner is not None and summary.winner.compared.outcome != "not resolved"


def beside_the_baselines(summary: RunSummary) -> list[StageSummary]:
    """The ranked stages that a person doesn't run anyway."""
    return [stage for stage in summary.ranked if stage.name not in (summary.baseline, EAGER)]


def headline(summary: RunSummary) -> str:
    """Such as "Use fp8: 4.8 × as fast as autocast, 0.054 % of pixels change"."""
    return objective_text.no_winner(summary) or f"{_headline(summary)}{objective_text.kept(summary)}"


def _headline(summary: RunSummary) -> str:
    winner = summary.winner
    if not summary.stages:
        return "Nothing is measured yet: no stage is on record"
    if summary.ranking.unresolved:
        return "Not resolved: measure longer, or on an idle machine"
    if summary.ranking.winner is None:
        return "No answer: no stage is both right and measured"
    if not beside_the_baselines(summary):
        return f"Only the baseline was measured: {_only(summary)}"
    if winner is None or not resolved(summary):
        return f"Stay with {spoken(summary.baseline)}: nothing measured here {objective_text.better(summary)}"
    config = summary.run.config
    apart = ", " if config.model.is_trained and config.task.has_masks else "; "
    named = f"{spoken(winner.name)}{objective_text.best_by(summary)}"
    return f"Use {named}: {_pace_told(summary, winner)}{apart}{_rightness(summary, winner)}"


def _pace_told(summary: RunSummary, winner: StageSummary) -> str:
    """Such as "4.8 × as fast as autocast"; of a winner by something else its speed may not be resolved."""
    base = spoken(summary.baseline)
    if winner.compared.outcome == "not resolved":
        return f"whether it is faster than {base} isn't resolved"
    return f"{times_as_fast(winner.ratio, 2) if winner.ratio else 'at least'} as fast as {base}"


def _only(summary: RunSummary) -> str:
    pace = summary.ranked[0].pace if summary.ranked else None
    name = spoken(summary.ranked[0].name if summary.ranked else summary.run.baseline)
    return f"{name}, {seconds(pace)} for {summary.run.words.counted(summary.run.batch_size)}" if pace else name


def _rightness(summary: RunSummary, stage: StageSummary) -> str:
    accuracy, task = stage.stage.accuracy, summary.run.config.task
    if not summary.run.config.model.is_trained and task.has_masks:
        return not_judged(summary)
    if accuracy is None:
        return "its answer was not checked"
    if not task.has_masks:
        return task_text.said_in_brief(accuracy, task)
    words = summary.run.words
    told = f"{share(accuracy.flipped_share)} of {words.points} change"
    return told if accuracy.flipped_share else f"no {words.point} changes"


def not_judged(summary: RunSummary) -> str:
    """Why masks aren't judged: random weights, or a net that may bring weights of its own, of which nobody says so."""
    model = summary.run.config.model
    ours = not model.target or model.target.startswith("models.")
    return NOT_JUDGED if ours or model.trained is False else NOBODY_SAYS


def paragraph(summary: RunSummary) -> list[str]:
    """What the numbers leave out, in sentences: ties, host to host, set-up; or what to do where nothing is resolved."""
    winner = summary.winner
    if winner is None or not resolved(summary):
        return [*_unresolved(summary), *objective_text.how_chosen(summary), *_since(summary)]
    lines = objective_text.how_chosen(summary)
    if summary.ranking.ties and objective_text.told_by_intervals(summary):
        verb = "is" if len(summary.ranking.ties) == 1 else "are"
        lines.append(f"{listed([spoken(name) for name in summary.ranking.ties])} {verb} not shown to be slower.")
    subject = spoken(winner.name)
    if winner.host_ratio and summary.on_gpu:  # a CPU copies nothing
        told = f"{significant(winner.host_ratio)} × as fast as {spoken(summary.baseline)}"
        lines.append(f"From host memory and back {subject} is {told}.")
        subject = "It"
    if winner.setup_seconds is not None:
        lines.append(f"{subject} is set up in {seconds(winner.setup_seconds)}{paid(summary, winner)}.")
    return [*lines, *_since(summary)]


def _since(summary: RunSummary) -> list[str]:
    """What changed since the run before this one that asked the same."""
    since = summary.since
    if since is None or not since.measured:
        return []
    told = {"slower or broken": since.regressed, "faster or right again": since.improved}
    parts = [f"{outcome}: {listed([spoken(name) for name in names])}" for outcome, names in told.items() if names]
    nothing = "nothing changed beyond the noise" if since.resolved else "whether anything changed isn't resolved"
    said = "; ".join(parts) or nothing
    return [f"Since the run before it ({clean(since.folder)}), {said}."]


def paid(summary: RunSummary, stage: StageSummary) -> str:
    """After how many samples the set-up has paid for itself; empty where there is nothing to say."""
    after, name, words = stage.break_even, spoken(summary.baseline), summary.run.words
    if stage.name == summary.baseline or after is None:
        return ""
    if after < 1:
        return f", which pays for itself against {name} from the first {words.sample}"
    return f", which has paid for itself against {name} after {samples(after)} {words.samples}"


def _unresolved(summary: RunSummary) -> list[str]:
    if summary.ranking.unresolved:
        return [remedy(summary.ranking.unresolved)]
    if not summary.ranked:
        return ["The table below gives the status of each stage, and why."]
    if not beside_the_baselines(summary):
        return ["Ask for a stage, or for the whole ladder, to compare it with."]
    return []


def longer(summary: RunSummary) -> str:
    """The command that would resolve the run; empty where it is resolved."""
    return summary.measure_again if summary.ranking.unresolved else ""


def chosen(summary: RunSummary) -> list[StageSummary]:
    """The stages to choose from, and the baseline that they are compared with."""
    shown, base = choices(summary), summary.stage(summary.baseline)
    return [*shown, base] if base and base.ranked and base not in shown else shown


def choice_table(summary: RunSummary) -> Table:
    """What each of them costs and gives; a column that none fills is left out, and all of it where none is resolved."""
    if summary.ranking.unresolved:
        return Table([], [])
    return table_of(choice_columns(summary), chosen(summary)).without_empty_columns


def choice_columns(summary: RunSummary) -> list[Column[StageSummary]]:
    """Time, ratios, pixels, memory and set-up."""
    base, shown, words = summary.baseline, chosen(summary), summary.run.words
    at_full_load = any(stage.sustained_seconds for stage in shown)
    batch, scored = summary.run.config.data.batch_size, all(mean_dice(stage) is not None for stage in shown)
    columns: list[Column[StageSummary]] = [
        Column("stage", help="▸ the winner, = a tie with it", cell=_name, kind="text"),
        Column(
            "ms at full load" if at_full_load else "ms",
            help=f"per call of {batch} {words.samples}, called back to back",
            cell=figure(lambda stage: stage.pace, milliseconds),
        ),
        Column(f"× {spoken(base)}", help=f"times as fast as {spoken(base)}", cell=lambda stage: _ratio(stage, base)),
        Column(
            "× host to host",
            help="the same for single calls from pinned host memory and back",
            cell=figure(
                lambda stage: stage.host_ratio if summary.on_gpu else None, lambda value: f"{significant(value)} ×"
            ),
        ),
    ]
    task = summary.run.config.task
    for wanted in task_text.OF_TASK[task.name]:
        shown_as = figure(of_accuracy(wanted.read), wanted.text)
        columns.append(Column(wanted.title, help=wanted.help, cell=shown_as))
    if summary.run.config.model.is_trained and task.has_masks:
        differs = f"share of {words.points} whose class differs from the fp32 net's"
        columns.append(Column(f"{words.points} that change", help=differs, cell=figure(_flipped, share)))
        columns += [Column("Dice", help="mean over the classes, against the labels", cell=_dice)] if scored else []
    memory = "of the device, the whole process" if summary.on_gpu else "of the process, at its peak"
    return [
        *columns,
        Column("memory GiB", help=memory, cell=figure(lambda stage: stage.peak_bytes, gibibytes)),
        Column("set-up", help="build and first call", cell=figure(lambda stage: stage.setup_seconds, seconds)),
    ]


def of_accuracy(read: Callable[[Accuracy], float | None]) -> Callable[[StageSummary], float | None]:
    """Reads a figure of a stage's comparison; None where it wasn't compared."""
    return lambda stage: read(stage.stage.accuracy) if stage.stage.accuracy else None


def _name(stage: StageSummary) -> Cell:
    name, said = clean(stage.name), spoken(stage.name)
    return Cell(f"{MARKS.get(stage.place, '')}{name}{f' ({said})' if said != name else ''}", name)


def _ratio(stage: StageSummary, base: str) -> Cell:
    if stage.name == base:
        return Cell("1 ×", 1.0)
    if stage.ratio and stage.compared.outcome == "not resolved":
        return Cell("not resolved", stage.ratio.value)
    return Cell(times(stage.ratio), stage.ratio.value) if stage.ratio else Cell(NOTHING)


def _flipped(stage: StageSummary) -> float | None:
    return stage.stage.accuracy.flipped_share if stage.stage.accuracy else None


def _dice(stage: StageSummary) -> Cell:
    mean = mean_dice(stage)
    return Cell(f"{mean:.4f}" if mean is not None else NOTHING, mean)

"""The answer: one sentence that a person would say, the few numbers behind it, and the stages to choose from.

The page, Markdown and the terminal open with the same words, beside what was asked for. Plain text throughout.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.analysis.objectives import FIGURE_OF, TAILS, Check, equal_within, needed_calls
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import Words
from pipeline.records.goals import AccuracyLimits, FigureName, Objective, accuracy_figure, psnr
from pipeline.records.run_record import EAGER, StageRecord
from pipeline.report import WORDS, formatting
from pipeline.report.formatting import clean, held, interval, listed, method, seconds, share, significant, two
from pipeline.report.sections.accuracy import OF_TASK, at_worst, decibels
from pipeline.report.sections.host import host_time_of
from pipeline.report.sections.ladder import MARKS, mean_dice
from pipeline.report.tables import Cell, Column, Table, explained, number, stage_cell, table_of
from pipeline.stats.intervals import of_builds

NOT_JUDGED: dict[str, str] = WORDS["answer"]["not_judged"]
HOW_JUDGED: dict[str, str] = WORDS["answer"]["how_judged"]
DRIFTED = 0.1  # of the baseline's time, from which on it isn't what the winner's ratio is to
# Differences by which no person would choose.
TIME_SHARE = 0.05
MEMORY_SHARE = 0.10
ERROR = 1e-4  # of all pixels, or of the answers' size
SETUP_FACTOR, SETUP_SECONDS = 1.5, 2.0  # both

NOISY = 0.05  # the least difference that may be claimed, from which the first screen says so
OWN = "own_kernels"  # the form in which this project's kernels are exported
HARDWARE: str = WORDS["answer"]["hardware"]
KNOWN_ELSEWHERE: list[str] = WORDS["answer"]["known_elsewhere"]
NAMED = 4  # stages that are named for missing a bound; the CSV has all
TITLES: dict[Objective, str] = WORDS["answer"]["titles"]
BETTER: dict[Objective, str] = WORDS["answer"]["better"]
BASES: dict[Objective, str] = WORDS["answer"]["bases"]
UNITS: dict[FigureName, str] = WORDS["answer"]["units"]
LOST = {  # by limit: of what, from which loss on it is given in figures, and how
    "max_dice_drop": ("points of Dice lost", 0.01, "{:.3g}"),
    "max_psnr_drop": ("dB of PSNR lost", 0.01, "{:.3g}"),
    "max_final_error": ("off in the final latents", 1e-6, "{:.2g}"),
}
KEPT: dict[str, str] = WORDS["answer"]["kept"]


def resolved(summary: RunSummary) -> bool:
    """Return whether the run names a stage instead of the baseline: a faster one, or what else was asked for."""
    winner, choice = summary.winner, summary.choice
    if winner is None or winner.name == summary.baseline:
        return False
    instead = choice is not None and (not choice.by_speed or summary.baseline not in choice.held)
    return winner.compared.outcome == "faster" or instead


def speed_is_told(summary: RunSummary) -> bool:
    """Return whether the winner's ratio to the baseline is resolved, and so said; that of the least memory may not."""
    return resolved(summary) and summary.winner is not None and summary.winner.compared.outcome != "not resolved"


def beside_the_baselines(summary: RunSummary) -> list[StageSummary]:
    """Return the ranked stages other than the baseline and eager."""
    return [stage for stage in summary.ranked if stage.name not in (summary.baseline, EAGER)]


def by_speed(summary: RunSummary) -> list[StageSummary]:
    """Return the ranked stages, fastest first; the winner leads."""
    return [stage for stage in map(summary.stage, summary.ranking.order) if stage and stage.ranked]


def rivals(summary: RunSummary) -> list[StageSummary]:
    """Return the best method of other makers and the best own kernels beside the winner, where their ratios tell."""
    if summary.winner is None or (summary.choice and not summary.choice.by_speed):
        return []
    found, beside = [], (summary.winner.name, summary.baseline, EAGER)
    others = [stage for stage in by_speed(summary) if stage.name not in beside]
    for own in (False, True):
        best = next((stage for stage in others if own is (stage.stage.spec.exports == OWN)), None)
        if best and best.ratio and not (best.place or best.compared.outcome == "not resolved"):
            found.append(best)
    return found


def compared_with(summary: RunSummary, digits: int) -> list[tuple[str, str]]:
    """Return the winner's rivals and the baseline, each with the ratio to it."""
    winner, name = summary.winner, method(summary.baseline)
    assert winner is not None
    if winner.ratio is None:
        return [(name, "at least")]
    ratios = [(method(each.name), winner.ratio.value / each.ratio.value) for each in rivals(summary) if each.ratio]
    found = [(rival, f"{significant(ratio, digits)} ×") for rival, ratio in ratios]
    return [*found, (name, formatting.times_as_fast(winner.ratio, digits))]


def headline(summary: RunSummary) -> str:
    """Return text such as "Use own kernels (fp8): 4.8 × as fast as autocast, 0.054 % of pixels change"."""
    refused = [method(stage.name) for stage in summary.stages if stage.stage.failure == "impossible"]
    beside = f"; {listed(refused)} refused for an impossible time" if refused else ""
    return (no_winner(summary) or f"{_headline(summary)}{kept(summary)}") + beside


def _headline(summary: RunSummary) -> str:
    winner, config, words = summary.winner, summary.run.config, summary.run.words
    base = method(summary.baseline)
    if not summary.stages:
        return "Nothing is measured yet: no stage is on record"
    if summary.ranking.unresolved:
        return "Not resolved: measure longer, or on an idle machine"
    if summary.ranking.winner is None:
        return "No answer: no stage is both right and measured"
    if not beside_the_baselines(summary):
        only = summary.ranked[0] if summary.ranked else None
        pace = f", {seconds(only.pace)} for {words.counted(summary.run.batch_size)}" if only and only.pace else ""
        return f"Only the baseline was measured: {method(only.name) if only else base}{pace}"
    if winner is None or not resolved(summary):
        return f"Stay with {base}: nothing measured here {BETTER[config.goal.objective]}"
    (first, ratio), *others = compared_with(summary, 2)
    beside = "".join(f", {text} {name}" for name, text in others)
    pace = f"{f'{seconds(winner.pace)}, ' if others else ''}{ratio} as fast as {first}{beside}"
    if winner.compared.outcome == "not resolved":  # of a winner by something else
        pace = f"whether it is faster than {base} is not resolved"
    apart = "; " if summary.run.unjudged or others else ", "
    best, choice = "", summary.choice
    if choice and config.goal.objective != "throughput":
        value = figure_text(FIGURE_OF[config.goal.objective], choice.values[winner.name], words)
        alone = ", of this stage alone" if sum(each is not None for each in choice.values.values()) == 1 else ""
        best = f" for the least {objective_title(summary)} ({value}{alone})"
    return f"Use {method(winner.name)}{best}: {pace}{apart}{_rightness(summary, winner)}"


def _rightness(summary: RunSummary, stage: StageSummary) -> str:
    accuracy, task, words = stage.stage.accuracy, summary.run.config.task, summary.run.words
    if task.has_masks and summary.run.unjudged:
        return NOT_JUDGED[summary.run.unjudged]
    if accuracy is None:
        return "its answer was not checked"
    if task.has_masks:
        some = accuracy.flipped_share
        return f"{share(some)} of {words.points} change" if some else f"no {words.point} changes"
    if task.name == "diffusion" and accuracy.final_error is not None:
        return f"its final latents are {two(accuracy.final_error)} off (relative L2)"
    if task.name == "regression":
        return f"PSNR {decibels(psnr(accuracy))} dB against fp32"
    return f"relative L2 {two(accuracy.relative_l2)}"


def paragraph(summary: RunSummary) -> list[str]:
    """Return what the numbers leave out: ties, host to host, set-up; or what to do where nothing is resolved."""
    winner = summary.winner
    refused = [stage for stage in summary.stages if stage.stage.failure == "impossible"]
    lines = [f"{method(stage.name)}: {formatting.prose(stage.stage.reason)}." for stage in refused]
    lines += [f"{formatting.prose(found.text)}." for found in summary.warnings if found.code == "parts left out"]
    if winner is None or not resolved(summary):
        if summary.ranking.unresolved:
            lines.append(formatting.remedy(summary.ranking.unresolved))
        elif not summary.ranked:
            lines.append("The table below gives the status of each stage, and why.")
        elif not beside_the_baselines(summary):
            lines.append("Ask for a stage, or for the whole ladder, to compare it with.")
        return [*lines, *how_chosen(summary), *_cautions(summary, None), *_since(summary)]
    lines += how_chosen(summary)
    if summary.ranking.ties and (summary.choice is None or summary.choice.by_speed):
        verb = "ties" if len(summary.ranking.ties) == 1 else "tie"
        lines.append(f"{listed([method(name) for name in summary.ranking.ties])} {verb}.")
    if winner.host_ratio and summary.on_gpu:  # a CPU copies nothing
        ratio = f"{significant(winner.host_ratio)} × as fast as {method(summary.baseline)}"
        lines.append(f"Including transfers to and from the GPU, {method(winner.name)} is {ratio}.")
    if winner.setup_seconds is not None:
        after, words, paid = winner.break_even, summary.run.words, ""
        if after is not None and winner.name != summary.baseline:
            since = f"{formatting.samples(after)} {words.samples}" if after >= 1 else f"the first {words.sample}"
            paid = f": worth it against {method(summary.baseline)} from {since} on"
        lines.append(f"Building takes {seconds(winner.setup_seconds)}{paid}.")
    return [*lines, *_cautions(summary, winner), *_since(summary)]


def _cautions(summary: RunSummary, winner: StageSummary | None) -> list[str]:
    """Return what ratios, and that of a `winner`, can't be relied on for, and which runtimes have no figure."""
    least, lines = summary.ranking.noise.least, []
    if least >= NOISY:
        lines.append(f"The noise floor of this machine is {share(least)}: smaller differences are not claimed.")
    more = next((stage for stage in by_speed(summary) if stage.stage.precision != "fp8"), None)
    if winner and winner.stage.precision == "fp8" and more:
        lines.append(f"Without fp8: {method(more.name)}, {seconds(more.pace)}.")
    if not (summary.on_gpu and beside_the_baselines(summary)):
        return lines
    if winner:
        lines += _host_part(summary, winner)
        first = rivals(summary)[0].name if rivals(summary) else summary.baseline
        moves = share(of_builds(winner.name, first))
        lines.append(f"Another build of both may move the ratio to {method(first)} by {moves} (95 %).")
    if any(stage.stage.spec.exports == OWN for stage in summary.stages):
        lines.append(HARDWARE)
    absent = []
    for name in KNOWN_ELSEWHERE:
        stage = summary.stage(name)
        if not (stage and stage.ranked):
            why = formatting.prose(stage.stage.reason) if stage else f"not asked for: stage={name}"
            absent.append(f"{method(name)} ({why})")
    return [*lines, f"Not compared here: {listed(absent)}."] if absent else lines


def _host_part(summary: RunSummary, winner: StageSummary) -> list[str]:
    """Return that the baseline waits for the CPU, if it does, and the ratio to the network as one CUDA graph."""
    base, graph = map(summary.stage, (summary.baseline, "cuda_graph"))
    host = host_time_of(base.stage) if base else None
    if host is None or host.finding != "GPU waits":
        return []
    waits = f"{method(summary.baseline)} leaves the GPU idle for {share(host.share)} of a call"
    said = f"{waits}: that part of its ratio is the host's."
    if graph and graph.ranked and graph.ratio and winner.ratio and graph is not winner:
        ratio = significant(winner.ratio.value / graph.ratio.value, 2)
        said += f" {method(winner.name)} is {ratio} × as fast as the same network in one CUDA graph."
    return [said]


def _since(summary: RunSummary) -> list[str]:
    """Return what changed since the run before this one that asked the same."""
    since = summary.since
    if since is None or not since.measured:
        return []
    changed = {"slower or broken": since.regressed, "faster or right again": since.improved}
    parts = [f"{outcome}: {listed([method(name) for name in stages])}" for outcome, stages in changed.items() if stages]
    nothing = "nothing changed beyond the noise" if since.resolved else "whether anything changed is not resolved"
    return [f"Since {clean(since.folder)}, the last run of the same request, {'; '.join(parts) or nothing}."]


def longer(summary: RunSummary) -> str:
    """Return the command that would name a winner; empty where nothing more needs to be measured."""
    if summary.ranking.unresolved:
        return summary.measure_again
    return summary.measure_tails if summary.winner is None else ""


@dataclass(frozen=True)
class Number:
    """A large number with what it is."""

    value: str
    label: str
    note: str = ""


def numbers(summary: RunSummary) -> list[Number]:
    """Return three or four large numbers: how much faster, how long, how right, how much memory."""
    winner, every = summary.winner, []
    if winner is None or winner.pace is None:
        return []
    base, name = summary.stage(summary.baseline), method(summary.baseline)
    peak = base.peak_bytes if base and base is not winner else None
    ratio, eager = winner.ratio, winner.eager_ratio
    if ratio and speed_is_told(summary):
        (first, fast), *others = compared_with(summary, 3)
        notes = [f"{text} {other}" for other, text in others]
        notes += [f"95 % interval {interval(ratio)} within this run"] if ratio.bounded and ratio.blocks else []
        notes += [f"{significant(eager.value)} × eager fp32"] if eager and summary.baseline != EAGER else []
        every.append(Number(fast, f"as fast as {first}", "; ".join(notes)))
    load = ", at steady state" if winner.sustained_seconds else ""
    count = summary.run.words.counted(summary.run.batch_size)
    every.append(Number(seconds(winner.pace), f"for {count}{load}", _baselines_pace(name, base, winner)))
    every += _accuracy(summary, winner)
    memory = "of GPU memory" if summary.on_gpu else "of memory"
    every.append(Number(held(winner.peak_bytes), memory, f"{name} takes {held(peak)}" if peak else ""))
    return [shown for shown in every if shown.value != formatting.NOTHING]


def _baselines_pace(name: str, base: StageSummary | None, winner: StageSummary) -> str:
    """Return the baseline's time; where it is no stage of its own, or drifted, its time beside the winner."""
    if base is winner or winner.ratio is None:
        return ""
    if base is None or base.pace is None:
        return f"{name} took {seconds((winner.pace or 0.0) * winner.ratio.value)} beside it"
    interleaved = winner.seconds if winner.sustained_seconds is None else None
    beside = interleaved.value * winner.ratio.value if interleaved else base.pace
    if abs(beside / base.pace - 1) < DRIFTED:
        return f"{name} takes {seconds(base.pace)}"
    return f"{name} took {seconds(beside)} beside it, and {seconds(base.pace)} at another time"


def _accuracy(summary: RunSummary, stage: StageSummary) -> list[Number]:
    found, limit = stage.stage.accuracy, stage.stage.spec.tolerance
    if found is None:
        return []
    words, task = summary.run.words, summary.run.config.task
    fewer = found.pictures is not None and found.pictures < found.images
    made = f", {words.made} of {plural(found.pictures or 0, words.source)}" if fewer else ""
    count = f"on {words.counted(found.images)}{made}, against fp32"
    error, most = two(found.relative_l2), two(limit.relative_l2)
    if task.has_masks and (why := summary.run.unjudged):
        return [Number(error, f"relative L2 of the logits (limit {most})", f"{NOT_JUDGED[why]}: {HOW_JUDGED[why]}")]
    value, label = error, f"relative L2 (limit {most})"
    if task.has_masks:
        value, label = share(found.flipped_share), f"of {words.points} change (limit {share(limit.flipped_share)})"
    elif task.name == "regression":
        value, label = f"{decibels(psnr(found))} dB", f"PSNR; relative L2 {error} (limit {most})"
    elif found.final_error is not None:
        label = f"relative L2 of the final latents; of one step {error} (limit {most})"
        value = two(found.final_error)
    return [Number(value, label, "; ".join([count, *at_worst(found, words)]))]


def error(stage: StageSummary) -> float | None:
    """Return the share of pixels that change their class; of a network without masks the relative L2."""
    accuracy = stage.stage.accuracy
    if accuracy is None:
        return None
    return accuracy.relative_l2 if accuracy.flipped_share is None else accuracy.flipped_share


def dominates(faster: StageSummary, slower: StageSummary) -> bool:
    """Return whether the faster one is not noticeably worse in time, error, memory and set-up."""

    def worse(one: float | None, other: float | None, noticeably: Callable[[float, float], bool]) -> bool:
        return one is not None and other is not None and noticeably(one, other)

    return not (
        worse(faster.pace, slower.pace, lambda a, b: a > b * (1 + TIME_SHARE))
        or worse(error(faster), error(slower), lambda a, b: a > b + ERROR)
        or worse(faster.peak_bytes, slower.peak_bytes, lambda a, b: a > b * (1 + MEMORY_SHARE))
        or worse(faster.setup_seconds, slower.setup_seconds, lambda a, b: a > max(b * SETUP_FACTOR, b + SETUP_SECONDS))
    )


def choices(summary: RunSummary) -> list[StageSummary]:
    """Return the Pareto-optimal stages, fastest first, with the winner, its ties and rivals; at last the baseline."""
    order, base, named = by_speed(summary), summary.stage(summary.baseline), rivals(summary)
    shown = []
    for place, stage in enumerate(order):
        if stage.place or stage in named or not any(dominates(faster, stage) for faster in order[:place]):
            shown.append(stage)
    return [*shown, base] if base and base.ranked and base not in shown else shown


def choice_table(summary: RunSummary) -> Table:
    """Return time, ratios, accuracy, memory and set-up of each choice; an empty table if no ratio is resolved."""
    if summary.ranking.unresolved:
        return Table()
    base, shown, words = summary.baseline, choices(summary), summary.run.words
    batch = summary.run.config.data.batch_size

    def ratio(stage: StageSummary) -> Cell:
        if stage.name == base:
            return Cell("1 ×", 1.0)
        if stage.ratio and stage.compared.outcome == "not resolved":
            return Cell("not resolved", stage.ratio.value)
        return Cell(formatting.times(stage.ratio), stage.ratio.value) if stage.ratio else Cell(formatting.NOTHING)

    pace = "ms at steady state" if any(stage.sustained_seconds for stage in shown) else "ms"
    per_call = f"per call of {batch} {words.samples}, called back to back"
    columns: list[Column[StageSummary]] = [
        Column("method", lambda stage: stage_cell(stage.name, MARKS.get(stage.place, "")), kind="text"),
        number(pace, lambda stage: stage.pace, formatting.milliseconds, help=per_call),
        Column(f"× {method(base)}", ratio, f"times as fast as {method(base)}"),
        number(
            "× host to host", lambda of: of.host_ratio if summary.on_gpu else None, lambda it: f"{significant(it)} ×"
        ),
        *OF_TASK[summary.run.config.task.name],
    ]
    if not summary.run.unjudged:
        differs = f"share of {words.points} whose class differs from the fp32 network's"
        columns.append(number(f"{words.points} that change", error, share, help=differs))
        if all(mean_dice(stage) is not None for stage in shown):
            columns.append(number("Dice", mean_dice, "{:.4f}".format))
    columns.append(number("memory GiB", lambda stage: stage.peak_bytes, formatting.gibibytes))
    columns.append(number("set-up", lambda stage: stage.setup_seconds, seconds))
    held = formatting.MEMORY if summary.on_gpu else "peak resident memory of the process"
    return table_of(explained("answer", columns, memory=held), shown).without_empty_columns


def objective_title(summary: RunSummary) -> str:
    """Return what the winner was to have the least of, or the most."""
    return summary.run.words.put_into(TITLES[summary.run.config.goal.objective])


def figure_text(name: FigureName, value: float | None, words: Words) -> str:
    """Return a figure with its unit."""
    if value is None:
        return "not known"
    if name == "memory":
        return held(value)
    if name in UNITS:
        return f"{significant(value)}{words.put_into(UNITS[name])}"
    return seconds(value)


def asked(limits: AccuracyLimits) -> str:
    """Return text such as "max_dice_drop=0.5, min_agreement=0.999"; empty where no limit is set."""
    return ", ".join(f"{name}={value:g}" for name, value in limits.asked.items())


def limits(asked_for: AccuracyLimits, stage: StageRecord) -> str:
    """Return a stage's figure for each requested limit; empty without limits, or if no answer was compared."""
    found = stage.accuracy
    if found is None:
        return ""
    each = ((name, limit, accuracy_figure(name, found)) for name, limit in asked_for.asked.items())
    return "; ".join(f"{name}={limit:g}: {'not known' if own is None else f'{own:.6g}'}" for name, limit, own in each)


def checked(check: Check, words: Words) -> str:
    """Return text such as "p99<20ms (23.1 ms)"."""
    return f"{clean(check.constraint.text)} ({figure_text(check.constraint.figure, check.value, words)})"


def missed(summary: RunSummary, stage: str) -> str:
    """Return the bounds that a stage doesn't keep, with its figures; empty where it keeps all, or isn't ranked."""
    checks = summary.choice.missed(stage) if summary.choice else []
    return ", ".join(checked(check, summary.run.words) for check in checks)


def no_winner(summary: RunSummary) -> str:
    """Return the headline where stages were right, or ranked, and none is what was asked for; empty otherwise."""
    limits = summary.run.config.accuracy
    refused = [stage for stage in summary.stages if stage.stage.failure == "accuracy limit"]
    if refused and not beside_the_baselines(summary):
        judged = [stage.stage.accuracy for stage in refused]
        excess = [limits.excess(accuracy) if accuracy else math.inf for accuracy in judged]
        nearest = refused[excess.index(min(excess))]
        return f"No stage keeps {asked(limits)}: the nearest is {method(nearest.name)}, {clean(nearest.stage.reason)}"
    choice = summary.choice
    if choice is None or choice.held or not summary.ranked:
        return ""
    if all(value is None for value in choice.values.values()):
        return f"No winner: {objective_title(summary)} was not measured of any stage"
    bounds = listed([clean(each.text) for each in choice.goal.subject_to])
    if choice.nearest is None:
        unknown = {check.constraint.figure for own in choice.checks.values() for check in own if check.value is None}
        figures = listed(sorted(unknown) or [FIGURE_OF[choice.goal.objective]])
        needed = needed_calls(choice.goal)
        why = f"takes {needed} single calls" if unknown & TAILS.keys() and summary.measure_tails else "was not measured"
        return f"No stage is known to keep {bounds}: {figures} {why}"
    return f"No stage keeps {bounds}: the nearest is {method(choice.nearest)}, {missed(summary, choice.nearest)}"


def kept(summary: RunSummary) -> str:
    """Return what the headline adds of the bounds and limits that the winner keeps."""
    if summary.winner is None:
        return ""
    bounds = [clean(each.text) for each in summary.choice.goal.subject_to] if summary.choice else []
    said = [f"keeps {', '.join(bounds)}"] if bounds else []
    found, asked_for = summary.winner.stage.accuracy, summary.run.config.accuracy.asked
    for name, limit in asked_for.items() if found and summary.winner.name != summary.baseline else ():
        value = accuracy_figure(name, found) if found else None
        if value is None:
            said.append(f"{name}={limit:g} not known")
        elif name.startswith("max"):  # such as "no class loses 0.01 points of Dice (0.5 allowed)"
            unit, least, form = LOST[name]
            lost = f"less than {least:g}" if value < least <= limit else form.format(value)
            said.append(f"{lost} {unit} ({limit:g} allowed)")
        else:
            said.append(f"{summary.run.words.put_into(KEPT[name]).format(value)} (at least {limit:g} asked for)")
    return "".join(f"; {each}" for each in said)


def how_chosen(summary: RunSummary) -> list[str]:
    """Return how the winner was chosen, its ties where no interval tells them, and which stages were left out."""
    choice, winner, words = summary.choice, summary.winner, summary.run.words
    refused = sum(stage.stage.failure == "accuracy limit" for stage in summary.stages)
    limits = asked(summary.run.config.accuracy)
    lines = [f"{plural(refused, 'stage')} missed an accuracy limit ({limits})."] if refused else []
    if choice is None:
        return lines
    if winner is not None and not choice.by_speed:
        others = [method(name) for name in summary.ranking.ties]
        equal = f"; equally good: {listed(others)}" if others else ""
        near = f"stages within {share(equal_within(choice.goal, summary.ranking))} of the best count as its equals"
        lines.append(f"Chosen by {BASES[choice.goal.objective]}, which has no interval: {near}{equal}.")
    if winner is not None and choice.checks[winner.name]:
        held = [checked(each, words) for each in choice.checks[winner.name]]
        lines.append(f"{method(winner.name)} keeps {listed(held)}.")
    out = [f"{method(name)} misses {bounds}" for name in choice.checks if (bounds := missed(summary, name))]
    if out:
        more = f"; {len(out) - NAMED} more in results.csv" if len(out) > NAMED else ""
        lines.append(f"Left out: {'; '.join(out[:NAMED])}{more}.")
    unknown = [method(name) for name, value in choice.values.items() if value is None]
    if unknown and winner is not None:
        lines.append(f"Not measured, and so not chosen: {objective_title(summary)} of {listed(unknown[:NAMED])}.")
    return lines

"""What was asked for, beside what was found: the bounds, the objective, and how the winner was chosen. Plain text."""

import math

from pipeline.analysis.objectives import FIGURE_OF, Check, equal_within
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import Words
from pipeline.records.goals import AccuracyLimits, FigureName, Objective, accuracy_figure
from pipeline.records.run_record import EAGER, StageRecord
from pipeline.records.samples import Accuracy
from pipeline.report.formatting import clean, listed, seconds, share, significant, size, spoken

NAMED = 4  # stages that are named for missing a bound; the CSV has all
TITLES: dict[Objective, str] = {
    "throughput": "throughput",
    "latency": "latency of single calls",
    "memory": "memory",
    "energy": "energy {one}",
    "cost": "cost of a million {samples}",
}
BETTER: dict[Objective, str] = {
    "throughput": "is faster",
    "latency": "answers a single call sooner",
    "memory": "takes less memory",
    "energy": "takes less energy",
    "cost": "costs less",
}
LOST = {  # by limit: of what, from which loss on it is given in figures, and how
    "max_dice_drop": ("points of Dice lost", 0.01, "{:.3g}"),
    "max_psnr_drop": ("dB of PSNR lost", 0.01, "{:.3g}"),
    "max_final_error": ("off in the final latents", 1e-6, "{:.2g}"),
}
KEPT = {
    "min_dice": "the worst class has a Dice of {{:.4g}}",
    "min_agreement": "{{:.6g}} of the {points} keep their class",
    "min_psnr": "a PSNR of {{:.4g}} dB",
}
UNITS: dict[FigureName, str] = {
    "throughput": " {samples}/s",
    "energy": " J {one}",
    "cost": " for a million {samples}",
}
BASES: dict[Objective, str] = {
    "latency": "the median of single calls",
    "memory": "one reading of the process",
    "energy": "one reading of the energy counter",
}


def title(summary: RunSummary) -> str:
    """What the winner was to have the least of, or the most."""
    return summary.run.words.put_into(TITLES[summary.run.config.goal.objective])


def shown(name: FigureName, value: float | None, words: Words) -> str:
    """A figure with its unit."""
    if value is None:
        return "not known"
    if name == "memory":
        return size(value)
    if name in UNITS:
        return f"{significant(value)}{words.put_into(UNITS[name])}"
    return seconds(value)


def asked(limits: AccuracyLimits) -> str:
    """Such as "max_dice_drop=0.5, min_agreement=0.999"; empty where no limit is set."""
    return ", ".join(f"{name}={value:g}" for name, value in limits.asked.items())


def limits(asked_for: AccuracyLimits, stage: StageRecord) -> str:
    """A stage's figures beside the limits that were asked for; empty where none was, or nothing was compared."""
    found = stage.accuracy
    if found is None:
        return ""
    each = ((name, limit, accuracy_figure(name, found)) for name, limit in asked_for.asked.items())
    return "; ".join(f"{name}={limit:g}: {'not known' if own is None else f'{own:.6g}'}" for name, limit, own in each)


def checked(check: Check, words: Words) -> str:
    """Such as "p99<20ms (23.1 ms)"."""
    return f"{clean(check.constraint.text)} ({shown(check.constraint.figure, check.value, words)})"


def missed(summary: RunSummary, stage: str) -> str:
    """The bounds that a stage doesn't keep, with its figures; empty where it keeps all, or isn't ranked."""
    found = summary.choice.missed(stage) if summary.choice else []
    return ", ".join(checked(check, summary.run.words) for check in found)


def value_of(summary: RunSummary, stage: str) -> float | None:
    """A stage's figure that the objective is about."""
    return summary.choice.values.get(stage) if summary.choice else None


def told_by_intervals(summary: RunSummary) -> bool:
    """Whether ties are stages that the ratios' intervals don't show to be slower."""
    return summary.choice is None or summary.choice.by_speed


def no_winner(summary: RunSummary) -> str:
    """The headline where stages were right, or ranked, and none is what was asked for; empty otherwise."""
    if said := _none_is_accurate(summary):
        return said
    choice = summary.choice
    if choice is None or choice.held or not summary.ranked:
        return ""
    figure = FIGURE_OF[choice.goal.objective]
    if all(value is None for value in choice.values.values()):
        return f"No winner: {title(summary)} was not measured of any stage"
    bounds = listed([clean(each.text) for each in choice.goal.subject_to])
    if choice.nearest is None:
        unknown = {check.constraint.figure for own in choice.checks.values() for check in own if check.value is None}
        return f"No stage is known to keep {bounds}: {listed(sorted(unknown) or [figure])} was not measured"
    return f"No stage keeps {bounds}: the nearest is {spoken(choice.nearest)}, {missed(summary, choice.nearest)}"


def _none_is_accurate(summary: RunSummary) -> str:
    """The headline where the limits of accuracy leave nothing but the baselines, with the stage that misses least."""
    limits, found = summary.run.config.accuracy, [stage for stage in summary.stages if by_limit(stage.stage)]
    if not found or any(stage.name not in (summary.baseline, EAGER) for stage in summary.ranked):
        return ""
    nearest = min(found, key=lambda stage: limits.excess(stage.stage.accuracy) if stage.stage.accuracy else math.inf)
    return f"No stage keeps {asked(limits)}: the nearest is {spoken(nearest.name)}, {clean(nearest.stage.reason)}"


def by_limit(stage: StageRecord) -> bool:
    """Whether nothing but a limit on the answer keeps it from being ranked."""
    return stage.failure == "accuracy limit"


def best_by(summary: RunSummary) -> str:
    """What the headline adds to the winner's name where it isn't chosen by throughput."""
    choice, winner = summary.choice, summary.winner
    if choice is None or winner is None or choice.goal.objective == "throughput":
        return ""
    objective = choice.goal.objective
    value = shown(FIGURE_OF[objective], choice.values[winner.name], summary.run.words)
    alone = ", of this stage alone" if sum(value is not None for value in choice.values.values()) == 1 else ""
    return f" for the least {title(summary)} ({value}{alone})"


def better(summary: RunSummary) -> str:
    """What no other stage does where the baseline is the best one."""
    return BETTER[summary.run.config.goal.objective]


def kept(summary: RunSummary) -> str:
    """What the headline adds of the bounds and limits that the winner keeps."""
    if summary.winner is None:
        return ""
    bounds = [clean(each.text) for each in summary.choice.goal.subject_to] if summary.choice else []
    said = [f"keeps {', '.join(bounds)}"] if bounds else []
    if (found := summary.winner.stage.accuracy) and summary.winner.name != summary.baseline:
        said += [
            _limit_kept(name, limit, found, summary.run.words)
            for name, limit in summary.run.config.accuracy.asked.items()
        ]
    return "".join(f"; {each}" for each in said)


def _limit_kept(name: str, limit: float, found: Accuracy, words: Words) -> str:
    """Such as "no class loses 0.01 points of Dice (0.5 allowed)", of a limit on the winner's answer."""
    value = accuracy_figure(name, found)
    if value is None:
        return f"{name}={limit:g} not known"
    if name.startswith("max"):
        unit, least, form = LOST[name]
        lost = f"less than {least:g}" if value < least <= limit else form.format(value)
        return f"{lost} {unit} ({limit:g} allowed)"
    return f"{words.put_into(KEPT[name]).format(value)} (at least {limit:g} asked for)"


def how_chosen(summary: RunSummary) -> list[str]:
    """How the winner was chosen, its ties where no interval tells them, and who was left out."""
    choice, winner = summary.choice, summary.winner
    lines = _refused(summary)
    if choice is None:
        return lines
    if winner is not None and not choice.by_speed:
        others = summary.ranking.ties
        equal = f"; so near are {listed([spoken(name) for name in others])}" if others else ""
        basis = BASES[choice.goal.objective]
        near = f"stages within {share(equal_within(choice.goal, summary.ranking))} of the best count as its equals"
        lines.append(f"Chosen by {basis}, which has no interval: {near}{equal}.")
    if winner is not None and choice.checks[winner.name]:
        kept_bounds = [checked(each, summary.run.words) for each in choice.checks[winner.name]]
        lines.append(f"{spoken(winner.name)} keeps {listed(kept_bounds)}.")
    out = [f"{spoken(name)} misses {said}" for name in choice.checks if (said := missed(summary, name))]
    if out:
        more = f"; {len(out) - NAMED} more in results.csv" if len(out) > NAMED else ""
        lines.append(f"Left out: {'; '.join(out[:NAMED])}{more}.")
    unknown = [spoken(name) for name, value in choice.values.items() if value is None]
    if unknown and winner is not None:
        lines.append(f"Not measured, and so not chosen: {title(summary)} of {listed(unknown[:NAMED])}.")
    return lines


def _refused(summary: RunSummary) -> list[str]:
    """How many stages miss a limit on the answer; the list of those that aren't ranked has the figures."""
    count = sum(by_limit(stage.stage) for stage in summary.stages)
    if not count:
        return []
    return [f"{plural(count, 'stage')} missed what was asked of the answer ({asked(summary.run.config.accuracy)})."]

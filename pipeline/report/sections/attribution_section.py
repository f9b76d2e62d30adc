"""Why the winner wins and what still holds it back: one answer for the first screen."""

from pipeline.analysis.attribution import by_class, signed, steps
from pipeline.analysis.bottleneck import Evidence, Regime, of_stage
from pipeline.analysis.layer_figures import parts, won_by_level
from pipeline.analysis.roofline import Roofs, roofs
from pipeline.analysis.summary import Digest, Row
from pipeline.report import formatting as words
from pipeline.report.first_screen import Answer, answers
from pipeline.report.sections import traffic_section as traffic

QUESTION = "Why does it win, and what holds it back?"
AFTER = 2  # its place: after which stage, and how much faster


def first_screen(found: Digest) -> list[Answer]:
    """All answers, with this one among them where there is a winner."""
    given = answers(found)
    winner = found.winner
    if winner is None:
        return given
    return [*given[:AFTER], (QUESTION, because(found, winner)), *given[AFTER:]]


def because(found: Digest, winner: Row) -> str:
    """Such as "The largest step to it was tf32, −59 ms a call. It is compute-bound … Most could still be won in …"."""
    bounds = roofs(found.run, winner.stage)
    ceiling = f"the {bounds.precision} ceiling" if isinstance(bounds, Roofs) else "the arithmetic"
    regime = holding(of_stage(found.run, winner), ceiling)
    return " ".join(
        part for part in (largest_step(found), moved(found, winner), regime, still_to_win(found, winner)) if part
    )


def largest_step(found: Digest) -> str:
    """The rung that took the most away; empty where nothing is on the way."""
    way = steps(found)
    if not way:
        return ""
    largest = min(way, key=lambda step: step.after - step.before)
    change = largest.after - largest.before
    return f"The largest step to it was {largest.name}, {signed(change)} a call." if change < 0 else ""


def moved(found: Digest, winner: Row) -> str:
    """What the winner moves and launches, for what the baseline does; empty where either isn't known."""
    first = found.row(found.run.baseline)
    if first is None or first is winner:
        return ""
    stages = [row.stage for row in (winner, first)]
    through, sources = zip(*(traffic.moved(stage) for stage in stages), strict=True)
    kernels = [
        stage.diagnostics.fusion.kernels_per_call for stage in stages if stage.diagnostics and stage.diagnostics.fusion
    ]
    if not all(through) or len(kernels) < len(stages) or (traffic.BY_COUNTERS in sources and len(set(sources)) > 1):
        return ""
    sides = [f"{words.size(amount)} in {count:.0f}" for amount, count in zip(through, kernels, strict=True)]
    what = "kernels" if found.run.environment and found.run.environment.device == "cuda" else "operators"
    return f"It moves {sides[0]} {what} a call, for {words.clean(first.name)}'s {sides[1]}."


def holding(regime: Regime, ceiling: str) -> str:
    """The regime, with the figures that decide it."""
    if regime.word == "unknown":
        return f"What bounds it is unknown: {regime.reason}{_known(regime.evidence, ceiling)}."
    return f"It is {regime.word}{_known(regime.evidence, ceiling)}."


def _known(found: Evidence, ceiling: str) -> str:
    shares = [
        (found.compute, f"{{}} of {ceiling}"),
        (found.memory, "{} of the bandwidth"),
        (found.idle, "the GPU idle for {}"),
        (None if found.image_slope is None else 4**-found.image_slope, "{} of the time for a quarter of each image"),
    ]
    said = [text.format(words.share(share)) for share, text in shares if share is not None]
    return f" ({', '.join(said)})" if said else ""


def still_to_win(found: Digest, winner: Row) -> str:
    """The level with the most time above its roof; by classes of work where no layer's time is known."""
    bounds = roofs(found.run, winner.stage)
    timed = parts(found.run, winner.stage, bounds.element_bytes) if isinstance(bounds, Roofs) else []
    won = won_by_level(timed, bounds) if isinstance(bounds, Roofs) else {}
    level = next(iter(won), "")
    if level and won[level] > 0:
        total, bare = sum(won.values()), sum(part.seconds for part in timed if not part.has_work)
        text = (
            f"Most could still be won in {level}: {words.seconds(won[level])} of {words.seconds(total)} above the roofs"
        )
        return text + (f"; {words.seconds(bare)} lie between layers, where no roof is known." if bare > total else ".")
    profile = winner.stage.profile
    if profile is None or not profile.kernels:
        return ""
    rest = {kind: each for kind, each in by_class(profile).items() if kind not in ("convolution", "matmul")}
    kind = max(rest, key=lambda kind: rest[kind], default="")
    return f"Beside its matrix work most time goes into {kind}: {words.seconds(rest[kind])}." if kind else ""

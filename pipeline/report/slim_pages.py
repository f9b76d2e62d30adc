"""What `pipeline.slim` measures: other forms of a network, shorter loops, and Dice against milliseconds of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pipeline.analysis.summary import winner_of
from pipeline.config.request_error import RequestError
from pipeline.records.disk import json_text, write_text
from pipeline.records.goals import POINTS
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report import markdown
from pipeline.report.charts import ACCENT, PLAIN
from pipeline.report.charts.bars import Bar, Part, rows
from pipeline.report.charts.plots import front
from pipeline.report.formatting import mebibytes, milliseconds, significant
from pipeline.report.html import environment
from pipeline.report.tables import Column, Figure, Table, names, number, table_of
from pipeline.stats.intervals import Ratio, seconds_per_call


def best_stages(run: RunRecord) -> list[StageRecord]:
    """Return the run's winner, and its fastest stages in fp16 and in fp8; raise RequestError if no stage was right."""
    usable = sorted((part for part in run.stages if part.usable), key=lambda part: seconds_per_call(part.pairs).value)
    if not usable:
        raise RequestError("no stage of the run was right and measured; measure one first")
    best = [stage for stage in usable if stage.name == winner_of(run)] or usable[:1]
    for precision in ("fp16", "fp8"):
        best += [stage for stage in usable if stage.precision == precision][:1]
    return list({stage.name: stage for stage in best}.values())


@dataclass(frozen=True)
class Point:
    """A network in one stage."""

    network: str
    stage: str
    seconds: float  # per call
    dice: float  # mean of the classes but the background

    def beats(self, other: "Point") -> bool:
        """Return whether it is at least as fast and as good as another, and better in one of the two."""
        figures = (self.seconds, -self.dice), (other.seconds, -other.dice)
        return figures[0] != figures[1] and all(own <= its for own, its in zip(*figures, strict=True))


def terms(run: RunRecord) -> dict[str, object]:
    """Return what runs must have in common, so that their milliseconds and Dice can be compared."""
    data, machine = run.config.data, run.environment
    found = {"data.batch_size": run.batch_size, "data": data.name, "data.size": data.size, "data.images": data.images}
    return {**found, "SHA-256 of images and labels": run.data_sha256, "device": machine and machine.device_name}


def points_of(runs: Sequence[tuple[str, RunRecord]]) -> list[Point]:
    """Return the best stages of named runs; raise RequestError if one has no labels, or another of `terms`."""
    found: list[Point] = []
    (first, run), *_ = runs
    right = terms(run)
    for name, run in runs:
        for key, value in terms(run).items():
            if value != right[key]:
                raise RequestError(f"{name}: {key}={value}, where {first} has {right[key]}; measure both alike")
        judged = [(stage, stage.accuracy.mean_dice) for stage in best_stages(run) if stage.accuracy]
        known = [(stage, dice) for stage, dice in judged if dice is not None]
        if not known:
            raise RequestError(f"{name}: its images have no labels, so there is no Dice; measure with data.labels")
        found += [Point(name, stage.name, seconds_per_call(stage.pairs).value, dice) for stage, dice in known]
    return found


def write_pareto(found: list[Point], folder: Path) -> str:
    """Write pareto.html, and return its table and path."""
    best, title = max(point.dice for point in found), "Dice against milliseconds"
    ahead = {one for one in found if not any(other.beats(one) for other in found)}
    marks = [
        (f"{one.network}, {one.stage}", 1e3 * one.seconds, POINTS * (best - one.dice), "winner" if one in ahead else "")
        for one in found
    ]
    draw = partial(front, marks, (title, "milliseconds per call", "points of Dice below the best"), log=False)
    columns: list[Column[Point]] = [
        names("network", lambda one: one.network),
        names("stage", lambda one: one.stage),
        number("ms", lambda one: one.seconds, milliseconds),
        number("Dice", lambda one: one.dice, lambda value: significant(value, 4)),
        names("no other is faster and better", lambda one: "yes" if one in ahead else ""),
    ]
    lead = "Each run's winner and fastest stages in fp16 and fp8. Dice: the mean of the classes but the background."
    return written(folder / "pareto.html", title, lead, Figure(title, draw), table_of(columns, found))


FULL = "the full network"


@dataclass(frozen=True)
class FormRow:
    """One form of the network in one stage."""

    form: str
    stage: str
    parameters: int | None = None
    seconds: float | None = None  # per call
    faster: Ratio | None = None  # than the full network in the same stage, side by side
    memory_bytes: int | None = None  # GPU memory of the network and a call; None on a CPU
    joules: float | None = None  # per image; None without a meter
    problem: str = ""  # why there are no figures

    @property
    def times(self) -> float | None:
        """The ratio to the full network's time."""
        return None if self.faster is None else self.faster.value


def write_what_if(found: Sequence[FormRow], network: str, folder: Path) -> str:
    """Write what-if.html, and return its table and path."""
    title = f"In {found[0].stage}, milliseconds per call"
    lead = (
        "Untrained. Each × is of samples between the full network's; its own row was timed before, so the quotient of "
        "two rows may differ. A slimmer network must be trained before it is of use."
    )
    bars = [timed_bar(row.form, row.seconds, row.times, strong=row.form == FULL) for row in found if row.seconds]
    columns: list[Column[FormRow]] = [
        names("network", lambda row: row.form),
        names("stage", lambda row: row.stage),
        number("parameters", lambda row: row.parameters, lambda value: f"{value:,.0f}"),
        number("ms", lambda row: row.seconds, milliseconds),
        number("× full", lambda row: row.times, significant),
        number("MiB", lambda row: row.memory_bytes, mebibytes),
        number("J/image", lambda row: row.joules, significant),
        names("problem", lambda row: row.problem),
    ]
    figure, table = Figure(title, partial(rows, bars, title)), table_of(columns, found).without_empty_columns
    return written(folder / "what-if.html", f"What if {network} were slimmer", lead, figure, table)


@dataclass(frozen=True)
class Loop:
    """A denoising loop: its steps, and of how many one calls the whole network; the others call the outermost level."""

    name: str
    steps: int
    every: int


@dataclass(frozen=True)
class LoopRow(Loop):
    """A loop as measured."""

    seconds: float  # of a loop over one batch, the median
    faster: float  # than the full loop in the same stage, the median over rounds
    least: float  # of all rounds
    most: float
    psnr: float  # of the worst final image against the fp32 network's full loop, dB
    ssim: float
    perceptual: float | None  # the largest distance by the user's function, such as LPIPS; None without one
    problem: str  # the limits that it misses; empty if it passes


def write_steps(found: Sequence[LoopRow], told: Mapping[str, object], folder: Path) -> str:
    """Write steps.json, which is `told` and the loops, and steps.html; return the page's table and path."""
    lead = (
        f"Loops of one batch of {told['batch']} in {told['stage']} on {told['device']}, from the same noise. Final "
        f"{'images' if told['decoder'] else 'latents'} are compared with the fp32 network's full loop; the worst one "
        f"counts.{'' if told['trained'] else ' The weights are random: the figures of the images mean nothing.'}"
    )
    title = "milliseconds per loop"
    bars = [timed_bar(row.name, row.seconds, row.faster, f", {row.psnr:.1f} dB", not row.problem) for row in found]
    columns: list[Column[LoopRow]] = [
        names("loop", lambda row: row.name),
        number("ms", lambda row: row.seconds, milliseconds),
        number("× full loop", lambda row: row.faster, significant),
        names("of all rounds", lambda row: f"{row.least:.3g} to {row.most:.3g}"),
        number("PSNR, dB", lambda row: row.psnr, lambda value: f"{value:.1f}"),
        number("SSIM", lambda row: row.ssim, lambda value: f"{value:.4f}"),
        number("perceptual", lambda row: row.perceptual, significant),
        names("within the limits", lambda row: row.problem or "yes"),
    ]
    figure, table = Figure(title, partial(rows, bars, title)), table_of(columns, found).without_empty_columns
    shown = written(folder / "steps.html", f"Fewer steps of {told['network']}", lead, figure, table)
    write_text(json_text({**told, "loops": [*map(asdict, found)]}), folder / "steps.json")
    return shown


def timed_bar(name: str, seconds: float, faster: float | None, note: str = "", strong: bool = False) -> Bar:
    """Return a bar of milliseconds, with the ratio to the full network or loop; `strong` ones stand out."""
    ratio = "" if faster is None else f", {significant(faster)} ×"
    parts = [Part(0.0, 1e3 * seconds, ACCENT if strong else PLAIN)]
    return Bar(name, parts, f"{milliseconds(seconds)}{ratio}{note}", strong=strong)


def written(path: Path, title: str, lead: str, figure: Figure, table: Table) -> str:
    """Write a page of a figure and a table, and return what the program prints: the lead, the table, the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = {"title": title, "lead": lead, "figure": figure, "table": table}
    path.write_text(environment().get_template("slim.html.j2").render(shown), encoding="utf-8")
    return "\n".join([lead, "", *markdown.table(table), f"{path}\n"])

"""How many GPUs a service needs for its target, or which settings to give."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.analysis.capacity import ARRIVALS, SEED, SPARE, Finding, Fleet, Simulation, fleets, target_of
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import Words
from pipeline.report.formatting import clean, listed, milliseconds, seconds, share, significant
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

RATE, TAIL = "report.target_images_per_second", "report.target_p99_ms"
MODEL = (
    "A queue, simulated: single {samples} arrive at random (a Poisson process) and are shared evenly between the GPUs. "
    "Dynamic batching: a free GPU takes all {samples} that wait, up to the batch of {batch}; a partly filled batch "
    "costs as much as a full one, since only the full one was measured. The time of a batch is drawn from the "
    "{latencies}. One batch runs at a time and copies are not hidden; "
    f"{ARRIVALS:,} {{samples}} per simulation, seed {SEED}. The simulation "
    "leaves out the network, the decoding of {samples}, and any tail longer than the measured calls show."
)
NOTES: dict[Finding, str] = {
    "": "",
    "batch too slow": "not reachable: one batch takes {seconds} at its p99",
    "load too high": "more than {count} GPUs for the load alone: not simulated",
    "tail too tight": "not with {count} either, each idle for {idle} of the time",
    "mostly empty batches": "mostly empty batches: measure a smaller data.batch_size",
    "no latencies": "unknown: no latencies on record",
}
Line = tuple[str, Fleet]  # a stage's name and its GPUs


@dataclass(frozen=True)
class CapacitySection:
    """What the report shows; no table without targets."""

    title: str
    note: str
    table: Table | None = None


def section(summary: RunSummary) -> CapacitySection:
    """GPUs for each ranked stage, or the settings to give."""
    environment = summary.run.environment
    title = (
        "GPUs for the target"
        if environment is None or environment.device == "cuda"
        else "Machines like this for the target"
    )
    asked, target = summary.run.config.report, target_of(summary)
    if target is None:
        wanted = ((RATE, asked.target_images_per_second), (TAIL, asked.target_p99_ms))
        missing = listed([key for key, value in wanted if value is None])
        command = f"python -m pipeline.report RUN {RATE}=500 {TAIL}=50"
        return CapacitySection(
            title, f"Set {missing} to see how many this service needs. No new run is required: {command}."
        )
    bare = any(not stage.stage.host_latencies for stage in summary.ranked)
    drawn_from = f"measured latencies{', without copies where those with copies are missing' if bare else ''}"
    words = summary.run.words
    text = f"{significant(target.images_per_second)} {words.samples}/s at a p99 of {seconds(target.p99_seconds)}."
    return CapacitySection(
        title,
        f"{text} {MODEL.format(batch=summary.run.batch_size, latencies=drawn_from, **words.named)}",
        _table(summary),
    )


def columns(words: Words) -> list[Column[Line]]:
    """The GPUs, how busy they are, and why there are none."""

    def simulated(read: Callable[[Simulation], float], show: Callable[[float], str]) -> Callable[[Line], Cell]:
        return figure(lambda line: read(line[1].simulation) if line[1].simulation else None, show)

    return [
        names("stage", lambda line: clean(line[0])),
        Column(
            "GPUs",
            help="the fewest that hold the target",
            cell=figure(lambda line: line[1].gpus, lambda gpus: f"{gpus:,}"),
            csv="target_gpus",
        ),
        Column(
            "load",
            help="share of what they could do with full batches",
            cell=simulated(lambda found: found.load, share),
            csv="target_load_share",
        ),
        Column(
            f"{words.samples} per batch",
            help="on average, simulated",
            cell=simulated(lambda found: found.images_per_batch, lambda value: significant(value, 2)),
            csv="target_images_per_batch",
        ),
        Column(
            "p50",
            "ms",
            f"simulated, from {words.one}'s arrival to its mask",
            simulated(lambda found: found.p50, milliseconds),
            csv="target_p50_s",
        ),
        Column("p99", "ms", "simulated", simulated(lambda found: found.p99, milliseconds), csv="target_p99_s"),
        names("note", lambda line: note(line[1]), csv="target_note"),
    ]


def price_column(price: float | None) -> Column[Line]:
    """What all of them cost an hour, each at that price; nothing without one."""

    def cost(line: Line) -> float | None:
        return line[1].gpus * price if line[1].gpus and price is not None else None

    help_text = "" if price is None else f"all of them, at {price:g} an hour each"
    return Column("an hour", help=help_text, cell=figure(cost, significant), csv="target_price_per_hour")


def lines(summary: RunSummary) -> list[Line]:
    """Every ranked stage with its GPUs; none without a target."""
    target = target_of(summary)
    return list(fleets(summary, target).items()) if target else []


def _table(summary: RunSummary) -> Table:
    price = summary.run.config.report.gpu_hour_price
    *figures, why = columns(summary.run.words)
    priced = [] if price is None else [price_column(price)]
    return table_of([*figures, *priced, why], lines(summary))


def note(fleet: Fleet) -> str:
    """Why no GPUs hold the target, or what to try."""
    idle = share(1 - 1 / SPARE)
    return NOTES[fleet.finding].format(seconds=seconds(fleet.figure), count=f"{fleet.figure:,.0f}", idle=idle)

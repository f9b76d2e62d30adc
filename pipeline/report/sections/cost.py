"""The cost of a million images, the best stage by number of images, and the GPUs that a service needs."""

from collections.abc import Callable
from functools import partial

import numpy as np

from pipeline.analysis.capacity import ARRIVALS, SEED, SPARE, Finding, Fleet, Simulation, fleets
from pipeline.analysis.stage_summary import Doubt, StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.report import WORDS
from pipeline.report.charts.plots import lines
from pipeline.report.formatting import listed, method, milliseconds, samples, seconds, share, significant, tail, two
from pipeline.report.sections.ladder import by_time, counted_calls
from pipeline.report.tables import Cell, Column, Figure, Section, Table, explained, methods, names, number, table_of

MILLION = 1e6
HOURS = MILLION / 3600  # that a million images take at one a second
JOULES_PER_KWH = 3.6e6
DOUBTS: dict[Doubt, str] = WORDS["cost"]["doubts"]
RATE, TAIL = "report.target_images_per_second", "report.target_p99_ms"
NOTES: dict[Finding, str] = WORDS["cost"]["notes"]
Line = tuple[str, Fleet]  # a stage's name and its GPUs


def columns(summary: RunSummary) -> list[Column[StageSummary]]:
    """Return time, energy, cost and break-even of a million images at steady state; empty where in doubt."""
    price, words = summary.run.config.report.gpu_hour_price, summary.run.words

    def known(read: Callable[[StageSummary], float | None]) -> Callable[[StageSummary], float | None]:
        return lambda stage: None if stage.break_even_doubt else read(stage)

    def of_joules(read: Callable[[float], float]) -> Callable[[StageSummary], float | None]:
        return known(lambda of: read(of.joules_per_image) if of.joules_per_image and of.pace else None)

    def cost(stage: StageSummary) -> float | None:
        return price and stage.images_per_second and price * HOURS / stage.images_per_second

    def paid(stage: StageSummary) -> Cell:
        after, text = stage.break_even, "the baseline"
        if stage.name != summary.baseline:
            never = "unknown" if stage.break_even_doubt else "never"
            text = never if after is None else "at once" if after < 1 else f"{samples(after)} {words.samples}"
        return Cell(text, after)

    shown: list[Column[StageSummary]] = [
        methods(lambda stage: stage.name),
        number(f"{words.samples}/s", known(lambda of: of.images_per_second), significant, help=WORDS["cost"]["rate"]),
        number("hours", known(lambda of: of.images_per_second and HOURS / of.images_per_second), significant),
        number(f"{words.samples}/J", of_joules(lambda each: 1 / each), significant, help=f"{words.samples} per joule"),
        number("kWh", of_joules(lambda each: each * MILLION / JOULES_PER_KWH), significant),
        number("price", known(cost), significant, "price_per_million_images"),
        Column("worth it from", paid),
    ]
    at = "" if price is None else f" at {price:g} an hour"
    return explained("cost", shown, words, at=at, baseline=method(summary.baseline))


def cost_table(summary: RunSummary) -> Table:
    """Return the ranked stages' costs; columns without a figure go, and all of it where no other stage has any."""
    others = [stage for stage in summary.ranked if stage.name != summary.baseline]
    if others and all(stage.break_even_doubt for stage in others):
        return Table()
    return table_of(columns(summary), [stage for stage in by_time(summary) if stage.ranked]).without_empty_columns


def cost_text(summary: RunSummary) -> list[str]:
    """Return the best stage by number of samples, and the best one for a service."""
    words = summary.run.words
    if summary.doubt:
        unknown = f"The best stage by number of {words.samples} is unknown: {DOUBTS[summary.doubt]}."
        return [unknown] if summary.ranked else []
    best = summary.change_overs  # such as "Fewer than 24,000 images: autocast. Up to 93,000: compile. More: fp8."
    ends = [samples(start) for _, start in best[1:]]
    counts = [f"Any number of {words.samples}"]
    if ends:
        counts = [f"Fewer than {ends[0]} {words.samples}", *(f"Up to {end}" for end in ends[1:]), "More"]
    each = [f"{count}: {method(name)}." for count, (name, _) in zip(counts, best, strict=False)]
    said = [" ".join(each)] if each else []
    service = summary.stage(summary.best_for_service)
    if service and service.latency:
        alone = f"p50 {seconds(service.latency.p50)}, {tail(service.latency)} for single calls"
        if service.sustained_seconds:
            alone = f"{seconds(service.sustained_seconds)} per call at steady state; {alone} on an otherwise idle GPU"
        said.append(f"For a service that is built and warm: {method(service.name)}, {alone}.")
    if service and service.images_per_second:
        hours = significant(HOURS / service.images_per_second)
        said.append(f"A million {words.samples} then cost {hours} times the price of an hour of this device.")
    whole = summary.run.environment and summary.run.environment.device_memory_bytes
    exported = service.stage.service if service else None
    if service and whole and (held := (exported and exported.held_bytes) or service.peak_bytes):
        fitting = whole // held
        said.append(f"Replicas: {fitting:,} fit into this GPU's memory; they share its time.")
    return said


def ruler(summary: RunSummary) -> Figure | None:
    """Draw what any number of samples takes with the set-up, and where the best stage changes, if it does."""
    starts = {name: start for name, start in summary.change_overs[1:] if start > 1}
    if not starts:
        return None
    price, words = summary.run.config.report.gpu_hour_price, summary.run.words
    counts = sorted([*starts.values(), *np.geomspace(min(starts.values()) / 30, max(starts.values()) * 30, 60)])
    setups = {stage.name: stage.setup_seconds for stage in summary.run.stages}
    series, rings = {}, {}
    for name, each in summary.image_seconds.items():
        points = [(count, (setups.get(name, 0.0) + count * each) / 3600 * (price or 1.0)) for count in counts]
        series[method(name)] = points
        if name in starts:
            rings[method(name)] = points[counts.index(starts[name])]
    ticks = {count: samples(count) for count in (counts[0], *starts.values(), counts[-1])}
    title = f"Set-up and {words.samples} together"
    labels = (title, words.samples, "hours" if price is None else "price")
    return Figure(title, partial(lines, series, rings, labels, ticks), "A ring: from here on this method takes least.")


def capacity(summary: RunSummary) -> Section:
    """Return the GPUs that each ranked stage needs for the target, or the settings to give."""
    environment, words = summary.run.environment, summary.run.words
    on_gpus = environment is None or environment.device == "cuda"
    title = "GPUs for the target" if on_gpus else "Machines like this for the target"
    asked = summary.run.config.report
    rate, tail_ms = asked.target_images_per_second, asked.target_p99_ms
    if rate is None or tail_ms is None:
        missing = listed([key for key, value in ((RATE, rate), (TAIL, tail_ms)) if value is None])
        command = f"python -m pipeline.report RUN {RATE}=500 {TAIL}=50"
        note = f"Set {missing} to see how many this service needs. No new run is required: {command}."
        return Section("capacity", title, note=note)
    bare = any(not stage.stage.host_latencies for stage in summary.ranked)
    drawn_from = f"measured latencies{', without copies where those with copies are missing' if bare else ''}"
    wanted_text = f"{significant(rate)} {words.samples}/s at a p99 of {seconds(tail_ms / 1e3)}"
    calls = counted_calls(summary.ranked)
    figures = {"arrivals": ARRIVALS, "seed": SEED, "batch": summary.run.batch_size, "latencies": drawn_from}
    model = WORDS["cost"]["model"].format(calls=calls, **figures, **words.named)
    table = table_of(capacity_columns(summary), fleets(summary).items())
    table = table.without(["an hour"]) if asked.gpu_hour_price is None else table
    return Section("capacity", title, note=f"{wanted_text}. {model}", table=table)


def capacity_columns(summary: RunSummary) -> list[Column[Line]]:
    """Return the GPUs, how busy they are, what they cost an hour, and why there are none."""
    words, price = summary.run.words, summary.run.config.report.gpu_hour_price

    def simulated(read: Callable[[Simulation], float]) -> Callable[[Line], float | None]:
        return lambda line: read(line[1].simulation) if line[1].simulation else None

    def note(line: Line) -> str:
        fleet, idle = line[1], share(1 - 1 / SPARE)
        return NOTES[fleet.finding].format(seconds=seconds(fleet.figure), count=f"{fleet.figure:,.0f}", idle=idle)

    mean = simulated(lambda found: found.images_per_batch)
    shown: list[Column[Line]] = [
        methods(lambda line: line[0]),
        number("GPUs", lambda line: line[1].gpus, "{:,}".format, "target_gpus"),
        number("load", simulated(lambda found: found.load), share, "target_load_share"),
        number(f"{words.samples} per batch", mean, two, "target_images_per_batch"),
        number("p50 ms", simulated(lambda found: found.p50), milliseconds, "target_p50_s"),
        number("p99 ms", simulated(lambda found: found.p99), milliseconds, "target_p99_s"),
        names("note", note, "target_note"),
        number("an hour", lambda of: of[1].gpus and price and of[1].gpus * price, significant, "target_price_per_hour"),
    ]
    priced = "" if price is None else f"all of them, at {price:g} an hour each"
    return explained("cost", shown, words, priced=priced)

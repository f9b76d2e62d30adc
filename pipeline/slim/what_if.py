"""The gain of other forms of a network, with random weights, beside the full one in the same process."""

import gc
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import nn

from pipeline.errors import plural, typed_line
from pipeline.measure import usage
from pipeline.records.plan import Plan
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Block, Pair
from pipeline.report.charts import ACCENT, PLAIN
from pipeline.report.charts.bars import Bar, Part, rows
from pipeline.report.formatting import mebibytes, milliseconds, significant, times
from pipeline.report.tables import Figure, Table, names, number, table_of
from pipeline.slim.pareto import write
from pipeline.slim.widths import Form, parameters
from pipeline.stats.intervals import Ratio, ratio, seconds_per_call
from pipeline.worker.bench import Bench

BLOCKS = 6  # of each comparison: the fewest that bound a ratio
FULL = "the full network"
COMPILATIONS = 256  # of one function by Dynamo, which counts those of all networks in the process


@dataclass(frozen=True)
class Row:
    """One form of the network in one stage."""

    form: str
    stage: str
    share: Fraction | None = None  # of the widths, if the form differs by these alone
    parameters: int | None = None
    seconds: float | None = None  # per call
    faster: Ratio | None = None  # than the full network in the same stage, side by side
    memory_bytes: int | None = None  # GPU memory of the network and a call; None on a CPU
    joules: float | None = None  # per image; None without a meter
    problem: str = ""  # why there are no figures


def measured_plan(plan: Plan) -> Plan:
    """Return a plan that takes a few seconds for a form."""
    return replace(
        plan, gpu_sample_seconds=0.2, gpu_run_in_seconds=0.1, gpu_rested_run_in_seconds=0.3, cpu_sample_seconds=0.05,
        min_calls=1, warmup_min_calls=3, warmup_min_seconds=0.2, warmup_window_seconds=0.1, warmup_limit_seconds=2.0,
        warmup_tolerance=0.1, energy_seconds=min(plan.energy_seconds, 1.0),
    )  # fmt: skip


class Comparison:
    """The full network in one stage, beside which other forms are measured."""

    def __init__(self, full: Bench, stage: StageRecord) -> None:
        self.full, self.stage, self.before = full, stage, held()
        full.build()
        full.warm_up()

    def row(self, known: Row, net: nn.Module | None) -> Row:
        """Measure a form of the network; the full network if it is None."""
        bench, before = (self.full, self.before) if net is None else self._built(known.form, net)
        pair = side_by_side(self.full, bench)
        peak = usage.measure(bench.run, bench.inputs[0], bench.called.model, bench.context_bytes).allocated_peak_bytes
        energy = bench.energy()
        return replace(
            known,
            parameters=parameters(bench.workload.model),
            seconds=seconds_per_call([pair]).value,
            faster=None if net is None else ratio([pair]),
            memory_bytes=None if peak is None else peak - before,
            joules=None if energy is None or not energy.images else energy.joules / energy.images,
        )

    def _built(self, name: str, net: nn.Module) -> tuple[Bench, int]:
        """Return the bench of a form, warm, and the GPU memory that was held before."""
        work, before = self.full.workload, held()
        folder = work.folder.with_name(re.sub(r"\W+", "-", f"{work.folder.name} {name}"))
        folder.mkdir(parents=True, exist_ok=True)
        workload = replace(work, model=net.to(work.device).eval(), folder=folder).taken_in(self.stage.net_layout)
        bench = Bench(self.full.job, workload, self.full.context_bytes)
        bench.build()
        bench.warm_up()
        return bench, before


def held() -> int:
    """Return the bytes that torch's allocator holds of a GPU, after what nobody uses is returned."""
    gc.collect()
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def side_by_side(full: Bench, other: Bench) -> Pair:
    """Take interleaved samples of two networks: full, other, other, full, again and again."""
    blocks = []
    for _ in range(BLOCKS):
        first, second, third, last = (bench.sample() for bench in (full, other, other, full))
        blocks.append(Block("ABBA", (first, last), (second, third)))
    return Pair(FULL, "form", blocks)


def compared(
    prepared: Callable[[StageRecord], Bench],
    stages: Iterable[StageRecord],
    forms: list[Form],
    seconds: float,
    say: Callable[[str], None],
) -> Iterator[Row]:
    """Yield the full network and each form in each stage, until the time is used up.

    Args:
        prepared: gives the full network's bench in a stage.
        stages: the best one first.
        forms: the most telling first.
        seconds: at most; what isn't measured by then is counted in a note.
        say: takes progress lines.
    """
    began, longest, left = time.monotonic(), 0.0, 0
    quiet = warnings.catch_warnings(action="ignore", category=FutureWarning)  # torch's own, where it copies a graph
    with torch._dynamo.config.patch(recompile_limit=COMPILATIONS), quiet:
        for stage in stages:
            comparison = None
            for form in (None, *forms):
                started = time.monotonic()
                if started - began + longest > seconds:
                    left += 1
                    continue
                known = Row(form.name if form else FULL, stage.name, form.share if form else None)
                say(f"{stage.name}: {known.form}")
                try:
                    comparison = comparison or Comparison(prepared(stage), stage)
                    row = comparison.row(known, form.make() if form else None)
                except Exception as error:  # noqa: BLE001 - compilers raise any type; the other forms go on
                    row = replace(known, problem=typed_line(error))
                figures = f"{milliseconds(row.seconds)} ms" + (f", {times(row.faster)}" if row.faster else "")
                say(f"  {row.problem or figures}")
                yield row
                longest = max(longest, time.monotonic() - started)
    if left:
        say(f"note: no time was left for {plural(left, 'measurement')}; --seconds gives more")


def shown(found: list[Row]) -> Table:
    """Return the rows as a table."""
    return table_of(
        [
            names("network", lambda row: row.form),
            names("stage", lambda row: row.stage),
            number("parameters", lambda row: row.parameters, lambda value: f"{value:,.0f}"),
            number("ms", lambda row: row.seconds, milliseconds),
            number("× full", lambda row: row.faster.value if row.faster else None, significant),
            number("MiB", lambda row: row.memory_bytes, mebibytes),
            number("J/image", lambda row: row.joules, significant),
            names("problem", lambda row: row.problem),
        ],
        found,
    ).without_empty_columns


def write_page(found: list[Row], network: str, folder: Path) -> Path:
    """Write what-if.html, and return its path."""
    figures = []
    for stage in dict.fromkeys(row.stage for row in found if row.seconds):
        bars = [
            Bar(
                row.form,
                [Part(0.0, 1e3 * row.seconds, ACCENT if row.form == FULL else PLAIN)],
                milliseconds(row.seconds),
            )
            for row in found
            if row.stage == stage and row.seconds
        ]
        title = f"In {stage}, milliseconds per call"
        figures.append(Figure(title, partial(rows, bars, title)))
    lead = (
        "Untrained, each beside the full network in one process. A slimmer network must be trained before it is of use."
    )
    return write(folder / "what-if.html", f"What if {network} were slimmer", lead, figures, shown(found))

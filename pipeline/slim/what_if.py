"""The gain of other forms of a network, with random weights, beside the full one in the run's best stage."""

import argparse
import copy
import gc
import math
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, show
from pipeline.errors import InputError, plural, typed_line
from pipeline.measure import usage
from pipeline.records.plan import Plan
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Block, Pair
from pipeline.report.formatting import milliseconds, significant, times
from pipeline.report.slim_pages import FULL, FormRow, best_stages, write_what_if
from pipeline.slim.command import Target, Width
from pipeline.slim.widths import Form, Full, full_of, parameters
from pipeline.stats.intervals import ratio, seconds_per_call
from pipeline.worker.bench import Bench
from pipeline.worker.run_stage import prepare

SECONDS = 300.0  # of all forms, unless the user says otherwise
BLOCKS = 6  # of each comparison: the fewest that bound a ratio
COMPILATIONS = 256  # of one function by Dynamo, which counts those of all networks in the process
PLAN = Plan(  # a few seconds for a form
    gpu_sample_seconds=0.2, gpu_run_in_seconds=0.1, gpu_rested_run_in_seconds=0.3, cpu_sample_seconds=0.05,
    min_calls=1, warmup_min_calls=3, warmup_min_seconds=0.2, warmup_window_seconds=0.1, warmup_limit_seconds=2.0,
    warmup_tolerance=0.1, energy_seconds=1.0,
)  # fmt: skip
UNTRAINED = {"keep_fp16": "none", "inductor_search": "never"}  # options of stages that spare searches by random weights
Say = Callable[[str], None]


def what_if(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Measure all forms, print a table and write a page; return the exit code."""
    full = full_of(run, asked.run, device)
    with Progress(0) as progress:
        found = rows_of(run, device, list(full.forms()), asked.seconds or SECONDS, progress.say)
    show(write_what_if(found, run.config.model.name, asked.out or asked.run))
    return 0 if any(row.seconds for row in found) else FAILED


def reaches(row: FormRow, target: Target) -> bool:
    """Return whether a form reaches the target."""
    if target.unit == "times":
        return (row.times or 0.0) >= target.value
    size = row.memory_bytes if row.memory_bytes is not None else 4 * (row.parameters or 0)
    return ((row.seconds or math.inf) if target.unit == "seconds" else size) <= target.value


def width_for(target: Target, run: RunRecord, full: Full, device: str, say: Say) -> Width:
    """Return the widths of the most parameters that reach a target in the run's best stage; InputError if none do."""
    forms = [form for form in full.forms() if form.width]
    found = [row for row in rows_of(run, device, forms, SECONDS, say) if row.form != FULL and row.seconds]
    if target.unit == "bytes" and any(row.memory_bytes is None for row in found):
        say(f"note: --target {target.text} is of the weights in fp32, as only a GPU's memory is measured")
    if reached := [row for row in found if reaches(row, target)]:
        widths = {form.name: form.width for form in forms if form.width}
        return widths[max(reached, key=lambda row: row.parameters or 0).form]
    gains = [f"{row.form}: {significant(row.times or 0)} ×, {milliseconds(row.seconds)} ms" for row in found]
    raise InputError(f"--target {target.text}: no width reaches it ({', '.join(gains) or 'none could be measured'})")


def rows_of(run: RunRecord, device: str, forms: list[Form], seconds: float, say: Say) -> list[FormRow]:
    """Return the full network and forms, measured in the run's best stage; a note counts those without time left."""
    stage, until, longest = best_stages(run)[0], time.monotonic() + seconds, 0.0
    quiet = warnings.catch_warnings(action="ignore", category=FutureWarning)  # torch's own, where it copies a graph
    many = torch._dynamo.config.patch(recompile_limit=COMPILATIONS)
    found: list[FormRow] = []
    with TemporaryDirectory(prefix="unet-ladder-") as scratch, quiet, many:
        job = replace(run.config.job(stage.spec, "stage", Path(scratch)), device=device, plan=PLAN, reference="")
        full = prepare(job, stage.net_layout)
        for form in (None, *forms):
            started = time.monotonic()
            if form and started + longest > until:
                left = plural(len(forms) + 1 - len(found), "measurement")
                say(f"note: no time was left for {left}; --seconds gives more")
                break
            known = FormRow(form.name if form else FULL, stage.name)
            say(f"{stage.name}: {known.form}")
            try:
                row = measured(known, full, form, stage)
            except Exception as error:  # noqa: BLE001 - compilers raise any type; the other forms go on
                row = replace(known, problem=typed_line(error))
            figures = f"{milliseconds(row.seconds)} ms" + (f", {times(row.faster)}" if row.faster else "")
            say(f"  {row.problem or figures}")
            found.append(row)
            if form is None and row.problem:
                break
            longest = max(longest, time.monotonic() - started)
    return found


def measured(known: FormRow, full: Bench, form: Form | None, stage: StageRecord) -> FormRow:
    """Build a form and measure it beside the full network, or the full network itself, which comes first."""
    work, spec, bench = full.workload, full.job.stage, full
    if form:
        folder = work.folder.with_name(re.sub(r"\W+", "-", f"{work.folder.name} {form.name}"))
        workload = replace(work, model=copy.deepcopy(form.net).to(work.device), folder=folder)
        options = {key: UNTRAINED.get(key, part) for key, part in spec.options.items()}
        job = replace(full.job, stage=replace(spec, options=options))
        bench = Bench(job, workload.taken_in(stage.net_layout), full.context_bytes)
    gc.collect()
    before = torch.cuda.memory_allocated()  # 0 where no GPU is in use
    bench.build()
    bench.warm_up()
    pair = Pair(FULL, "form", [])
    for _ in range(BLOCKS):
        first, second, third, last = (each.sample() for each in (full, bench, bench, full))
        pair.blocks.append(Block("ABBA", (first, last), (second, third)))
    peak = usage.measure(bench.run, bench.inputs[0], bench.called.model, bench.context_bytes).allocated_peak_bytes
    energy = bench.energy()
    return replace(
        known,
        parameters=parameters(bench.workload.model),
        seconds=seconds_per_call([pair]).value,
        faster=None if bench is full else ratio([pair]),
        memory_bytes=None if peak is None else peak - before,
        joules=None if energy is None or not energy.images else energy.joules / energy.images,
    )

"""The course of a run: reference, A/A pairs, each stage, the winner head to head; saved after each."""

import os
import time
from pathlib import Path

from pipeline.config.schema import RunConfig, StageSpec
from pipeline.orchestrate import check_script
from pipeline.orchestrate.context import RunContext, refuse_baseline, start_baseline, stopping
from pipeline.orchestrate.events import Observer
from pipeline.orchestrate.ncu import with_counted_bytes
from pipeline.orchestrate.trials import measure_stage
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.protocol import Done
from pipeline.records.run_record import RunRecord
from pipeline.stats.intervals import samples_of
from pipeline.stats.ranking import contenders
from pipeline.stats.warnings import busy_processor, drift


def run_ladder(config: RunConfig, folder: Path, record: RunRecord, observer: Observer) -> RunRecord:
    """Measure the reference, A/A pairs, each stage and the winner head to head; the record is on disk after each.

    Raises:
        RequestError: a worker found that the net, its weights or its images are not what they should be.
        KeyboardInterrupt: interrupted; what was finished is saved.
    """
    context = RunContext(config, folder, record, observer)
    started = time.monotonic()
    try:
        describe_run(context)
        measure_aa_pairs(context)
        start_baseline(context)
        for spec in config.stages:
            measured = measure_stage(context, spec)
            context.keep(stages=[*context.record.stages, measured])
            context.keep(stages=[*context.record.stages[:-1], with_counted_bytes(context, spec, measured)])
            if is_same(spec, context.spec):
                context.keep(aa_pairs=[*context.record.aa_pairs, *context.record.stages[-1].pairs])
        measure_head_to_head(context)
        note_drift(context)
        context.keep(finished=True)
    finally:
        if context.baseline:
            context.baseline.stop()
        context.drop_what_only_workers_need()
        context.keep(seconds=time.monotonic() - started)
        check_script.write(context.record, folder)
    return context.record


def describe_run(context: RunContext) -> None:
    """Find out what all stages share: the machine, its measured peaks, the reference's logits.

    In a process of its own, which then ends: what it allocates would give a baseline measured in it another history
    than the stages have. glibc raises its mmap threshold as large blocks are freed, and on a CPU such a baseline ran
    a quarter faster than the same net in a fresh process.
    """
    with stopping(context.start(context.config.eager, "reference", "reference")) as (worker,):
        try:
            context.advance(worker, "reference", Done)
        except WorkerGone as gone:
            refuse_baseline(context, gone.reason)
        if "reason" in worker.fields:
            refuse_baseline(context, worker.fields["reason"])
    found = worker.run_fields.pop("warnings", [])
    context.keep(**worker.run_fields)
    busy = busy_processor(context.load_before, os.cpu_count() or 1) if context.config.device == "cpu" else None
    context.keep(warnings=[*context.record.warnings, *found, *([busy] if busy else [])])


def measure_aa_pairs(context: RunContext) -> None:
    """A/A: pairs of fresh workers of the baseline, which say how far equal stages lie apart here.

    Where the baseline is a rung of its own, its samples beside the baseline's worker count as one such pair.
    """
    plan, spec = context.config.plan, context.spec
    own = any(is_same(stage, spec) for stage in context.config.stages)
    for number in range(1, plan.aa_pairs + 1 - own):
        title = f"A/A {number} of {plan.aa_pairs}"
        with stopping(
            context.start(spec, "companion", f"aa_pairs/{number}a"),
            context.start(spec, "companion", f"aa_pairs/{number}b"),
        ) as (first, second):
            try:
                context.warm(first, title)
                context.warm(second, title)
                pair = context.interleave(first, second, title, plan.for_aa_pairs())
            except WorkerGone as gone:
                context.warn("A/A failed", gone.reason, f"see the logs in {context.folder}/aa_pairs")
                break
        context.keep(aa_pairs=[*context.record.aa_pairs, pair])


def is_same(stage: StageSpec, baseline: StageSpec) -> bool:
    """Whether a stage does what the baseline does."""
    return (stage.target, stage.options) == (baseline.target, baseline.options)


def measure_head_to_head(context: RunContext) -> None:
    """Measure the fastest right stage directly against those that its ratio doesn't set apart."""
    plan, names = context.config.plan, contenders(context.record)
    specs = {spec.name: spec for spec in context.config.stages}
    if len(names) < 2 or not plan.head_to_head:
        return
    winner, title = names[0], f"{names[0]} against its contenders"
    with stopping(context.start(specs[winner], "companion", f"head_to_head/{winner}")) as (best,):
        try:
            context.warm(best, title)
            for name in names[1 : plan.head_to_head + 1]:
                with stopping(context.start(specs[name], "companion", f"head_to_head/{name}")) as (contender,):
                    context.warm(contender, f"{winner} against {name}")
                    pair = context.interleave(best, contender, f"{winner} against {name}")
                context.keep(head_to_head=[*context.record.head_to_head, pair])
        except WorkerGone as gone:
            context.warn("head-to-head failed", gone.reason, f"see the logs in {context.folder}/head_to_head")


def note_drift(context: RunContext) -> None:
    """Record how much slower the baseline was beside the last stage than beside the first."""
    pairs = [pair for stage in context.record.stages for pair in stage.pairs if pair.blocks]
    if len(pairs) < 2:
        return
    context.keep(drift=drift(samples_of(pairs[0], "baseline"), samples_of(pairs[-1], "baseline")))

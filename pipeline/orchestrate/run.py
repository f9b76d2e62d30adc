"""The course of a run: reference, A/A, each stage, the winner's pairings; saved after each. Imports no torch."""

import os
import time
from pathlib import Path

from pipeline.cli.progress import Progress
from pipeline.config.schema import RunConfig
from pipeline.orchestrate.context import RunContext, refuse_baseline, start_baseline, stopping
from pipeline.orchestrate.interleave import interleave
from pipeline.orchestrate.ncu import with_counted_bytes
from pipeline.orchestrate.trials import measure_stage
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.records import codec
from pipeline.records.run_record import RunRecord
from pipeline.stats.intervals import samples_of
from pipeline.stats.ranking import contenders
from pipeline.stats.warnings import busy_processor, drift


def run_ladder(question: RunConfig, folder: Path, record: RunRecord, progress: Progress) -> RunRecord:
    """Answer the question: reference, A/A, each stage, the winner's pairings; the record is on disk after each.

    Raises:
        RequestError: a worker found that the net, its weights or its images are not what they should be.
        KeyboardInterrupt: interrupted; what was finished is saved.
    """
    session = RunContext(question, folder, record, progress)
    started = time.monotonic()
    try:
        describe_run(session)
        measure_aa_pairs(session)
        start_baseline(session)
        for spec in question.stages:
            measured = measure_stage(session, spec)
            session.keep(stages=[*session.record.stages, measured])
            session.keep(stages=[*session.record.stages[:-1], with_counted_bytes(session, spec, measured)])
            if spec.target == question.baseline.target:
                session.keep(aa_pairs=[*session.record.aa_pairs, *session.record.stages[-1].pairs])
        measure_head_to_head(session)
        note_drift(session)
        session.keep(finished=True)
    finally:
        if session.baseline:
            session.baseline.stop()
        session.drop_what_only_workers_need()
        session.keep(seconds=time.monotonic() - started)
    return session.record


def describe_run(session: RunContext) -> None:
    """Find out what all stages share: the machine, its ceilings, the reference's logits.

    In a process of its own, which then ends: what it allocates would give a baseline measured in it another history
    than the stages have. glibc raises its mmap threshold as large blocks are freed, and on a CPU such a baseline ran
    a quarter faster than the same net in a fresh process.
    """
    with stopping(session.start(session.question.baseline, "reference", "reference")) as (worker,):
        try:
            session.advance(worker, "reference", "done")
        except WorkerGone as gone:
            refuse_baseline(session, gone.reason)
        if "reason" in worker.fields:
            refuse_baseline(session, worker.fields["reason"])
        facts = worker.details
    known = {**codec.to_json(session.record), **facts}
    session.keep(**{name: getattr(codec.from_json(RunRecord, known), name) for name in facts})
    busy = busy_processor(session.load_before, os.cpu_count() or 1) if session.question.device == "cpu" else None
    session.keep(warnings=[*session.record.warnings, *([busy] if busy else [])])


def measure_aa_pairs(session: RunContext) -> None:
    """A/A: pairs of fresh workers of the baseline, which say how far equal stages lie apart here.

    Where the baseline is a rung of its own, its turns with the baseline's worker are one such pair, and stand for it.
    """
    plan, spec = session.question.plan, session.question.baseline
    own = any(stage.target == spec.target for stage in session.question.stages)
    for number in range(1, plan.aa_pairs + 1 - own):
        title = f"A/A {number} of {plan.aa_pairs}"
        with stopping(
            session.start(spec, "companion", f"aa_pairs/{number}a"),
            session.start(spec, "companion", f"aa_pairs/{number}b"),
        ) as (first, second):
            try:
                session.warm(first, title)
                session.warm(second, title)
                session.progress.phase(title, "sampling")
                pair = interleave(first, second, plan.for_aa_pairs(), session.order, time.monotonic)
            except WorkerGone as gone:
                session.caution("A/A failed", gone.reason, f"see the logs in {session.folder}/aa_pairs")
                break
        session.keep(aa_pairs=[*session.record.aa_pairs, pair])


def measure_head_to_head(session: RunContext) -> None:
    """Measure the fastest right stage directly against those that its ratio doesn't set apart."""
    plan, names = session.question.plan, contenders(session.record)
    specs = {spec.name: spec for spec in session.question.stages}
    if len(names) < 2 or not plan.head_to_head:
        return
    winner, title = names[0], f"{names[0]} against its contenders"
    with stopping(session.start(specs[winner], "companion", f"pairings/{winner}")) as (best,):
        try:
            session.warm(best, title)
            for name in names[1 : plan.head_to_head + 1]:
                with stopping(session.start(specs[name], "companion", f"pairings/{name}")) as (rival,):
                    session.warm(rival, f"{winner} against {name}")
                    pair = session.interleave(best, rival, f"{winner} against {name}")
                session.keep(head_to_head=[*session.record.head_to_head, pair])
        except WorkerGone as gone:
            session.caution("head-to-head failed", gone.reason, f"see the logs in {session.folder}/pairings")


def note_drift(session: RunContext) -> None:
    """Record how much slower the baseline was beside the last stage than beside the first."""
    pairs = [pair for stage in session.record.stages for pair in stage.pairs if pair.blocks]
    if len(pairs) < 2:
        return
    session.keep(drift=drift(samples_of(pairs[0], "baseline"), samples_of(pairs[-1], "baseline")))

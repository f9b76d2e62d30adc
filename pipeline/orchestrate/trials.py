"""One stage, launch by launch: in turns with the baseline, or in turns of processes. Imports no torch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config.schema import StageSpec
from pipeline.orchestrate.context import RunContext, refuse_baseline, start_baseline, stopping
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.records import codec
from pipeline.records.run_record import StageRecord
from pipeline.records.samples import Block, Pair, Sample

LOG_TAIL_LINES = 30
AFTER_CHECK = {
    "latencies",
    "profile",
    "explain",
    "export",
}  # phases that a right and measured stage may lose and stay so


def measure_stage(session: RunContext, spec: StageSpec) -> StageRecord:
    """One stage, in as many launches as the plan wants, whatever becomes of it."""
    record = empty_record(session, spec)
    session.progress.stage(spec.name, spec.adds or spec.summary)
    if session.question.device not in spec.devices:
        record = replace(record, status="skipped", reason=spec.unavailable or f"no form on {session.question.device}")
        session.progress.verdict(session.record, record)
        return record
    for launch in range(1, session.question.plan.trials + 1):
        record = measure_trial(session, spec, record, launch, partial(beside, session, spec))
        if record.status != "ok":
            break
    if ran_out_of_memory(record):
        record = measure_alternating(session, spec)
    session.progress.verdict(session.record, record)
    return record


def beside(session: RunContext, spec: StageSpec, worker: WorkerProcess) -> Pair:
    """Turns with the baseline's worker, which waits in memory."""
    assert session.baseline is not None
    return session.interleave(session.baseline, worker, spec.name)


def measure_trial(
    session: RunContext, spec: StageSpec, record: StageRecord, launch: int, turns: Callable[[WorkerProcess], Pair]
) -> StageRecord:
    """One fresh process of the stage, measured by `turns`; the first also observes, profiles and exports."""
    folder = spec.name if launch == 1 else f"{spec.name}/launch_{launch}"
    worker = session.start(spec, "stage" if launch == 1 else "companion", folder)
    pairs = record.pairs
    with stopping(worker):
        try:
            if session.advance(worker, spec.name, "sampling"):
                pairs = [*pairs, turns(worker)]
                worker.end_turns()
                session.advance(worker, spec.name, "done")
            status = {"status": worker.fields.get("status", "ok")}
        except WorkerGone as gone:
            if session.baseline and not session.baseline.alive:
                gone.reason = f"the baseline's worker, its partner, ended: {gone.reason}"
            status = {"status": "ok" if worker.phase in AFTER_CHECK else gone.status, "reason": gone.reason}
    if session.baseline and not session.baseline.alive:
        session.caution("baseline restarted", f"its worker ended during {spec.name}", "see baseline/log.txt")
        start_baseline(session)
    fields = worker.fields if launch == 1 else {}
    record = revive_over(record, {**fields, **status}, pairs=pairs, log=f"{folder}/log.txt")
    log_tail = tail(session.folder / folder / "log.txt") if record.status in ("failed", "timeout") else record.log_tail
    return replace(record, log_tail=log_tail)


def ran_out_of_memory(record: StageRecord) -> bool:
    """Whether the stage failed for want of memory, of which the baseline's worker holds a part."""
    return record.status == "failed" and "out of memory" in record.reason.lower()


def measure_alternating(session: RunContext, spec: StageSpec) -> StageRecord:
    """The stage again, with the memory to itself: a process of the baseline before it, and another one after it.

    Half of the baseline's samples are taken before and half after, so that a steady drift cancels out, as within a
    block. What comes and goes within the minutes between them does not; the record says so.
    """
    count, name = session.question.plan.interim_analyses[0], session.question.baseline.name
    assert session.baseline is not None
    session.baseline.stop()
    session.baseline = None
    before = alone(session, count, f"{spec.name}/baseline_before")
    taken: list[Sample] = []

    def collect(worker: WorkerProcess) -> Pair:
        taken.extend(worker.sample() for _ in range(2 * count))
        return Pair(name, spec.name, [], alternated=True)

    record = measure_trial(session, spec, empty_record(session, spec), 1, collect)
    if len(taken) == 2 * count and record.status == "ok":
        after = alone(session, count, f"{spec.name}/baseline_after")
        blocks = [
            Block("ABBA", (first, last), (second, third))
            for first, second, third, last in zip(before, taken[:count], taken[count:], after, strict=True)
        ]
        pair = Pair(name, spec.name, blocks, alternated=True)
        record = replace(record, pairs=[pair])
    start_baseline(session)
    return record


def alone(session: RunContext, count: int, folder: str) -> list[Sample]:
    """So many samples of the baseline, in a process of its own.

    Raises:
        RequestError: the baseline can't run.
    """
    with stopping(session.start(session.question.baseline, "companion", folder)) as (worker,):
        try:
            session.warm(worker, f"{session.question.baseline.name} (alternating)")
            return [worker.sample() for _ in range(count)]
        except WorkerGone as gone:
            refuse_baseline(session, gone.reason)


def empty_record(session: RunContext, spec: StageSpec) -> StageRecord:
    """What is known of a stage before it has run."""
    return StageRecord(
        name=spec.name,
        summary=spec.summary,
        adds=spec.adds if len(session.question.stages) > 1 else "",
        tolerance=spec.tolerance,
        options=spec.options,
        legacy=spec.legacy,
    )


def revive_over(record: StageRecord, reported: dict[str, Any], **fields: Any) -> StageRecord:
    """`record` with what the worker reported, as JSON, and what the parent knows."""
    known = {**codec.to_json(record), **reported}
    return replace(codec.from_json(StageRecord, known), **fields)


def tail(log: Path) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

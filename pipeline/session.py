"""The parent: starts workers, lets them take turns, collects, and saves after every stage. Imports no torch."""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from pipeline import store
from pipeline.channel import WorkerGone, WorkerProcess
from pipeline.config import REFERENCE_LOGITS, Question, StageSpec
from pipeline.errors import RequestError
from pipeline.measure.cautions import busy_processor, cautions_of, drift, drifted, reference_in_doubt, shared_device
from pipeline.measure.standings import rivals
from pipeline.measure.statistics import slices_of
from pipeline.measure.turns import take_turns
from pipeline.progress import Progress
from pipeline.records import Caution, Pair, RunRecord, StageRecord
from pipeline.store import revive

LOG_TAIL_LINES = 30
AFTER_CHECK = {"series", "profile", "explain", "export"}  # phases that a right and measured stage may lose and stay so


class Session:
    """One run on its way.

    Attributes:
        record: what is known so far; saved after every stage, so that nothing finished is lost.
    """

    def __init__(self, question: Question, folder: Path, record: RunRecord, progress: Progress) -> None:
        self.question = question
        self.folder = folder
        self.record = record
        self.progress = progress
        self.baseline: WorkerProcess | None = None
        self.load_before = os.getloadavg()[0]
        self.order = random.Random(question.seed)  # noqa: S311 - the order of turns is no secret

    def keep(self, **fields: Any) -> None:
        """Add to the record, and save it."""
        self.record = replace(self.record, **fields)
        store.save(self.record, self.folder)

    def caution(self, name: str, text: str, remedy: str) -> None:
        """Note something that a reader must know about the whole run."""
        self.keep(cautions=[*self.record.cautions, Caution(name, text, remedy)])

    def start(self, spec: StageSpec, role: str, folder: str) -> WorkerProcess:
        """A fresh worker for the stage."""
        job = self.question.job(spec, role, self.folder, folder)
        return WorkerProcess(job, Path(job.folder) / "log.txt", self.question.plan.limits)

    def advance(self, worker: WorkerProcess, title: str, until: str) -> bool:
        """Follow the worker, showing its phases, until it says `until` (True) or is done without it (False).

        Raises:
            RequestError: the worker found the request to be wrong.
            WorkerGone: it died or outlasted a limit.
        """
        for kind, value in worker.messages():
            if kind == "phase":
                self.progress.phase(title, value)
            if worker.refused:
                raise RequestError(worker.refused)
            if kind == until:
                return True
        return False

    def warm(self, worker: WorkerProcess, title: str) -> None:
        """Follow the worker until it is warm and waits for its turns.

        Raises:
            RequestError: as `advance`.
            WorkerGone: as `advance`, and where it ended without coming so far.
        """
        if not self.advance(worker, title, "turns"):
            raise WorkerGone(str(worker.fields.get("status", "failed")), str(worker.fields.get("reason", "no reason")))

    def take_turns(self, baseline: WorkerProcess, stage: WorkerProcess, title: str) -> Pair:
        """Blocks of turns between two warm workers."""
        self.progress.phase(title, "turns")
        plan = self.question.plan

        def show(blocks: int) -> None:
            self.progress.phase(title, "turns", f"block {blocks} of at most {plan.looks[-1]}")

        return take_turns(baseline, stage, plan, self.order, time.monotonic, show)


def run(question: Question, folder: Path, record: RunRecord, progress: Progress) -> RunRecord:
    """Answer the question: reference, A/A, each stage, the winner's pairings; the record is on disk after each.

    Raises:
        RequestError: a worker found that the net, its weights or its images are not what they should be.
        KeyboardInterrupt: interrupted; what was finished is saved.
    """
    session = Session(question, folder, record, progress)
    started = time.monotonic()
    try:
        describe_run(session)
        measure_twins(session)
        start_baseline(session)
        for spec in question.stages:
            session.keep(stages=[*session.record.stages, measure_stage(session, spec)])
            if spec.target == question.baseline.target:
                session.keep(twins=[*session.record.twins, *session.record.stages[-1].pairs])
        pair_the_winner(session)
        note_drift(session)
        session.keep(finished=True)
    finally:
        if session.baseline:
            session.baseline.stop()
        (folder / REFERENCE_LOGITS).unlink(
            missing_ok=True
        )  # 50 MB at 24 images of 512×512, and of no use without workers
        session.keep(seconds=time.monotonic() - started)
    return session.record


def describe_run(session: Session) -> None:
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
        facts = worker.facts
    session.keep(**{name: store.revive_field(RunRecord, name, value) for name, value in facts.items()})
    environment = session.record.environment
    noted = [busy_processor(session.load_before, os.cpu_count() or 1) if session.question.device == "cpu" else None]
    noted += [shared_device(environment) if environment else None]
    session.keep(cautions=[*session.record.cautions, *(part for part in noted if part)])


def start_baseline(session: Session) -> None:
    """Start the worker that every stage takes turns with."""
    session.baseline = session.start(session.question.baseline, "companion", "baseline")
    try:
        session.warm(session.baseline, f"{session.question.baseline.name} (baseline)")
    except WorkerGone as gone:
        refuse_baseline(session, gone.reason)


def refuse_baseline(session: Session, reason: str) -> NoReturn:
    """There is nothing to measure against; a reference that is itself wrong may be why."""
    found = session.record.reference
    doubt = reference_in_doubt(found) if found else None
    why = f"{reason}; {doubt.name}: {doubt.text}" if doubt else reason
    raise RequestError(f"the baseline can't run: {why}; the logs are in {session.folder}")


def measure_twins(session: Session) -> None:
    """A/A: pairs of fresh workers of the baseline, which say how far equal stages lie apart here.

    Where the baseline is a rung of its own, its turns with the baseline's worker are one such pair, and stand for it.
    """
    plan, spec = session.question.plan, session.question.baseline
    own = any(stage.target == spec.target for stage in session.question.stages)
    for number in range(1, plan.twin_pairs + 1 - own):
        title = f"A/A {number} of {plan.twin_pairs}"
        with stopping(
            session.start(spec, "companion", f"twins/{number}a"), session.start(spec, "companion", f"twins/{number}b")
        ) as (first, second):
            try:
                session.warm(first, title)
                session.warm(second, title)
                session.progress.phase(title, "turns")
                pair = take_turns(first, second, plan.for_twins(), session.order, time.monotonic)
            except WorkerGone as gone:
                session.caution("A/A failed", gone.reason, f"see the logs in {session.folder}/twins")
                break
        session.keep(twins=[*session.record.twins, pair])


@contextmanager
def stopping(*workers: WorkerProcess) -> Iterator[tuple[WorkerProcess, ...]]:
    """Whatever happens inside, the workers are gone after it."""
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def measure_stage(session: Session, spec: StageSpec) -> StageRecord:
    """One stage, in as many launches as the plan wants, whatever becomes of it."""
    record = empty_record(session, spec)
    session.progress.stage(spec.name, spec.adds or spec.summary)
    if session.question.device not in spec.devices:
        record = replace(record, status="skipped", reason=spec.unavailable or f"no form on {session.question.device}")
        session.progress.verdict(session.record, record)
        return record
    for launch in range(1, session.question.plan.launches + 1):
        record = measure_launch(session, spec, record, launch)
        if record.status != "ok":
            break
    session.progress.verdict(session.record, record)
    return record


def measure_launch(session: Session, spec: StageSpec, record: StageRecord, launch: int) -> StageRecord:
    """One fresh process of the stage, measured against the baseline; the first also observes, profiles and exports."""
    folder = spec.name if launch == 1 else f"{spec.name}/launch_{launch}"
    worker = session.start(spec, "stage" if launch == 1 else "companion", folder)
    pairs = record.pairs
    with stopping(worker):
        try:
            if session.advance(worker, spec.name, "turns"):
                assert session.baseline is not None
                pairs = [*pairs, session.take_turns(session.baseline, worker, spec.name)]
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
    seen = cautions_of(pairs[-1:], session.question.plan.most_redone)
    log_tail = tail(session.folder / folder / "log.txt") if record.status in ("failed", "timeout") else record.log_tail
    return replace(record, cautions=[*record.cautions, *seen], log_tail=log_tail)


def empty_record(session: Session, spec: StageSpec) -> StageRecord:
    """What is known of a stage before it has run."""
    return StageRecord(
        name=spec.name,
        summary=spec.summary,
        adds=spec.adds if len(session.question.stages) > 1 else "",
        tolerance=spec.tolerance,
        options=spec.options,
        legacy=spec.legacy,
    )


def pair_the_winner(session: Session) -> None:
    """Measure the fastest right stage directly against those that its ratio doesn't set apart."""
    plan, names = session.question.plan, rivals(session.record)
    specs = {spec.name: spec for spec in session.question.stages}
    if len(names) < 2 or not plan.pairings:
        return
    winner, title = names[0], f"{names[0]} against its rivals"
    with stopping(session.start(specs[winner], "companion", f"pairings/{winner}")) as (best,):
        try:
            session.warm(best, title)
            for name in names[1 : plan.pairings + 1]:
                with stopping(session.start(specs[name], "companion", f"pairings/{name}")) as (rival,):
                    session.warm(rival, f"{winner} against {name}")
                    pair = session.take_turns(best, rival, f"{winner} against {name}")
                session.keep(pairings=[*session.record.pairings, pair])
        except WorkerGone as gone:
            session.caution("pairing failed", gone.reason, f"see the logs in {session.folder}/pairings")


def revive_over(record: StageRecord, reported: dict[str, Any], **fields: Any) -> StageRecord:
    """`record` with what the worker reported, as JSON, and what the parent knows."""
    known = {**store.to_json(record), **reported}
    return replace(revive(StageRecord, known), **fields)


def note_drift(session: Session) -> None:
    """Record how much slower the baseline was beside the last stage than beside the first."""
    pairs = [pair for stage in session.record.stages for pair in stage.pairs if pair.blocks]
    if len(pairs) < 2:
        return
    change = drift(slices_of(pairs[0], "baseline"), slices_of(pairs[-1], "baseline"))
    seen = drifted(change)
    session.keep(drift=change, cautions=[*session.record.cautions, *([seen] if seen else [])])


def tail(log: Path) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

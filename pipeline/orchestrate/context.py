"""The state of a run: the record, kept on disk, the workers that it starts, and its observer."""

import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from pipeline.config.load import EAGER_BESIDE
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import cuda_gpus
from pipeline.devices.host import READ, others_on
from pipeline.errors import first_line
from pipeline.orchestrate.interleave import interleave, interleaved
from pipeline.orchestrate.processes import Use, more_threads, taken_share
from pipeline.orchestrate.spawning import ForkError
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.protocol import Done, Entered, Progress, ReadyToSample
from pipeline.records import codec
from pipeline.records.disk import elsewhere
from pipeline.records.plan import Phase, Plan
from pipeline.records.request import REFERENCE_LOGITS, SCRATCH, RunConfig, StageSpec
from pipeline.records.run_record import FailureKind, RunRecord, RunWarning, StageRecord, WarningCode
from pipeline.records.samples import Pair
from pipeline.stats.warnings import reference_in_doubt

TELLING = re.compile(r"(?=.*[^\d.]).{2,}", re.DOTALL)  # a value that is no number, as many errors hold numbers
UNSPECIFIED: FailureKind = "error"
MOST_OTHERS = 3  # processes that a line names
SPLITS = re.compile(r"[\s'\"\\]")  # where torch splits the compilers' command lines, in which it quotes no path (2.12)


class Observer(Protocol):
    """A receiver of the run's progress: the command line draws it, a test keeps it."""

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def stage_started(self, name: str, adds: str) -> None:
        """Show that the next stage begins; `adds` is what it adds to the one before."""

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        """Show that `title` enters a phase, and how far it is in `detail`."""

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        """Show the outcome of a stage; `run` holds the stages before it."""


def alias(folder: Path) -> Path | None:
    """Return a link to a folder whose path a compiler's command line would split; None for any other folder."""
    if not SPLITS.search(str(folder.absolute())):
        return None
    link = Path(tempfile.mkdtemp(prefix="unet-ladder-")) / "run"
    link.symlink_to(folder.absolute())
    return link


class RunContext:
    """One run on its way."""

    def __init__(self, config: RunConfig, folder: Path, record: RunRecord, observer: Observer) -> None:
        self.config = config
        self.spec = config.baseline
        self.folder = folder
        self.record = record
        self.observer = observer
        self.baseline: WorkerProcess | None = None
        self.no_counters = self.unsaved = ""
        self.taken_over: set[str] = set()
        self.forks = config.plan.fork_workers and sys.platform == "linux"
        self.alias = alias(folder)
        self.scratch: list[Path] = []  # of the workers that were started
        self.load_before = os.getloadavg()[0]
        self.order = random.Random(config.seed)  # noqa: S311 - the order of samples is no secret

    def keep(self, **fields: Any) -> None:
        """Add fields to the record, and save it; a full disk costs no measurement."""
        self.record = replace(self.record, **fields)
        try:
            codec.save(self.record, self.folder)
        except OSError as error:
            if not self.unsaved:
                self.observer.say(f"the record can't be saved ({error.strerror or error}); the run goes on")
            self.unsaved = error.strerror or first_line(error)
        else:
            self.unsaved = ""

    @property
    def net(self) -> str:
        """The request's network, as typed."""
        model = self.config.model
        return f"model.file={model.file}" if model.file else f"model.target={model.target}"

    def rescue(self) -> None:
        """Save the record elsewhere, if the run's own folder is no longer writable."""
        if not self.unsaved:
            return
        with suppress(OSError):
            place = elsewhere(self.folder)
            codec.save(self.record, place)
            resumed = f"python -m pipeline resume={place} resumes it"
            self.observer.say(f"{self.folder}: {self.unsaved}; the record is in {place}; {resumed}")

    def warn(self, code: WarningCode, text: str, remedy: str) -> None:
        """Add a warning about the whole run."""
        self.keep(warnings=[*self.record.warnings, RunWarning(code, text, remedy)])

    def start(self, spec: StageSpec, role: str, folder: str) -> WorkerProcess:
        """Start a fresh worker for the stage: a copy of the fork server's process, or an interpreter of its own."""
        job = self.config.job(spec, role, self.alias or self.folder, folder)
        self.scratch.append(self.folder / folder / SCRATCH)
        log, limits = Path(job.folder) / "log.txt", self.config.plan.phase_limits
        try:
            return WorkerProcess(job, log, limits, self.forks)
        except ForkError as error:
            self.observer.say(f"{error}; from here on each worker is an interpreter of its own")
            self.forks = False
        return WorkerProcess(job, log, limits)

    def is_brief(self, spec: StageSpec) -> bool:
        """Return whether a stage is only sampled: one that the run has added by itself."""
        return self.config.plan.brief_beside and self.config.device == "cuda" and spec.adds == EAGER_BESIDE

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the wall seconds of the block to a step of the run."""
        began = time.monotonic()
        try:
            yield
        finally:
            so_far = self.record.phase_seconds
            self.keep(phase_seconds={**so_far, step: so_far.get(step, 0.0) + time.monotonic() - began})

    def drop_what_only_workers_need(self) -> None:
        """Delete the reference's logits (50 MB at 24 images of 512×512) and the compilers' caches of this run."""
        with suppress(OSError):  # a disk that has become read-only keeps it
            (self.folder / REFERENCE_LOGITS).unlink(missing_ok=True)
        if self.alias:
            shutil.rmtree(self.alias.parent, ignore_errors=True)
        inside = os.path.realpath(self.folder)
        for folder in self.scratch:  # a stage may have made its own folder a link to elsewhere, or to itself
            if Path(os.path.realpath(folder)).is_relative_to(inside):
                shutil.rmtree(folder, ignore_errors=True)

    def advance(self, worker: WorkerProcess, title: str, until: type[ReadyToSample | Done]) -> bool:
        """Follow the worker and show its phases until it sends `until` (True) or is done without it (False)."""
        for message in worker.messages():
            if isinstance(message, Entered):
                self.observer.phase_entered(title, message.phase)
            elif isinstance(message, Progress):
                self.observer.phase_entered(title, worker.phase, message.text)
            if worker.refused:
                raise RequestError(worker.refused)
            if isinstance(message, until):
                return True
        return False

    def warm_up(self, worker: WorkerProcess, title: str) -> None:
        """Follow the worker until it is warm and waits to be sampled; raise as `advance`, or if it ends before that."""
        if not self.advance(worker, title, ReadyToSample):
            raise WorkerGone(
                worker.fields.get("failure") or UNSPECIFIED,
                str(worker.fields.get("reason", "no reason")),
                worker.fields.get("status", "failed"),
            )

    def interleave(
        self, baseline: WorkerProcess, stage: WorkerProcess, title: str, plan: Plan | None = None, brief: bool = False
    ) -> Pair:
        """Take interleaved blocks of two warm workers, as many as `plan` says, else the run's."""
        self.observer.phase_entered(title, Phase.SAMPLING)
        plan = plan or self.config.plan

        def show(blocks: int) -> None:
            self.observer.phase_entered(title, Phase.SAMPLING, f"block {blocks} of at most {plan.interim_analyses[-1]}")

        with interleaved(baseline, stage, brief) as (first, second):
            pair = interleave(first, second, plan, self.order, time.monotonic, show)
        known = {warning.text for warning in self.record.warnings}
        notes = [more_threads(worker.name, worker.use, self.config.threads) for worker in (first, second)]
        if new := [note for note in notes if note and note.text not in known]:
            self.keep(warnings=[*self.record.warnings, *new])
        used = first.use.further(second.use)
        return replace(pair, sustained=plan.sustained(self.config.device), taken_share=self.share_of_others(used))

    def share_of_others(self, used: Use) -> float | None:
        """Return the share of this run's processors that other programs took during `used`; None on a GPU."""
        environment = self.record.environment
        if self.config.device == "cuda" or environment is None:
            return None
        return taken_share(used, environment.cpu_threads)


def start_baseline(context: RunContext) -> None:
    """Start the worker that every stage is interleaved with: the requested baseline, or eager if that can't run."""
    context.baseline = context.start(context.spec, "companion", "baseline")
    try:
        context.warm_up(context.baseline, f"{context.spec.name} (baseline)")
    except WorkerGone as gone:
        context.baseline.stop()
        if context.spec.name == context.config.eager.name or context.record.stages:
            refuse_baseline(context, gone.reason)
        text = f"{context.spec.name} can't run here: {gone.reason}; {context.config.eager.name} is the baseline instead"
        context.spec = context.config.eager
        context.warn("baseline replaced", text, "see baseline/log.txt; the ratios are to fp32, not to autocast")
        context.keep(baseline=context.spec.name, aa_pairs=[])
        start_baseline(context)


def refuse_reference(context: RunContext, reason: str) -> NoReturn:
    """Refuse the run because the reference can't be computed: the network or the machine fails."""
    refuse(context, f"the reference of {context.net} can't be computed: {reason}")


def refuse_baseline(context: RunContext, reason: str) -> NoReturn:
    """Refuse the run because no baseline can run; name doubts about the network or the reference."""
    reference = context.record.reference
    doubts = [each for each in context.record.warnings if each.code == "net in doubt"]
    doubts += [each for each in [reference_in_doubt(reference) if reference else None] if each]
    why = "; ".join([reason, *(f"{doubt.code}: {doubt.text}" for doubt in doubts[:1])])
    verb = "can't be judged" if doubts else "can't run"
    refuse(context, f"the baseline, {context.spec.name} of {context.net}, {verb}: {why}")


def refuse(context: RunContext, why: str) -> NoReturn:
    """End the run with one line that names other processes on the GPU and the folder of the logs."""
    if context.config.device == "cuda" and (others := others_on_gpu()):
        why += f"; others on the GPU: {', '.join(others[:MOST_OTHERS])}"
    quoted = [  # variables whose values the error quotes
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if READ.match(name) and TELLING.fullmatch(value) and name not in why
        if re.search(rf"(?<![\w/.-]){re.escape(value)}(?![\w/-])", why)  # as a whole, not part of a word or path
    ]
    clause = f"; {', '.join(quoted)} {'is' if len(quoted) == 1 else 'are'} set" if quoted else ""
    has_logs = any(log.stat().st_size for log in context.folder.rglob("log.txt"))  # empty ones go with the folder
    raise RequestError(f"{why}{clause}{f'; the logs are in {context.folder}' if has_logs else ''}")


def others_on_gpu() -> list[str]:
    """Return the other processes that hold this run's GPU now."""
    return [name for gpu in cuda_gpus()[:1] if gpu.telemetry for name in others_on(gpu.telemetry)]


@contextmanager
def stopping(*workers: WorkerProcess) -> Iterator[tuple[WorkerProcess, ...]]:
    """Stop the workers at the end of the block, whatever happens inside."""
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()

"""The order of a run: reference, A/A pairs, each stage, the winner head to head; saved after each."""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.analysis.summary import winner_of
from pipeline.config.load import quota_warning
from pipeline.config.request_error import RequestError, shown
from pipeline.devices.accelerators import cuda_gpus
from pipeline.orchestrate import check_script, interruption, processes, resume, shared_reference
from pipeline.orchestrate.context import Observer, RunContext, others_on_gpu, refuse_reference, start_baseline, stopping
from pipeline.orchestrate.ncu import with_counted_bytes
from pipeline.orchestrate.resume import Earlier, under_way
from pipeline.orchestrate.trials import measure_stage, tail, take_kept_peaks
from pipeline.orchestrate.worker_process import WorkerGone
from pipeline.protocol import Done
from pipeline.records.disk import open_lock, private_folder
from pipeline.records.request import REFERENCE_LOGITS, RunConfig, StageSpec
from pipeline.records.run_record import Environment, RunRecord, StageRecord
from pipeline.stats.intervals import drift, samples_of
from pipeline.stats.ranking import contenders
from pipeline.stats.warnings import busy_processor, useless_reference

STARTS = {"cuda": 8.0, "cpu": 3.0}  # seconds from the start of a worker to its stage, without the build
MOST_HOLDER_BYTES = 4096
ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b")  # how Python begins the line of an error


def run_ladder(config: RunConfig, folder: Path, record: RunRecord, observer: Observer) -> RunRecord:
    """Measure the reference, A/A pairs, each stage and the winner head to head; the record is on disk after each."""
    context = RunContext(config, folder, record, observer)
    started = time.monotonic()
    processes.adopt()
    try:
        earlier = resume.opened(config, record)
        with under_way(folder), interruption.run(), gpu_held(context):
            measure(context, earlier)
        doubt = useless_reference(context.record)
        if doubt and doubt not in context.record.warnings:  # of a resumed run
            context.keep(warnings=[*context.record.warnings, doubt])
        context.keep(winner=winner_of(context.record))
        context.keep(finished=True)
    finally:
        if context.baseline:
            context.baseline.stop()
        context.drop_what_only_workers_need()
        context.keep(seconds=time.monotonic() - started)
        context.rescue()
        with suppress(OSError):
            check_script.write(context.record, folder)
    return context.record


@contextmanager
def gpu_held(context: RunContext) -> Iterator[None]:
    """Hold the run's GPU inside the block; note in the record if another run shares it."""
    gpu = next(iter(cuda_gpus()), None) if context.config.device == "cuda" else None
    if gpu is None or gpu.telemetry is None:
        yield
        return
    with held(gpu.telemetry.uuid(), context.folder.resolve(), context.config.gpu_busy, context.observer.say) as note:
        if note:
            context.warn("busy GPU", note, "measure again when the GPU is free")
        yield


def lock_folder() -> Path:
    """Return the folder of this user's locks."""
    home = os.environ.get("XDG_RUNTIME_DIR")
    return Path(home, "unet-ladder") if home else Path(tempfile.gettempdir(), f"unet-ladder-{os.getuid()}")


@contextmanager
def held(uuid: str, run: Path, when_busy: str, say: Callable[[str], None], place: Path | None = None) -> Iterator[str]:
    """Hold the GPU among this user's runs; give a note for the record, empty if the GPU isn't shared."""
    try:
        descriptor = open_lock(private_folder(place or lock_folder()) / f"{uuid}.lock")
    except OSError as error:
        yield f"the GPU could not be locked ({error.strerror or error}): another run may use it, too"
        return
    try:
        note = _take(descriptor, when_busy, say)
        if not note:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}, {run}".encode(), 0)
        yield note
    finally:
        os.close(descriptor)


def _take(descriptor: int, when_busy: str, say: Callable[[str], None]) -> str:
    """Take the lock as `when_busy` says; return a note if the GPU is shared."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, MOST_HOLDER_BYTES, 0).decode(errors="replace") or "an unknown process"
        if when_busy == "refuse":
            raise RequestError(
                f"another run holds the GPU: {holder}; gpu_busy=wait waits for it, gpu_busy=share measures beside it"
            ) from None
        if when_busy == "share":
            return f"another run holds the GPU: {holder}; both were measured side by side (gpu_busy=share)"
        say(f"waiting for another run on this GPU: {holder}")
        with interruption.waiting():
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    return ""


def measure(context: RunContext, earlier: Earlier | None) -> None:
    """Measure everything in order, taking over what an earlier run has finished."""
    announce(context)
    with context.timed("reference"):
        describe_run(context)
    if earlier:
        resume.check_machine(earlier, context.record)
    with context.timed("A/A pairs"):
        measure_aa_pairs(context, earlier)
    with context.timed("baseline"):
        start_baseline(context)
    for spec in context.config.stages:
        kept = earlier.stage(spec, context.spec.name) if earlier else None
        with context.timed(spec.name):
            if earlier and kept:
                take_over(context, earlier, kept)
            else:
                if not (context.folder / REFERENCE_LOGITS).exists():  # somebody has removed the run's folder
                    found_by_a_worker(context)
                measured = measure_stage(context, spec)
                context.keep(stages=[*context.record.stages, measured])
                context.keep(stages=[*context.record.stages[:-1], with_counted_bytes(context, spec, measured)])
        if is_same(spec, context.spec):
            context.keep(aa_pairs=[*context.record.aa_pairs, *context.record.stages[-1].pairs])
    with context.timed("baseline"):
        measure_baseline_host(context)
    with context.timed("head to head"):
        measure_head_to_head(context)
    stages = [stage for stage in context.record.stages if stage.name not in context.taken_over]
    pairs = [pair for stage in stages for pair in stage.pairs if pair.blocks]
    if len(pairs) > 1:
        context.keep(drift=drift(samples_of(pairs[0], "baseline"), samples_of(pairs[-1], "baseline")))


def announce(context: RunContext) -> None:
    """Say at the start how long the run may take, what costs most, and what a busy machine adds."""
    config, plan, stages = context.config, context.config.plan, len(context.config.stages)
    a_worker = STARTS[config.device] + plan.warmup_limit_seconds
    shown = 5 * plan.latency_seconds + plan.energy_seconds if config.device == "cuda" else 2 * plan.latency_seconds
    costs = {
        "the reference": 2 * STARTS[config.device],
        "A/A pairs": plan.aa_pairs * (2 * a_worker + 0.5 * plan.sampling_seconds),
        "samples of the stages": (stages + 1) * a_worker + stages * plan.sampling_seconds,
        "latencies and profiles of the stages": stages * shown,
    }
    most = max(costs, key=lambda part: costs[part])
    minutes = sum(costs.values()) / 60
    about = f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
    context.observer.say(f"on an idle machine at most {about} plus the builds, mostly {most} ({costs[most]:.0f} s)")
    processors = os.cpu_count() or 1
    if config.device == "cpu" and (busy := busy_processor(context.load_before, processors)):
        slower = context.load_before / processors + 1
        context.observer.say(
            f"{busy.text}: samples take about {slower:.1f} times as long, and close stages may end as not resolved; "
            f"{busy.remedy}"
        )


def take_over(context: RunContext, earlier: Earlier, stage: StageRecord) -> None:
    """Keep a stage as the earlier run measured it, with its files."""
    resume.take_over(earlier, stage, context.folder)
    context.taken_over.add(stage.name)
    names = ", ".join(sorted(context.taken_over))
    despite = f", despite other {', '.join(sorted(earlier.despite))}" if earlier.despite else ""
    text = f"measured in {earlier.folder}, begun {earlier.record.started_at}: {names}; the others in this run{despite}"
    # First, so that an interrupted run still names the origin of its stages.
    context.keep(warnings=[warning for warning in context.record.warnings if warning.code != "resumed"])
    context.warn("resumed", text, "each ratio is to the baseline of its own run; for times of one hour run all again")
    context.keep(stages=[*context.record.stages, stage])
    context.observer.say(f"{stage.name}: taken over from {earlier.folder}")


def describe_run(context: RunContext) -> None:
    """Find out what all stages share: the machine, its measured peaks, the reference's logits."""
    place = shared_reference.place_for(context.config)
    with shared_reference.by_one(place):
        job, fields = shared_reference.taken_over(place, context.folder) or (None, {})
        if job:
            fields["environment"] = as_now(fields["environment"])
            context.observer.say(f"machine, peaks and reference: as job {job} of this sweep found them")
        else:
            fields = found_by_a_worker(context)
            shared_reference.keep(place, context.folder, fields)
    doubts = fields.get("warnings", [])
    for doubt in doubts:
        if doubt.code == "weights":
            context.observer.say(f"note: {doubt.text}")
    model, reference = context.config.model, fields.get("reference")
    if model.trained is None and not model.weights and reference and reference.weights_sha256:
        # The network's own code has read its weights from a file.
        model = replace(model, trained=True)
        context.config = replace(context.config, model=model)
        context.keep(config=replace(context.record.config, model=model))
    of_a_cpu = (busy_processor(context.load_before, os.cpu_count() or 1), quota_warning())
    noted = [warning for warning in of_a_cpu if warning and context.config.device == "cpu"]
    context.keep(**{**fields, "warnings": [*context.record.warnings, *doubts, *noted], "described_by": job})
    take_kept_peaks(context)
    context.observer.say(f"the run is kept in {context.folder}")  # a request refused before this leaves no folder


def as_now(environment: Environment) -> Environment:
    """Return the machine as an earlier job found it, with the processes that use the GPU now."""
    return replace(environment, others_on_device=others_on_gpu() if environment.device == "cuda" else [])


def found_by_a_worker(context: RunContext) -> dict[str, Any]:
    """Return fields of the RunRecord, and leave the reference's files in the run's folder."""
    # A process of its own, as glibc raises its mmap threshold when large blocks are freed: on a CPU a baseline that ran
    # there afterwards was a quarter faster than in a fresh process.
    with stopping(context.start(context.config.eager, "reference", "reference")) as (worker,):
        try:
            context.advance(worker, "reference", Done)
        except WorkerGone as gone:
            refuse_reference(context, f"{gone.reason}{last_words(context.folder / 'reference' / 'log.txt')}")
        if "reason" in worker.fields:
            refuse_reference(context, worker.fields["reason"])
    return worker.run_fields


def last_words(log: Path) -> str:
    """Return a clause with the last error in a worker's log, else its last line; empty for an empty log."""
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    begin = max((at for at, line in enumerate(lines) if ERROR.match(line)), default=len(lines) - 1)
    return f", and its log ends in {shown(' '.join(lines[begin:]))}" if lines else ""


def measure_aa_pairs(context: RunContext, earlier: Earlier | None) -> None:
    """Measure A/A pairs: fresh workers of the baseline, which show how far equal stages are apart here."""
    plan, spec = context.config.plan, context.spec
    own = any(is_same(stage, spec) for stage in context.config.stages)
    wanted = plan.aa_pairs - own
    if earlier and earlier.record.baseline == spec.name and len(earlier.record.aa_pairs) >= wanted:
        context.keep(aa_pairs=earlier.record.aa_pairs[: max(wanted, 0)])
        return
    for number in range(1, wanted + 1):
        title = f"A/A {number} of {plan.aa_pairs}"
        with stopping(
            context.start(spec, "companion", f"aa_pairs/{number}a"),
            context.start(spec, "companion", f"aa_pairs/{number}b"),
        ) as (first, second):
            try:
                context.warm_up(first, title)
                context.warm_up(second, title)
                pair = context.interleave(first, second, title, plan.for_aa_pairs())
            except WorkerGone as gone:
                context.warn("A/A failed", gone.reason, f"see the logs in {context.folder}/aa_pairs")
                break
        context.keep(aa_pairs=[*context.record.aa_pairs, pair])


def measure_baseline_host(context: RunContext) -> None:
    """Time single calls of the baseline from host memory and back, on a GPU, if no stage of the run is the baseline."""
    spec, config = context.spec, context.config
    if config.device != "cuda" or config.plan.brief_beside or any(is_same(stage, spec) for stage in config.stages):
        return
    with stopping(context.start(spec, "hosted", "baseline/host")) as (worker,):
        try:
            context.advance(worker, f"{spec.name} (baseline), host to host", Done)
            context.keep(baseline_host_latencies=worker.fields.get("host_latencies", []))
        except WorkerGone as gone:
            context.warn("phase failed", f"{spec.name}, host to host: {gone.reason}", "see baseline/host/log.txt")


def is_same(stage: StageSpec, baseline: StageSpec) -> bool:
    """Return whether a stage does what the baseline does."""
    return (stage.target, stage.options) == (baseline.target, baseline.options)


def measure_head_to_head(context: RunContext) -> None:
    """Measure the fastest right stage directly against those that ratios to the baseline don't separate from it."""
    plan, names = context.config.plan, contenders(context.record)
    specs = {spec.name: spec for spec in context.config.stages}
    if len(names) < 2 or not plan.head_to_head:
        return
    winner, title = names[0], f"{names[0]} against its contenders"
    with stopping(context.start(specs[winner], "companion", f"head_to_head/{winner}")) as (best,):
        try:
            context.warm_up(best, title)
            for name in names[1 : plan.head_to_head + 1]:
                with stopping(context.start(specs[name], "companion", f"head_to_head/{name}")) as (contender,):
                    context.warm_up(contender, f"{winner} against {name}")
                    pair = context.interleave(best, contender, f"{winner} against {name}")
                context.keep(head_to_head=[*context.record.head_to_head, pair])
        except WorkerGone as gone:
            context.warn("head-to-head failed", gone.reason, f"see the logs in {context.folder}/head_to_head")

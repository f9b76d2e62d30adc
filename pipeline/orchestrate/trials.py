"""Measure one stage, trial by trial: interleaved with the baseline, or between two processes of it."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from pipeline.devices.accelerators import cuda_gpus
from pipeline.devices.host import driver_version
from pipeline.errors import shortened
from pipeline.orchestrate.context import RunContext, refuse_baseline, start_baseline, stopping
from pipeline.orchestrate.interleave import counted_samples
from pipeline.orchestrate.processes import Use
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.protocol import AFTER_CHECK, Done, ReadyToSample
from pipeline.records import codec
from pipeline.records.disk import json_text, private_folder, write_text
from pipeline.records.request import StageSpec
from pipeline.records.run_record import FailureKind, MeasuredPeaks, RunRecord, StageRecord
from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.intervals import seconds_per_call

LOG_TAIL_LINES = 30
PEAKS = Path("~/.cache/unet-ladder/peaks")  # a JSON file for each GPU
SLOW_START = 1.1  # times by which a peak must exceed that at the run's start to be worth a warning
# The baseline's worker holds memory: a stage that ran out of memory is tried again without that worker.
# A stage whose worker was killed is tried again, too: the kernel kills for want of memory.
RETRIED_ALTERNATING: frozenset[FailureKind] = frozenset({"out of memory", "killed"})
ABOVE_PEAK = 1.3  # a large matmul reaches less than the device can; so far above it nothing has been seen
# Multiplications of the untouched network over those that a rewrite leaves. 2×2 taps instead of 3×3 after an
# upsampling, and Winograd's F(2×2, 3×3), need 4/9 of them. So fp8 on an H200 reached 0.95 of its measured peak
# (docs/h200).
SAVED = 9 / 4


def measure_stage(context: RunContext, spec: StageSpec) -> StageRecord:
    """Measure one stage in the plan's number of trials; any failure ends in its record."""
    record = empty_record(context, spec)
    context.observer.stage_started(spec.name, spec.adds or spec.summary)
    if context.config.device not in spec.devices:
        reason = spec.unavailable or f"no form on {context.config.device}"
        record = replace(record, status="skipped", failure="unsupported", reason=reason)
        context.observer.stage_finished(context.record, record)
        return record

    def beside(worker: WorkerProcess) -> Pair:
        assert context.baseline is not None  # its worker waits in memory
        return context.interleave(context.baseline, worker, spec.name, brief=context.is_brief(spec))

    for trial in range(1, context.config.plan.trials + 1):
        record = measure_trial(context, spec, record, trial, beside)
        if record.status != "ok":
            break
    if record.status == "failed" and record.failure in RETRIED_ALTERNATING:
        assert context.baseline is not None
        context.baseline.stop()
        context.baseline = None
        record = alternated(context, spec)
        start_baseline(context)
    if within_physics(context.record, record) is not record:
        measure_peaks_again(context, spec)
    record = within_physics(context.record, record)
    context.observer.stage_finished(context.record, record)
    return record


def measure_peaks_again(context: RunContext, spec: StageSpec) -> None:
    """Measure the device's peaks once more before a stage is called impossible: it may have been busy before."""
    before = context.record.measured_peaks
    assert before is not None
    with stopping(context.start(context.config.eager, "peaks", f"{spec.name}/peaks")) as (worker,):
        try:
            context.advance(worker, f"{spec.name}: the device's peaks again", Done)
        except WorkerGone as gone:
            context.observer.say(f"the peaks can't be measured again: {gone.reason}")
    best = larger(before, worker.run_fields.get("measured_peaks", before))
    if best != before:
        context.keep(measured_peaks=larger(best, kept_peaks(context.config.device, best)))
        warn_of_slow_start(context, before, f"measured again for {spec.name}")


def take_kept_peaks(context: RunContext) -> None:
    """Raise the run's peaks to those that earlier runs have kept for this GPU, and keep the larger ones."""
    measured = context.record.measured_peaks
    if measured is None:
        return
    best = larger(measured, kept_peaks(context.config.device, measured))
    context.keep(measured_peaks=best)
    if any(SLOW_START * measured.tflops[name] < rate for name, rate in best.tflops.items()):
        warn_of_slow_start(context, measured, "the most of all runs on it")


def kept_peaks(device: str, measured: MeasuredPeaks, folder: Path = PEAKS) -> MeasuredPeaks:
    """Return the largest peaks of all runs on this GPU, and keep them; a folder that keeps nothing costs nothing."""
    gpu = next(iter(cuda_gpus()), None) if device == "cuda" else None
    if gpu is None:
        return measured
    name = gpu.telemetry.uuid() if gpu.telemetry else f"{gpu.name} {driver_version()}"
    best = measured
    with suppress(OSError, RuntimeError):  # without a home
        path = private_folder(folder.expanduser()) / f"{name.replace('/', '_')}.json"
        with suppress(FileNotFoundError, ValueError, TypeError):  # of a damaged file
            best = larger(measured, codec.from_json(MeasuredPeaks, json.loads(path.read_text(encoding="utf-8"))))
        if not all(map(math.isfinite, best.tflops.values())):
            best = measured
        write_text(json_text(codec.to_json(best)), path)
    return best


def warn_of_slow_start(context: RunContext, before: MeasuredPeaks, whence: str) -> None:
    """Warn that the peaks at the run's start were less than the GPU's."""
    assert context.record.measured_peaks is not None
    rates = context.record.measured_peaks.tflops.items()
    named = ", ".join(f"{name} {rate:.3g} (before: {before.tflops[name]:.3g})" for name, rate in rates)
    text = f"the device's peaks, {whence}: {named} TFLOP/s"
    context.warn("unsteady", text, "the machine was busy at the start: end other programs and measure again")


def measure_trial(
    context: RunContext, spec: StageSpec, record: StageRecord, trial: int, sampling: Callable[[WorkerProcess], Pair]
) -> StageRecord:
    """Measure one fresh process of the stage by `sampling`; the first also profiles and exports."""
    folder = spec.name if trial == 1 else f"{spec.name}/trial_{trial}"
    try:
        in_full = trial == 1 and not context.is_brief(spec)
        worker = context.start(spec, "stage" if in_full else "companion", folder)
    except OSError as error:
        return replace(record, status="failed", failure="error", reason=f"its process can't start: {error.strerror}")
    pairs, interrupted = record.pairs, False
    ending: dict[str, Any] = {}
    with stopping(worker):
        try:
            if context.advance(worker, spec.name, ReadyToSample):
                pairs = [*pairs, sampling(worker)]
                worker.end_sampling()
                context.advance(worker, spec.name, Done)
            ending = {"status": "ok", **_ending(worker.fields)}
        except WorkerGone as gone:
            ending = _gone(gone, worker, context)
        except KeyboardInterrupt:
            interrupted = True
            ending = _gone(WorkerGone("interrupted", f"interrupted in {worker.phase}"), worker, context)
    fields = worker.fields if trial == 1 else {}
    record = as_built(replace(record, **{**fields, **ending}, pairs=pairs, log=f"{folder}/log.txt"))
    if record.status in ("failed", "timeout"):
        record = replace(record, log_tail=tail(context.folder / folder / "log.txt"))
    if interrupted:
        context.keep(stages=[*context.record.stages, record])
        raise KeyboardInterrupt
    if context.baseline and not context.baseline.alive:
        context.baseline.stop()
        context.warn("baseline restarted", f"its worker ended during {spec.name}", "see baseline/log.txt")
        start_baseline(context)
    return record


def as_built(record: StageRecord) -> StageRecord:
    """Return the record with the modules kept in fp32 among its options, so that a later build is the same."""
    kept = [fault.module for fault in record.precision_faults if fault.kept]
    options = {**record.spec.options, "keep_fp32": kept}
    return replace(record, spec=replace(record.spec, options=options)) if kept else record


def _ending(fields: Mapping[str, object]) -> dict[str, Any]:
    """Return the outcome that a finished worker reported."""
    return {name: fields[name] for name in ("status", "failure", "reason") if name in fields}


def _gone(gone: WorkerGone, worker: WorkerProcess, context: RunContext) -> dict[str, Any]:
    """Return status, failure and reason of a stage whose worker is gone; after its check it stays ok."""
    reason = gone.reason
    if context.baseline and not context.baseline.alive:
        reason = f"the baseline's worker, its partner, ended: {reason}"
    if worker.phase in AFTER_CHECK:
        refused = worker.fields.get("status", "ok") != "ok"
        return _ending(worker.fields) if refused else {"status": "ok", "reason": reason}
    return {"status": gone.status, "failure": gone.kind, "reason": reason}


def alternated(context: RunContext, spec: StageSpec) -> StageRecord:
    """Measure the stage with the memory to itself, between two processes of the baseline.

    A steady drift cancels out, as within a block; disturbances of minutes don't, and the pair says how it was measured.
    """
    plan = context.config.plan
    count, sustained = plan.interim_analyses[0], plan.sustained(context.config.device)
    with alternating_baseline(context, f"{spec.name}/baseline_before") as worker:
        before, used = counted_samples(worker, count)
    taken: list[Sample] = []
    uses = [used]

    def collect(worker: WorkerProcess) -> Pair:
        samples, used = counted_samples(worker, 2 * count)
        taken.extend(samples)
        uses.append(used)
        return Pair(context.spec.name, spec.name, [], alternated=True, sustained=sustained)

    record = measure_trial(context, spec, empty_record(context, spec), 1, collect)
    if len(taken) != 2 * count or record.status != "ok":
        return record
    with alternating_baseline(context, f"{spec.name}/baseline_after") as worker:
        after, used = counted_samples(worker, count)
    blocks = [
        Block("ABBA", (first, last), (second, third))
        for first, second, third, last in zip(before, taken[:count], taken[count:], after, strict=True)
    ]
    others = context.share_of_others(reduce(Use.further, [*uses, used]))
    return replace(record, pairs=[replace(record.pairs[0], blocks=blocks, taken_share=others)])


@contextmanager
def alternating_baseline(context: RunContext, folder: str) -> Iterator[WorkerProcess]:
    """Give a warm process of the baseline inside the block; raise RequestError if it can't run."""
    with stopping(context.start(context.spec, "companion", folder)) as (worker,):
        try:
            context.warm_up(worker, f"{context.spec.name} (alternating)")
            yield worker
        except WorkerGone as gone:
            refuse_baseline(context, gone.reason)


def empty_record(context: RunContext, spec: StageSpec) -> StageRecord:
    """Return the record of a stage before it has run."""
    return StageRecord(spec if len(context.config.stages) > 1 else replace(spec, adds=""))


def tail(log: Path) -> str:
    """Return the last lines of a log, each cut where it is long; nothing where the log is gone."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return ""
    return "\n".join(map(shortened, lines))


def within_physics(run: RunRecord, stage: StageRecord) -> StageRecord:
    """Return the stage, as inaccurate where its times leave no room for the network's arithmetic at the run's peaks."""
    if stage.status != "ok" or run.measured_peaks is None or run.reference is None or not run.measured_peaks.tflops:
        return stage
    flops = run.reference.flops_per_image * run.batch_size
    right = [each for each in run.stages if each.name != stage.name and each.status == "ok"]
    others = [each for each in right if any(pair.blocks for pair in each.pairs)]
    sustained = {each.name: flops / seconds_per_call(each.pairs).value / 1e12 for each in others}
    # the most that was seen in the run: a measured peak, or another right stage
    source, tflops = max({**sustained, **run.measured_peaks.tflops}.items(), key=lambda peak: peak[1])
    times = {}
    if any(pair.blocks for pair in stage.pairs):
        times["its time in the samples"] = seconds_per_call(stage.pairs).value
    on_gpu = run.environment is not None and run.environment.device == "cuda"
    if on_gpu and stage.profile and stage.profile.kernels:
        times["its kernels' time in the profile"] = sum(row.seconds_per_call for row in stage.profile.kernels)
    for what, seconds in times.items():
        if tflops and seconds * tflops * 1e12 * ABOVE_PEAK * SAVED < flops:
            rate = f"{flops / seconds / 1e12:.3g} TFLOP/s" if seconds else "no time at all"
            peak = f"the device's highest peak is {tflops:.3g} ({source})"
            reason = f"impossible: {what} makes {rate} of the network; {peak}"
            return replace(stage, status="inaccurate", failure="impossible", reason=reason)
    return stage


def larger(one: MeasuredPeaks, other: MeasuredPeaks) -> MeasuredPeaks:
    """Return the best of two measurements of one device."""
    best: dict[str, Any] = {}
    for name, value in vars(one).items():
        both = [part for part in (value, getattr(other, name)) if part is not None]
        best[name] = (min if name == "launch_us" else max)(both) if both and name != "tflops" else None
    rates = {name: max(rate, other.tflops.get(name, 0.0)) for name, rate in one.tflops.items()}
    return MeasuredPeaks(**{**best, "tflops": rates})

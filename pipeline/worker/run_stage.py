"""One stage from build to record, phase by phase: the order in which a worker does its work."""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.checkpoint import LOADED, Loaded
from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import of_batches
from pipeline.compiler.network_calls import allow_tf32
from pipeline.measure import environment, peaks, sampling, usage
from pipeline.measure.accuracy import denoised
from pipeline.measure.torch_device import cache_bytes, keep_to_quota, open_device
from pipeline.protocol import PipeReporter
from pipeline.records.plan import Phase
from pipeline.records.request import REFERENCE_FIRST, Job
from pipeline.records.run_record import Order, RunWarning
from pipeline.stages.api import StageError
from pipeline.worker import host_path, net_contract, reference, workload
from pipeline.worker.bench import Bench
from pipeline.worker.contract import RIGHT, Finding
from pipeline.worker.failures import told
from pipeline.worker.net_contract import first_look
from pipeline.worker.retries import begun_again, built, settled, verified


def run_stage(job: Job, reporter: PipeReporter) -> None:
    """Take one stage from build to record; each phase reports at once, so that a later failure loses nothing."""
    reporter.enter(Phase.START)
    bench = prepare(job)
    if job.role == "peaks":
        reporter.enter(Phase.MEASURED_PEAKS)
        reporter.report_run(measured_peaks=peaks.measure(bench.workload.device))
        return
    if job.role == "reference":
        describe_run(bench, reporter)
        return
    reporter.enter(Phase.BUILD)
    bench.workload = replace(bench.workload, progress=reporter.progress)
    reporter.report(**built(bench, partial(begun_again, reporter, Phase.BUILD)))
    reporter.enter(Phase.VERIFY)
    finding = settled(bench, reporter, lambda bench: verified(bench, reporter, partial(verify, reporter)))
    if finding is not RIGHT and not job.time_inaccurate:
        return
    reporter.enter(Phase.WARMUP)
    reporter.report(warm_up=bench.warm_up())
    if job.role == "hosted":
        reporter.enter(Phase.LATENCIES)
        reporter.report(host_latencies=sampling.take_host_latencies(bench.run, bench.inputs, bench.clock, job.plan))
        return
    for asked in reporter.sampling():
        reporter.sample(bench.sample(asked.brief))
    if job.role == "stage":
        finish(bench, reporter, finding)
    elif (late := bench.guard.changes()) is not RIGHT:
        reporter.report(**late.fields)


def prepare(job: Job, layout: Order | None = None) -> Bench:
    """Return the bench with the job's network and images, on the device that was asked for."""
    device = open_device(job.device)
    if job.device == "cuda" and not torch.cuda.is_available():
        reason = "device=cuda: the driver lists a GPU but torch sees none; is this torch's CPU-only build?"
        raise StageError(reason, "wrong device")
    keep_to_quota()
    if job.threads:
        torch.set_num_threads(job.threads)
    context_bytes = usage.context_bytes(device)
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    look = first_look if job.role == "reference" else None
    return Bench(job, workload.load(job, cache_bytes(device), look).taken_in(layout), context_bytes)


def describe_run(bench: Bench, reporter: PipeReporter) -> None:
    """Find out what all stages share: machine, measured peaks, the reference and its logits."""
    job, work = bench.job, bench.workload
    remedy = "model.checkpoint_key names the weights that are meant; save model.state_dict() alone"
    told_of = [RunWarning("weights", text, remedy) for text in LOADED.get(work.model, Loaded()).told]
    doubts = net_contract.check(work, job.task, job.model.output)
    if left := work.left_out:  # other files in the folders of images and labels
        named = "; ".join(left[:5]) + (f"; and {len(left) - 5} more" if len(left) > 5 else "")
        remedy = f"name folders that hold the {work.words.samples} and their labels alone, as the network takes them"
        doubts.append(RunWarning("files left out", named, remedy))
    doubts += told_of
    reporter.progress("the network takes its inputs and answers as it should")
    machine = environment.describe(work.device, job.launcher, job.packages, job.variables)
    reporter.report_run(environment=machine, warnings=doubts)
    if job.plan.measured_peaks:
        reporter.enter(Phase.MEASURED_PEAKS)
        reporter.report_run(measured_peaks=peaks.measure(work.device))
    reporter.enter(Phase.REFERENCE)
    allow_tf32(False)
    described, logits = reference.compute(work, job)
    loop = denoised(of_batches(work.model), work.inputs[0], job.task) if job.task.name == "diffusion" else ()
    batch, fresh = work.inputs[0], list[Tensor]()
    if batch.first.dim() > 1:  # inputs that are numbers can't be made fresh
        with torch.inference_mode():
            fresh = [work.model(*reference.fresh(batch)).cpu()]
    kept: dict[reference.Kind, Iterable[Tensor]] = {"fresh": fresh, "denoised": loop}
    reference.save_logits({"judged": logits, **kept}, Path(job.reference))
    reference.save_first(logits[0][0], Path(job.reference).with_name(REFERENCE_FIRST.name))
    reporter.report_run(reference=described)
    if job.task.has_masks and work.images is not None:
        first = torch.cat([part[: reference.SHOWN] for part in logits])[: reference.SHOWN]
        reference.save_pictures(classes(first).numpy(), Path(job.reference).parent, work.images)


def verify(reporter: PipeReporter, bench: Bench) -> Finding:
    """Compare the answer with the reference, report the figures, and return the finding."""
    accuracy, status, reason = bench.verify()
    finding = bench.guard.changes()
    if finding is RIGHT and status != "ok":
        finding = Finding("wrong answer", reason)
    if finding is RIGHT and accuracy and bench.job.role == "stage":
        missed = bench.job.accuracy.missed(accuracy, bench.workload.words)
        finding = Finding("accuracy limit", missed) if missed else finding
    reporter.report(
        accuracy=accuracy, **finding.fields, details=bench.runner.details, compile_facts=bench.compile_facts()
    )
    if accuracy and bench.job.task.has_masks:
        bench.save_masks()
    return finding


def finish(bench: Bench, reporter: PipeReporter, verified: Finding) -> None:
    """Check the answers once more, then profile and export; after the check a failure costs only its own phase."""
    reporter.enter(Phase.CHECK)
    finding = bench.check(right=verified is RIGHT)
    if finding is not RIGHT:
        reporter.report(**finding.fields)
        return
    afterwards: list[tuple[Phase, Callable[[], dict[str, object]]]] = [
        (Phase.LATENCIES, bench.latencies),
        (Phase.HOST_PATH, partial(host_path_of, bench)),
        (Phase.PROFILE, lambda: {"profile": bench.profile()}),
        (Phase.OBSERVE, lambda: {"execution": bench.observe()}),
        (Phase.EXPLAIN, lambda: {"diagnostics": bench.explain()}),
        (Phase.EXPORT, lambda: {"artefacts": bench.export(), "compile_facts": bench.compile_facts()}),
    ]
    for phase, work in afterwards:
        reporter.enter(phase)
        try:
            reporter.report(**work())
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the measurement must not be lost
            traceback.print_exc()
            _, reason, _ = told(error, bench.job)
            bench.warn("phase failed", f"{phase}: {reason}", "see the traceback in the stage's log")
        if bench.warnings:
            reporter.report(warnings=bench.warnings)
        if bench.found is not RIGHT:
            reporter.report(**bench.found.fields)


def host_path_of(bench: Bench) -> dict[str, object]:
    """Measure the host path on a GPU; on a CPU return why there is none."""
    job = bench.job
    if job.device != "cuda":
        return {"host_path_left_out": host_path.NO_COPIES}
    lanes = host_path.Lanes()
    masks = job.task.has_masks and bench.runner.ends.after is None
    return {"host_path": host_path.measure(bench.called, bench.run, masks, bench.clock, job.plan, lanes)}

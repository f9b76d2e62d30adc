"""The export of a stage: a folder that runs without this project, checked before it takes its name."""

import fcntl
import glob
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.compiler.ends import Classes
from pipeline.compiler.half import half_net
from pipeline.compiler.network_calls import allow_tf32, without_tf32
from pipeline.compiler.standalone import carry_compiled
from pipeline.errors import typed_line
from pipeline.export import files
from pipeline.export.artefacts import AXES, Made, make
from pipeline.export.bundle import BundleFails, Said, ask
from pipeline.export.carried.golden_check import FURTHER
from pipeline.export.contract import Contract, Dynamic, GoldenLimits, Judged, TensorRule, measured_of
from pipeline.export.recorded_stage import UNLESS_TRAINED, RecordedStage, check_weights, opened
from pipeline.export.request import Asked, Ends, ExportError
from pipeline.measure.accuracy import WrongShape, as_logits, compare
from pipeline.records import codec
from pipeline.records.disk import open_lock
from pipeline.records.goals import Task, Tolerance, judge
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Accuracy, Service
from pipeline.stages.api import IMAGE_RANK, Skip, StageError, Workload, silent
from pipeline.stages.common.ends import why_not
from pipeline.stages.common.network_forms import GROSS, difference, extremes
from pipeline.stages.common.onnx_models import OUTPUT
from pipeline.worker.workload import further_batches, given_away, judged_images

LOCK = ".export.lock"
CHUNK, CHUNK_SECONDS = 16, 120.0  # batches for one process, and seconds that the fp32 network may need for them
MARGIN = 1.25  # for another machine, which rounds other pixels of a batch over a threshold
Asker = Callable[..., Said]  # such as `bundle.ask`
Say = Callable[[str], None]


def export(asked: Asked, run: RunRecord, stage: StageRecord, step: Say = silent) -> Contract:
    """Write a bundle under a temporary name, check it in a fresh process, and rename it; a failure leaves no folder."""
    weights = check_weights(run)
    with scratch_beside(asked.to) as scratch:
        try:
            folder = scratch / "bundle"
            folder.mkdir()
            step(f"opening {stage.name} of {asked.run}: its network and its {run.words.samples}")
            recorded = replace(opened(asked.run, run, stage, scratch), ends=asked.ends | Ends.of(stage.spec.options))
            check_asked(recorded, asked.dynamic)
            contract = written(recorded, asked, weights, folder, step)
            folder.rename(asked.to)
        except (Skip, StageError) as error:
            raise BundleFails(str(error)) from error
        except OSError as error:
            if error.filename not in (None, str(folder)):
                raise
            raise ExportError(f"--to {asked.to}: can't be written ({error.strerror or error})") from error
    return contract


@contextmanager
def scratch_beside(to: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `to`, and remove it afterwards; also those that killed exports to `to` have left."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        for left in to.parent.glob(f".{glob.escape(to.name)}.*/{LOCK}"):
            with locked(left) as free:
                if free:
                    shutil.rmtree(left.parent, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    except OSError as error:
        raise ExportError(f"--to {to}: no folder can be made there: {error.strerror}") from None
    try:
        with locked(scratch / LOCK):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a file's lock within the block, and yield True; False if another process holds it."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def check_asked(recorded: RecordedStage, dynamic: Sequence[Dynamic]) -> None:
    """Raise ExportError if the ends or axes can't be as they were asked for, or such a bundle can't be checked."""
    work, classes_out = recorded.workload, Ends.CLASSES_OUT in recorded.ends
    beyond = bool(work.others) or len(work.shape) != IMAGE_RANK or not recorded.run.config.task.has_masks
    if dynamic and beyond:
        raise ExportError(f"--dynamic {dynamic[0]}: only for networks of images; leave it out")
    if unfit := why_not(work, Ends.UINT8_IN in recorded.ends, classes_out):
        raise ExportError(f"--{unfit[0].replace('_', '-')}: {unfit[1]}; leave it out")
    if classes_out and not recorded.run.config.model.is_trained:
        raise ExportError(
            "--classes-out: the network has random weights, so its classes can't be checked; leave it out, or "
            f"{UNLESS_TRAINED}"
        )


def written(recorded: RecordedStage, asked: Asked, weights: str | None, folder: Path, step: Say) -> Contract:
    """Write the bundle into a folder, check it, and return its contract; raises ExportError, BundleFails."""
    golden = references(recorded, asked.dynamic)
    step(f"writing the bundle's network as {recorded.kind}")
    made = make(recorded, asked.dynamic, folder)
    contract = contract_of(recorded, made, asked, weights, golden["reference"])
    files.write_loader(made.kind, folder)
    files.write_golden(golden, recorded.images, folder)
    files.write_contract(contract, folder)
    step("asking the bundle for an answer, in a process without this program")
    given = given_extremes(recorded)
    (cache := folder.parent / "cache").mkdir()
    said, found = answered(given, folder, partial(ask, cache=cache))
    if made.kind == "own_kernels":
        carry_compiled(cache, folder / made.path)
        files.write_contract(contract, folder)  # with the digests of what it has compiled
    if said["shape"] != contract.output.shape:
        raise BundleFails(f"an answer of shape {said['shape']}, the network's is {contract.output.shape}")
    check_extremes(recorded, given, found)
    logits = found[next(iter(given))]
    contract = replace(
        contract,
        output=replace(contract.output, dtype=said["dtype"]),
        judged=judged(recorded, folder, ask, step),  # reads the files that the digests name
        golden=golden_limits(logits, golden["reference"].cpu(), contract.tolerance, recorded.run.config.task),
    )
    files.write_golden({**golden, "logits": logits}, recorded.images, folder)
    files.write_contract(contract, folder)
    step("asking it once more, for the golden batch")
    said = ask(folder, "--check")
    if not said["right"]:
        raise BundleFails(wrong(said, contract))
    service = codec.from_json(Service, said["service"])
    contract = replace(contract, deterministic=bool(said["same_bits"]), finite=said.get("finite"), service=service)
    files.write_contract(contract, folder)
    return contract


def references(recorded: RecordedStage, dynamic: Sequence[Dynamic]) -> dict[str, Tensor]:
    """Return the artefact's input and the fp32 network's logits, [batch, classes, height, width].

    With dynamic axes there is a second batch of other lengths.
    """
    allow_tf32(False)
    batches = {"": recorded.batch}  # input of the fp32 network
    if dynamic:
        other = torch.cat([recorded.batch, recorded.batch[:1]]) if "batch" in dynamic else recorded.batch
        if "size" in dynamic:
            other = torch.cat([other, other.flip(AXES["size"][0])], AXES["size"][0])
        batches["other_"] = other.contiguous()
    tensors: dict[str, Tensor] = {}
    others = recorded.inputs.tensors[1:]
    for name, batch in batches.items():
        try:
            with torch.inference_mode():
                tensors |= {f"{name}batch": batch, f"{name}reference": recorded.workload.model(batch, *others).float()}
        except Exception as error:
            if not name:
                raise
            shape, axes = "×".join(map(str, batch.shape)), " and ".join(dynamic)
            raise ExportError(f"--dynamic {axes}: the network takes no {shape}: {typed_line(error)}") from error
    return tensors | {"batch": recorded.given[0]} | {f"{FURTHER}{number}": part for number, part in enumerate(others)}


def contract_of(recorded: RecordedStage, made: Made, asked: Asked, weights: str | None, reference: Tensor) -> Contract:
    """Return the contract of an artefact; `reference` holds the fp32 logits [batch, classes, height, width]."""
    run, stage, classes_out = recorded.run, recorded.stage, Ends.CLASSES_OUT in recorded.ends
    answer = Classes()(reference) if classes_out else reference
    data, has_masks = run.config.data, run.config.task.has_masks
    return Contract(
        stage=stage.name,
        target=stage.spec.target,
        kind=made.kind,
        artefact=made.path,
        input=TensorRule(recorded.workload.name, *described(recorded.given[0]), list(asked.dynamic)),
        others=[TensorRule(name, *described(parts[0])) for name, parts in recorded.workload.others.items()],
        task=run.config.task.name,
        takes_images=recorded.images is not None,
        image_type=None if recorded.images is None else str(recorded.images.dtype),
        output=TensorRule(OUTPUT, *described(answer), list(asked.dynamic)),
        normalisation=data.contract,
        classes=max(2, reference.shape[1]) if has_masks else None,
        labels=data.label_rules if data.labels and recorded.images is not None else None,
        tolerance=stage.spec.tolerance,
        masks_judged=not run.unjudged,
        measured=measured_of(run, stage),
        weights_sha256=weights,
        command=run.command,
        rebuild=asked.command(stage.name),
        loader=made.loader,
        notes=[*recorded.notes, *made.notes],
        images_in=Ends.UINT8_IN in recorded.ends,
        classes_out=classes_out,
    )


def described(part: Tensor) -> tuple[list[int], str]:
    """Return shape and type of a tensor of any shape for a contract."""
    return list(part.shape), str(part.dtype).removeprefix("torch.")


def wrong(found: Said, contract: Contract) -> str:
    """Return why the check of a bundle failed, in one line."""
    allowed = contract.golden_limits
    said = [f"its answers are {found['relative_l2']:.2g} off (relative L2; {allowed.relative_l2:g} allowed)"]
    if contract.task == "segmentation":
        most = f"{100 * allowed.flipped_share:g} % allowed"
        said.append(f"{100 * found['flipped_share']:.3g} % of the {contract.words.points} change their class ({most})")
    if "normalisation" in found:
        said.append(f"its normalisation is {found['normalisation']:.2g} off")
    return ", ".join(said)


def judged(recorded: RecordedStage, folder: Path, ask: Asker, step: Say = silent) -> Judged:
    """Measure the bundle's distance from the fp32 network over the run's evaluation images, by the run's rule."""
    run, work, left_out = recorded.run, recorded.workload, calibrated_on(recorded)
    step(f"judging it: the fp32 network's answers to {work.words.counted(of_evaluation(work))}")
    expected, sizes, began = [], [], time.monotonic()
    for number, (batch, count) in enumerate(evaluation_batches(work)):
        sizes.append(count)
        if number not in left_out:
            expected.append(reference(work, batch)[:count])
    images = judged_images(work, sizes, left_out)
    labels = None if work.labels is None else torch.from_numpy(work.labels[images])
    labels = labels if work.targets is None else work.targets[images]
    seconds = (time.monotonic() - began) / max(1, len(expected))
    chunk = max(1, min(CHUNK, int(CHUNK_SECONDS / max(seconds, 1e-6))))
    kept = ((at, *each) for at, each in enumerate(evaluation_batches(recorded.called)) if at not in left_out)
    found = answers(kept, chunk, folder, ask, step)
    try:
        accuracy = compare(map(as_logits, found, expected), expected, labels, run.config.task)
    except WrongShape as wrong:
        raise BundleFails(str(wrong)) from None
    check(recorded, accuracy)
    off = None if Ends.CLASSES_OUT in recorded.ends else accuracy.relative_l2
    return Judged(len(images), off, accuracy.flipped_share)


def of_evaluation(work: Workload) -> int:
    """Return the number of evaluation images."""
    return max(work.judged, work.verified * work.shape[0])


def calibrated_on(recorded: RecordedStage) -> tuple[int, ...]:
    """Return the evaluation batches on which the stage was calibrated, and so wasn't judged."""
    work, accuracy = recorded.workload, recorded.stage.accuracy
    if recorded.stage.calibration is None or accuracy is None:
        return ()
    total, size = of_evaluation(work), work.shape[0]
    given, whole = (total - accuracy.images) // size, total // size - work.verified
    return given_away(work.verified, whole, given) if 0 < given <= whole else ()


def evaluation_batches(work: Workload) -> Iterator[tuple[Batch, int]]:
    """Yield each evaluation batch with the number of its images; the last is filled up."""
    yield from ((batch, work.shape[0]) for batch in work.inputs[: work.verified])
    yield from further_batches(work)


def reference(work: Workload, batch: Batch) -> Tensor:
    """Return the fp32 network's answer [batch, …] to an evaluation batch, on the CPU."""
    with torch.inference_mode(), without_tf32():
        answer: Tensor = work.model(*batch)
    return answer.float().cpu()


def answers(
    batches: Iterator[tuple[int, Batch, int]], chunk: int, folder: Path, ask: Asker, step: Say
) -> Iterator[Tensor]:
    """Yield the bundle's answer [batch, …] to each evaluation batch, from a process without this project a chunk."""
    while part := list(islice(batches, chunk)):
        step(f"judging it: its own answers to batches {part[0][0] + 1} to {part[-1][0] + 1}")
        found = answered({f"{number:08}": batch for number, batch, _ in part}, folder, ask)[1]
        yield from (answer[:count] for answer, (_, _, count) in zip(found.values(), part, strict=True))


def answered(batches: Mapping[str, Iterable[Tensor]], folder: Path, ask: Asker) -> tuple[Said, dict[str, Tensor]]:
    """Return what a bundle's loader says, and its answer to each call's inputs, by name."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        place = Path(scratch)
        for name, (first, *others) in batches.items():
            tensors = {"batch": first, **{f"{FURTHER}{at}": part for at, part in enumerate(others)}}
            content = save({key: part.cpu().contiguous() for key, part in tensors.items()})
            (place / f"{name}.safetensors").write_bytes(content)  # save_file's error of a full disk is no OSError
        said = ask(folder, "--batches", scratch)
        read = {name: np.fromfile(place / f"{name}.bin", np.float64).reshape(said["shape"]) for name in batches}
    return said, {name: torch.from_numpy(values.astype(np.float32)) for name, values in read.items()}


def given_extremes(recorded: RecordedStage) -> dict[str, Batch]:
    """Return the artefact's golden inputs and extreme ones, by their names; constant images if it takes images."""
    given = Batch(tuple(recorded.given), recorded.inputs.names)
    if Ends.UINT8_IN not in recorded.ends:
        return extremes(given)
    constant = {f"images of {value}": torch.full_like(given.first, value) for value in (0, 128, 255)}
    return {"the first batch": given, **{name: Batch((images,), given.names) for name, images in constant.items()}}


def check_extremes(recorded: RecordedStage, given: dict[str, Batch], found: dict[str, Tensor]) -> None:
    """Compare the bundle's answers to extreme inputs with the network's; a quantized network clips such inputs."""
    in_type = half_net(recorded.workload.model, recorded.dtype, recorded.inputs, layout="NCHW")
    net = recorded.with_ends(in_type, recorded.ends & Ends.UINT8_IN)
    gross = math.inf if recorded.stage.precision in ("fp8", "int8") else GROSS
    if wrong := difference(lambda name, _, want: as_logits(found[name], want), net, given, gross):
        raise BundleFails(f"the exported network {wrong}")


def check(recorded: RecordedStage, accuracy: Accuracy) -> None:
    """Raise BundleFails if the run's rule refuses this accuracy."""
    run, stage = recorded.run, recorded.stage
    allowed, words = stage.spec.tolerance, recorded.workload.words
    status, reason = judge(accuracy, allowed, run.config.model.is_trained, words)
    limits = replace(run.config.accuracy, max_final_error=None)  # the loop isn't run again
    if status == "ok":
        reason = limits.missed(accuracy, words) if run.config.model.is_trained else ""
    if reason:
        raise BundleFails(f"over {words.counted(accuracy.images)} as the run judged {stage.name}, {reason}")


def golden_limits(answer: Tensor, expected: Tensor, tolerance: Tolerance, task: Task) -> GoldenLimits:
    """Return the limits for the golden batch, which may exceed the tolerance for all images."""
    accuracy = compare([as_logits(answer, expected)], [expected], None, task)
    off = 0.0 if answer.ndim != expected.ndim else accuracy.relative_l2
    return GoldenLimits(
        max(tolerance.relative_l2, MARGIN * off), max(tolerance.flipped_share, MARGIN * (accuracy.flipped_share or 0.0))
    )

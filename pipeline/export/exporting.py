"""The export of a stage: a folder that runs without this project, checked before it takes its name."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline.compiler.network_calls import allow_tf32
from pipeline.errors import typed_line
from pipeline.export import files
from pipeline.export.artefacts import AXES, Made, check_dynamic, make
from pipeline.export.bundle import BundleFails, Said, ask
from pipeline.export.carried.golden_check import FURTHER
from pipeline.export.command import Say
from pipeline.export.contract import Contract, Dynamic, TensorRule, measured_of
from pipeline.export.judged_answers import golden_limits, judged
from pipeline.export.recorded_stage import UNLESS_TRAINED, RecordedStage, check_weights, classes, opened
from pipeline.export.request import Asked, ExportError
from pipeline.records.disk import open_lock
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stages.api import Skip, StageError, silent
from pipeline.stages.common.onnx_models import OUTPUT

LOCK = ".export.lock"
ANSWER = "answer.bin"  # removed before the bundle is done


def export(asked: Asked, run: RunRecord, stage: StageRecord, step: Say = silent) -> Contract:
    """Write a bundle under a temporary name, check it in a fresh process, and rename it; a failure leaves no folder.

    Args:
        asked: the request.
        run: the run's record.
        stage: of the run.
        step: is told each step.

    Raises:
        ExportError, ContractError, InputError, RecordError, OSError: the request can't be carried out.
        BundleFails: the stage can't be built again here, or the bundle's answers are wrong.
    """
    weights = check_weights(run)
    with scratch_beside(asked.to) as scratch:
        try:
            folder = scratch / "bundle"
            folder.mkdir()
            step(f"opening {stage.name} of {asked.run}: its network and its {run.words.samples}")
            recorded = replace(opened(asked.run, run, stage, scratch), ends=asked.ends)
            check_ends(recorded)
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
    """Yield a hidden folder beside `to`, and remove it afterwards; also those that killed exports to `to` have left.

    Raises:
        ExportError: there can't be one.
    """
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


def check_ends(recorded: RecordedStage) -> None:
    """Raise if the ends can't be moved into the graph, or such a bundle can't be checked.

    Raises:
        ExportError: they can't; the line names the flag.
    """
    ends, images, config = recorded.ends, recorded.images, recorded.run.config
    if ends.flags and recorded.workload.others:
        raise ExportError(f"{ends.flags[0]}: only for networks of images; leave it out")
    if ends.images_in and (images is None or images.dtype != np.uint8):
        raise ExportError(
            f"--uint8-in: the run's inputs are {'tensors' if images is None else images.dtype}; leave it out"
        )
    if ends.classes_out and not config.task.has_masks:
        raise ExportError(f"--classes-out: the network answers with no classes: task={config.task.name}; leave it out")
    if ends.classes_out and not config.model.is_trained:
        raise ExportError(
            "--classes-out: the network has random weights, so its classes can't be checked; leave it out, or "
            f"{UNLESS_TRAINED}"
        )


def written(recorded: RecordedStage, asked: Asked, weights: str | None, folder: Path, step: Say) -> Contract:
    """Write the bundle into a folder, check it, and return its contract.

    Raises:
        ExportError, BundleFails: as `export`.
    """
    check_dynamic(recorded, asked.dynamic)
    golden = references(recorded, asked.dynamic)
    step(f"writing the bundle's network as {recorded.kind}")
    made = make(recorded, asked.dynamic, folder)
    contract = contract_of(recorded, made, asked, weights, golden["reference"])
    files.write_loader(made.kind, folder)
    files.write_requirements(made.kind, folder)
    files.write_golden(golden, recorded.images, folder)
    files.write_contract(contract, folder)
    step("asking the bundle for an answer, in a process without this program")
    answer = ask(folder, "--answer", str(folder.parent / ANSWER))
    if answer["shape"] != contract.output.shape:
        raise BundleFails(f"an answer of shape {answer['shape']}, the network's is {contract.output.shape}")
    logits = np.fromfile(folder.parent / ANSWER, np.float64).reshape(answer["shape"]).astype(np.float32)
    contract = replace(
        contract,
        output=replace(contract.output, dtype=answer["dtype"]),
        judged=judged(recorded, folder, folder.parent, ask, step),  # reads the files that the digests name
        golden=golden_limits(
            torch.from_numpy(logits), golden["reference"].cpu(), contract.tolerance, recorded.run.config.task
        ),
    )
    files.write_golden({**golden, "logits": torch.from_numpy(logits)}, recorded.images, folder)
    files.write_contract(contract, folder)
    step("asking it once more, for the golden batch")
    found = ask(folder, "--check")
    if not found["right"]:
        raise BundleFails(wrong(found, contract))
    contract = replace(contract, deterministic=bool(found["same_bits"]))
    files.write_contract(contract, folder)
    return contract


def references(recorded: RecordedStage, dynamic: Sequence[Dynamic]) -> dict[str, Tensor]:
    """Return the artefact's input and the fp32 network's logits, [batch, classes, height, width].

    With dynamic axes there is a second batch of other lengths.

    Raises:
        ExportError: the network doesn't take that batch.
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
    further = {f"{FURTHER}{number}": part for number, part in enumerate(others)}
    return tensors | {"batch": recorded.given[0]} | further


def contract_of(recorded: RecordedStage, made: Made, asked: Asked, weights: str | None, reference: Tensor) -> Contract:
    """Return the contract of an artefact; `reference` holds the fp32 logits [batch, classes, height, width]."""
    run, stage, ends = recorded.run, recorded.stage, recorded.ends
    answer = classes(reference) if ends.classes_out else reference
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
        output=TensorRule(OUTPUT, *described(answer), list(asked.dynamic)),
        normalisation=data.contract,
        classes=max(2, reference.shape[1]) if has_masks else None,
        labels=data.label_rules if data.labels and recorded.images is not None else None,
        tolerance=stage.spec.tolerance,
        masks_judged=run.config.model.is_trained and has_masks,
        measured=measured_of(run, stage),
        weights_sha256=weights,
        command=run.command,
        rebuild=asked.command(stage.name),
        loader=made.loader,
        notes=[*recorded.notes, *made.notes],
        images_in=ends.images_in,
        classes_out=ends.classes_out,
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

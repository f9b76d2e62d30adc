"""The training of a slim network, and its folder: a card, and the images on which it loses most."""

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as in_bytes

from pipeline.analysis.slim_gate import Verdict, judge
from pipeline.analysis.summary import command_with
from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, REFUSED, show
from pipeline.config.request_error import RequestError
from pipeline.errors import OneLineError
from pipeline.export.exporting import locked
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.windows import viewable
from pipeline.measure.torch_device import keep_to_quota, open_device
from pipeline.records.disk import file_digest, write_bytes, write_json, write_text
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.report.markdown import environment
from pipeline.slim import distil
from pipeline.slim.command import Width, width_of
from pipeline.slim.pictures import Batches, masks, split
from pipeline.slim.what_if import Say, width_for
from pipeline.slim.widths import SLICED, Full, full_of, parameters
from pipeline.stats.dice import LEAST_IMAGES, overlap
from pipeline.worker.answer_checks import check_classes
from pipeline.worker.reference import mask_picture

CARD, LOCK = "card.json", ".train.lock"
GAP = 4  # pixels between pictures
SHOWN = 4  # images, one below the other
SCORED = 16  # held-out images of a progress line
MAX_DICE_DROP = 0.1  # points, unless the user says otherwise


def write(folder: Path, verdict: Verdict, card: dict[str, Any], held: Dataset, masks: Sequence[np.ndarray]) -> None:
    """Write card.json, README.md and worst.png: rows of image, labels, and `masks` of the full network and student."""
    document = {"passed": verdict.passed, "told": verdict.told, "verdict": asdict(verdict), **card}
    shown = {"verdict": verdict, "document": document, "worst": [held.sources[at] for at in verdict.worst_images]}
    write_text(environment().get_template("slim_card.md.j2").render(shown), folder / "README.md")
    rows = []
    for at in verdict.worst_images[:SHOWN]:
        drawn = [mask_picture(part[at]).convert("RGB") for part in (held.labels, *masks) if part is not None]
        parts = [np.pad(np.asarray(part), ((0, GAP), (0, GAP), (0, 0))) for part in (viewable(held.images[at]), *drawn)]
        rows.append(np.concatenate(parts, axis=1))
    Image.fromarray(np.concatenate(rows)).save(folder / "worst.png")
    write_json(document, folder / CARD)  # last, as it marks a finished student


def digest(data: Dataset) -> str:
    """Return the SHA-256 of images and labels."""
    summed = sha256(np.ascontiguousarray(data.images).data)
    summed.update(b"" if data.labels is None else np.ascontiguousarray(data.labels).data)
    return summed.hexdigest()


def train(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Train a student, judge it and write its folder; return the exit code."""
    keep_to_quota()
    place = open_device(device)
    if "RANK" in os.environ:  # one of several GPUs' processes
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cuda":
            place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(place)
    try:
        with Progress(0) as progress, student_folder(asked) as folder:
            return trained(asked, run, place, folder, progress.say if distil.RANK == 0 else lambda _: None)
    except OneLineError:
        if distil.RANK == 0:
            raise
        return REFUSED  # the first process says why
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def chosen_width(asked: argparse.Namespace, run: RunRecord, full: Full, folder: Path, device: str, say: Say) -> Width:
    """Return the width that is asked for, or that reaches the target, which an earlier call may have kept."""
    if isinstance(asked.width, Width):
        return asked.width
    kept = folder / f"width-{asked.target.text}.txt"
    if distil.RANK == 0 and not kept.exists():
        write_text(width_for(asked.target, run, full, device, say).text, kept)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return width_of(kept.read_text(encoding="utf-8"))


def placed(made: ModelSpec, weights: Path) -> ModelSpec:
    """Return what makes the student, with its weights."""
    options = {**made.options, "weights": str(weights)} if made.target == SLICED else made.options
    return replace(made, options=options, checkpoint=str(weights), checkpoint_key=None, trained=None)


@contextmanager
def student_folder(asked: argparse.Namespace) -> Iterator[Path]:
    """Make and hold the student's folder; raise RequestError if a finished student or another process is there."""
    name = (asked.target or asked.width).text.replace("/", "-").replace(",", "_")
    folder: Path = asked.out or asked.run.resolve().with_name(f"{asked.run.resolve().name}-slim-{name}")
    is_new = distil.RANK == 0 and not folder.exists()
    if distil.RANK == 0:
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK) if distil.RANK == 0 else nullcontext(True) as is_alone:
        if not is_alone:
            raise RequestError(f"{folder}: another process trains there; wait for it, or name another --out")
        if (folder / CARD).exists():
            raise RequestError(f"{folder}: holds a finished student; name another --out")
        try:
            yield folder
        finally:
            if is_new and [*folder.iterdir()] == [folder / LOCK]:  # a refused training has begun nothing
                rmtree(folder, ignore_errors=True)


def trained(asked: argparse.Namespace, run: RunRecord, device: torch.device, folder: Path, say: Say) -> int:
    """Return the exit code of `train`."""
    config, full = run.config, full_of(run, asked.run, str(device))
    width = chosen_width(asked, run, full, folder, device.type, say)
    made, slim = full.slimmer(width)
    counts = {"full": parameters(full.net), "student": parameters(slim)}
    say(f"a student of width {width.text}, {counts['student']:,} parameters of {counts['full']:,}, in {folder}")
    learnt, held = split(config.data, asked.images, asked.labels, asked.seed, asked.drawn, asked.held_out)
    if len(held.images) < LEAST_IMAGES:
        say(f"note: {len(held.images)} held-out images are too few for the gate; give {LEAST_IMAGES} or more")
    if asked.by_labels_alone:
        if learnt.labels is None:
            raise RequestError("--by-labels-alone: the training images have no labels")
        torch.manual_seed(asked.seed)
        slim.apply(lambda layer: getattr(layer, "reset_parameters", lambda: None)())
    batches, judged = (Batches(part, config.data.contract, device, asked.seed) for part in (learnt, held))
    recipe = distil.Recipe(width.text, asked.steps, asked.minutes, asked.batch, asked.seed, asked.by_labels_alone)
    training = distil.Training(slim, full.net, batches, recipe, folder / "checkpoint.pt")
    classes = max(2, int(full.net(judged.inputs(slice(1))).shape[1]))
    for part in (learnt, held):  # the run's own labels may have changed since
        check_classes(part.labels, part.sources, classes)
    full_masks = masks(full.net, judged, asked.batch)
    right, against = (full_masks, "the full network's masks") if held.labels is None else (held.labels, "labels")
    curve = folder / "curve.csv"
    if not training.checkpoint.exists():
        curve.unlink(missing_ok=True)  # of a training that begins anew

    def score() -> str:
        dice = overlap(masks(slim, judged, asked.batch, SCORED), right[:SCORED], classes).mean_dice
        if distil.RANK == 0:
            with curve.open("a", encoding="utf-8") as lines:
                lines.write(f"{training.step},{dice:.5f}\n")
        return f"Dice against {against} so far {dice:.4f}"

    digests = {"sha256": digest(held), "training_sha256": digest(learnt)}
    full_digest = run.reference and run.reference.weights_sha256
    request = json.dumps([asdict(recipe), full_digest, digests["training_sha256"]])
    if not training.run(request, asked.seconds or math.inf, say, score) or distil.RANK != 0:
        return 0
    weights = folder / "weights.safetensors"  # of clones, as a network may hold a tensor under two names
    write_bytes(in_bytes({key: part.cpu().clone().contiguous() for key, part in slim.state_dict().items()}), weights)
    spec, found = placed(made, weights), masks(slim, judged, asked.batch)
    drops = asked.max_dice_drop, config.accuracy.max_dice_drop, MAX_DICE_DROP  # 0 is a limit
    limit = next(drop for drop in drops if drop is not None)
    before, after = (overlap(part, right, classes) for part in (full_masks, found))
    verdict = judge(before, after, held.pictures, limit, asked.seed, against)
    data = {"name": config.data.name, "trained_on": len(learnt.images), "held_out": len(held.images)}
    card = {
        "full": {"command": run.command, "weights_sha256": full_digest},
        "student": {"model": asdict(spec), "weights_sha256": file_digest(weights)},
        "parameters": counts,
        "recipe": asdict(training.recipe),
        "data": {**data, **digests, "training_labels": learnt.labels is not None},
        "command": command_with(run, spec),
    }
    write(folder, verdict, card, held, (full_masks, found))
    training.checkpoint.unlink(missing_ok=True)
    for line in (*(f"note: {note}" for note in verdict.notes), verdict.told):
        say(line)
    show(f"{folder}\n")
    return 0 if verdict.passed else FAILED

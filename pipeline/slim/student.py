"""The training of a slim network, its gate, and its folder: a card, and the images on which it loses most.

The gate is its loss of Dice on held-out images, with a 95 % interval.
"""

import argparse
import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from pipeline.analysis.summary import retyped
from pipeline.cli.progress import Progress
from pipeline.command_line import FAILED, show
from pipeline.config.request_error import RequestError
from pipeline.errors import plural
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.windows import viewable
from pipeline.measure.torch_device import keep_to_quota, open_device
from pipeline.records.content_digest import file_digest
from pipeline.records.goals import POINTS
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.records.samples import DiceLoss
from pipeline.report.markdown import environment
from pipeline.slim import distil
from pipeline.slim.command import Shares, shares_of
from pipeline.slim.pictures import Batches, masks, split
from pipeline.slim.what_if import width_for
from pipeline.slim.widths import SLICED, Full, full_of, in_words, parameters
from pipeline.stats.dice import LEAST_IMAGES, Overlap, losses, numbered, overlap, ratio
from pipeline.worker.reference import mask_picture

GAP = 4  # pixels between pictures
SHOWN = 4  # images, one below the other
SCORED = 16  # held-out images of a progress line
Say = Callable[[str], None]
CLASS_TIMES = 1.5  # a class may lose that many times the limit of the mean: with fewer pixels, its interval is wider
POOR = 0.7  # Dice of a full network below which its masks are hardly worth keeping
MAX_DICE_DROP = 0.1  # points, unless the user says otherwise
DECILE = 0.1


@dataclass(frozen=True)
class Verdict:
    """The gate's answer."""

    against: str  # "labels", or "the full network's masks" where there are none
    images: int  # that the interval is of: pictures, or windows of fewer pictures
    full: float  # mean Dice of the full network, 0 to 1
    slim: float  # the slim network's
    loss: DiceLoss  # of the mean
    by_class: dict[int, DiceLoss]  # of each class that is labelled or found
    worst_class: int  # that may lose most
    worst_decile: float  # points that the worst tenth of the images loses on average
    worst_images: list[int]  # numbers of the images that lose most
    limit: float  # points that the mean may lose
    class_limit: float  # points that a class may lose
    reason: str  # why the slim network doesn't pass; empty if it does
    notes: list[str] = field(default_factory=list)  # doubts about what is compared

    @property
    def passed(self) -> bool:
        """The slim network loses no more than is allowed."""
        return not self.reason

    @property
    def told(self) -> str:
        """The answer in a line."""
        named = "Dice" if self.against == "labels" else f"Dice against {self.against}"
        loss, worst = self.loss, self.by_class[self.worst_class]
        figures = (
            f"{named} {self.slim:.4f}, full network {self.full:.4f}: {loss.points:+.3f} points lost "
            f"(95 %: {loss.low:+.3f} to {loss.high:+.3f}, {self.limit:g} allowed) on {plural(self.images, 'image')}; "
            f"class {self.worst_class} loses {worst.points:+.3f} (up to {worst.high:+.3f}), "
            f"the worst tenth of the images {self.worst_decile:+.3f}"
        )
        return f"passed: {figures}" if self.passed else f"not passed: {self.reason}; {figures}"


def judge(full: Overlap, slim: Overlap, pictures: list[str], limit: float, seed: int, against: str) -> Verdict:
    """Judge a slim network, which may lose `limit` points, by both networks' overlaps with the same labels.

    `pictures` names what each image is a window of, and `against` what the masks are compared with.
    """
    names = set(pictures)
    by_picture = len(names) >= LEAST_IMAGES
    units = [part.pooled(numbered(pictures)) for part in (full, slim)] if by_picture else [full, slim]
    count, lost = len(units[0].hits), losses(units[0], units[1], seed)
    loss, counted, by_class = lost.mean, lost.counted, {int(at): lost.of(at) for at in lost.labelled}
    worst = max(by_class, key=lambda at: by_class[at].high)
    each = POINTS * (ratio(full.hits, full.sizes) - ratio(slim.hits, slim.sizes))[:, counted].mean(1)
    order = np.argsort(-each, kind="stable")
    before, after = (float(part.dice()[counted].mean()) for part in units)
    worst_tenth = order[: max(1, round(DECILE * len(each)))]
    class_limit, reason = CLASS_TIMES * limit, ""
    if count < LEAST_IMAGES:
        reason = f"{plural(count, 'held-out image')} can't tell; give {LEAST_IMAGES} or more"
    elif loss.high >= limit:
        reason = f"its Dice may lose {loss.high:.3f} points, {limit:g} allowed"
    elif (high := by_class[worst].high) >= class_limit:
        reason = f"class {worst} may lose {high:.3f} points, {class_limit:g} allowed for one class"
    notes = [] if by_picture else [f"the images are windows of {plural(len(names), 'picture')}: others may lose more"]
    if against != "labels":
        notes.append("there are no labels: this is agreement with the full network, which may be wrong itself")
    elif before < POOR:
        notes.append(f"the full network itself is bad here (Dice {before:.3f}): to lose nothing against it says little")
    tenth = float(each[worst_tenth].mean())
    return Verdict(
        against, count, before, after, loss, by_class, worst, tenth, order[:8].tolist(), limit, class_limit, reason,
        notes,
    )  # fmt: skip


def command(run: RunRecord, spec: ModelSpec) -> str:
    """Return the line that runs the ladder on the student as the run did: on its data, with its stages."""
    typed = [word for word in shlex.split(run.command) if not word.lstrip("+~").startswith("model")]
    words = ["model=custom", f"model.target={spec.target}", f"model.checkpoint={spec.checkpoint}"]
    words += [f"+model.options.{key}={hydra_value(value)}" for key, value in spec.options.items()]
    for key in ("output", "upsample_logits"):
        if (value := getattr(spec, key)) is not None:
            words.append(f"model.{key}={value}")
    return retyped(shlex.join(typed), *words)


def hydra_value(value: object) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(hydra_value, value)) + "]"
    return json.dumps(value)


def card_of(run: RunRecord, spec: ModelSpec, recipe: distil.Recipe, learnt: Dataset, held: Dataset) -> dict[str, Any]:
    """Return what a card tells of a student and how it came about, without its verdict."""
    weights, data = Path(str(spec.checkpoint)), run.config.data
    return {
        "full": {"command": run.command, "weights_sha256": run.reference and run.reference.weights_sha256},
        "student": {"model": asdict(spec), "weights_sha256": file_digest(weights)},
        "recipe": asdict(recipe),
        "data": {
            "name": data.name, "sha256": digest(held), "training_sha256": digest(learnt),
            "trained_on": len(learnt.images), "held_out": len(held.images),
            "training_labels": learnt.labels is not None,
        },
        "command": command(run, spec),
    }  # fmt: skip


def write(folder: Path, card: dict[str, Any], verdict: Verdict, held: Dataset, masks: Sequence[np.ndarray]) -> None:
    """Write card.json, README.md and worst.png; `masks` [images, ...] are the full network's and the student's."""
    document = {"passed": verdict.passed, "told": verdict.told, "verdict": asdict(verdict), **card}
    worst = [held.sources[at] for at in verdict.worst_images]
    shown = {"verdict": verdict, "document": document, "worst": worst}
    page = environment().get_template("slim_card.md.j2").render(shown)
    (folder / "card.json").write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / "README.md").write_text(page, encoding="utf-8")
    compared(held, verdict.worst_images[:SHOWN], masks).save(folder / "worst.png")


def digest(data: Dataset) -> str:
    """Return the SHA-256 of images and labels."""
    summed = sha256(np.ascontiguousarray(data.images).tobytes())
    summed.update(b"" if data.labels is None else np.ascontiguousarray(data.labels).tobytes())
    return summed.hexdigest()


def compared(held: Dataset, chosen: list[int], masks: Sequence[np.ndarray]) -> Image.Image:
    """Return rows of an image, its labels, the full network's mask and the student's."""
    rows = []
    for at in chosen:
        shown = [part[at] for part in (held.labels, *masks) if part is not None]
        parts = [viewable(held.images[at]), *(np.asarray(mask_picture(part).convert("RGB")) for part in shown)]
        rows.append(np.concatenate([np.pad(part, ((0, GAP), (0, GAP), (0, 0))) for part in parts], axis=1))
    return Image.fromarray(np.concatenate(rows))


def train(asked: argparse.Namespace, run: RunRecord, device: str) -> int:
    """Train a student, judge it and write its folder; return the exit code."""
    keep_to_quota()
    open_device(device)
    place = torch.device(device)
    if "RANK" in os.environ:  # one of several GPUs' processes
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            place = torch.device("cuda", torch.cuda.current_device())
    try:
        with Progress(0) as progress:
            return trained(asked, run, place, progress.say if distil.rank() == 0 else lambda _: None)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def chosen_shares(asked: argparse.Namespace, run: RunRecord, full: Full, kept: Path, device: str, say: Say) -> Shares:
    """Return the width that is asked for, or that reaches the target, which an earlier call may have kept."""
    if asked.width:
        given: Shares = asked.width
        return given
    if distil.rank() == 0 and not kept.exists():
        kept.write_text(",".join(map(str, width_for(asked.target, run, full, device, say))), encoding="utf-8")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return shares_of(kept.read_text(encoding="utf-8"))


def placed(made: ModelSpec, weights: Path) -> ModelSpec:
    """Return what makes the student, with its weights."""
    options = {**made.options, "weights": str(weights)} if made.target == SLICED else made.options
    return replace(made, options=options, checkpoint=str(weights), checkpoint_key=None, trained=None)


def trained(asked: argparse.Namespace, run: RunRecord, device: torch.device, say: Say) -> int:
    """Return the exit code of `train`."""
    config, full = run.config, full_of(run, asked.run, str(device))
    with torch.inference_mode():
        classes = max(2, int(full.net(*full.example).shape[1]))
    name = asked.target.text if asked.target else "_".join(map(str, asked.width)).replace("/", "-")
    folder = asked.out or asked.run.with_name(f"{asked.run.resolve().name}-slim-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    shares = chosen_shares(asked, run, full, folder / "width.txt", device.type, say)
    made, slim = full.slimmer(shares)
    counts = {"full": parameters(full.net), "student": parameters(slim)}
    said = f"{counts['student']:,} parameters of {counts['full']:,}"
    say(f"a student {in_words(shares)} as wide, {said}, in {folder}")
    learnt, held = split(config.data, asked.images, asked.labels, asked.seed)
    if asked.by_labels_alone:
        if learnt.labels is None:
            raise RequestError("--by-labels-alone: the training images have no labels")
        torch.manual_seed(asked.seed)
        slim.apply(lambda layer: getattr(layer, "reset_parameters", lambda: None)())
    batches, judged = (Batches(part, config.data.contract, device, asked.seed) for part in (learnt, held))
    recipe = distil.Recipe(in_words(shares), asked.steps, asked.batch, asked.seed, asked.by_labels_alone)
    training = distil.Training(slim, full.net, batches, recipe, folder / "checkpoint.pt")
    full_masks = masks(full.net, judged, asked.batch)
    right, against = (full_masks, "the full network's masks") if held.labels is None else (held.labels, "labels")

    def score() -> str:
        found = masks(slim, judged, asked.batch, SCORED)
        dice = overlap(found, right[: len(found)], classes).dice()
        return f"Dice against {against} so far {dice[1:].mean():.4f}"

    request = [asdict(recipe), run.reference and run.reference.weights_sha256, digest(learnt)]
    if not training.run(json.dumps(request), asked.seconds or math.inf, say, score):
        say(f"time is up at step {training.step:,} of {asked.steps:,}; the same command goes on")
        return 0
    if distil.rank():
        return 0
    weights = folder / "weights.safetensors"  # of clones, as a network may hold a tensor under two names
    save_file({key: part.cpu().clone().contiguous() for key, part in slim.state_dict().items()}, weights)
    found = masks(slim, judged, asked.batch)
    limit = asked.max_dice_drop or config.accuracy.max_dice_drop or MAX_DICE_DROP
    before, after = (overlap(part, right, classes) for part in (full_masks, found))
    verdict = judge(before, after, held.pictures, limit, asked.seed, against)
    card = card_of(run, placed(made, weights), recipe, learnt, held) | {"parameters": counts}
    write(folder, card, verdict, held, (full_masks, found))
    training.checkpoint.unlink(missing_ok=True)
    for line in (*(f"note: {note}" for note in verdict.notes), verdict.told):
        say(line)
    show(f"{folder}\n")
    return 0 if verdict.passed else FAILED

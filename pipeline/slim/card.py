"""The student's folder: a card for people and programs, and the images on which it loses most."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.analysis.summary import retyped
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.windows import viewable
from pipeline.records.content_digest import file_digest
from pipeline.records.request import ModelSpec
from pipeline.records.run_record import RunRecord
from pipeline.report.markdown import environment
from pipeline.slim.distil import Recipe
from pipeline.slim.gate import Verdict
from pipeline.worker.reference import mask_picture

GAP = 4  # pixels between pictures
SHOWN = 4  # images, one below the other


@dataclass(frozen=True)
class Student:
    """A slim network and how it came about."""

    spec: ModelSpec  # makes it
    parameters: tuple[int, int]  # of the full network and of this one
    recipe: Recipe
    learnt: Dataset
    held: Dataset


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


def write(folder: Path, run: RunRecord, student: Student, verdict: Verdict, masks: Sequence[np.ndarray]) -> None:
    """Write card.json, README.md and worst.png; `masks` [images, ...] are the full network's and the student's."""
    weights, data, held, learnt = Path(str(student.spec.checkpoint)), run.config.data, student.held, student.learnt
    document = {
        "passed": verdict.passed, "told": verdict.told, "verdict": asdict(verdict),
        "full": {"command": run.command, "weights_sha256": run.reference and run.reference.weights_sha256},
        "student": {"model": asdict(student.spec), "weights_sha256": file_digest(weights)},
        "parameters": {"full": student.parameters[0], "student": student.parameters[1]},
        "recipe": asdict(student.recipe),
        "data": {
            "name": data.name, "sha256": digest(held), "training_sha256": digest(learnt),
            "trained_on": len(learnt.images), "held_out": len(held.images),
            "training_labels": learnt.labels is not None,
        },
        "command": command(run, student.spec),
    }  # fmt: skip
    worst = [held.sources[at] for at in verdict.worst_images]
    shown = {"student": student, "verdict": verdict, "document": document, "worst": worst}
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

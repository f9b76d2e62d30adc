"""The fp32 network's answer, its noise and its work, against which stages are checked; masks as pictures."""

import copy
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from models.checkpoint import LOADED, Loaded, digest, digest_of
from pipeline.compiler.agreement import classes, distance
from pipeline.compiler.batch import Batch
from pipeline.errors import ModelError, typed_line
from pipeline.inputs.datasets import LABELS_BY
from pipeline.inputs.windows import middle_plane, viewable
from pipeline.measure.rotation import held_by
from pipeline.profiling.layers import layer_work
from pipeline.records.diagnostics import SKIP, LayerWork
from pipeline.records.request import Job
from pipeline.records.run_record import Reference
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import changed
from pipeline.worker.workload import further_batches

Kind = Literal["judged", "fresh", "denoised"]  # of answers in the reference's file
LEAST_LIMIT = 1e-2  # relative L2; a single batch may be further from fp32 than all verified ones together
ALLOWED_TIMES = 3  # the stage's tolerance, relative L2
FIRST_VALUES, FIRST_BYTES = 4096, 2**16  # values kept of an answer; bytes of their file
FP64_LIMIT_BYTES = 24 * 2**30  # of activations in fp64
# Of class 0, 1, 2, ...: dark ground, then colours that the colour-blind can tell apart (Okabe and Ito).
PALETTE = [(24, 24, 27), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0)]
SHOWN = 3  # images a stage


def compute(workload: Workload, job: Job) -> tuple[Reference, list[Tensor]]:
    """Return the reference and its logits for every judged batch, on the CPU; TF32 must be off."""
    model, batches = workload.model, workload.inputs[: workload.verified]
    unit = 1 if answered(model, batches[0].samples(0, 1)) else batches[0].shape[0]  # samples that a call must have
    one = batches[0].samples(0, unit)
    weights, loaded, masks = job.model.weights, LOADED.get(model, Loaded()), job.task.has_masks
    given = f"the labels given with the {workload.words.samples}"
    itself = loaded.itself if job.model.trained is None else job.model.trained
    with torch.inference_mode():
        logits = [model(*batch) for batch in batches]
        further = [model(*batch)[:count].cpu() for batch, count in further_batches(workload)]
        answers = [*(part.cpu() for part in logits), *further]
        check_numbers(answers, workload)
        repeat, works = model(*batches[0]), layer_work(model, *one)
        alone = torch.cat([model(*batches[0].samples(at, at + unit)) for at in range(0, batches[0].shape[0], unit)])
        reference = Reference(
            flops_per_image=sum(layer.flops for layer in works) // unit,
            parameters=sum(part.numel() for part in model.parameters()),
            weights_bytes=sum(part.numel() * part.element_size() for part in held_by(model).values()),
            weights_sha256=digest(weights) if weights else digest_of(model) if itself else None,
            repeat_relative_l2=distance(repeat, logits[0]),
            batch_relative_l2=distance(alone, logits[0]),
            fp64_relative_l2=fp64_error(model, one, logits[0][:unit], works),
            minimal_bytes_per_image=activation_bytes(works) // unit,
            images=list(workload.sources),
            labels=None if workload.labels is None else LABELS_BY.get(job.data.name, given),
            layers=[of_each(layer, unit) for layer in works],
            weights_stored_as=loaded.kinds,
            distinct=len(workload.sources) if workload.distinct is None else workload.distinct,
            spatial_dims=len(batches[0].shape) - 2,
            mask_classes=torch.cat([classes(part).unique() for part in logits]).unique().tolist() if masks else [],
        )
    return reference, answers


def check_numbers(answers: list[Tensor], workload: Workload) -> None:
    """Raise if an answer in fp32 isn't finite; name the first of the inputs that it is to."""
    finite = (bool(answer.isfinite().all()) for answer in chain.from_iterable(answers))
    wrong = next((number for number, holds in enumerate(finite) if not holds), None)
    if wrong is not None:
        name, source = type(workload.model).__name__, workload.sources[wrong]
        raise ModelError(f"model.target: {name} answers in fp32 with NaN or infinite values to {source}")


def of_each(layer: LayerWork, samples: int) -> LayerWork:
    """Return the work for one of several samples."""
    counts = {name: getattr(layer, name) // samples for name in ("flops", "read_elements", "written_elements")}
    return replace(layer, **counts)


def answered(model: nn.Module, inputs: Iterable[Tensor]) -> bool:
    """Return whether a call answers at all."""
    try:
        with torch.inference_mode():
            model(*(part.clone() for part in inputs))
    except Exception:  # noqa: BLE001 - a network's code may raise anything
        return False
    return True


def save_logits(answers: Mapping[Kind, Iterable[Tensor]], path: Path) -> None:
    """Save answers [batch, classes, height, width] for the workers of all stages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {f"{kind}{at}": part.contiguous() for kind, those in answers.items() for at, part in enumerate(those)}
    try:
        save_file(parts, path)
    except SafetensorError as error:  # which names no file
        raise OSError(f"{path}: can't be written ({error})") from error


def load_logits(path: Path, kind: Kind = "judged") -> list[Tensor]:
    """Return the answers of one kind, in the order in which they were saved."""
    with safe_open(path, "pt") as parts:
        count = sum(name.startswith(kind) for name in parts.keys())  # noqa: SIM118 - it is no mapping
        return [parts.get_tensor(f"{kind}{index}") for index in range(count)]


def save_first(answer: Tensor, path: Path) -> None:
    """Save some values of the network's answer to the first sample; they identify the network later."""
    path.write_bytes(save({"first": some_values(answer)}))  # `save_file` makes it unreadable for other users


def load_first(path: Path) -> Tensor | None:
    """Return what `save_first` kept; None where there is no such file."""
    if not path.is_file() or path.stat().st_size > FIRST_BYTES:
        return None
    with suppress(SafetensorError), safe_open(path, "pt") as parts:
        return parts.get_tensor("first")  # type: ignore[no-any-return]
    return None


def some_values(answer: Tensor) -> Tensor:
    """Return at most 4,096 evenly spread values of an answer [channels, …]: [channels, values], fp32, on the CPU."""
    several = answer.ndim > 1 and len(answer) <= FIRST_VALUES
    flat = answer.detach().flatten(1) if several else answer.detach().flatten()[None]
    count = flat.shape[1]
    places = torch.linspace(0, count - 1, min(count, FIRST_VALUES // len(flat)), dtype=torch.float64).round().long()
    return flat[:, places.to(flat.device)].float().cpu()


def fresh(batch: Batch) -> Batch:
    """Return a batch that no stage has seen: each first input rolled by a third of its height and width."""
    image = batch.first
    last = image.dim() - (image.dtype == torch.uint8)
    axes = tuple(range(max(1, last - 2), last))
    rolled = image.roll([image.shape[axis] // 3 or 1 for axis in axes], axes) if axes else image.clone()
    return Batch((rolled, *batch.tensors[1:]), batch.names)


def activation_bytes(layers: Iterable[LayerWork]) -> int:
    """Return the bytes that layers read and write in fp32 if each tensor passes device memory."""
    return sum(4 * (layer.read_elements + layer.written_elements) for layer in layers if layer.name != SKIP)


def fp64_error(model: nn.Module, one: Batch, logits: Tensor, layers: Iterable[LayerWork]) -> float | None:
    """Return the relative L2 of fp32 `logits` [1, …] from fp64; None where fp64 fails or needs too much memory."""
    if activation_bytes(layers) * 2 > FP64_LIMIT_BYTES:
        return None
    doubled = copy.deepcopy(model).double()
    try:
        return distance(logits, doubled(*changed(one, Tensor.double)))
    except Exception as error:  # noqa: BLE001 - a network may need fp32
        sys.stderr.write(f"no figure against fp64, in which the network fails: {typed_line(error)}\n")
        return None


def mask_picture(classes: np.ndarray) -> Image.Image:
    """Return classes [height, width], or the middle plane of [depth, height, width], as a picture with a palette."""
    picture = Image.fromarray((middle_plane(classes, axes=2) % len(PALETTE)).astype(np.uint8), mode="P")
    picture.putpalette([part for colour in PALETTE for part in colour])
    return picture


def save_pictures(classes: np.ndarray, folder: Path, images: np.ndarray | None = None) -> None:
    """Write the masks [images, height, width] of the first images as PNG, with a depth for volumes; and the images."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, mask in enumerate(classes[:SHOWN]):
        mask_picture(mask).save(folder / f"mask_{index}.png", optimize=True)
        if images is not None:
            Image.fromarray(viewable(images[index])).save(folder / f"image_{index}.png")

"""A stage of a finished run, made ready again from its record: the net with the weights that were measured, a batch."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint import digest
from pipeline.compiler.batch import Batch
from pipeline.compiler.half import SHORT
from pipeline.compiler.network_calls import without_tf32
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError
from pipeline.export.request import Ends, ExportError
from pipeline.inputs.datasets import middle_plane
from pipeline.inputs.input_contract import InputContract
from pipeline.records.content_digest import data_digest, file_digest
from pipeline.records.request import REFERENCE_FIRST, ExportKind
from pipeline.records.run_record import Artefact, RunRecord, StageRecord
from pipeline.report.gallery import mask_of
from pipeline.stages.api import Workload

if TYPE_CHECKING:
    from pipeline.worker.bench import Bench


@dataclass
class RecordedStage:
    """A stage, and what it ran on.

    Attributes:
        folder: the run's.
        run, stage: of the record.
        bench: the net and the images, as the run's worker had them.
        notes: what a reader of the bundle must know.
        ends: of the path to a mask, that are to lie in the artefact's graph.
    """

    folder: Path
    run: RunRecord
    stage: StageRecord
    bench: "Bench"
    notes: list[str] = field(default_factory=list)
    ends: Ends = field(default_factory=Ends)

    @property
    def workload(self) -> Workload:
        """The network and the images."""
        return self.bench.workload

    @property
    def given(self) -> list[Tensor]:
        """What the artefact takes: the batch, or its images [batch, height, width, channels]; then the others."""
        first, *others = self.inputs
        if self.ends.images_in and self.images is not None:
            first = torch.from_numpy(np.array(self.images)).to(self.workload.device)
        return [first, *others]

    def with_ends(self, net: nn.Module) -> nn.Module:
        """A net from the golden batch to logits, with the ends that are to lie in the graph."""
        return with_ends(net, self.workload.contract, self.ends, self.workload.device)

    @property
    def kind(self) -> ExportKind:
        """The form in which it leaves the project."""
        assert self.stage.spec.exports  # `request.chosen` refuses a stage without one
        return self.stage.spec.exports

    @property
    def batch(self) -> Tensor:
        """The golden batch [batch, channels, height, width], fp32, on the device."""
        return self.workload.batches[0]

    @property
    def inputs(self) -> Batch:
        """The golden batch with the net's further inputs."""
        return self.workload.inputs[0]

    @property
    def images(self) -> np.ndarray | None:
        """The same before normalisation, [batch, height, width, channels]; None of tensors, which are taken as is."""
        images = self.workload.images
        return None if images is None else images[: self.workload.shape[0]]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights as the stage ran them; fp32 where the record doesn't say."""
        return next((dtype for dtype, name in SHORT.items() if name == self.stage.precision), torch.float32)

    def kept(self, name: str) -> Path | None:
        """A file that the run keeps of the stage, unchanged since; None where there is none.

        Raises:
            ExportError: it isn't the one that was recorded.
        """
        found = next((part for part in self.stage.artefacts if Path(part.path).name == name), None)
        return None if found is None else self._unchanged(found)

    def _unchanged(self, artefact: Artefact) -> Path | None:
        path = self.folder / artefact.path
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ExportError(f"{artefact.path}: not within the run's folder")
        if not path.is_file():
            return None
        if file_digest(path) != artefact.sha256:
            raise ExportError(f"{path}: changed since the run recorded it; measure again: {self.run.command}")
        return path

    def built_again(self) -> list[Path]:
        """The stage's files, by building it as the run did.

        Raises:
            Skip, StageError: it can't be built here.
        """
        folder = self.workload.folder
        folder.mkdir(parents=True, exist_ok=True)
        self.bench.build()
        save = self.bench.runner.save
        return save(folder) if save else []


def check_weights(run: RunRecord) -> str | None:
    """Check that the checkpoint is the one that was measured; its digest, None with random weights.

    Raises:
        ExportError: it was changed since.
    """
    checkpoint, measured = run.config.model.weights, run.reference and run.reference.weights_sha256
    if not checkpoint:
        return None
    if (found := digest(checkpoint)) != measured:
        said = f"{found[:12]}… where the run measured {(measured or 'nobody knows which')[:12]}…"
        raise ExportError(f"model.checkpoint={checkpoint}: other weights than were measured ({said})")
    return measured


def opened(folder: Path, run: RunRecord, stage: StageRecord, scratch: Path) -> RecordedStage:
    """The stage with its net and its first batch, on the device of the run.

    Args:
        folder: the run's.
        run: its record.
        stage: one of it.
        scratch: a folder for what is built.

    Raises:
        ExportError: this machine has no such device, or the net or its images are not there any more.
    """
    kind = run.environment.device if run.environment else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ExportError("the run was measured on a CUDA GPU and torch sees none here; export where there is one")
    from pipeline.worker.run_stage import prepare  # and so compilers, which masks that are there need not wait for

    config = run.config
    try:
        job = config.job(stage.spec, "stage", scratch)
        threads = run.environment.cpu_threads if run.environment and kind != "cuda" else job.threads
        bench = prepare(replace(job, device=kind, threads=threads, reference=""), stage.net_layout)
        if not data_has_changed(run):
            check_net(folder, run, bench.workload.model, bench.inputs[0])
    except InputError as error:
        raise ExportError(str(error)) from None
    mean = "masks mean" if config.task.has_masks else "answers mean"
    notes = [] if config.model.is_trained else [f"the net has random weights: its {mean} nothing"]
    return RecordedStage(folder, run, stage, bench, notes)


EIGHT_BITS = 256  # classes, or values of a channel


def with_ends(net: nn.Module, contract: InputContract, ends: Ends, device: torch.device) -> nn.Module:
    """The net with these ends, on a device; itself without any."""
    return WithEnds(net, contract, ends).eval().to(device) if ends.flags else net


class WithEnds(nn.Module):
    """A net with ends of its path in its graph; what they compute is fp32, whatever the net is in.

    Args:
        net: from a normalised batch [batch, channels, height, width] to logits.
        contract: how an image becomes that batch.
        ends: those to be moved.
    """

    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, net: nn.Module, contract: InputContract, ends: Ends) -> None:
        super().__init__()
        self.net, self.ends = net, ends
        self.by_image = contract.normalize == "zscore"
        self.scale = float(contract.scale or EIGHT_BITS - 1)
        self.clips = contract.normalize == "ct"
        for name in ("mean", "std", *(["low", "high"] if self.clips else [])):
            values = torch.tensor(getattr(contract, name), dtype=torch.float32)
            self.register_buffer(name, values, persistent=True)

    def forward(self, given: Tensor) -> Tensor:
        """Logits, or classes [batch, height, width], of a batch or of uint8 images [batch, height, width, channels]."""
        answer: Tensor = self.net(self.normalised(given) if self.ends.images_in else given)
        return classes(answer) if self.ends.classes_out else answer

    def normalised(self, images: Tensor) -> Tensor:
        """Images [batch, height, width, channels], uint8, as `to_batch` makes them; of volumes a depth before."""
        planes = images.movedim(-1, 1).to(torch.float32) / self.scale
        space, ones = tuple(range(2, images.dim())), [1] * (images.dim() - 2)
        if self.clips:
            planes = planes.clamp(self.low.reshape(-1, *ones), self.high.reshape(-1, *ones))
        if not self.by_image:
            return ((planes - self.mean.reshape(-1, *ones)) / self.std.reshape(-1, *ones)).contiguous()
        mean = planes.mean(space, keepdim=True)
        std = ((planes - mean) ** 2).mean(space, keepdim=True).sqrt()
        plain = planes.amax(space, keepdim=True) == planes.amin(space, keepdim=True)
        return ((planes - mean) / torch.where(plain, torch.ones_like(std), std)).contiguous()


def classes(logits: Tensor) -> Tensor:
    """[batch, height, width]: the largest logit's class, of a single channel whether it is above 0.

    uint8 of up to 256 classes, else int32.
    """
    kind = torch.uint8 if logits.shape[1] <= EIGHT_BITS else torch.int32
    return (logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] > 0).to(kind)


MOST_MOVED = 0.02  # share of an image's pixels: four times what the widest tolerance of conf/stage lets a stage move
MOST_OFF = 0.01  # of the spread of its answer, beyond twice the net's own noise: another device's sums lie below
LEAST_SPREAD = 0.1  # of the values


def check_net(folder: Path, run: RunRecord, net: nn.Module, batch: Batch) -> None:
    """That the net answers the run's first sample as it did in the run, which has kept some values of that answer.

    A mask alone may hide another net: where both find one class, as random weights nearly do, it is the same. Of an
    older run it is all that there is. Where neither is there, nothing is checked.

    Args:
        folder: of the run.
        run: its record.
        net: in fp32, as the record makes it.
        batch: the run's first, on the net's device.

    Raises:
        ModelError: the net can't answer it.
        RequestError: it answers otherwise.
    """
    from pipeline.worker.answer_checks import Net, called  # and so what only a net that is built needs
    from pipeline.worker.reference import load_first

    first = load_first(folder / REFERENCE_FIRST)
    picture = mask_of(folder, "reference", 0) if run.config.task.has_masks else None
    if first is None and picture is None:
        return
    name = run.config.model.target or run.config.model.file
    with without_tf32():
        answer = called(Net(type(net).__name__, net, batch, run.config.task))
    if not isinstance(answer, torch.Tensor):
        raise RequestError(f"{name}: it gave a tensor in the run, and now {type(answer).__name__}")
    known = run.reference
    noise = known.repeat_relative_l2 + known.batch_relative_l2 if known else 0.0
    other = (
        other_values(first, answer, MOST_OFF + 2 * noise)
        if first is not None
        else other_mask(np.asarray(picture), answer)
    )
    if other:
        raise RequestError(
            f"{name}: it gives {other} than in the run: the net's code, its options or the images' normalisation are "
            f"others than were measured; measure again: {run.command}"
        )


def other_values(kept: torch.Tensor, answer: torch.Tensor, allowed: float) -> str:
    """What is another than it was, in a clause; empty where the first sample's answer is what it was.

    Args:
        kept: some values of it, from the run.
        answer: the net's to the first batch now, [batch, …].
        allowed: distance, of the spread of the kept.
    """
    from pipeline.worker.reference import some_values

    found = some_values(answer[0])
    off = apart(found, kept) if found.shape == kept.shape else math.inf
    return "" if off <= allowed else f"the run's first sample another answer ({off:.2g} of its spread apart)"


def apart(found: torch.Tensor, kept: torch.Tensor) -> float:
    """How far values [channels, values] lie from those kept, by the spread of these about each channel's mean.

    A class that outdoes all others everywhere is far from 0: relative L2 would be small whatever the image. Where
    there is little spread, a tenth of the values' own size counts in its place.
    """
    spread = (kept - kept.mean(1, keepdim=True)).norm()
    scale = float(torch.maximum(spread, LEAST_SPREAD * kept.norm()))
    off = float((found - kept).norm())
    return 0.0 if off == 0 else off / scale if scale else math.inf


def other_mask(kept: np.ndarray, answer: torch.Tensor) -> str:
    """Likewise, by the mask [height, width] that the run has drawn of the first image."""
    from pipeline.worker.reference import PALETTE

    found = middle_plane(classes(answer)[0].cpu().numpy(), axes=2) % len(PALETTE)
    moved = 1.0 if found.shape != kept.shape else float(np.mean(found != kept))
    return "" if moved <= MOST_MOVED else f"{100 * moved:.3g} % of the run's first image another class"


def data_has_changed(run: RunRecord) -> bool:
    """Whether the run's own images or labels are others by now."""
    data = run.config.data
    return bool(run.data_sha256) and run.data_sha256 != data_digest([data.path, data.labels])

"""A stage of a finished run, prepared again from its record, and the check that it is what was measured."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint import digest
from pipeline.analysis.plans_note import training_notes
from pipeline.compiler.batch import Batch
from pipeline.compiler.ends import Ends as GraphEnds
from pipeline.compiler.half import SHORT
from pipeline.compiler.network_calls import without_tf32
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError
from pipeline.export.request import NO_ENDS, Ends, ExportError
from pipeline.records.disk import data_digest, file_digest
from pipeline.records.request import REFERENCE_FIRST, ExportKind, Job
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stages.api import Workload
from pipeline.stages.common.ends import ends_of

if TYPE_CHECKING:
    from pipeline.worker.bench import Bench


@dataclass
class RecordedStage:
    """A stage with its network and images."""

    folder: Path  # the run's
    run: RunRecord  # its record
    stage: StageRecord
    bench: "Bench"  # the network and the images, as the run's worker had them
    notes: list[str] = field(default_factory=list)  # for a reader of the bundle
    ends: Ends = NO_ENDS  # to be in the artefact's graph

    @property
    def workload(self) -> Workload:
        """The network and the images."""
        return self.bench.workload

    @property
    def called(self) -> Workload:
        """The workload as the artefact is called: with its ends, on images where it normalises them."""
        return self.workload.called_with(self.modules_of(self.ends))

    @property
    def given(self) -> list[Tensor]:
        """The artefact's inputs: the batch, or its images [batch, height, width, channels]; then the others."""
        return [*self.called.inputs[0]]

    @property
    def added(self) -> Ends:
        """The ends that the stage's own graph doesn't have."""
        return self.ends & ~Ends.of(self.stage.spec.options)

    def with_ends(self, net: nn.Module, ends: Ends | None = None) -> nn.Module:
        """Return a network with ends in its graph: without `ends` with all."""
        return self.modules_of(self.ends if ends is None else ends).whole(net)

    def modules_of(self, ends: Ends) -> GraphEnds:
        """Return the modules of ends."""
        work, uint8_in, classes_out = self.workload, Ends.UINT8_IN in ends, Ends.CLASSES_OUT in ends
        return ends_of(work.contract, uint8_in, classes_out, len(work.shape), work.device)

    @property
    def kind(self) -> ExportKind:
        """Form of the artefact."""
        assert self.stage.spec.exports  # `request.chosen` refuses a stage without one
        return self.stage.spec.exports

    @property
    def batch(self) -> Tensor:
        """The golden batch [batch, channels, height, width], fp32, on the device."""
        return self.workload.batches[0]

    @property
    def inputs(self) -> Batch:
        """The golden batch with the network's further inputs."""
        return self.workload.inputs[0]

    @property
    def images(self) -> np.ndarray | None:
        """The golden batch before normalisation, [batch, height, width, channels]; None for tensors."""
        images = self.workload.images
        return None if images is None else images[: self.workload.shape[0]]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights as the stage ran them; fp32 if the record has none."""
        return next((dtype for dtype, name in SHORT.items() if name == self.stage.precision), torch.float32)

    def kept(self, name: str) -> Path | None:
        """Return a file that the run keeps of the stage; None if there is none; raises ExportError."""
        entry = next((part for part in self.stage.artefacts if Path(part.path).name == name), None)
        if entry is None:
            return None
        path = self.folder / entry.path
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise ExportError(f"{entry.path}: not within the run's folder")
        if not path.is_file():
            return None
        if file_digest(path) != entry.sha256:
            raise ExportError(f"{path}: changed since the run recorded it; measure again: {self.run.command}")
        return path

    def built_again(self) -> list[Path]:
        """Build the stage as the run did, and return its files; raises Skip, StageError."""
        self.bench.build()
        save = self.bench.runner.save
        return save(self.workload.folder) if save else []


def check_weights(run: RunRecord) -> str | None:
    """Check that the checkpoint hasn't changed, and return the weights' digest; None with random weights."""
    checkpoint, measured = run.config.model.weights, run.reference and run.reference.weights_sha256
    if not checkpoint:
        return measured or None
    if (now := digest(checkpoint)) != measured:
        said = f"{now[:12]}… where the run had {(measured or 'unknown')[:12]}…"
        raise ExportError(f"model.checkpoint={checkpoint}: the weights have changed since the run ({said})")
    return measured


def opened(folder: Path, run: RunRecord, stage: StageRecord, scratch: Path) -> RecordedStage:
    """Prepare the stage with its network and images, on the device of the run; raises ExportError."""
    kind = run.environment.device if run.environment else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ExportError("the run was measured on a CUDA GPU and torch sees none here; export where there is one")
    job = run.config.job(stage.spec, "stage", scratch)
    threads = run.environment.cpu_threads if run.environment and kind != "cuda" else job.threads
    try:
        bench = prepared(folder, run, replace(job, device=kind, threads=threads, reference=""), data_has_changed(run))
    except InputError as error:
        raise ExportError(str(error)) from None
    notes = [*training_notes(run.config), *(each.text for each in run.warnings if each.code == "parts left out")]
    return RecordedStage(folder, run, stage, bench, [*notes, *notes_of_weights(run)])


def prepared(folder: Path, run: RunRecord, job: Job, other_data: bool) -> "Bench":
    """Prepare a stage as the run's worker did; raise if its network answers otherwise, unless the data are others."""
    from pipeline.worker.run_stage import prepare  # imports compilers, which finished masks need not wait for

    bench = prepare(job, next((stage.net_layout for stage in run.stages if stage.name == job.stage.name), None))
    if not other_data:
        check_net(folder, run, bench.workload.model, bench.inputs[0])
    return bench


def notes_of_weights(run: RunRecord) -> list[str]:
    """Return a note if the network's weights are random."""
    answers = "masks" if run.config.task.has_masks else "answers"
    note = f"the network has random weights: its {answers} mean nothing; {UNLESS_TRAINED}"
    return [] if run.config.model.is_trained else [note]


UNLESS_TRAINED = "measure with model.trained=true if its own code loads trained ones"
MOST_OFF = 0.01  # of the answer's spread, beyond twice the network's own noise: another device's sums lie below
LEAST_SPREAD = 0.1  # share of the values' size


def check_net(folder: Path, run: RunRecord, net: nn.Module, batch: Batch) -> None:
    """Raise unless the network answers the run's first sample as it did in the run, which kept some of the values."""
    from pipeline.worker.answer_checks import Net, called  # imported late: finished masks need no network
    from pipeline.worker.reference import load_first

    first = load_first(folder / REFERENCE_FIRST)
    if first is None:
        return
    name = run.config.model.target or run.config.model.file
    with without_tf32():
        answer = called(Net(type(net).__name__, net, batch, run.config.task))
    if not isinstance(answer, torch.Tensor):
        raise RequestError(f"{name}: it gave a tensor in the run, and now {type(answer).__name__}")
    known = run.reference
    noise = known.repeat_relative_l2 + known.batch_relative_l2 if known else 0.0
    off = distance(first, answer)
    if off > MOST_OFF + 2 * noise:
        raise RequestError(
            f"{name}: its answer to the run's first sample has changed ({off:.2g} of its spread): the network's code, "
            f"its options or the images' normalisation differ from the run; measure again: {run.command}"
        )


def distance(kept: torch.Tensor, answer: torch.Tensor) -> float:
    """Return how far an answer [batch, …] is from values [channels, values] that the run kept of its first sample.

    The unit is their spread about each channel's mean, or a tenth of their size if that is more: of a class that is
    the largest everywhere, relative L2 would be small whatever the image.
    """
    from pipeline.worker.reference import some_values

    values = some_values(answer[0])
    if values.shape != kept.shape:
        return math.inf
    spread = (kept - kept.mean(1, keepdim=True)).norm()
    scale = float(torch.maximum(spread, LEAST_SPREAD * kept.norm()))
    off = float((values - kept).norm())
    return 0.0 if off == 0 else off / scale if scale else math.inf


def data_has_changed(run: RunRecord) -> bool:
    """Return whether the run's own images or labels have changed."""
    data = run.config.data
    return bool(run.data_sha256) and run.data_sha256 != data_digest([data.path, data.labels])

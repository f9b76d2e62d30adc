"""A stage of a finished run, made ready again from its record: the net with the weights that were measured, a batch."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint import digest
from models.image_batches import to_batch
from pipeline.compiler.batch import IMAGE, Batch
from pipeline.compiler.half import SHORT
from pipeline.config.data_request import TENSORS
from pipeline.devices.kinds import is_cuda
from pipeline.errors import InputError
from pipeline.export.as_measured import check_net
from pipeline.export.export_request import Ends, ExportError
from pipeline.export.moved_ends import with_ends
from pipeline.inputs.datasets import load_dataset, window
from pipeline.records.bundle_kinds import ExportKind
from pipeline.records.content_digest import file_digest
from pipeline.records.request import StageSpec
from pipeline.records.run_record import Artefact, RunRecord, StageRecord
from pipeline.stages.api import Workload
from pipeline.worker.recorded_run import recorded_calibration, recorded_inputs, recorded_net, rotation_of
from pipeline.worker.stage_target import build_function

SCRATCH_BATCHES = 3  # of the golden images, as a run has at least


@dataclass
class RecordedStage:
    """A stage, and what it ran on.

    Attributes:
        folder: the run's.
        run, stage: of the record.
        workload: the net, and one batch of the run's first images.
        notes: what a reader of the bundle must know.
        ends: of the path to a mask, that are to lie in the artefact's graph.
    """

    folder: Path
    run: RunRecord
    stage: StageRecord
    workload: Workload
    notes: list[str] = field(default_factory=list)
    ends: Ends = field(default_factory=Ends)

    @property
    def given(self) -> list[Tensor]:
        """What the artefact takes: the batch, or its images [batch, height, width, channels]; then the others."""
        first, *others = self.inputs
        if self.ends.images_in and self.images is not None:
            first = torch.from_numpy(np.ascontiguousarray(self.images)).to(self.workload.device)
        return [first, *others]

    def with_ends(self, net: nn.Module) -> nn.Module:
        """A net from the golden batch to logits, with the ends that are to lie in the graph."""
        return with_ends(net, self.workload.contract, self.ends, self.workload.device)

    @property
    def kind(self) -> ExportKind:
        """The form in which it leaves the project."""
        assert self.stage.exports  # `export_request.chosen` refuses a stage without one
        return self.stage.exports

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
        return self.workload.images

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
        stage = self.stage
        tolerance = stage.tolerance
        spec = StageSpec(stage.name, stage.target, stage.summary, "", [], "", stage.legacy, tolerance, stage.options)
        self.workload.folder.mkdir(parents=True, exist_ok=True)
        runner = build_function(spec)(self.workload, **stage.options)
        return runner.save(self.workload.folder) if runner.save else []


def check_weights(run: RunRecord) -> str | None:
    """Check that the checkpoint is the one that was measured; its digest, None with random weights.

    Raises:
        ExportError: it was changed since.
    """
    checkpoint, measured = run.settings.model.weights, run.reference and run.reference.weights_sha256
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
    if is_cuda(kind) and not torch.cuda.is_available():
        raise ExportError("the run was measured on a CUDA GPU and torch sees none here; export where there is one")
    device, asked = torch.device(kind), run.settings
    if not is_cuda(kind) and run.environment:
        torch.set_num_threads(run.environment.cpu_threads)
    if asked.data.batch_size is None:
        raise ExportError("the record holds no batch size: its request was refused")
    model, data = asked.model, asked.data
    try:
        net = recorded_net(run).to(device)
        golden = of_tensors if data.name == TENSORS else of_images
        work = golden(run, net, device, scratch / stage.name).taken_in(stage.net_layout)
        check_net(folder, run, net, work.inputs[0])
    except InputError as error:
        raise ExportError(str(error)) from None
    mean = "masks mean" if asked.task.has_masks else "answers mean"
    notes = [] if model.trained else [f"the net has random weights: its {mean} nothing"]
    return RecordedStage(folder, run, stage, work, notes)


def of_images(run: RunRecord, net: nn.Module, device: torch.device, folder: Path) -> Workload:
    """The net with the run's first images, or volumes."""
    data, size = run.settings.data, run.batch_size
    window_size = window(data.name, data.image_size, data.depth)
    rules = (data.contract, data.label_rules)
    found = load_dataset(data.name, data.path, None, window_size, size * SCRATCH_BATCHES, *rules)
    batches = list(to_batch(found.images, data.contract).to(device).split(size))
    return Workload(
        net,
        batches,
        device,
        folder,
        images=found.images[:size],
        contract=data.contract,
        spare=recorded_calibration(run, [IMAGE], device, rotation_of(run, batches[0].nbytes)[1]),
        has_masks=run.settings.task.has_masks,
    )


def of_tensors(run: RunRecord, net: nn.Module, device: torch.device, folder: Path) -> Workload:
    """The net with the run's first samples of tensors."""
    rotations = recorded_inputs(run, net, device, SCRATCH_BATCHES)
    first, *others = rotations
    verified = rotation_of(run, sum(part[0].nbytes for part in rotations.values()))[1]
    return Workload(
        net,
        rotations[first],
        device,
        folder,
        spare=recorded_calibration(run, list(rotations), device, verified),
        name=first,
        others={each: rotations[each] for each in others},
        has_masks=run.settings.task.has_masks,
    )

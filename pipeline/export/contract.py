"""The contract of a bundle: what the network takes and gives, and how fast it was measured."""

import json
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Literal

from msgspec import Meta

from pipeline.config.request_error import RequestError
from pipeline.errors import OneLineError, first_line
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records import codec
from pipeline.records.data_words import Words, words_for
from pipeline.records.goals import TaskName, Tolerance
from pipeline.records.request import ExportKind
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.records.samples import Service
from pipeline.stats.intervals import seconds_per_call

PACKAGES: dict[ExportKind, tuple[str, ...]] = {  # distributions, of which those that are installed are required
    "onnx": ("onnxruntime-gpu", "onnxruntime", "numpy"),
    "torchscript": ("torch",),
    "exported": ("torch",),
    "aot_inductor": ("torch", "triton"),
    "own_kernels": ("torch", "triton"),
}
FILE, LOADER = "contract.json", "load.py"
FORMAT = 1
Side = Annotated[int, Meta(ge=1, le=2**31 - 1)]
IMAGE_AXES = 4  # batch, channels, height, width
Dynamic = Literal["batch", "size"]


class ContractError(OneLineError):
    """A folder without a readable contract, or a stage that can't have one; one line."""


@dataclass(frozen=True)
class TensorRule:
    """A tensor that the network takes or gives."""

    name: str  # in the artefact
    # of the golden batch: batch, channels or classes, height, width; other with ends in the graph
    shape: Annotated[list[Side], Meta(min_length=1, max_length=8)]
    dtype: Annotated[str, Meta(pattern="^(b?float16|float32|uint8|int(32|64)|bool)$")]  # such as "float32"
    dynamic: list[Dynamic] = field(default_factory=list)  # axes with variable length


@dataclass(frozen=True)
class Measured:
    """The speed that the run measured, and the machine."""

    ms_per_call: float | None  # of the golden batch's size; None without samples of the stage
    device: Literal["cuda", "cpu"]
    device_name: str
    driver: str | None
    cuda: str | None
    threads: Annotated[int, Meta(ge=1, le=1024)] | None  # torch's, on a CPU
    packages: dict[str, str] = field(default_factory=dict)  # name to version


@dataclass(frozen=True)
class Judged:
    """The distance of the bundle's answers from the fp32 network's, over the images that the run judged."""

    images: int
    relative_l2: float | None  # of logits or values; None if the graph gives classes
    flipped_share: float | None  # of pixels; None for values


@dataclass(frozen=True)
class GoldenLimits:
    """The allowed distance of the golden batch's answer from the fp32 network's."""

    relative_l2: float
    flipped_share: float


@dataclass(frozen=True)
class Contract:
    """The facts about a bundle that its loader, or a program that calls the loader, needs."""

    stage: str  # its name in the run
    target: str  # import path of the stage's module
    kind: ExportKind  # of the artefact
    artefact: str  # its path in the bundle
    input: TensorRule  # the normalised batch, unless `images_in`
    output: TensorRule  # the logits, or values, unless `classes_out`
    normalisation: InputContract  # how an image becomes the input
    tolerance: Tolerance  # of the stage, over all images that the run judged
    masks_judged: bool  # False with random weights, or if all masks were of one class
    measured: Measured  # milliseconds, and the machine
    weights_sha256: str | None  # of the checkpoint; None with random weights
    command: str  # of the run that measured it
    rebuild: str = ""  # the command that makes the bundle again
    deterministic: bool | None = None  # another process gave the same bits; None if not tried
    finite: bool | None = None  # its answers to constant inputs were; None if not tried
    loader: dict[str, str] = field(default_factory=dict)  # options of the loader, such as a session's
    notes: list[str] = field(default_factory=list)  # for a reader, such as a form that differs from the measured one
    images_in: bool = False  # the input is images, [batch, height, width, channels], uint8
    classes_out: bool = False  # the output is classes, [batch, height, width]
    format: int = FORMAT
    others: list[TensorRule] = field(default_factory=list)  # the network's further inputs, in order
    task: TaskName = "segmentation"  # of the network
    takes_images: bool = True  # `normalisation` makes the first input from images or volumes; else it is taken as is
    image_type: str | None = None  # of the run's images, such as uint8; None for other inputs
    classes: int | None = None  # number of classes of a mask; None for values
    labels: LabelRules | None = None  # the rules of the run's label files; None without any
    judged: Judged | None = None  # the distance over these images; None until the bundle is judged
    # limits for the golden batch alone, which may exceed the tolerance; None until the bundle is judged
    golden: GoldenLimits | None = None
    service: Service | None = None  # the process that checked it; None until it is checked

    def __post_init__(self) -> None:
        """Raise ValueError if the parts contradict each other."""
        place, batch = PurePath(self.artefact), self.batch_shape
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"artefact {self.artefact} lies outside of the bundle")
        if self.takes_images and (len(batch) not in (IMAGE_AXES, IMAGE_AXES + 1) or batch[1] != self.channels):
            raise ValueError(f"an input of shape {self.input.shape} for images of {self.channels} channels")
        if self.images_in and self.input.dtype != "uint8":
            raise ValueError(f"images_in with an input of {self.input.dtype}")
        if self.makes_masks and self.output.shape[0] != batch[0]:
            raise ValueError(f"an output of shape {self.output.shape} for a batch of {batch[0]}")
        if self.input.dynamic and self.kind != "onnx":
            raise ValueError(f"dynamic axes of a network in the form {self.kind}")

    @property
    def channels(self) -> int:
        """Number of channels of its images."""
        return self.normalisation.channels

    @property
    def golden_limits(self) -> GoldenLimits:
        """Limits for the golden batch; the tolerance until the bundle is judged."""
        return self.golden or GoldenLimits(self.tolerance.relative_l2, self.tolerance.flipped_share)

    @property
    def makes_masks(self) -> bool:
        """True if it makes masks of images or volumes, without further inputs."""
        return self.takes_images and not self.others and self.task == "segmentation"

    @property
    def is_predicted(self) -> bool:
        """True if `predict` writes its answers: masks, or the values of a regression on volumes."""
        of_values = self.task == "regression" and self.takes_volumes and not self.others
        return self.makes_masks or of_values

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Batch, channels, height and width; of volumes a depth before the height."""
        batch, *rest = self.input.shape
        return (batch, rest[-1], *rest[:-1]) if self.images_in else (batch, *rest)

    @property
    def words(self) -> Words:
        """Nouns for its data: images or volumes."""
        return words_for(len(self.batch_shape) - 2)

    @property
    def takes_volumes(self) -> bool:
        """True if its images have a depth."""
        return self.takes_images and len(self.input.shape) > IMAGE_AXES


def measured_of(run: RunRecord, stage: StageRecord) -> Measured:
    """Return the speed and the machine of a stage's record; raises ContractError."""
    there = run.environment
    if there is None:
        raise ContractError("the run's record doesn't describe its machine: the run never started")
    took = seconds_per_call(stage.pairs).value * 1e3 if stage.pairs else None
    threads = there.cpu_threads if there.device == "cpu" else None
    device: Literal["cuda", "cpu"] = "cpu" if there.device == "cpu" else "cuda"
    return Measured(took, device, there.device_name, there.driver, there.cuda, threads, dict(there.packages))


def load_contract(folder: Path) -> Contract:
    """Load the contract of a bundle; raises ContractError."""
    path = folder / FILE
    if path.exists() and not path.is_file():
        raise ContractError(f"{path}: no regular file")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("format") != FORMAT:
            raise ContractError(f"{path}: format {value.get('format')!r}, this version reads {FORMAT}")
        return codec.from_json(Contract, value)
    except (FileNotFoundError, NotADirectoryError):
        raise ContractError(f"{path}: no such file; name a folder that pipeline.export wrote") from None
    except (OSError, RecursionError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise ContractError(f"{path}: no contract ({first_line(error)})") from None


def is_bundle(folder: Path) -> bool:
    """Return whether pipeline.export wrote the folder."""
    return (folder / FILE).is_file()


def predicted_contract(folder: Path) -> Contract:
    """Load the contract of a bundle whose network makes masks, or values of volumes."""
    contract = load_contract(folder)
    if not contract.is_predicted:
        takes = ", ".join(f"{rule.name} {rule.shape}" for rule in (contract.input, *contract.others))
        raise RequestError(
            f"{folder}: predict makes masks of images and volumes; this network takes {takes}, task={contract.task}: "
            "call its load.py"
        )
    return contract

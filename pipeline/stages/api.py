"""The interface of a stage: a module with `build(workload, *, options) -> Runner`.

Its options are those of its file in conf/stage, which says what each means.

A stage copies, casts, exports, compiles and tunes before `build` returns. It never changes the workload's model and
images, nor the process; one that does is refused (`pipeline.worker.contract`). A stage that needs another network works
on a deep copy. Set a torch-wide switch inside `run` and put it back; only TF32 and cudnn.benchmark are a stage's own.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.compiler.batch import IMAGE, Batch, of_batches
from pipeline.compiler.ends import Ends
from pipeline.errors import first_line
from pipeline.inputs.input_contract import InputContract
from pipeline.records.data_words import Words, words_for
from pipeline.records.diagnostics import BytesSource, SearchAsked, SearchCount
from pipeline.records.request import SCRATCH
from pipeline.records.run_record import CompileFacts, Execution, FailureKind, Order
from pipeline.records.samples import Calibration, ImageSet

INSTALLED = __name__.startswith("unet_ladder")  # from a wheel: a checkout's package is `pipeline`
IMAGE_RANK = 4  # of [batch, channels, height, width]
Traffic = tuple[int, BytesSource]  # bytes that a call moves through device memory, and who counted them


class Skip(Exception):  # noqa: N818 - no error: the stage can't run on this machine
    """An error of `build`: the stage can't run on this machine; its text is the one-line reason."""

    def __init__(self, reason: str, kind: FailureKind = "unsupported") -> None:
        super().__init__(reason)
        self.kind = kind


class StageError(Exception):
    """An error of `build`: something else would run than was asked for; its text is the one-line reason."""

    def __init__(self, reason: str, kind: FailureKind = "error") -> None:
        super().__init__(reason)
        self.kind = kind


def silent(_: str) -> None:
    """Ignore the `progress` of a stage that is not watched."""


class CalibrationImages(NamedTuple):
    """The images that a stage may choose its scales on."""

    batches: list[Batch]  # each with all inputs of the network; of images [batch, channels, height, width]
    independent: bool  # whether none of them is among those that the answer is checked on
    pictures: tuple[str, ...] = ()  # of each image the picture that it is a window of; empty if unknown
    # batches, by their number among the evaluation batches, that the answer must then not be judged on
    left_out: tuple[int, ...] = ()

    def image_set(self, first: int, last: int) -> ImageSet:
        """Return what the record keeps of the batches from `first` up to `last`."""
        size = len(self.batches[0].first)
        return ImageSet(size * (last - first), list(dict.fromkeys(self.pictures[size * first : size * last])))


@dataclass
class LayoutChoice:
    """The layout of a network for stages that choose one."""

    layout: Order = "NHWC"  # NHWC, or NCHW for a network that doesn't take channels_last
    why: str = ""  # then what its own code says
    taken: Order | None = None  # the layout, once a stage has laid the network out; None before

    def take(self) -> Order:
        """Return the layout for a stage that lays the network out, and note that it does."""
        self.taken = self.layout
        return self.layout


@dataclass(frozen=True)
class Workload:
    """The network and its images; a stage reads it and never changes it."""

    model: nn.Module  # the network in fp32, in eval mode, on `device`
    # the rotation of the network's first input: [batch, channels, height, width], with a depth before the height for
    # volumes, of any rank for the user's tensors; fp32, contiguous, on `device`, all of one shape
    batches: list[Tensor]
    device: torch.device  # the device of the stage
    folder: Path  # the stage's own folder, for its artefacts and caches
    seed: int = 0  # of everything drawn at random
    # [images, height, width] of the images in the order of `images`, uint8, 255 for unlabelled pixels
    labels: np.ndarray | None = None
    # [images, height, width, channels] before normalisation, uint8, uint16 or fp32: those of `batches` in order, and
    # more if more are judged
    images: np.ndarray | None = None
    contract: InputContract = field(default_factory=InputContract)  # how `batches` were made of `images`
    sources: tuple[str, ...] = ()  # the origin of each image
    distinct: int | None = None  # the number of images, from the first, that are samples of their own; None for all
    pictures: tuple[str, ...] = ()  # the picture of which each image is a window
    left_out: tuple[str, ...] = ()  # other files in the folders of images and labels, and why they aren't read
    verified: int = 1  # the number of batches, from the first, that the answer is checked on
    judged: int = 0  # the number of evaluation images, from the first, if these are more than the verified batches
    # caches that another process of the same stage left, to build from; None for a cold build
    earlier: Path | None = None
    # gives that many images, or a few more, that the answer isn't checked on; None if there are none
    spare: Callable[[int], CalibrationImages] | None = None
    progress: Callable[[str], None] = silent  # takes a few words on what the build is doing
    name: str = IMAGE  # of the first input, as the network's forward calls it; "image" for images
    # the network's further inputs by name, in the order of its forward, each a rotation as `batches`
    others: dict[str, list[Tensor]] = field(default_factory=dict)
    # gives samples from one number up to another beyond those of `batches`, if they aren't of `images`
    further: Callable[[int, int], Batch] | None = None
    # the right answers of a regression network, [samples, ...], fp32, on the CPU; None if unknown
    targets: Tensor | None = None
    has_masks: bool = True  # whether the network's answers are classes
    # the layout of the network for a stage that chooses one, which takes it by `take()`
    layout_choice: LayoutChoice = field(default_factory=LayoutChoice)

    @property
    def inputs(self) -> list[Batch]:
        """The rotation with all inputs: the network is called as `model(*inputs[0])`."""
        names, rows = (self.name, *self.others), zip(self.batches, *self.others.values(), strict=True)
        return [Batch(tensors, names) for tensors in rows]

    def taken_in(self, layout: Order | None) -> "Workload":
        """Return the workload for a stage of a finished run that took `layout`, or None if it chose none."""
        return self if layout is None else replace(self, layout_choice=LayoutChoice(layout))

    def called_with(self, ends: Ends) -> "Workload":
        """Return the workload as a stage with these ends is called: with images, and the network between its ends."""
        model = ends.whole(self.model)
        if ends.before is None or self.images is None:
            return replace(self, model=model)
        size = self.shape[0]
        images = torch.from_numpy(np.array(self.images[: size * len(self.batches)])).to(self.device)
        return replace(self, model=model, batches=list(images.split(size)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a batch of the first input: [batch, channels, height, width] for images."""
        return tuple(self.batches[0].shape)

    @property
    def words(self) -> Words:
        """The name of its data: images, or volumes."""
        return words_for(len(self.shape) - 2)

    def calibration(self, images: int) -> CalibrationImages:
        """Return images for scales, in whole batches, other than those that the answer is checked on."""
        if self.spare is not None:
            return self.spare(images)
        count, rest = math.ceil(images / self.shape[0]), self.inputs[self.verified :]
        return CalibrationImages((rest or self.inputs)[:count], independent=bool(rest))

    @property
    def caches(self) -> Path:
        """The folder of the compilers' caches, until the run ends."""
        return self.earlier or self.folder / SCRATCH


def no_traffic(*_: Tensor) -> None:
    """Return None as the `traffic` of a runtime whose work torch's dispatcher doesn't see."""


@dataclass(frozen=True)
class Runner:
    """A stage, built and ready. `run` and `description` are enough; the rest is for a stage that can say more."""

    # takes a batch [batch, channels, height, width], fp32, contiguous, on the workload's device. It returns the logits
    # [batch, classes, height, width] in any floating dtype on the same device: a plain torch.Tensor in memory of its
    # own, or a view of a buffer that the next call overwrites, as a replayed graph gives. Work is queued on the current
    # stream. A network with several inputs takes them one by one, in the workload's order.
    run: Callable[..., Tensor]
    description: str  # what really runs, in a line
    # the same as properties. The worker observes what it leaves None. A stage whose precision contradicts what the
    # worker observes isn't ranked.
    execution: Execution | None = None
    # further values for the record: JSON values only, null instead of NaN
    details: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None  # the images that it chose scales or layers on
    # batches that it is not judged on because it chose on them, by their number among the evaluation batches
    left_out: tuple[int, ...] = ()
    compile_facts: Callable[[], CompileFacts] | None = None  # gives what was compiled and tuned so far
    # the libraries that it asks to search for the fastest algorithm; torch itself tells of cuDNN
    searches_asked: tuple[SearchAsked, ...] = ()
    searched: tuple[SearchCount, ...] = ()  # the searches of a runtime that torch doesn't see
    # counts the compilations so far; a sample in which it grows is measured again; without a compiler there are 0
    compilations: Callable[[], int] = int
    # writes the artefacts into the folder and returns their paths; None if there are none
    save: Callable[[Path], list[Path]] | None = None
    # the network whose submodules run one by one within `run`, or within `uncaptured`; None if unknown
    module: nn.Module | None = None
    # takes what `run` takes and launches singly the kernels that `run` replays; None if `run` launches them itself
    uncaptured: Callable[..., Tensor] | None = None
    # takes what `run` takes and gives the bytes that a call moves through device memory, or None. Without it the bytes
    # are counted at torch's dispatcher, which sees the operators of `uncaptured`, or of `run`.
    traffic: Callable[..., Traffic | None] | None = None
    # whether its runtime hands the network to torch while torch's dispatcher looks on. What is seen there is then not
    # the stage's, and the stage must declare its execution.
    steps_aside: bool = False
    onnx_model: Path | None = None  # the file that the stage's runtime runs
    generated_code: Path | None = None  # the folder of the programs that Inductor writes
    # within `run`, which then takes images [batch, height, width, channels] in uint8, or gives classes [batch, height,
    # width]
    ends: Ends = field(default_factory=Ends)

    @property
    def one_by_one(self) -> Callable[..., Tensor]:
        """`uncaptured` if it is set, else `run`: launches a call's kernels singly."""
        return self.run if self.uncaptured is None else self.uncaptured

    @property
    def of_batches(self) -> "Runner":
        """The same stage, whose `run`, `uncaptured` and `traffic` take a `Batch`."""
        uncaptured = None if self.uncaptured is None else of_batches(self.uncaptured)
        traffic = None if self.traffic is None else of_batches(self.traffic)
        return replace(self, run=of_batches(self.run), uncaptured=uncaptured, traffic=traffic)


def images_alone(workload: Workload, runtime: str) -> None:
    """Refuse a network of several inputs, or of other inputs than images, for a runtime that takes images alone."""
    names, rank = [workload.name, *workload.others], len(workload.shape)
    if len(names) > 1:
        raise Skip(f"{runtime} takes networks of one input; this one takes {len(names)}: {', '.join(names)}")
    if rank != IMAGE_RANK:
        raise Skip(f"{runtime} takes images [batch, channels, height, width]; this network's input has {rank} axes")


def library(module: str, extra: str) -> ModuleType:
    """Import a module of a library that an extra of pyproject.toml brings; Skip, with the command, without it."""
    name = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        named = f"'unet-ladder[{extra}]'" if INSTALLED else f"--editable '.[{extra}]'"
        remedy = f"python -m pip install {named}"
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise Skip(f"{name} isn't installed; {remedy} installs it", "missing library") from error
        raise StageError(
            f"{module} can't be imported ({first_line(error)}); {remedy} brings what it needs", "missing library"
        ) from error

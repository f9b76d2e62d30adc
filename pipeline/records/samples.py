"""The raw measurements of a stage; `pipeline.stats` computes the statistics. Units are in the names."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Literal

from msgspec import Meta

LONGEST = 1e9  # seconds
Bytes = Annotated[int, Meta(ge=0)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST)]  # seconds, which may be none
Seconds = Annotated[float, Meta(ge=1e-12, le=LONGEST)]  # measured by a clock


@dataclass(frozen=True)
class Sample:
    """A timed sequence of calls between two device-wide synchronisations."""

    calls: Annotated[int, Meta(ge=1, le=10**12)]
    seconds: Seconds  # wall time
    device_seconds: Duration | None  # by CUDA events; None on a CPU
    retries: int = 0  # measured again because of a compilation or an allocation
    disturbed: bool = False  # by a compilation or an allocation, without a retry left
    clock_mhz: int | None = None  # SM clock after the sample
    throttle_reasons: list[str] = field(default_factory=list)

    @property
    def per_call(self) -> float:
        """Seconds per call."""
        return self.seconds / self.calls


@dataclass(frozen=True)
class Block:
    """Four samples in the order ABBA or BAAB; A is the baseline."""

    order: Literal["ABBA", "BAAB"]
    baseline: tuple[Sample, Sample]
    stage: tuple[Sample, Sample]


@dataclass(frozen=True)
class Pair:
    """The interleaved samples of two workers: one trial."""

    baseline: str  # name of A
    stage: str  # name of B
    blocks: list[Block]
    alternated: bool = False  # too large together: the baseline ran before and after the stage
    sustained: bool = False  # samples at steady state: long, and after a run-in of the same side
    taken_share: float | None = None  # of the processors, used by other programs; None: not counted


@dataclass(frozen=True)
class WarmUp:
    """The calls of a stage before it was measured."""

    calls: int
    seconds: float
    steady: bool


@dataclass(frozen=True)
class Memory:
    """Memory use in bytes; None: not available on this device."""

    allocated_peak_bytes: Bytes | None  # of torch's allocator, in one call
    reserved_peak_bytes: Bytes | None
    process_bytes: Bytes | None  # GPU memory of the process (nvidia-smi), with the context
    context_bytes: Bytes | None  # of the process before its first tensor
    weights_bytes: Bytes
    host_peak_bytes: Bytes  # resident memory of the process


@dataclass(frozen=True)
class Service:
    """A fresh process that loaded the exported artefact and answered a batch; None: not counted there."""

    load_seconds: Duration  # from the start of loading to the first answer
    host_bytes: Bytes | None  # resident memory
    reserved_bytes: Bytes | None  # by torch's allocator at most
    device_bytes: Bytes | None  # GPU memory of the process (nvidia-smi), with the context

    @property
    def held_bytes(self) -> int | None:
        """Its memory on the device; on a CPU its resident memory."""
        return self.device_bytes or self.reserved_bytes or self.host_bytes

    @property
    def told(self) -> str:
        """The seconds and the memory on the device, in words."""
        held = "" if self.held_bytes is None else f", {self.held_bytes / 2**30:.2f} GiB"
        return f"first answer after {self.load_seconds:.2f} s{held}"


@dataclass(frozen=True)
class MemoryShortage:
    """The memory when a stage ran out of it; None: unknown."""

    peak_bytes: int  # torch's allocator on a GPU, resident memory on a CPU
    requested_bytes: int | None  # of the failed allocation
    available_bytes: int | None  # for the process, including what it held
    batch_size: int
    largest_batch: int | None  # estimate, proportional to the batch; an upper bound without requested_bytes


@dataclass(frozen=True)
class Energy:
    """The energy of a sequence of calls, by NVML's counter."""

    joules: Annotated[float, Meta(ge=0)]
    seconds: Duration
    images: Annotated[int, Meta(ge=0)]
    idle_watts: float


@dataclass(frozen=True)
class DiceLoss:
    """Points of Dice lost, with a 95 % interval."""

    points: float
    low: float
    high: float


@dataclass(frozen=True)
class MaskCounts:
    """Pixels by image, and by its classes where there are labels: the raw samples of the figures of masks."""

    pixels: int  # of an image
    flipped: list[int]  # whose class differs from that of the reference
    pictures: list[int]  # the picture of which each image is a window, numbered; empty: unknown
    hits: list[list[int]] = field(default_factory=list)  # that have the class in both the stage's mask and the labels
    sizes: list[list[int]] = field(default_factory=list)  # of the class in the mask plus those in the labels
    reference_hits: list[list[int]] = field(default_factory=list)  # the same of the reference's masks
    reference_sizes: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Accuracy:
    """The stage's answers against the reference's on real inputs; figures of other tasks are None."""

    relative_l2: float  # ||out - ref|| / ||ref||
    largest_error: float  # max |out - ref|
    reference_spread: float  # standard deviation of the reference's answers
    flipped_share: float | None  # share of pixels whose class differs
    flipped_margin: float | None  # largest reference margin (top-1 minus top-2 logit) among flipped pixels
    nan_share: float  # share of NaN and infinite values
    one_class: bool | None  # every pixel has one class although the reference has more
    dice: list[float] | None  # per class, against the labels
    iou: list[float] | None
    reference_dice: list[float] | None
    reference_iou: list[float] | None
    images: int  # that were compared
    pictures: int | None = None  # distinct images without windows and shifts; None: unknown
    # Regression, in dB: 10 log10(range² / mean squared error). None: equal, or no truth.
    psnr: float | None = None  # against the reference's answers
    truth_psnr: float | None = None  # against the truth
    reference_truth_psnr: float | None = None  # of the reference, against the truth
    # Mean Dice of the classes but the background against the reference's, over 10 pictures or more; None: fewer.
    dice_lost: DiceLoss | None = None
    # The same of each class; None within: neither labelled nor found.
    class_lost: list[DiceLoss | None] | None = None
    worst_flipped_share: float | None = None  # of the image with the most pixels whose class differs
    step_errors: list[float] | None = None  # diffusion: relative L2 of the latents after each step
    counts: MaskCounts | None = None  # None: no masks, or of over 2,000 images or 40,000 images times classes

    @property
    def mean_dice(self) -> float | None:
        """The mean Dice of the classes but the background that are labelled or found, as far as that is known."""
        scores = {number: score for number, score in enumerate(self.dice or []) if self.has_class(number)}
        counted = [score for number, score in scores.items() if number] or list(scores.values())
        return fmean(counted) if counted else None

    def has_class(self, number: int) -> bool:
        """Return whether a class is labelled or found in the masks of either; True where that is unknown."""
        if self.counts and self.counts.sizes:
            return any(row[number] for row in (*self.counts.sizes, *self.counts.reference_sizes))
        return self.class_lost is None or self.class_lost[number] is not None

    @property
    def final_error(self) -> float | None:
        """The relative L2 of the final latents; None for other tasks."""
        return self.step_errors[-1] if self.step_errors else None


@dataclass(frozen=True)
class HostPath:
    """Sequential calls from host memory and back, with the copies moved step by step."""

    move: Literal["as it is", "uint8 in", "classes out", "ring"]  # the last move; earlier ones stay
    seconds_per_call: list[Seconds]  # of each sample
    bytes_in: Bytes  # to the device, per call
    bytes_out: Bytes  # from the device, per call


@dataclass(frozen=True)
class ImageSet:
    """The images that a decision used."""

    images: int
    pictures: list[str]  # names of the distinct images, without windows and shifts


@dataclass(frozen=True)
class Calibration:
    """The images on which a stage chose its scales and its layers; if `apart`, none is an evaluation image."""

    scales: ImageSet
    choice: ImageSet | None  # of layers in another precision; None: named by the user
    choice_apart: bool  # the choice used none of the images of the scales
    apart: bool  # the evaluation images are other windows or images than both
    kept: list[str] | None = None  # layers that the choice kept; None: not recorded

"""What was measured of a stage: timed samples in blocks, and single readings. Units stand in the names.

Raw samples are kept; every statistic is computed on reading (`pipeline.stats`).
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

LONGEST = 1e9  # seconds
Seconds = Annotated[float, Meta(ge=1e-12, le=LONGEST)]  # of what a clock has timed


@dataclass(frozen=True)
class Sample:
    """One timed stretch of calls, back to back between two device-wide synchronisations."""

    calls: Annotated[int, Meta(ge=1, le=10**12)]
    seconds: Seconds  # wall time of the whole sample
    device_seconds: Annotated[float, Meta(ge=0, le=LONGEST)] | None  # the same by CUDA events; None on a CPU
    retries: int = 0  # how often it was measured again because something compiled or allocated
    disturbed: bool = False  # something compiled or allocated in it, and the plan allowed no further retry
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
    """Interleaved samples of two workers: one trial."""

    baseline: str  # name of A
    stage: str  # name of B
    blocks: list[Block]
    alternated: bool = False  # they did not fit in memory together: the baseline ran before and after the stage
    sustained: bool = False  # samples at full load: each long, and after a run-in of the same side
    taken_share: float | None = None  # of a CPU run's processors, taken by other programs; None where nobody counted


@dataclass(frozen=True)
class WarmUp:
    """How the stage came to rest before it was measured."""

    calls: int
    seconds: float
    steady: bool


@dataclass(frozen=True)
class Memory:
    """Bytes; None where this device doesn't say."""

    allocated_peak_bytes: int | None  # torch's allocator, peak of one call
    reserved_peak_bytes: int | None
    process_bytes: int | None  # the process as the device sees it, with the context
    context_bytes: int | None  # the process before its first tensor
    weights_bytes: int
    host_peak_bytes: int  # peak resident memory of the process


@dataclass(frozen=True)
class MemoryShortage:
    """Memory as a stage had run out of it; None where nobody knows."""

    peak_bytes: int  # torch's allocator on a GPU, the process's resident memory on a CPU
    requested_bytes: int | None  # what could not be had
    available_bytes: int | None  # to this process at that moment, with what it held
    batch_size: int
    largest_batch: int | None  # an estimate, as if memory went with the batch: an upper bound where no request is known


@dataclass(frozen=True)
class Energy:
    """The difference of NVML's total energy over a stretch of calls."""

    joules: float
    seconds: float
    images: int
    idle_watts: float


@dataclass(frozen=True)
class Accuracy:
    """The stage's answers against the reference's, on real inputs; what is of another task's answers is None."""

    relative_l2: float  # ||out - ref|| / ||ref||
    largest_error: float  # max |out - ref|
    reference_spread: float  # standard deviation of the reference's answers
    flipped_share: float | None  # share of pixels whose class differs
    flipped_margin: float | None  # largest reference margin (top-1 minus top-2 logit) among flipped pixels
    nan_share: float  # share of what it answers that is NaN or infinite
    one_class: bool | None  # every pixel has one class although the reference has more
    dice: list[float] | None  # per class, against the labels
    iou: list[float] | None
    reference_dice: list[float] | None
    reference_iou: list[float] | None
    images: int  # how many were compared
    # Of those, the distinct ones: windows, shifts and mirror images of one count once. None where they have no names.
    pictures: int | None = None
    # Of regression, in dB: 10 log10(range² / mean squared error). None where nothing differs, or there is no truth.
    psnr: float | None = None  # against the reference's answers
    truth_psnr: float | None = None  # against what is right
    reference_truth_psnr: float | None = None  # the reference's, against what is right
    # Of diffusion: relative L2 of the latents after each step of the denoising loop against the reference's own loop.
    step_errors: list[float] | None = None

    @property
    def final_error(self) -> float | None:
        """Relative L2 of the latents that a denoising loop ends with; None of any other task."""
        return self.step_errors[-1] if self.step_errors else None


@dataclass(frozen=True)
class HostPath:
    """Calls one after another, each from the host's memory back to it, by how the path around the net is laid out."""

    move: Literal["as it is", "uint8 in", "classes out", "ring"]  # what was moved last; those before it stay moved
    seconds_per_call: list[float]  # of each sample
    bytes_in: int  # that a call brings to the device
    bytes_out: int  # and takes back


@dataclass(frozen=True)
class ImageSet:
    """Images that something was decided on."""

    images: int
    pictures: list[str]  # that they are windows of, each once; windows, shifts and mirror images of one count once


@dataclass(frozen=True)
class Calibration:
    """The images that a stage chose its scales and its layers on; none of them is an evaluation image if `apart`."""

    scales: ImageSet
    choice: ImageSet | None  # of the layers that stay in another precision; None where they were named
    choice_apart: bool  # whether the choice used none of the images that the scales come from
    apart: bool  # whether the evaluation images are others than both, in another window or of another picture
    kept: list[str] | None = None  # layers of which the choice said that they stay; None where it isn't on record

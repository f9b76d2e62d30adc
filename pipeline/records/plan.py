"""The knobs of a measurement and the limits of its phases; conf/measure/thorough.yaml documents each."""

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

# Seconds. At its power limit an H100's pace swings about once a second, by 4 to 7 % at first and 2 to 3 % later:
# samples of half a second were up to 2.3 % faster than a loop. The power cap acts 75 ms after the first call, and the
# clock settles within 0.3 s (H200). After a side that draws less than the cap, 2 s at full load were 2.5 % slower than
# samples after 0.3 s.
FULL_LOAD_SAMPLE, FULL_LOAD_RUN_IN = 1.0, 0.3
MOST, LONGEST = 1_000_000, 10_000_000  # calls and blocks; seconds
Count = Annotated[int, Meta(ge=1, le=MOST)]
Counts = Annotated[tuple[Count, ...], Meta(min_length=1)]
CountOrNone = Annotated[int, Meta(ge=0, le=MOST)]
Number = Annotated[float, Meta(ge=0, le=LONGEST)]  # of seconds, or a share
Limit = Annotated[float, Meta(ge=1, le=LONGEST)]  # seconds of a phase; no process starts in less


class Phase(StrEnum):
    """A worker's current step; each has a time limit in `Plan.phase_limits`."""

    START = "start"  # imports, the network and its images
    MEASURED_PEAKS = "measured_peaks"
    REFERENCE = "reference"
    BUILD = "build"
    VERIFY = "verify"
    WARMUP = "warmup"
    SAMPLING = "sampling"  # the limit is for one sample
    CHECK = "check"
    LATENCIES = "latencies"  # with memory and energy
    HOST_PATH = "host path"
    PROFILE = "profile"
    OBSERVE = "observe"
    EXPLAIN = "explain"
    EXPORT = "export"


# Seconds. A phase that is missing has the limit of another.
LIMITS: dict[Phase, float] = {
    Phase.START: 300.0,
    Phase.MEASURED_PEAKS: 120.0,
    Phase.REFERENCE: 600.0,
    Phase.BUILD: 1800.0,
    Phase.VERIFY: 600.0,
    Phase.WARMUP: 600.0,
    Phase.SAMPLING: 120.0,
    Phase.LATENCIES: 300.0,
    Phase.PROFILE: 300.0,
    Phase.EXPORT: 600.0,
}
LIMITED_AS = {
    Phase.CHECK: Phase.VERIFY,
    Phase.HOST_PATH: Phase.LATENCIES,
    Phase.OBSERVE: Phase.PROFILE,
    Phase.EXPLAIN: Phase.PROFILE,
}


@dataclass(frozen=True)
class GpuPlan:
    """The knobs whose values differ on a GPU, where samples are longer and fewer."""

    interim_analyses: Counts = (12, 24, 48, 96)
    sampling_seconds: Number = 540.0
    aa_pairs: CountOrNone = 5
    aa_blocks: Count = 12
    head_to_head: CountOrNone = 3


@dataclass(frozen=True)
class Plan:
    """The knobs of a measurement, with the defaults of conf/measure/thorough.yaml; units stand in the names."""

    gpu_sample_seconds: Number = 1.0
    gpu_run_in_seconds: Number = 0.3
    gpu_rested_run_in_seconds: Number = 3.0
    cpu_sample_seconds: Number = 0.1
    min_calls: Count = 5
    sample_warmup_calls: CountOrNone = 2
    most_retries: CountOrNone = 3
    warmup_min_calls: CountOrNone = 20
    warmup_min_seconds: Number = 2.0
    warmup_window_seconds: Number = 0.5
    warmup_tolerance: Number = 0.02
    warmup_limit_seconds: Number = 30.0
    interim_analyses: Counts = (30, 60, 120, 240)
    half_width: Number = 0.01
    clear_share: Number = 0.0
    sampling_seconds: Number = 60.0
    aa_pairs: CountOrNone = 5
    aa_blocks: Count = 30
    trials: Count = 1
    brief_beside: bool = False
    fork_workers: bool = False
    head_to_head: CountOrNone = 3
    gpu: GpuPlan = GpuPlan()
    latency_calls: CountOrNone = 100
    latency_seconds: Number = 10.0
    gpu_latency_run_in_seconds: Number = 3.0
    energy_seconds: Number = 5.0
    profile_calls: CountOrNone = 10
    counters: bool = True
    measured_peaks: bool = True
    counters_limit_seconds: Limit = 600.0
    limits: dict[Phase, Limit] = field(default_factory=lambda: dict(LIMITS))

    def __post_init__(self) -> None:
        """Raise ValueError if the block counts of the interim analyses do not increase."""
        for analyses in (self.interim_analyses, self.gpu.interim_analyses):
            if any(later <= earlier for earlier, later in pairwise(analyses)):
                raise ValueError(f"interim_analyses={list(analyses)}: expected rising block counts, such as [30,60]")

    def sample_seconds(self, device: str) -> float:
        """Return the least duration of a sample on "cuda" or "cpu"."""
        return self.gpu_sample_seconds if device == "cuda" else self.cpu_sample_seconds

    def run_in_seconds(self, device: str) -> float:
        """Return the untimed seconds before each sample; on a CPU `sample_warmup_calls` suffice."""
        return self.gpu_run_in_seconds if device == "cuda" else 0.0

    def rested_run_in_seconds(self, device: str) -> float:
        """Return the same for a side at the power cap after one below it; none on a CPU."""
        return self.gpu_rested_run_in_seconds if device == "cuda" else 0.0

    def sustained(self, device: str) -> bool:
        """Return whether samples are long enough for a GPU at its power cap to settle its clock."""
        loaded = self.gpu_sample_seconds >= FULL_LOAD_SAMPLE and self.gpu_run_in_seconds >= FULL_LOAD_RUN_IN
        return device == "cuda" and loaded

    def on(self, device: str) -> "Plan":
        """Return the plan for a device: on a GPU with the numbers of blocks and seconds in `gpu`."""
        return replace(self, **asdict(self.gpu)) if device == "cuda" else self

    @property
    def phase_limits(self) -> dict[Phase, float]:
        """The seconds that each phase may take."""
        return {phase: self.limits[LIMITED_AS.get(phase, phase)] for phase in Phase}

    def for_aa_pairs(self) -> "Plan":
        """Return the plan of A/A pairs, which all have `aa_blocks` blocks."""
        return replace(self, interim_analyses=(self.aa_blocks,))

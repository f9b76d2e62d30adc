"""How long and how often to measure: every knob of the instrument. Imports no torch.

The defaults are those of conf/measure/thorough.yaml.
"""

from dataclasses import dataclass, replace

from pipeline.protocol import Phase


@dataclass(frozen=True)
class Plan:
    """The knobs of a measurement; units stand in the names."""

    gpu_sample_seconds: float = 0.02  # a sample's calls last at least so long
    cpu_sample_seconds: float = 0.1
    min_calls: int = 5  # of a sample
    sample_warmup_calls: int = 2  # before a sample, untimed
    most_retries: int = 3  # how often a sample is measured again because something compiled or allocated
    warmup_min_calls: int = 20
    warmup_min_seconds: float = 2.0
    warmup_window_seconds: float = 0.5
    warmup_tolerance: float = 0.02  # by which the medians of three windows may differ
    warmup_limit_seconds: float = 30.0  # then it is measured all the same, and marked unsteady
    interim_analyses: tuple[int, ...] = (
        30,
        60,
        120,
        240,
    )  # blocks after which the interval is looked at, and only then
    half_width: float = 0.01  # of the ratio's interval, at which a look ends the turns
    sampling_seconds: float = 60.0  # after which no further block begins
    aa_pairs: int = 5  # of the baseline against itself; 0 leaves A/A out
    aa_blocks: int = 30
    trials: int = 1  # fresh pairs of processes for each stage
    head_to_head: int = 3  # contenders that meet the fastest stage directly
    latency_calls: int = 100  # with a synchronisation after each
    latency_seconds: float = 10.0  # after which no further such call begins
    energy_seconds: float = 5.0  # 0 leaves energy out
    profile_calls: int = 10  # under the profiler, apart from all timing; 0 leaves profiles out
    counters: bool = True  # count bytes by the GPU's own counters, in another process of each stage; needs ncu
    measured_peaks: bool = True
    start_limit_seconds: float = 300.0  # limits of a worker's phases, after which it is ended
    peaks_limit_seconds: float = 120.0
    reference_limit_seconds: float = 600.0
    build_limit_seconds: float = 1800.0
    verify_limit_seconds: float = 600.0  # holds for the check after the turns, too
    warmup_phase_limit_seconds: float = 600.0
    sample_limit_seconds: float = 120.0  # of one sample, the wait for it included
    latency_limit_seconds: float = 300.0
    profile_limit_seconds: float = 300.0
    export_limit_seconds: float = 600.0
    counters_limit_seconds: float = 600.0  # of the process that counts, its build included

    def sample_seconds(self, device: str) -> float:
        """The least that a sample lasts on "cuda" or "cpu"."""
        return self.gpu_sample_seconds if device == "cuda" else self.cpu_sample_seconds

    @property
    def limits(self) -> dict[Phase, float]:
        """Seconds that each phase may take."""
        return {
            Phase.START: self.start_limit_seconds,
            Phase.MEASURED_PEAKS: self.peaks_limit_seconds,
            Phase.REFERENCE: self.reference_limit_seconds,
            Phase.BUILD: self.build_limit_seconds,
            Phase.VERIFY: self.verify_limit_seconds,
            Phase.WARMUP: self.warmup_phase_limit_seconds,
            Phase.SAMPLING: self.sample_limit_seconds,
            Phase.CHECK: self.verify_limit_seconds,
            Phase.LATENCIES: self.latency_limit_seconds,
            Phase.PROFILE: self.profile_limit_seconds,
            Phase.OBSERVE: self.profile_limit_seconds,
            Phase.EXPLAIN: self.profile_limit_seconds,
            Phase.EXPORT: self.export_limit_seconds,
        }

    def for_aa_pairs(self) -> "Plan":
        """The same with exactly `aa_blocks` blocks: A/A pairs are all of one length."""
        return replace(self, interim_analyses=(self.aa_blocks,))

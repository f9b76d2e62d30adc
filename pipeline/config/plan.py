"""How long and how often to measure: every knob of the instrument. Imports no torch.

The defaults are those of conf/measure/thorough.yaml.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plan:
    """The knobs of a measurement; units stand in the names."""

    gpu_slice_seconds: float = 0.02  # a slice's calls last at least so long
    cpu_slice_seconds: float = 0.1
    least_calls: int = 5  # of a slice
    settling_calls: int = 2  # before a slice, untimed
    most_redone: int = 3  # how often a slice is measured again because something compiled or allocated
    warm_least_calls: int = 20
    warm_least_seconds: float = 2.0
    warm_window_seconds: float = 0.5
    warm_tolerance: float = 0.02  # by which the medians of three windows may differ
    warm_limit_seconds: float = 30.0  # then it is measured all the same, and marked unsteady
    looks: tuple[int, ...] = (30, 60, 120, 240)  # blocks after which the interval is looked at, and only then
    half_width: float = 0.01  # of the ratio's interval, at which a look ends the turns
    turns_seconds: float = 60.0  # after which no further block begins
    twin_pairs: int = 5  # of the baseline against itself; 0 leaves A/A out
    twin_blocks: int = 30
    launches: int = 1  # fresh pairs of processes for each stage
    pairings: int = 3  # rivals that meet the fastest stage directly
    latency_calls: int = 100  # with a synchronisation after each
    latency_seconds: float = 10.0  # after which no further such call begins
    energy_seconds: float = 5.0  # 0 leaves energy out
    profile_calls: int = 10  # under the profiler, apart from all timing; 0 leaves profiles out
    counters: bool = True  # count bytes by the GPU's own counters, in another process of each stage; needs ncu
    ceilings: bool = True
    start_limit_seconds: float = 300.0  # limits of a worker's phases, after which it is ended
    ceilings_limit_seconds: float = 120.0
    reference_limit_seconds: float = 600.0
    build_limit_seconds: float = 1800.0
    verify_limit_seconds: float = 600.0  # holds for the check after the turns, too
    warm_phase_limit_seconds: float = 600.0
    slice_limit_seconds: float = 120.0  # of one slice, the wait for it included
    series_limit_seconds: float = 300.0
    profile_limit_seconds: float = 300.0
    export_limit_seconds: float = 600.0
    counters_limit_seconds: float = 600.0  # of the process that counts, its build included

    def slice_seconds(self, device: str) -> float:
        """The least that a slice lasts on "cuda" or "cpu"."""
        return self.gpu_slice_seconds if device == "cuda" else self.cpu_slice_seconds

    @property
    def limits(self) -> dict[str, float]:
        """Seconds that each phase may take; "turns" is for one slice, "series" for latency, memory and energy."""
        return {
            "start": self.start_limit_seconds,
            "ceilings": self.ceilings_limit_seconds,
            "reference": self.reference_limit_seconds,
            "build": self.build_limit_seconds,
            "verify": self.verify_limit_seconds,
            "warm": self.warm_phase_limit_seconds,
            "turns": self.slice_limit_seconds,
            "check": self.verify_limit_seconds,
            "series": self.series_limit_seconds,
            "profile": self.profile_limit_seconds,
            "explain": self.profile_limit_seconds,
            "export": self.export_limit_seconds,
        }

    def for_twins(self) -> "Plan":
        """The same with exactly `twin_blocks` blocks: A/A pairs are all of one length."""
        return replace(self, looks=(self.twin_blocks,))

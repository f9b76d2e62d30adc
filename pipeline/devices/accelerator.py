"""An accelerator as the operating system and its driver show it, before any framework is loaded."""

from dataclasses import dataclass, field

from pipeline.devices.kinds import TITLES, Kind, Vendor
from pipeline.devices.nvml import Gpu


@dataclass(frozen=True)
class Capabilities:
    """What a device's instructions are called.

    Attributes:
        vendor: who made it: the same pair of numbers means another thing for each vendor.
        compute: NVIDIA's compute capability, or the major and minor number of AMD's gfx target; None where unknown.
    """

    vendor: Vendor
    compute: tuple[int, int] | None = None

    def has_compute(self, least: tuple[int, int]) -> bool:
        """Whether it is an NVIDIA GPU of at least this compute capability; an MI300 (gfx 9.4) is no Hopper (9.0)."""
        return self.vendor == "nvidia" and self.compute is not None and self.compute >= least


@dataclass(frozen=True)
class Accelerator:
    """One accelerator.

    Attributes:
        kind: how it is programmed.
        index: among those of its kind that this process may use.
        name: the product's, where the driver says it.
        capabilities: what its instructions are called.
        telemetry: its clock, energy, memory and processes, through NVML; None where nothing tells them.
    """

    kind: Kind
    index: int
    name: str
    capabilities: Capabilities
    telemetry: Gpu | None = field(default=None, compare=False, repr=False)

    @property
    def title(self) -> str:
        """Such as "AMD Instinct MI300X (ROCm)"."""
        return f"{self.name} ({TITLES[self.kind]})"

"""The accelerators that driver and operating system show before any framework is loaded, and which one a run takes."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.devices.nvml import Gpu, all_gpus, visible_gpus
from pipeline.errors import InputError

Kind = Literal["cuda", "rocm", "xpu", "mps", "cpu"]

RUNS_ON: tuple[Kind, ...] = ("cuda", "cpu")  # what this version has stages for
TITLES: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "Intel XPU", "mps": "Apple GPU", "cpu": "CPU"}

# Compute capability 8.9 (Ada) brought fp8 matrix instructions; before it there is no fp8 path at all.
FP8 = (8, 9)


@dataclass(frozen=True)
class Accelerator:
    """One accelerator."""

    kind: Kind
    index: int
    name: str
    telemetry: Gpu | None = field(default=None, compare=False, repr=False)

    @property
    def title(self) -> str:
        """The name and how it is programmed, such as "AMD Instinct MI300X (ROCm)"."""
        return f"{self.name} ({TITLES[self.kind]})"


ROOT = Path("/")
AMD, INTEL = "0x1002", "0x8086"  # PCI vendors
INTEL_DRIVERS = ("xe", "i915")
CDNA = (904, 905)  # gfx targets of data-centre GPUs, of which the MI300A is one piece with its processor
INTEGRATED_INTEL = "0000:00:02.0"  # the PCI address of every Intel GPU that is part of a processor


def accelerators(root: Path = ROOT) -> list[Accelerator]:
    """Return every accelerator of this machine, CUDA's visible ones first; `root` is where /dev and /sys are."""
    on_apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    return [*cuda_gpus(), *rocm_gpus(root), *intel_gpus(root), *[Accelerator("mps", 0, "Apple GPU")] * on_apple]


def cuda_gpus() -> list[Accelerator]:
    """Return the GPUs that CUDA may use, in its order; none without NVIDIA's driver."""
    return [Accelerator("cuda", index, gpu.name(), gpu) for index, gpu in enumerate(visible_gpus(all_gpus()))]


def rocm_gpus(root: Path = ROOT) -> list[Accelerator]:
    """Return AMD's GPUs if their compute driver (KFD) is loaded and open to this process."""
    if not (root / "dev/kfd").exists():
        return []
    cards = list(_cards(root, AMD, ("amdgpu",)))
    nodes = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"))
    count = sum(map(_is_gpu, nodes)) if nodes else len(cards)
    names = [name for card in cards if (name := _text(card / "product_name"))]
    names = names if len(names) == count else ["AMD GPU"] * count
    return [Accelerator("rocm", index, name) for index, name in enumerate(names)]


def intel_gpus(root: Path = ROOT) -> list[Accelerator]:
    """Return Intel's GPUs on a card of their own; one that is part of the processor is left out."""
    cards = [card for card in _cards(root, INTEL, INTEL_DRIVERS) if card.resolve().name != INTEGRATED_INTEL]
    return [
        Accelerator("xpu", index, f"Intel GPU {_text(card / 'device')}".strip()) for index, card in enumerate(cards)
    ]


def _cards(root: Path, vendor: str, drivers: tuple[str, ...]) -> Iterator[Path]:
    """Yield the PCI devices of a vendor and its drivers that have a node in /dev/dri."""
    for node in sorted((root / "sys/class/drm").glob("renderD*")):
        device = node / "device"
        driver = (device / "driver").resolve().name
        if _text(device / "vendor") == vendor and driver in drivers and (root / "dev/dri" / node.name).exists():
            yield device


def _is_gpu(node: Path) -> bool:
    """Return whether KFD's node is a GPU; one that also has a processor's cores counts only if it is CDNA."""
    pairs = [line.split() for line in _text(node).splitlines()]
    values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    target = values.get("gfx_target_version", 0) // 100  # written in decimal: 90402 is gfx942
    return bool(values.get("simd_count")) and (target in CDNA or not values.get("cpu_cores_count"))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


CHOICES = ("auto", *RUNS_ON)
UNUSED_BY_AUTO = ("rocm", "xpu")  # an Apple GPU is part of the laptop's processor, on which "auto" means the CPU


class DeviceError(InputError):
    """The device that was asked for isn't available; the text is one line that names those that are."""


def choose_device(asked: object, found: Sequence[Accelerator], flag: str = "device=") -> Kind:
    """Return the kind of device asked for; "auto" is a CUDA GPU if there is one, else the CPU; or DeviceError."""
    on_cpu = f"{flag}cpu runs on the CPU"
    if asked not in CHOICES:
        raise DeviceError(f"{flag}{asked}: this version runs CUDA GPUs and CPUs; choose one of: {', '.join(CHOICES)}")
    if asked == "cpu":
        return "cpu"
    if any(accelerator.kind == "cuda" for accelerator in found):
        return "cuda"
    others = listed(found)
    if asked == "auto" and not any(accelerator.kind in UNUSED_BY_AUTO for accelerator in found):
        return "cpu"
    if others:
        raise DeviceError(f"{flag}{asked}: found {others}, but this version runs only CUDA GPUs and CPUs; {on_cpu}")
    raise DeviceError(f"{flag}{asked}: no CUDA device is visible here; {on_cpu}")


def listed(found: Sequence[Accelerator]) -> str:
    """Return the accelerators by name, equal ones counted: "8 × AMD Instinct MI300X (ROCm)"; empty for none."""
    titles = [accelerator.title for accelerator in found]
    counted = {title: titles.count(title) for title in titles}
    return ", ".join(title if count == 1 else f"{count} × {title}" for title, count in counted.items())

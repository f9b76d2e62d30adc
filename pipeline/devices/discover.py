"""The accelerators that the driver and the operating system show to this process, without any framework."""

import platform
from collections.abc import Iterator
from pathlib import Path

from pipeline.devices.accelerator import Accelerator, Capabilities
from pipeline.devices.nvml import all_gpus, visible_gpus

ROOT = Path("/")
AMD, INTEL = "0x1002", "0x8086"  # PCI vendors
INTEL_DRIVERS = ("xe", "i915")
CDNA = ((9, 4), (9, 5))  # gfx targets of data-centre GPUs, of which the MI300A is one piece with its processor
INTEGRATED_INTEL = "0000:00:02.0"  # the PCI address of every Intel GPU that is part of a processor


def accelerators(root: Path = ROOT) -> list[Accelerator]:
    """Every accelerator of this machine: CUDA's visible ones first; `root` is where /dev and /sys are."""
    return [*cuda_gpus(), *rocm_gpus(root), *intel_gpus(root), *apple_gpus()]


def cuda_gpus() -> list[Accelerator]:
    """The GPUs that CUDA may use, in its order; none without NVIDIA's driver."""
    return [
        Accelerator("cuda", index, gpu.name(), Capabilities("nvidia", gpu.compute_capability()), gpu)
        for index, gpu in enumerate(visible_gpus(all_gpus()))
    ]


def rocm_gpus(root: Path = ROOT) -> list[Accelerator]:
    """AMD's GPUs, where their compute driver (KFD) is loaded and open to this process.

    Where KFD's list of nodes can't be read, every card of the amdgpu driver counts.
    """
    if not (root / "dev/kfd").exists():
        return []
    cards = list(_cards(root, AMD, ("amdgpu",)))
    nodes = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"))
    targets = _gfx_targets(nodes) if nodes else [None] * len(cards)
    names = [name for card in cards if (name := _text(card / "product_name"))]
    if len(names) != len(targets):
        names = ["AMD GPU"] * len(targets)
    return [
        Accelerator("rocm", index, name, Capabilities("amd", target))
        for index, (name, target) in enumerate(zip(names, targets, strict=True))
    ]


def intel_gpus(root: Path = ROOT) -> list[Accelerator]:
    """Intel's GPUs on a card of their own; one that is part of the processor is left out."""
    cards = [card for card in _cards(root, INTEL, INTEL_DRIVERS) if card.resolve().name != INTEGRATED_INTEL]
    return [
        Accelerator("xpu", index, f"Intel GPU {_text(card / 'device')}".strip(), Capabilities("intel"))
        for index, card in enumerate(cards)
    ]


def apple_gpus() -> list[Accelerator]:
    """The GPU in an Apple processor."""
    if (platform.system(), platform.machine()) != ("Darwin", "arm64"):
        return []
    return [Accelerator("mps", 0, "Apple GPU", Capabilities("apple"))]


def _cards(root: Path, vendor: str, drivers: tuple[str, ...]) -> Iterator[Path]:
    """The PCI devices of this vendor and these drivers that have a node in /dev/dri that this process could open."""
    for node in sorted((root / "sys/class/drm").glob("renderD*")):
        device = node / "device"
        driver = (device / "driver").resolve().name
        if _text(device / "vendor") == vendor and driver in drivers and (root / "dev/dri" / node.name).exists():
            yield device


def _gfx_targets(nodes: list[Path]) -> list[tuple[int, int] | None]:
    """Those of KFD's GPUs; a node that has a processor's cores as well is a laptop's, or a data centre's (CDNA)."""
    found = []
    for values in map(_properties, nodes):
        target = _gfx(values.get("gfx_target_version", 0))
        if values.get("simd_count", 0) and (target in CDNA or not values.get("cpu_cores_count", 0)):
            found.append(target)
    return found


def _properties(path: Path) -> dict[str, int]:
    pairs = [line.split() for line in _text(path).splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _gfx(version: int) -> tuple[int, int] | None:
    """Major and minor of a gfx target that KFD writes in decimal: 90402 is gfx942."""
    return (version // 10000, version // 100 % 100) if version else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

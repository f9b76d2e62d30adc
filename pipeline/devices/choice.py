"""Which device a run takes: the one that was asked for, and never another in its place."""

from collections.abc import Sequence

from pipeline.devices.accelerator import Accelerator
from pipeline.devices.kinds import RUNS_ON, Kind, is_cuda
from pipeline.errors import InputError

CHOICES = ("auto", *RUNS_ON)
UNUSED_BY_AUTO = ("rocm", "xpu")  # an Apple GPU is part of the laptop's processor, on which "auto" means the CPU


class DeviceError(InputError):
    """The device that was asked for can't be had; the text is one line that says what can."""


def choose_device(asked: object, found: Sequence[Accelerator], flag: str = "device=") -> Kind:
    """The kind of device to run on: what was asked for, or for "auto" a CUDA GPU where one is, else the CPU.

    Args:
        asked: one of `CHOICES`.
        found: the machine's accelerators.
        flag: how the user writes the choice, for the message: "device=" or "--device ".

    Raises:
        DeviceError: there is no such device here, or "auto" would pass over an accelerator that this version can't run.
    """
    on_cpu = f"{flag}cpu runs on the CPU"
    if asked not in CHOICES:
        raise DeviceError(f"{flag}{asked}: this version runs CUDA GPUs and CPUs; choose one of: {', '.join(CHOICES)}")
    if asked == "cpu":
        return "cpu"
    if any(is_cuda(accelerator.kind) for accelerator in found):
        return "cuda"
    others = listed(found)
    if asked == "auto" and not any(accelerator.kind in UNUSED_BY_AUTO for accelerator in found):
        return "cpu"
    if others:
        raise DeviceError(f"{flag}{asked}: found {others}, but this version runs only CUDA GPUs and CPUs; {on_cpu}")
    raise DeviceError(f"{flag}{asked}: no CUDA device is visible here; {on_cpu}")


def listed(found: Sequence[Accelerator]) -> str:
    """The accelerators by name, alike ones counted: "8 × AMD Instinct MI300X (ROCm)"; empty for none."""
    titles = [accelerator.title for accelerator in found]
    counted = {title: titles.count(title) for title in titles}
    return ", ".join(title if count == 1 else f"{count} × {title}" for title, count in counted.items())

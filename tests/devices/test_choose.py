"""Which device a run takes, and what a machine is told that has an accelerator this version can't run."""

import pytest

from pipeline.devices.accelerators import Accelerator, Capabilities, DeviceError, choose_device

H200 = Accelerator("cuda", 0, "NVIDIA H200", Capabilities("nvidia", (9, 0)))
MI300 = Accelerator("rocm", 0, "AMD Instinct MI300X", Capabilities("amd", (9, 4)))
ARC = Accelerator("xpu", 0, "Intel GPU 0x56a0", Capabilities("intel"))
M3 = Accelerator("mps", 0, "Apple GPU", Capabilities("apple"))


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [
        ("auto", [], "cpu"),
        ("auto", [H200], "cuda"),
        ("auto", [MI300, H200], "cuda"),
        ("auto", [M3], "cpu"),
        ("cuda", [H200], "cuda"),
        ("cpu", [H200], "cpu"),
        ("cpu", [MI300], "cpu"),
    ],
)
def test_the_device_is_the_one_asked_for(asked: str, found: list[Accelerator], chosen: str) -> None:
    """For "auto" a CUDA GPU where one is; a laptop without one runs on its CPU."""
    assert choose_device(asked, found) == chosen


@pytest.mark.parametrize("other", [MI300, ARC], ids=["ROCm", "XPU"])
@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_another_accelerator_never_becomes_a_cpu_run_by_itself(asked: str, other: Accelerator) -> None:
    """One line names the accelerator, what this version runs, and the way to the CPU."""
    with pytest.raises(DeviceError) as caught:
        choose_device(asked, [other])
    text = str(caught.value)
    assert "\n" not in text
    for part in (f"device={asked}", other.title, "only CUDA GPUs and CPUs", "device=cpu runs on the CPU"):
        assert part in text


def test_accelerators_of_one_kind_are_counted() -> None:
    with pytest.raises(DeviceError, match=r"found 8 × AMD Instinct MI300X \(ROCm\), but"):
        choose_device("auto", [MI300] * 8)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceError, match="device=cuda: no CUDA device is visible here; device=cpu runs on the CPU"):
        choose_device("cuda", [])
    with pytest.raises(DeviceError, match=r"--device cuda: .*; --device cpu runs"):
        choose_device("cuda", [], "--device ")


@pytest.mark.parametrize("asked", ["cuda0", "rocm", "xpu", None])
def test_a_device_of_another_name_is_refused_with_the_choices(asked: object) -> None:
    """Also the name of an accelerator that is there, but that this version doesn't run."""
    with pytest.raises(DeviceError, match=f"device={asked}: this version runs CUDA.*choose one of: auto, cuda, cpu"):
        choose_device(asked, [MI300])


def test_an_instinct_is_no_hopper() -> None:
    assert H200.capabilities.has_compute((9, 0))
    assert H200.capabilities.has_compute((8, 9))
    assert not H200.capabilities.has_compute((10, 0))
    assert not MI300.capabilities.has_compute((8, 0))
    assert not Capabilities("nvidia").has_compute((8, 0))

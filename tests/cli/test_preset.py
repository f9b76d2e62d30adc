"""The preset that is taken where the user names none."""

import pytest

from pipeline.cli.preset import preset_for

GPU = ["NVIDIA H200"]
CPU_PRESET = ["preset=cpu"]


@pytest.mark.parametrize(
    ("arguments", "devices", "added"),
    [
        ([], GPU, []),
        ([], [], CPU_PRESET),
        (["device=cpu"], GPU, CPU_PRESET),
        (["++device=cpu"], GPU, CPU_PRESET),
        (["device='cpu'"], GPU, CPU_PRESET),
        (["device=cuda", "device=cpu"], GPU, CPU_PRESET),
        (["device=cpu", "device=auto"], GPU, []),
        (["device=cuda"], [], []),
        (["++device=cuda"], [], []),
        (["preset=smoke"], [], []),
        (["++preset=smoke", "device=cpu"], GPU, []),
        (["-m", "preset=smoke,cpu"], [], []),
        (["-m", "stage=eager,half"], [], CPU_PRESET),
        (["-m", "device=cpu,cuda"], GPU, []),
        (["-m", "device=cpu,cuda"], [], CPU_PRESET),
        (["-m", "device=cpu,'cpu'"], GPU, CPU_PRESET),
        (["+data.note=device=cpu"], GPU, []),
        (["--cfg", "job", "nonsense", "stage=[x"], [], CPU_PRESET),
    ],
)
def test_the_cpu_preset_is_taken_where_the_run_goes_to_the_cpu(
    arguments: list[str], devices: list[str], added: list[str]
) -> None:
    """Unless the user names a preset; in a sweep, where no job goes to a GPU."""
    assert preset_for(arguments, devices) == added

"""The preset that is taken where the user names none."""

from pathlib import Path

import pytest

from pipeline.cli.preset import config_folders, overrides_first, overrides_in, preset_for, values, with_quoted_paths

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


@pytest.mark.parametrize(
    ("typed", "ordered"),
    [
        ("stage=a -m data.size=1,2", "stage=a data.size=1,2 -m"),
        ("stage=a --cfg job threads=1", "stage=a threads=1 --cfg job"),
        ("--info defaults stage=a", "stage=a --info defaults"),
        ("-i stage=a", "stage=a -i"),
        ("--config-dir mine stage=a --help", "stage=a --config-dir mine --help"),
        ("-sc install=bash", "install=bash -sc"),
    ],
)
def test_flags_may_stand_anywhere_on_the_line(typed: str, ordered: str) -> None:
    """Each keeps the word that is its own."""
    assert overrides_first(typed.split()) == ordered.split()


def test_the_users_own_config_folders_are_known() -> None:
    """Their files are looked at before Hydra unfolds them."""
    assert config_folders(["-cd", "mine", "--config-dir=yours", "stage=a"]) == [Path("yours")]


def test_a_path_is_read_whatever_its_letters(tmp_path: Path) -> None:
    """Hydra takes letters beyond ASCII, and signs of its grammar, in quotes alone; what it reads as it is, stays."""
    (there := tmp_path / "it's (1){").mkdir()
    words = [
        "data.path=/home/jörg/bilder",
        f"data.path={there}",
        "stage=eager",
        "-m",
        "seed=1,2",
        "a=é,b",
        "x={(",
        "no",
    ]
    quoted = with_quoted_paths(words)
    assert quoted[0] == "data.path='/home/jörg/bilder'"
    assert quoted[2:] == words[2:]
    assert [values(override) for override in overrides_in(quoted[:2])] == [["/home/jörg/bilder"], [str(there)]]
    assert with_quoted_paths(["data.path=" + "é" * 20_000])[0].endswith("é")
    assert with_quoted_paths([f"data.path={tmp_path}"]) == [f"data.path={tmp_path}"]

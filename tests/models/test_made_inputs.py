"""Inputs by name, shape, type and range, written for `data=tensors`."""

from pathlib import Path

import pytest
import torch

from models import made_inputs
from models.made_inputs import input_of, made
from models.tensor_files import headers, read_tensors
from pipeline.command_line import REFUSED
from pipeline.errors import TensorError

WORDS = ["sample=4x8x8", "timestep=int64:0..999", "mask=1x8x8:bool", "grey=3x4:float16:-1..1"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["made_inputs", *words])
    return made_inputs.main()


def test_the_file_holds_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "inputs.safetensors"
    assert run(monkeypatch, *WORDS, "--samples", "50", "--out", str(out)) == 0
    assert f"data=tensors data.path={out}" in capsys.readouterr().out
    assert {name: each.shape for name, each in headers(str(out)).items()} == {
        "sample": (50, 4, 8, 8),
        "timestep": (50,),
        "mask": (50, 1, 8, 8),
        "grey": (50, 3, 4),
    }
    found = read_tensors(str(out), ["sample", "timestep", "mask", "grey"])
    assert [part.dtype for part in found.values()] == [torch.float32, torch.int64, torch.bool, torch.float32]
    assert abs(float(found["sample"].mean())) < 0.05
    assert abs(float(found["sample"].std()) - 1) < 0.05
    assert 0 <= int(found["timestep"].min()) < int(found["timestep"].max()) <= 999
    assert -1 <= float(found["grey"].min()) < -0.9
    assert 0.9 < float(found["grey"].max()) <= 1
    assert 0.4 < float(found["mask"].float().mean()) < 0.6


def test_both_ends_of_a_range_of_whole_numbers_come() -> None:
    assert set(made([input_of("x=uint8:254..255")], 64, 0)["x"].tolist()) == {254, 255}


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("sample", "no input; write NAME=SHAPE:TYPE:RANGE"),
        ("a=4y", "'4y' is no shape, type or range"),
        ("a=int46:0..3", "did you mean int64?"),
        ("a=int64", "whole numbers need a range, such as a=int64:0..999"),
        ("a=uint8:0..300", "0..300 is no range from low to high of uint8"),
        ("a=int64:0..1e30", "no range from low to high of int64"),
        ("a=3..1", "no range from low to high of float32"),
        ("a=int8:0..1.5", "ends that are no whole numbers"),
        ("a=bool:0..1", "bool has no range"),
        ("a=1x1x1x1x1", "at most 4 axes"),
        ("a=0", "each of at least 1"),
        ("a=3:4", "3 and 4 are both its shape"),
    ],
)
def test_a_word_of_another_form_is_refused(word: str, text: str) -> None:
    with pytest.raises(TensorError) as caught:
        input_of(word)
    assert text in str(caught.value)
    assert str(caught.value).startswith(word)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a=3", "a=4", "--out", "x.safetensors"], "a: given"),
        (["a=3", "--out", "x.npy"], "--out=x.npy: name a .safetensors file"),
        (["a=3", "--samples", "0", "--out", "x.safetensors"], "--samples=0: at least 1"),
        (["a=99999x99999", "--out", "x.safetensors"], "8 samples would take 298 GiB, and 4 are allowed"),
        (["a=3", "--out", "nowhere/x.safetensors"], "--out=nowhere/x.safetensors: can't be written"),
    ],
)
def test_a_wrong_request_is_one_line(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = run(monkeypatch, *words)
    except SystemExit as left:  # by the parser
        code = int(str(left.code))
    assert code == REFUSED
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())

"""Tensors by name: what a file must hold, the order in which a net takes them, and files that are made up."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models import made_inputs
from models.made_inputs import input_of, made
from models.tensor_files import file_at, headers, in_order, inputs_of, read_tensors, repeated
from pipeline.command_line import REFUSED
from pipeline.errors import TensorError
from tests.input_nets import Conditioned

NAMES = ["sample", "timestep", "encoder_hidden_states"]


def saved(folder: Path, **tensors: Tensor) -> str:
    save_file(tensors, folder / "inputs.safetensors")
    return str(folder / "inputs.safetensors")


WRONG: dict[str, tuple[dict[str, Tensor], str]] = {
    "samples": ({"image": torch.ones(2, 3), "time": torch.ones(3)}, "different numbers of samples, their first axis: "),
    "a number": ({"time": torch.tensor(3.0)}, "time is a single number; give one for each sample, [samples]"),
    "axes": ({"image": torch.ones(1, 1, 1, 1, 1, 1)}, "image has 6 axes; at most 5 are taken"),
    "values": ({"image": torch.ones(0, 3)}, "image [0, 3] holds no values"),
    "type": ({"image": torch.ones(2, 3).to(torch.float8_e4m3fn)}, "image holds F8_E4M3; an input is one of F64, "),
    "nothing": ({}, "it holds no tensor"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_input_is_one_line(kind: str, tmp_path: Path) -> None:
    tensors, said = WRONG[kind]
    path = saved(tmp_path, **tensors)
    with pytest.raises(TensorError, match=re.escape(said)) as caught:
        headers(path)
    assert str(caught.value).startswith(f"data.path={path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "inputs.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(TensorError, match="no file of safetensors"):
        headers(str(tmp_path / "inputs.safetensors"))
    with pytest.raises(TensorError, match="is a folder; name the file in it"):
        file_at(str(tmp_path))
    with pytest.raises(TensorError, match=r"no such file of tensors, such as data\.path=inputs\.safetensors"):
        file_at(str(tmp_path / "other"))


def test_values_that_are_none_are_named_with_their_sample(tmp_path: Path) -> None:
    image = torch.tensor([[0.0, 0.0], [torch.nan, 0.0], [0.0, 0.0]])
    with pytest.raises(TensorError, match="image holds NaN or infinite values in 1 of 3 samples, first in sample 1"):
        read_tensors(saved(tmp_path, image=image), ["image"])


def test_types_become_what_nets_take(tmp_path: Path) -> None:
    given = {"a": torch.ones(2, dtype=torch.bfloat16), "b": torch.ones(2, dtype=torch.uint8), "c": torch.ones(2) > 0}
    found = read_tensors(saved(tmp_path, **given), ["c", "a", "b"])
    assert {name: part.dtype for name, part in found.items()} == {"c": torch.bool, "a": torch.float32, "b": torch.int64}


class ByName(nn.Module):
    def forward(self, image: Tensor, *, mask: Tensor) -> Tensor:
        return image * mask


class AnyNumber(nn.Module):
    def forward(self, *parts: Tensor) -> Tensor:
        return parts[0]


class OfMany(nn.Module):
    def forward(self, sample: Tensor, timestep: Tensor, a=0, b=0, c=0, d=0, e=0, f=0, g=0) -> Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return sample


def test_inputs_come_in_the_order_of_the_net_or_one_by_one() -> None:
    assert in_order(Conditioned(), sorted(NAMES), (), "f") == NAMES
    assert in_order(Conditioned(), [*NAMES, "scale"], (), "f") == [*NAMES, "scale"]
    assert in_order(nn.ReLU(), ["whatever"], (), "f") == ["whatever"]
    assert in_order(AnyNumber(), ["b", "a"], ("b", "a"), "f") == ["b", "a"]
    for given, typed in ((NAMES, ()), (["b", "a", "c"], ("b", "a", "c")), (NAMES, NAMES[::-1])):
        net = Conditioned()
        inputs_of(net, given, typed, "f")
        assert type(net) is Conditioned


MISFITS: dict[str, tuple[nn.Module, list[str], list[str], str]] = {
    "missing": (Conditioned(), ["sample", "time_step", NAMES[2]], [], "]; did you mean 'time_step'?"),
    "renamed": (Conditioned(), ["x", *NAMES[1:]], [], f"; say which is which: data.inputs=[x,{NAMES[1]},{NAMES[2]}]"),
    "of many": (OfMany(), ["x"], [], "OfMany takes sample, timestep and up to 7 more; it holds no 'sample'"),
    "strange": (Conditioned(), [*NAMES, "scales"], [], "and not 'scales'; data.labels=scales where"),
    "within": (Conditioned(), [*NAMES, "ids"], [], "; a part of a dict or a tuple is named ARGUMENT.ids"),
    "typed": (Conditioned(), NAMES, ["sampl"], "data.inputs: f holds no tensor 'sampl'; did you mean 'sample'?"),
    "by its name": (ByName(), ["image", "mask"], [], "ByName.forward takes mask by its name alone"),
    "any number": (AnyNumber(), ["a", "b"], [], "names no inputs; say in which order it takes a, b: data.inputs="),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_tensor_that_the_net_does_not_take_is_one_line(kind: str) -> None:
    net, given, typed, said = MISFITS[kind]
    with pytest.raises(TensorError, match=re.escape(said)):
        in_order(net, given, typed, "f")


class Further(nn.Module):
    """As diffusers' conditional nets: most of what they take may be left out, and lies in a dict or a tuple."""

    def forward(
        self, image: Tensor, first: Any = None, second: Any = None, added: Any = None, residuals: Any = ()
    ) -> Tensor:
        image = image if first is None else image + 1000 * first
        image = image if second is None else image + 10 * second
        image = image if added is None else image + added["text"] - added["ids"]
        for number, part in enumerate(residuals):
            image = image + (number + 2) * part
        return image


def test_inputs_go_to_their_arguments_by_name() -> None:
    """Past one that isn't given, and into dicts and tuples; the net keeps its name, and a second call its way."""
    net = Further()
    given = ["added.ids", "added.text", "image", "residuals.0", "residuals.1", "second"]
    names = ["image", "second", "added.ids", "added.text", "residuals.0", "residuals.1"]
    assert inputs_of(net, given, (), "f") == names
    values = [torch.tensor([float(value)]) for value in (1, 2, 3, 5, 7, 11)]
    assert net(*values).item() == 1 + 20 - 3 + 5 + 2 * 7 + 3 * 11
    assert inputs_of(net, given, (), "f") == names
    assert inputs_of(copy.deepcopy(net), given, (), "f") == names
    assert type(net).__name__ == "Further"
    exported = torch.export.export(net, tuple(values)).module()
    assert exported(*values).item() == net(*values).item()


def test_a_part_of_what_is_a_tensor_of_the_file_is_refused() -> None:
    with pytest.raises(TensorError, match=r"'added\.text' would lie within a tensor of the same file"):
        inputs_of(Further(), ["image", "added", "added.text"], (), "f")


def test_what_comes_again_is_rolled() -> None:
    given = {"image": torch.arange(40.0).reshape(1, 40), "time": torch.tensor([7])}
    found = repeated(given, 3)
    assert found["time"].tolist() == [7, 7, 7]
    assert torch.equal(found["image"][1], given["image"][0].roll(13))
    assert len({tuple(part.tolist()) for part in found["image"]}) == 3


WORDS = ["sample=4x8x8", "timestep=int64:0..999", "mask=1x8x8:bool", "grey=3x4:float16:-1..1"]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["made_inputs", *words])
    return made_inputs.main()


def test_it_is_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "inputs.safetensors"
    assert run(monkeypatch, *WORDS, "--samples", "50", "--out", str(out)) == 0
    assert f"data=tensors data.path={out}" in capsys.readouterr().out
    shapes = {"sample": (50, 4, 8, 8), "timestep": (50,), "mask": (50, 1, 8, 8), "grey": (50, 3, 4)}
    assert {name: each.shape for name, each in headers(str(out)).items()} == shapes
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


OUT = ["--out", "x.safetensors"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sample", *OUT], "sample: no input; write NAME=SHAPE:TYPE:RANGE"),
        (["a=4y", *OUT], "a=4y: no input; write NAME=SHAPE:TYPE:RANGE"),
        (["a=int46:0..3", *OUT], "int46 is no type; did you mean 'int64'?"),
        (["a=int64", *OUT], "whole numbers need a range, such as a=int64:0..999"),
        (["a=uint8:0..300", *OUT], "no range from low to high of uint8"),
        (["a=int64:0..1e30", *OUT], "no range from low to high of int64"),
        (["a=3..1", *OUT], "no range from low to high of float32"),
        (["a=int8:0..1.5", *OUT], "ends that are no whole numbers"),
        (["a=bool:0..1", *OUT], "bool has no range"),
        (["a=1x1x1x1x1", *OUT], "at most 4 axes"),
        (["a=0", *OUT], "each of at least 1"),
        (["a=3", "a=4", *OUT], "a: given"),
        (["a=3", "--out", "x.npy"], "--out=x.npy: name a .safetensors file"),
        (["a=3", "--samples", "0", *OUT], "--samples=0: at least 1"),
        (["a=99999x99999", *OUT], "8 samples would take 298 GiB, and 4 are allowed"),
        (["a=3", "--out", "nowhere/x.safetensors"], "--out=nowhere/x.safetensors: can't be written"),
    ],
    ids=str,
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

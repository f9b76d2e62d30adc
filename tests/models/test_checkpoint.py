"""Weights: read where that is safe, refused in one line where it isn't."""

import gzip
import pickle
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from models import checkpoint
from models.unet import UNet
from pipeline.errors import CheckpointError
from pipeline.inputs import weights_file

SHIPPED = "models/weights/unet_small.safetensors"


class Bomb:
    """What a hostile pickle would hold: a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("description",)


def net() -> UNet:
    torch.manual_seed(1)
    return UNet(base=4, depth=2)


@pytest.mark.parametrize(
    ("nest", "prefix"),
    [
        (None, ""),
        ("state_dict", "model."),
        ("model", "module."),
        ("network_weights", "_orig_mod."),
        (None, "net."),
        ("state_dict", "model._orig_mod."),
        ("state_dict", "unet."),
        ("ema", "ema_model."),
    ],
)
def test_a_state_dict_loads_however_it_was_saved(tmp_path: Path, nest: str | None, prefix: str) -> None:
    state: dict[str, Any] = {prefix + name: part for name, part in net().state_dict().items()}
    torch.save({nest: state, "epoch": 3} if nest else state, tmp_path / "net.pt")
    other = UNet(base=4, depth=2)
    checkpoint.load_into(other, str(tmp_path / "net.pt"))
    wanted = net().state_dict()
    assert all(torch.equal(part, wanted[name]) for name, part in other.state_dict().items())


@pytest.mark.parametrize(("counted", "fits"), [(0.0, True), (2048.0, True), (0.5, False), (torch.inf, False)])
def test_counters_that_became_floats_are_taken_where_they_are_whole(counted: float, fits: bool, tmp_path: Path) -> None:
    name, halves = "encoder.0.1.num_batches_tracked", net().half().state_dict()
    torch.save({**halves, name: torch.tensor(counted)}, tmp_path / "net.pt")
    other = UNet(base=4, depth=2)
    with nullcontext() if fits else pytest.raises(CheckpointError, match=f"{name} is torch.float32, the network's is"):
        checkpoint.load_into(other, str(tmp_path / "net.pt"))
    assert bool(other.state_dict()[name] == counted) is fits


def test_what_a_lightning_module_holds_beside_its_net_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {f"model.{name}": part for name, part in net().state_dict().items()}
    torch.save({"state_dict": held | {"loss.weight": torch.ones(2)}}, tmp_path / "net.ckpt")
    other = UNet(base=4, depth=2)
    checkpoint.load_into(other, str(tmp_path / "net.ckpt"))
    assert torch.equal(other.head.weight, net().head.weight)
    told = "its weights are those under 'model.', 1 tensors beside them left out, first loss.weight"
    assert told in capsys.readouterr().err
    compiled = {name.replace("model.", "model._orig_mod.", 1): part for name, part in held.items()}
    torch.save({"state_dict": compiled | {"loss.weight": torch.ones(2)}}, tmp_path / "net.ckpt")
    checkpoint.load_into(other, str(tmp_path / "net.ckpt"))
    assert told.replace("'model.'", "'model._orig_mod.'") in capsys.readouterr().err
    held["loss.weight"] = held.pop("model.head.bias")
    torch.save(held, tmp_path / "net.ckpt")
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.load_into(other, str(tmp_path / "net.ckpt"))


def test_weights_that_lie_in_a_file_more_than_once_are_named(tmp_path: Path) -> None:
    """Under two names that say nothing, or before two lots of them: neither is chosen."""
    held = net().state_dict()
    torch.save(
        {f"{copy}.{name}": part for copy in ("student", "teacher") for name, part in held.items()}, tmp_path / "two.pt"
    )
    with pytest.raises(CheckpointError, match=r"it holds them under student\. and teacher\.: save those of one"):
        checkpoint.load_into(net(), str(tmp_path / "two.pt"))
    torch.save({"generator": held, "ema": held}, tmp_path / "two.pt")
    with pytest.raises(CheckpointError, match="weights under each of generator, ema; save the one that is meant"):
        checkpoint.load_into(net(), str(tmp_path / "two.pt"))


@pytest.mark.parametrize("of_lightning", [True, False])
def test_a_pickle_with_code_is_refused_with_a_recipe(tmp_path: Path, of_lightning: bool) -> None:
    torch.save(
        {"state_dict": net().state_dict(), "hyper_parameters": Bomb()} if of_lightning else net(), tmp_path / "net.ckpt"
    )
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_into(net(), str(tmp_path / "net.ckpt"))
    text = str(caught.value)
    assert "of a file that you trust" in text
    code = text.partition('python -c "')[2].removesuffix('"').replace("weights.pt", str(tmp_path / "weights.pt"))
    exec(code, {})
    checkpoint.load_into(net(), str(tmp_path / "weights.pt"))
    (tmp_path / "text.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(tmp_path / "text.pt")
    assert "python -c" not in str(caught.value)


def test_weights_stored_in_fp16_come_back_in_fp32(tmp_path: Path) -> None:
    checkpoint.save(net(), tmp_path / "net.safetensors", {"labels": "none"})
    torch.save(net().state_dict(), tmp_path / "net.pt")
    found = [checkpoint.stored_as(str(tmp_path / name)) for name in ("net.safetensors", "net.pt")]
    assert found == [["float16"], ["float32"]]
    other = UNet(base=4, depth=2)
    checkpoint.load_into(other, str(tmp_path / "net.safetensors"))
    assert other.head.weight.dtype == torch.float32
    assert torch.equal(other.head.weight, net().head.weight.half().float())
    assert checkpoint.notes(tmp_path / "net.safetensors") == {"labels": "none"}


@pytest.mark.filterwarnings("ignore:.*[Ss]parse (tensor )?invariant")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(2, dtype=torch.int64), "head.bias is torch.int64, the network's is torch.float32"),
        (torch.tensor([1.0, float("inf")]), "head.bias holds NaN or infinite values"),
        (torch.zeros(2, device="meta"), "head.bias has no values"),
        (torch.zeros(2).to_sparse(), "head.bias has a sparse or quantized layout"),
    ],
)
def test_weights_that_a_net_cannot_compute_with_are_refused(tmp_path: Path, value: torch.Tensor, said: str) -> None:
    torch.save(net().state_dict() | {"head.bias": value}, tmp_path / "net.pt")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_into(net(), str(tmp_path / "net.pt"))
    assert said in str(caught.value)


def bad_files(folder: Path) -> dict[str, Path]:
    (folder / "text.pt").write_text("these are no weights")
    (folder / "empty.pt").touch()
    (folder / "text.safetensors").write_text("these are no weights")
    (folder / "empty.safetensors").touch()
    (folder / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (folder / "notes.txt").write_text("x")
    (folder / "folder.safetensors").mkdir()
    save_file(net().state_dict(), folder / "whole.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-100])
    (folder / "code.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    torch.save(Bomb(), folder / "code_in_zip.pt")
    torch.save([1, 2], folder / "list.pt")
    save_file(UNet(base=8, depth=2).state_dict(), folder / "wider.safetensors")
    save_file({"other": torch.zeros(2)}, folder / "stranger.safetensors")
    return {path.name: path for path in folder.iterdir()}


BAD = [
    ("text.pt", "no file of weights that can be read"),
    ("empty.pt", "no file of weights that can be read"),
    ("text.safetensors", "no file of weights"),
    ("empty.safetensors", "no file of weights"),
    ("cut.safetensors", "no file of weights"),
    ("pointer.safetensors", "a pointer of Git LFS instead of the file; git lfs pull fetches it"),
    ("notes.txt", "weights are read from .safetensors"),
    ("folder.safetensors", "is a folder"),
    ("missing.safetensors", "no such file"),
    ("code.pt", "could run code"),
    ("code_in_zip.pt", "could run code"),
    ("list.pt", "no state dict in it"),
    (
        "wider.safetensors",
        "of another shape, first encoder.0.0.weight: [8, 3, 3, 3] where the network has [4, 3, 3, 3]",
    ),
    ("stranger.safetensors", "missing, first encoder.0.0.weight; 1 unknown, first other"),
]


@pytest.mark.parametrize(("name", "said"), BAD)
def test_a_bad_file_is_one_line_that_names_it(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad_files(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_into(net(), str(tmp_path / name))
    assert said in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "description" not in capsys.readouterr().out


def test_an_archive_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(50_000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "bomb.pt", "w", 8) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert checkpoint.read(tmp_path / "plain.pt")["a"].numel() == 50_000
    with pytest.raises(CheckpointError, match=r"bomb\.pt: [\d,]+ bytes that would inflate to 20\d,\d+"):
        checkpoint.read(tmp_path / "bomb.pt")


def test_a_file_of_another_kind_than_its_suffix_says_is_told(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "a.safetensors")
    save_file(net().state_dict(), tmp_path / "b.pt")
    (tmp_path / "c.ckpt").write_bytes(gzip.compress(b"x"))
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), tmp_path / "d.pt")
    with pytest.raises(CheckpointError, match=r"a\.safetensors: a file of torch\.save's by its first bytes; call it"):
        weights_file.check(str(tmp_path / "a.safetensors"))
    for name, said in (("b.pt", "call it .safetensors"), ("c.ckpt", "unpack it"), ("d.pt", "a TorchScript archive")):
        with pytest.raises(CheckpointError, match=said):
            checkpoint.read(tmp_path / name)


def test_other_weights_in_the_same_file_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": net().state_dict(), "ema": net().state_dict(), "epoch": {"n": 3}}, tmp_path / "net.pt")
    checkpoint.load_into(UNet(base=4, depth=2), str(tmp_path / "net.pt"))
    assert "the weights under 'model' are taken, and those under ema are not" in capsys.readouterr().err

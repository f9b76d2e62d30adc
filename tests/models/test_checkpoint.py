"""Weights: read where that is safe, refused in one line where it isn't."""

import gzip
import json
import pickle
import re
import zipfile
from argparse import Namespace
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn
from torch.optim.swa_utils import AveragedModel

from models import checkpoint, weights_file
from models.unet import UNet
from pipeline.errors import CheckpointError

SHIPPED = "models/weights/unet_small.safetensors"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("description",)


def net() -> UNet:
    torch.manual_seed(1)
    return UNet(base=4, depth=2)


STATE = net().state_dict()


def loaded(place: Path, key: str | None = None) -> UNet:
    other = UNet(base=4, depth=2)
    checkpoint.load_into(other, str(place), key)
    return other


class Options(dict[str, Any]):
    def __reduce__(self) -> Any:
        return Options, (), {"rate": 0.1}


def wrapped(before: str, between: str = "") -> dict[str, Any]:
    return {before + name.replace("encoder.", f"encoder.{between}"): part for name, part in STATE.items()}


NUMPY = {name: part.numpy() for name, part in STATE.items()}
ENCODER = {name.removeprefix("encoder."): part for name, part in STATE.items() if name.startswith("encoder.")}
REST = {name: part for name, part in STATE.items() if not name.startswith("encoder.")}
SAVED: dict[str, tuple[object, list[str]]] = {
    "plain": (STATE, []),
    "under model": ({"state_dict": wrapped("model."), "epoch": 3}, []),
    "of DataParallel": ({"model": wrapped("module.")}, []),
    "compiled": ({"network_weights": wrapped("_orig_mod.")}, []),
    "compiled within": ({"state_dict": wrapped("model.", "_orig_mod.")}, []),
    "of FSDP": (wrapped("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."), []),
    "of an attribute": ({"state_dict": wrapped("unet.")}, []),
    "averaged": (AveragedModel(net()).state_dict(), ["1 tensors of training left out, first n_averaged"]),
    "only an average": ({"ema": wrapped("ema_model.")}, []),
    "beside an optimizer": ({"net": STATE, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}, []),
    "a list beside": ({**STATE, "mask_values": [0, 1]}, ["left out, as no tensors: mask_values"]),
    "a namespace beside": ({**STATE, "args": Namespace(rate=0.1)}, ["left out, as no tensors: args"]),
    "objects above": ({"state_dict": STATE, "args": Options(), "path": Path("a"), "dice": np.arange(3.0)}, []),
    "counts above": ({"state_dict": STATE, "counts": defaultdict(int, {"a": 1})}, []),
    "texts of numpy": ({**STATE, "names": np.array(["a"])}, ["left out, as no tensors: names"]),
    "a whole network": (net(), []),
    "a whole network within": ({"model": nn.DataParallel(net()), "epoch": 3}, []),
    "arrays": (NUMPY, []),
    "in a tuple": ((STATE, 3), []),
    "by parts": ({"encoder": ENCODER, **REST}, []),
    "of before counters": ({name: part for name, part in STATE.items() if "num_batches" not in name}, []),
    "with a second head": (
        {**STATE, "aux_classifier.0.weight": torch.ones(1)},
        ["1 tensors of training left out, first aux_classifier.0.weight"],
    ),
    "profiled": ({**STATE, "head.total_ops": torch.ones(1)}, ["1 tensors of training left out, first head.total_ops"]),
}


@pytest.mark.parametrize("kind", SAVED)
def test_weights_load_however_they_were_saved(tmp_path: Path, kind: str) -> None:
    value, told = SAVED[kind]
    torch.save(value, tmp_path / "net.pt")
    other = loaded(tmp_path / "net.pt")
    assert all(torch.equal(part, STATE[name]) for name, part in other.state_dict().items())
    assert checkpoint.LOADED[other].told == told


class Tied(nn.Module):
    """A network that holds one layer under two names, and renames what an earlier version called otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Conv2d(3, 2, 1)

    def load_state_dict(self, state_dict: Any, *args: Any, **named: Any) -> Any:
        for name in [name for name in state_dict if name.startswith("old.")]:
            state_dict[name.replace("old.", "first.")] = state_dict.pop(name)
        return super().load_state_dict(state_dict, *args, **named)


def test_shared_values_that_are_stored_once_are_found(tmp_path: Path) -> None:
    first, second = Tied(), Tied()
    save_model(first, str(tmp_path / "net.safetensors"))
    checkpoint.load_into(second, str(tmp_path / "net.safetensors"))
    assert torch.equal(second.again.weight, first.first.weight)


def test_a_network_s_own_loader_renames_before_names_are_compared(tmp_path: Path) -> None:
    first, second = Tied(), Tied()
    values = {f"{at}.{name}": part for at in ("old", "again") for name, part in first.first.state_dict().items()}
    torch.save(values, tmp_path / "net.pt")
    checkpoint.load_into(second, str(tmp_path / "net.pt"))
    assert torch.equal(second.first.weight, first.first.weight)


@pytest.mark.parametrize(("counted", "fits"), [(0.0, True), (2048.0, True), (0.5, False), (torch.inf, False)])
def test_counters_that_became_floats_are_taken_where_they_are_whole(counted: float, fits: bool, tmp_path: Path) -> None:
    name, halves = "encoder.0.1.num_batches_tracked", net().half().state_dict()
    torch.save({**halves, name: torch.tensor(counted)}, tmp_path / "net.pt")
    with nullcontext() if fits else pytest.raises(CheckpointError, match=f"{name} is torch.float32, the network's is"):
        assert loaded(tmp_path / "net.pt").state_dict()[name] == counted


def test_what_a_lightning_module_holds_beside_its_net_is_left_out(tmp_path: Path) -> None:
    held = wrapped("model.", "_orig_mod.") | {"loss.weight": torch.ones(2)}
    torch.save({"state_dict": held}, tmp_path / "net.ckpt")
    told = "1 tensors beside those under 'state_dict.model.' left out, first state_dict.loss.weight"
    assert checkpoint.LOADED[loaded(tmp_path / "net.ckpt")].told == [told]
    held["loss.weight"] = held.pop("model.head.bias")
    torch.save(held, tmp_path / "net.ckpt")
    with pytest.raises(CheckpointError, match=r"1 of .* missing, first head\.bias"):
        loaded(tmp_path / "net.ckpt")


@pytest.mark.parametrize("keys", [("params", "params_ema"), ("student", "teacher"), ("ema", "generator")])
@pytest.mark.parametrize("nested", [True, False])
def test_of_several_weights_those_that_are_named_are_taken(tmp_path: Path, keys: tuple[str, str], nested: bool) -> None:
    other = {name: part + 1 for name, part in STATE.items()}
    both = dict(zip(keys, (other, STATE), strict=True))
    flat = {f"{key}.{name}": part for key, state in both.items() for name, part in state.items()}
    torch.save(both if nested else flat, tmp_path / "two.pt")
    choice = f"choose by model.checkpoint_key={keys[0]} or model.checkpoint_key={keys[1]}"
    with pytest.raises(CheckpointError, match=choice):
        loaded(tmp_path / "two.pt")
    with pytest.raises(CheckpointError, match=f"key=no: .* holds no weights under it; it has {min(keys)}"):
        loaded(tmp_path / "two.pt", "no")
    assert torch.equal(loaded(tmp_path / "two.pt", keys[1]).head.weight, STATE["head.weight"])


@pytest.mark.parametrize("beside", [True, False])
def test_a_pickle_that_names_a_function_is_refused(tmp_path: Path, beside: bool) -> None:
    torch.save({"state_dict": STATE, "hyper_parameters": Bomb()} if beside else Bomb(), tmp_path / "net.ckpt")
    with pytest.raises(CheckpointError, match=r"a pickle that names builtins\.print and could run code"):
        checkpoint.load_into(net(), str(tmp_path / "net.ckpt"))


def test_weights_stored_in_fp16_come_back_in_fp32(tmp_path: Path) -> None:
    checkpoint.save(net(), tmp_path / "net.safetensors", {"labels": "none"})
    torch.save(net().state_dict(), tmp_path / "net.pt")
    assert checkpoint.LOADED[loaded(tmp_path / "net.pt")].kinds == ["float32"]
    other = loaded(tmp_path / "net.safetensors")
    assert checkpoint.LOADED[other].kinds == ["float16"]
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
    with pytest.raises(CheckpointError, match=re.escape(said)):
        checkpoint.load_into(net(), str(tmp_path / "net.pt"))


def bad_files(folder: Path) -> dict[str, Path]:
    for kind in ("pt", "safetensors"):
        (folder / f"text.{kind}").write_text("these are no weights")
        (folder / f"empty.{kind}").touch()
    (folder / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (folder / "notes.txt").write_text("x")
    (folder / "folder.safetensors").mkdir()
    save_file(net().state_dict(), folder / "whole.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "whole.safetensors").read_bytes()[:-100])
    (folder / "code.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    torch.save(Bomb(), folder / "code_in_zip.pt")
    torch.save([1, 2], folder / "list.pt")
    torch.save(list(STATE.values()), folder / "parameters.pt")
    torch.save(STATE, folder / "whole.pt")
    (folder / "cut.pt").write_bytes((folder / "whole.pt").read_bytes()[:-100])
    content = bytearray((folder / "whole.pt").read_bytes())
    content[content.index(STATE["head.weight"].numpy().tobytes())] ^= 1
    (folder / "flipped.pt").write_bytes(content)
    save_file(UNet(base=8, depth=2).state_dict(), folder / "wider.safetensors")
    save_file(UNet(base=4, depth=2, classes=5).state_dict(), folder / "classes.safetensors")
    save_file(STATE | {"head.bias": torch.zeros(())}, folder / "scalar.safetensors")
    save_file({"other": torch.zeros(2)}, folder / "stranger.safetensors")
    return {path.name: path for path in folder.iterdir()}


BAD = [
    ("text.pt", "a text file, no file of weights that can be read"),
    ("empty.pt", "an empty file"),
    ("cut.pt", "cut off: the end of its archive is missing; copy or download it again"),
    ("flipped.pt", "damaged: the checksum of whole/data/"),
    ("w" * 300 + ".pt", "File name too long"),
    ("text.safetensors", "no file of weights"),
    ("empty.safetensors", "an empty file"),
    ("cut.safetensors", "no file of weights"),
    ("pointer.safetensors", "a pointer of Git LFS instead of the file; git lfs pull fetches it"),
    ("notes.txt", "weights are read from .safetensors"),
    ("folder.safetensors", "is a folder"),
    ("missing.safetensors", "no such file"),
    ("code.pt", "could run code"),
    ("code_in_zip.pt", "could run code"),
    ("list.pt", "no state dict in it"),
    ("parameters.pt", "tensors in a list, without names; save model.state_dict()"),
    ("wider.safetensors", "of another shape, first encoder.0.0.weight: [8, 3, 3, 3] where the network has [4, 3, 3,"),
    ("classes.safetensors", "has [2, 4, 1, 1]; these are outputs, as of other classes: model.options.classes=5, or"),
    ("scalar.safetensors", "1 of another shape, first head.bias: [] where the network has [2]"),
    ("stranger.safetensors", "missing, first encoder.0.0.weight; 1 unknown, first other"),
]


@pytest.mark.parametrize(("name", "said"), BAD)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad_files(tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        checkpoint.load_into(net(), str(tmp_path / name))
    assert name[:80] in str(caught.value) or len(name) > 255
    assert "\n" not in str(caught.value)
    assert "description" not in capsys.readouterr().out
    assert ("classes" in str(caught.value)) == (name == "classes.safetensors")


def test_an_archive_that_inflates_is_refused_before_it_does(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(50_000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "bomb.pt", "w", 8) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert checkpoint.read(tmp_path / "plain.pt").tensors["a"].numel() == 50_000
    with pytest.raises(CheckpointError, match=r"bomb\.pt: [\d,]+ bytes that would inflate to 20\d,\d+"):
        checkpoint.read(tmp_path / "bomb.pt")


def test_an_archive_without_checksums_is_read(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "net.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "net.pt") as archive:
        assert not any(member.CRC for member in archive.infolist())
    assert checkpoint.read(tmp_path / "net.pt").tensors.keys() == STATE.keys()


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


def test_other_weights_in_the_same_file_are_told(tmp_path: Path) -> None:
    torch.save({"model": STATE, "ema": STATE, "epoch": {"n": 3}}, tmp_path / "net.pt")
    told = "the weights under 'model' are taken, and those under ema are not; model.checkpoint_key chooses"
    assert checkpoint.LOADED[loaded(tmp_path / "net.pt")].told == [told]


def test_lists_that_hold_others_twice_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty of them within each other have as many entries as no machine could look at."""
    monkeypatch.setattr(checkpoint, "MOST_ENTRIES", 1000)
    laughs: list[Any] = []
    for _ in range(50):
        laughs = [laughs, laughs]
    laughs[0].append(laughs)
    torch.save({"state_dict": STATE, "laughs": laughs}, tmp_path / "net.pt")
    loaded(tmp_path / "net.pt")
    assert checkpoint.read(tmp_path / "net.pt").entries < 2000


def test_weights_in_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    for number, part in enumerate((ENCODER, REST)):
        names = {f"encoder.{name}": value for name, value in part.items()} if number == 0 else part
        save_file(names, tmp_path / f"model-{number}.safetensors")
    places = {name: f"model-{int(not name.startswith('encoder.'))}.safetensors" for name in STATE}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    other = loaded(tmp_path)
    assert all(torch.equal(part, STATE[name]) for name, part in other.state_dict().items())
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"it names model-1\.safetensors, and no such file is beside it"):
        weights_file.check(str(tmp_path))

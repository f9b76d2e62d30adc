"""What parses, each with good input to spoil, and the errors that it may raise: those that a user reads as one line."""

import gzip
import io
import json
import random
import string
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import tifffile
import torch
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image
from safetensors.torch import save as safetensors_bytes
from torch import nn

from models import checkpoint
from models.tensor_files import headers, read_tensors
from pipeline.cli.arguments import parse
from pipeline.cli.messages import CONF, one_line
from pipeline.config import load
from pipeline.config.request_error import RequestError
from pipeline.errors import InputError
from pipeline.inputs.folders import folder_samples, values_in_file
from pipeline.inputs.image_files import read_image
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records import codec
from pipeline.report import write as redraw
from tests.report import made_up_run as made_up

OVERRIDES = [
    "stage=compile", "stage.mode=max-autotune", "data.batch_size=8", "+model.options.width=32", "~stage.rungs.fp8",
    "measure.interim_analyses=[6,10,30]", "stage=ladder", "data.size=null", "model.target=a.MyNet", "device=cpu",
    "+stage.note={a:[1,2],b:'x'}", "seed=0", "data=folder", "report.target_p99_ms=5", "model.checkpoint=x.pt",
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    spoil: Callable[[random.Random], Any]  # a spoilt input
    read: Callable[[Any, Path], object]  # takes it, with a folder to put it into
    allowed: tuple[type[Exception], ...]  # errors whose text a user reads


@cache
def record() -> dict[str, Any]:
    """A run as plain JSON values, as short as one with every part can be."""
    run = codec.to_json(made_up.run())
    run["stages"] = [run["stages"][0], run["stages"][-1]]
    return json.loads(json.dumps(run))


def spoilt_record(draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return spoilt_bytes(json.dumps(record()).encode(), draw)
    return json.dumps(spoilt_json(record(), draw)).encode("utf-8", "surrogatepass")


def read_record(data: bytes, folder: Path) -> None:
    (folder / codec.FILE).write_bytes(data)
    codec.load(folder)


@cache
def weights() -> dict[str, bytes]:
    state = {"layer.weight": torch.ones(4, 3), "layer.bias": torch.zeros(4)}
    out = io.BytesIO()
    torch.save({"state_dict": state, "epoch": 3}, out)
    old = io.BytesIO()
    torch.save(state, old, _use_new_zipfile_serialization=False)
    return {"a.safetensors": safetensors_bytes(state), "a.pt": out.getvalue(), "a.bin": old.getvalue()}


def spoilt_one(files: Callable[[], dict[str, bytes]], draw: random.Random) -> tuple[str, bytes]:
    name = draw.choice(sorted(files()))
    return name, spoilt_bytes(files()[name], draw)


def read_weights(given: tuple[str, bytes], folder: Path) -> None:
    path = folder / given[0]
    path.write_bytes(given[1])
    net = nn.Module()
    net.layer = nn.Linear(3, 4)
    checkpoint.load_into(net, str(path))
    if path.suffix == ".safetensors":
        checkpoint.notes(path)


@cache
def pictures() -> dict[str, bytes]:
    picture = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    found = {}
    for kind in ("png", "jpeg", "tiff", "bmp", "gif", "webp"):
        picture.save(out := io.BytesIO(), kind)
        found[f"a.{kind}"] = out.getvalue()
    return found


def read_picture(given: tuple[str, bytes], folder: Path) -> None:
    inner = folder / "images"
    inner.mkdir(exist_ok=True)
    for path in inner.iterdir():
        path.unlink()
    (inner / given[0]).write_bytes(given[1])
    folder_samples(str(inner), None, InputContract(), LabelRules(), volumes=False)


@cache
def volumes() -> dict[str, bytes]:
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "a.npy", values)
        tifffile.imwrite(Path(folder) / "a.tif", values.astype(np.uint16), photometric="minisblack")
        written = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    plain = nibabel.Nifti1Image(values.T, None).to_bytes()
    return written | {"a.nii": plain, "a.nii.gz": gzip.compress(plain)}


def read_spoilt_volume(given: tuple[str, bytes], folder: Path) -> None:
    path = folder / given[0]
    path.write_bytes(given[1])
    values_in_file(path, volumes=True)
    read_image(path, 1, volumes=True)


def spoilt_tensors(draw: random.Random) -> bytes:
    whole = {"image": torch.ones(2, 3, 4, 4), "time": torch.ones(2, dtype=torch.int64)}
    return spoilt_bytes(safetensors_bytes(whole), draw)


def read_spoilt_tensors(content: bytes, folder: Path) -> None:
    path = folder / "inputs.safetensors"
    path.write_bytes(content)
    read_tensors(str(path), list(headers(str(path))))


@cache
def baselines() -> Any:
    return {name: OmegaConf.to_container(OmegaConf.load(CONF / "stage" / f"{name}.yaml")) for name in ("eager", "amp")}


def spoilt_overrides(draw: random.Random) -> list[str]:
    return ["preset=smoke", *(spoilt_text(draw.choice(OVERRIDES), draw) for _ in range(draw.choice([1, 2])))]


def read_overrides(arguments: list[str], _: Path) -> None:
    line = parse(arguments, [])
    if not GlobalHydra.instance().is_initialized():
        initialize_config_module("conf", version_base="1.3")
    try:
        config = compose("config", line.words[: len(line.words) - len(line.flags)])
        values: Any = OmegaConf.to_container(config, resolve=True)
        load.read(values, "cpu", baselines())
    except (HydraException, OmegaConfBaseException) as error:
        raise RequestError(one_line(error)) from None


def draw_record(data: bytes, folder: Path) -> None:
    (folder / codec.FILE).write_bytes(data)
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()):
        code = redraw.main([str(folder)])
    if code and said.getvalue().count("\n") != 1:
        raise AssertionError(f"exit code {code} with {said.getvalue()!r}")


TARGETS = {
    "records": Target(spoilt_record, read_record, (codec.RecordError,)),
    "checkpoints": Target(partial(spoilt_one, weights), read_weights, (InputError,)),
    "images": Target(partial(spoilt_one, pictures), read_picture, (InputError,)),
    "volumes": Target(partial(spoilt_one, volumes), read_spoilt_volume, (InputError,)),
    "tensors": Target(spoilt_tensors, read_spoilt_tensors, (InputError,)),
    "overrides": Target(spoilt_overrides, read_overrides, (RequestError, InputError)),
    "reports": Target(spoilt_record, draw_record, ()),
}


NASTY_TEXTS = ["", "\x00", "\x1b[31m", "\u202e", "../../etc/passwd", "${oc.env:HOME}", "nan", "é" * 300, "\ud800"]
NASTY_NUMBERS = [0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e-320, 1e308, float("inf"), float("nan")]
NASTY_VALUES: list[Any] = [None, True, [], {}, [[]], {"": None}, *NASTY_TEXTS, *NASTY_NUMBERS]
SIGNS = [*"=+~,.:{}[]()'\"$@\\ \t", *string.digits, "${", *NASTY_TEXTS]  # that a grammar of overrides cares for
NASTY_BYTES = [b"", b"\x00" * 8, b"\xff" * 8, b"PK\x03\x04", b"\x80\x02", b"{", b"[" * 2000, b"\x7f" * 4, b"1e999"]


def spoilt_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bytes that are cut, doubled, flipped, or have others in them, once or a few times."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, length = draw.randrange(len(data) + 1), draw.choice([1, 2, 8, 100])
        kind = draw.randrange(5)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + data[at + length :]
        elif kind == 2:
            data = data[:at] + draw.choice(NASTY_BYTES) + data[at:]
        elif kind == 3:
            data = data[:at] + data[at : at + length] * 2 + data[at + length :]
        else:
            data = data[:at] + draw.randbytes(min(length, len(data) - at)) + data[at + length :]
    return data


def spoilt_json(value: Any, draw: random.Random) -> Any:
    """Plain JSON values with one of them replaced, taken away or put where none was."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(NASTY_VALUES)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], *([spoilt_json(value[at], draw)] if draw.random() < 0.9 else []), *value[at + 1 :]]
    key = draw.choice(list(value))
    kind = draw.random()
    if kind < 0.1:
        return {name: part for name, part in value.items() if name != key}
    if kind < 0.2:
        return {**value, draw.choice(NASTY_TEXTS): draw.choice(NASTY_VALUES)}
    return {**value, key: spoilt_json(value[key], draw)}


def spoilt_text(text: str, draw: random.Random) -> str:
    signs = list(text)
    for _ in range(draw.choice([1, 2, 4])):
        at = draw.randrange(len(signs) + 1)
        signs[at : at + draw.randrange(3)] = draw.choice(SIGNS)
    return "".join(signs).replace("\x00", "")

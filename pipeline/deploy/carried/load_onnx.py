"""The net of this bundle: `masks(load(), images)`, with onnxruntime and nothing of the project that made it."""

import hashlib
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

HERE = Path(__file__).resolve().parent
CONTRACT = json.loads((HERE / "contract.json").read_text(encoding="utf-8"))
DEVICE, LOADER = CONTRACT["measured"]["device"], CONTRACT["loader"]
PROVIDER = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}[DEVICE]
NAMES = [CONTRACT["input"]["name"], *(rule["name"] for rule in CONTRACT.get("others", []))]
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def load() -> Callable[..., np.ndarray]:
    """From a batch as `prepare` makes it to logits, [batch, classes, height, width]; ValueError for a changed file.

    A net of several inputs takes them one by one, in the order of contract.json: `input`, then `others`.
    """
    for line in (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition("  ")
        if hashlib.sha256((HERE / name).read_bytes()).hexdigest() != wanted:
            raise ValueError(f"{name}: not the file that was exported")
    options = ort.SessionOptions()
    options.intra_op_num_threads = CONTRACT["measured"]["threads"] or 0
    if DEVICE == "cuda":
        ort.preload_dlls()
    session = ort.InferenceSession(str(HERE / CONTRACT["artefact"]), options, providers=[(PROVIDER, LOADER)])
    if session.get_providers()[0] != PROVIDER:
        raise ValueError(f"asked for {PROVIDER}, the session landed on {session.get_providers()[0]}")
    if LOADER.get("enable_cuda_graph") == "1":
        return replayed(session)
    taken = {given.name for given in session.get_inputs()}
    named = lambda batch: {name: part for name, part in zip(NAMES, batch, strict=True) if name in taken}  # noqa: E731
    return lambda *batch: session.run(None, named(batch))[0]


def replayed(session: Any) -> Callable[..., np.ndarray]:
    """The session as a CUDA graph, which reads and writes the same memory at every call."""
    rules, output = [CONTRACT["input"], *CONTRACT.get("others", [])], session.get_outputs()[0]
    taken = {given.name for given in session.get_inputs()}
    there = [
        ort.OrtValue.ortvalue_from_shape_and_type(rule["shape"], np.dtype(rule["dtype"]).type, DEVICE, 0)
        for rule in rules
    ]
    logits_there = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, TYPES[output.type], DEVICE, 0)
    binding = session.io_binding()
    for name, part in zip(NAMES, there, strict=True):
        if name in taken:
            binding.bind_ortvalue_input(name, part)
    binding.bind_ortvalue_output(output.name, logits_there)

    def run(*batch: np.ndarray) -> np.ndarray:
        for part, rule, value in zip(batch, rules, there, strict=True):
            if list(part.shape) != rule["shape"]:
                raise ValueError(f"a batch of shape {list(part.shape)}; this net takes {rule['shape']}")
            value.update_inplace(part)
        session.run_with_iobinding(binding)
        logits: np.ndarray = logits_there.numpy()
        return logits

    return run


def prepare(images: np.ndarray) -> np.ndarray:
    """Images [n, height, width, channels], uint8, uint16 or fp32, as the net takes them; of volumes a depth before."""
    space, ones = tuple(range(2, images.ndim)), [1] * (images.ndim - 2)
    rule = CONTRACT["normalisation"]
    scale = rule["scale"] or (1.0 if images.dtype.kind == "f" else float(np.iinfo(images.dtype).max))
    planes = np.moveaxis(images.astype(np.float32), -1, 1) / np.float32(scale)
    mean, std = (np.array(rule[key], np.float32).reshape(-1, *ones) for key in ("mean", "std"))
    if rule["normalize"] == "zscore":
        mean, std = planes.mean(space, keepdims=True), planes.std(space, keepdims=True)
        std = np.where(planes.max(space, keepdims=True) == planes.min(space, keepdims=True), np.float32(1), std)
    return np.ascontiguousarray((planes - mean) / std)


def masks(run: Callable[[np.ndarray], np.ndarray], images: np.ndarray) -> np.ndarray:
    """The class of every pixel, [n, height, width], of images as `prepare` takes them."""
    classes: np.ndarray = run(prepare(images)).argmax(1)
    return classes


def array(content: bytes, dtype: str, shape: list[int]) -> np.ndarray:
    """An array of any shape from its bytes."""
    return np.frombuffer(content, dtype).reshape(shape)


def exact(values: np.ndarray) -> np.ndarray:
    """The same values, of any shape, in fp64; a copy."""
    return values.astype(np.float64)


def wait() -> None:
    """Nothing: an answer in the host's memory is complete."""


if __name__ == "__main__":
    sys.exit(runpy.run_path(str(HERE / "golden_check.py"))["main"](globals()))

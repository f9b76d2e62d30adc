"""The parts of load.py: the session, its CUDA graph and normalisation."""

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.31 reports to its maker unless told before
import onnxruntime as ort

SHAPES = runpy.run_path(str(Path(__file__).resolve().with_name("image_shape.py")))
CONTRACT, RULES, classes = (SHAPES[name] for name in ("CONTRACT", "RULES", "classes"))
DEVICE, LOADER = CONTRACT["measured"]["device"], CONTRACT["loader"]
PROVIDER = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}[DEVICE]
NAMES = [rule["name"] for rule in RULES]
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


def fitting(images: Any) -> np.ndarray:
    """Return the images [n, height, width, channels] as an array; ValueError for other types."""
    if not hasattr(images, "__array__"):
        raise ValueError(f"images are a {type(images).__name__}; an array of numpy's is taken")
    fit: np.ndarray = SHAPES["fitting"](np.asarray(images))
    return fit


def opened(model: Path) -> Callable[..., np.ndarray]:
    """Return the network's call; ValueError if the session has another provider than wanted."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = CONTRACT["measured"]["threads"] or 0
    if DEVICE == "cuda":
        ort.preload_dlls()
    session = ort.InferenceSession(str(model), options, providers=[(PROVIDER, LOADER)])
    if session.get_providers()[0] != PROVIDER:
        raise ValueError(f"asked for {PROVIDER}, the session landed on {session.get_providers()[0]}")
    taken = {given.name for given in session.get_inputs()}
    if not taken <= set(NAMES):
        raise ValueError(f"contract.json names {', '.join(NAMES)}, and the model takes {', '.join(sorted(taken))}")
    if LOADER.get("enable_cuda_graph") == "1":
        return replayed(session)

    def run(*batch: np.ndarray) -> np.ndarray:
        named = {name: part for name, part in zip(NAMES, batch, strict=True) if name in taken}
        answer: np.ndarray = session.run(None, named)[0]
        return answer

    return run


def replayed(session: Any) -> Callable[..., np.ndarray]:
    """Return the session's call as a CUDA graph, which reads and writes the same memory at every call."""
    output, taken = session.get_outputs()[0], {given.name for given in session.get_inputs()}
    there = [
        ort.OrtValue.ortvalue_from_shape_and_type(rule["shape"], np.dtype(rule["dtype"]).type, DEVICE, 0)
        for rule in RULES
    ]
    answer_there = ort.OrtValue.ortvalue_from_shape_and_type(output.shape, TYPES[output.type], DEVICE, 0)
    binding = session.io_binding()
    for name, part in zip(NAMES, there, strict=True):
        if name in taken:
            binding.bind_ortvalue_input(name, part)
    binding.bind_ortvalue_output(output.name, answer_there)

    def run(*batch: np.ndarray) -> np.ndarray:
        for part, rule, value in zip(batch, RULES, there, strict=True):
            if list(part.shape) != rule["shape"] or part.dtype != rule["dtype"]:  # its bits would be taken
                raise ValueError(
                    f"a batch of {list(part.shape)} {part.dtype}; this network takes {rule['shape']} {rule['dtype']}"
                )
            value.update_inplace(part)
        session.run_with_iobinding(binding)
        answer: np.ndarray = answer_there.numpy()
        return answer

    return run


def prepare(images: np.ndarray) -> np.ndarray:
    """Return images [n, height, width, channels], uint8, uint16 or fp32, normalised; of volumes with a depth before."""
    if CONTRACT.get("images_in"):
        return np.ascontiguousarray(images)
    space, ones = tuple(range(2, images.ndim)), [1] * (images.ndim - 2)
    rule = CONTRACT["normalisation"]
    scale = rule["scale"] or (1.0 if images.dtype.kind == "f" else float(np.iinfo(images.dtype).max))
    planes = np.moveaxis(images.astype(np.float32), -1, 1) / np.float32(scale)
    planes = planes[:, ::-1] if rule.get("channel_order") == "bgr" else planes
    figures = (rule.get(key, []) for key in ("low", "high", "mean", "std"))
    low, high, mean, std = (np.array(part, np.float32).reshape(-1, *ones) for part in figures)
    planes = np.clip(planes, low, high) if rule["normalize"] == "ct" else planes
    if rule["normalize"] == "zscore":
        mean, std = planes.mean(space, keepdims=True), planes.std(space, keepdims=True)
        std = np.where(planes.max(space, keepdims=True) == planes.min(space, keepdims=True), np.float32(1), std)
    return np.ascontiguousarray((planes - mean) / std)


def array(content: bytes, dtype: str, shape: list[int]) -> np.ndarray:
    """Return an array of any shape from its bytes."""
    return np.frombuffer(content, dtype).reshape(shape)


def exact(values: np.ndarray) -> np.ndarray:
    """Return the values, of any shape, in fp64; a copy."""
    return values.astype(np.float64)


def on_the_host(values: np.ndarray) -> np.ndarray:
    """Return the values, of any shape, in host memory."""
    return values


def wait() -> None:
    """Do nothing: an answer in host memory is complete."""


def reserved_bytes() -> None:
    """Return None: ONNX Runtime doesn't tell what it has reserved."""

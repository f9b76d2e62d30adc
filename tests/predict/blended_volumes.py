"""Volumes in windows, a net for them, and the means of all windows' answers by a plain loop: what the tests share."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.inputs.input_contract import InputContract
from pipeline.inputs.volume_files import read_labels
from pipeline.predict.cases import cases_in
from pipeline.predict.loop import Prediction
from pipeline.predict.report import Outcome
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut

Run = Callable[[Tensor], Tensor]
ZSCORE = InputContract(2, "zscore", (), (), 1.0)


def a_volume(*sides: int, channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(3.0, 2.0, (*sides, channels)).astype(np.float32)


def a_net(classes: int = 3, side: int = 3) -> nn.Module:
    """A convolution: of a side above 1 its answer depends on where the window's border is."""
    torch.manual_seed(0)
    return nn.Conv3d(2, classes, side, padding=side // 2).eval()


def a_predictor(run: Run, window: Sequence[int], batch: int = 1, **fields: object) -> Predictor:
    made = Predictor("a test's", run, (batch, 2, *window), torch.device("cpu"), ZSCORE, None)
    return replace(made, **fields)  # type: ignore[arg-type]


def predicted(predictor: Predictor, scans: Path, cut: Cut | None = None, out: str = "masks") -> Outcome:
    """What becomes of the folder's volumes; the masks lie beside it."""
    folder = scans.parent / out
    folder.mkdir(exist_ok=True)
    cases, _ = cases_in(scans, nnunet=False, volumes=True)
    return Prediction(predictor, folder, "made by a test", cut or Cut()).make(cases, print)


def mask_of(predictor: Predictor, volume: np.ndarray, scans: Path, cut: Cut | None = None) -> np.ndarray:
    np.save(scans / "a.npy", volume)
    outcome = predicted(predictor, scans, cut)
    assert not outcome.failed
    found: np.ndarray = read_labels(scans.parent / "masks" / "a.npy")
    (scans.parent / "masks" / "a.npy").unlink()
    return found


def starts_of(length: int, size: int, step: float) -> list[int]:
    """As nnU-Net's paper has them: as many as lie a step apart at most, evenly over what is left of the side."""
    if length <= size:
        return [0]
    count = int(np.ceil((length - size) / (step * size))) + 1
    return [int(np.round((length - size) / (count - 1) * number)) for number in range(count)]


def means_of(net: nn.Module, volume: np.ndarray, window: Sequence[int], step: float) -> np.ndarray:
    """The weighted means [classes, depth, height, width], fp64, window by window and voxel by voxel, with a divisor."""
    axes = (0, 1, 2)
    whole = (volume - volume.mean(axes, dtype=np.float64)) / volume.std(axes, dtype=np.float64)
    sides = volume.shape[:3]
    padded = np.pad(
        whole, [*((0, max(0, w - n)) for n, w in zip(sides, window, strict=True)), (0, 0)], mode="symmetric"
    )
    weight = np.ones(tuple(window))
    for place in itertools.product(*map(range, window)):
        for at, side in zip(place, window, strict=True):
            weight[place] *= np.exp(-((at - side // 2) ** 2) / (2 * (side / 8) ** 2))
    sums, weights = np.zeros((3, *padded.shape[:3])), np.zeros(padded.shape[:3])
    for corner in itertools.product(*(starts_of(n, w, step) for n, w in zip(sides, window, strict=True))):
        here = tuple(slice(at, at + side) for at, side in zip(corner, window, strict=True))
        with torch.inference_mode():
            answer = net(torch.from_numpy(padded[here].transpose(3, 0, 1, 2)[None]).float())[0].double().numpy()
        sums[(slice(None), *here)] += answer * weight
        weights[here] += weight
    means: np.ndarray = (sums / weights)[(slice(None), *map(slice, sides))]
    return means

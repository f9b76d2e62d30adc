"""nnU-Net's normalisation for CT: figures of the foreground, given or measured, and clipped by them everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.image_batches import to_batch
from pipeline.config import ct_figures
from pipeline.config.request_error import RequestError
from pipeline.export.recorded_stage import with_ends
from pipeline.export.request import Ends
from pipeline.inputs.input_contract import InputContract
from tests.config.test_data_request import knobs, read_data
from tests.deploy.test_loaders import loader_in

GIVEN: dict[str, Any] = {"normalize": "ct", "low": -100, "high": 200.0, "mean": 10, "std": 50.0}
CONTRACT = InputContract(1, "ct", (10.0,), (50.0,), 1.0, (-100.0,), (200.0,))


def volumes(folder: Path | None = None, **typed: object) -> dict[str, Any]:
    """What conf/data/volume.yaml gives, with what is typed."""
    path = str(folder) if folder else None
    own: dict[str, Any] = {"name": "volume", "path": path, "labels": None, "size": None, "channels": 1, "scale": 1.0}
    return {**knobs(), **own, "label_pattern": "*", **typed}


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two volumes of 10 to 11 thousand values each, and the labels of the halves."""
    for name in ("scans", "masks"):
        (tmp_path / name).mkdir()
    for number in range(2):
        values = 1000.0 * number + np.arange(20 * 22 * 24, dtype=np.float32).reshape(20, 22, 24)
        np.save(tmp_path / "scans" / f"{number}.npy", values)
        np.save(tmp_path / "masks" / f"{number}.npy", (values % 2).astype(np.uint8))
    return tmp_path / "scans"


def test_figures_that_are_given_are_taken(scans: Path) -> None:
    """All four, of images as of volumes."""
    assert read_data(volumes(scans, **GIVEN)).contract == CONTRACT
    assert read_data(knobs(**GIVEN, channels=1, scale=1.0)).contract == CONTRACT


def test_figures_are_measured_of_the_foreground(scans: Path) -> None:
    """By numpy's percentiles and the deviation of all values; without labels, or without a class above 0, of all."""
    every = np.concatenate([np.load(file).ravel() for file in sorted(scans.iterdir())]).astype(np.float64)

    def right(values: np.ndarray) -> InputContract:
        low, high = np.percentile(values, [0.5, 99.5])
        return InputContract(1, "ct", (values.mean(),), (values.std(),), 1.0, (float(low),), (float(high),))

    masks = scans.parent / "masks"
    assert read_data(volumes(scans, normalize="ct")).contract == right(every)
    assert read_data(volumes(scans, labels=str(masks), normalize="ct")).contract == right(every[every % 2 == 1])
    for file in masks.iterdir():
        np.save(file, np.zeros((20, 22, 24), np.uint8))
    assert read_data(volumes(scans, labels=str(masks), normalize="ct")).contract == right(every)


WRONG = [
    ({"normalize": "ct", "low": 0}, "data.high: data.normalize=ct takes data.low, data.high, data.mean, data.std toge"),
    ({**GIVEN, "low": 200}, "data.low=200.0: expected less than data.high=200.0"),
    ({"low": 0, "high": 1, "mean": 0, "std": 1}, "data.low: it goes with data.normalize=ct"),
    ({**GIVEN, "high": [1, 2]}, "data.high: 2 figures for data.channels=1"),
    ({**GIVEN, "std": 0}, "data.std=0: expected float >= 1e-12"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "line"), WRONG)
def test_what_cannot_be_is_refused(typed: dict[str, Any], line: str, scans: Path) -> None:
    with pytest.raises(RequestError) as caught:
        read_data(volumes(scans, **typed))
    assert line in str(caught.value)


def test_what_cannot_be_measured_is_refused(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, labels of another size, files that are no volumes, and one value alone; each in a line."""
    with pytest.raises(RequestError, match=r"measured of data=volume alone; of data=samples give data\.low"):
        read_data(knobs(normalize="ct", channels=1))
    np.save(scans.parent / "masks" / "1.npy", np.zeros((2, 2, 2), np.uint8))
    with pytest.raises(RequestError, match=r"1\.npy: its labels are of another size than the volume"):
        read_data(volumes(scans, labels=str(scans.parent / "masks"), normalize="ct"))
    for file in scans.iterdir():
        np.save(file, np.full((2, 2, 2), 7.0))
    with pytest.raises(RequestError, match=r"has one value alone, 7; give data\.low"):
        read_data(volumes(scans, normalize="ct"))
    (scans / "0.npy").write_bytes(b"no volume")
    with pytest.raises(RequestError, match=r"0\.npy: not a volume that can be read"):
        read_data(volumes(scans, normalize="ct"))
    monkeypatch.setattr(ct_figures, "memory_bytes", lambda: 1)
    with pytest.raises(RequestError, match=r"GiB and this machine has .*; give data\.low"):
        read_data(volumes(scans, normalize="ct"))


def test_values_are_clipped_wherever_they_are_normalised(tmp_path: Path) -> None:
    """By the worker, by the loaders of a bundle, and inside its graph."""
    values = np.array([-1000.0, -100.0, 10.0, 60.0, 3000.0], np.float32).reshape(1, 1, 1, 5, 1)
    found = to_batch(values, CONTRACT)
    assert found.flatten().tolist() == pytest.approx([-2.2, -2.2, 0.0, 1.0, 3.8])
    rule = {"normalize": "ct", "mean": [10.0], "std": [50.0], "scale": 1.0, "low": [-100.0], "high": [200.0]}
    torch_ends = loader_in(tmp_path, "support_torch.py", normalisation=rule)
    onnx_ends = loader_in(tmp_path, "support_onnx.py", normalisation=rule)
    torch.testing.assert_close(torch_ends["prepare"](torch.from_numpy(values)), found)
    np.testing.assert_allclose(onnx_ends["prepare"](values), found.numpy(), rtol=1e-6)
    inside = with_ends(nn.Identity(), CONTRACT, Ends(images_in=True), torch.device("cpu"))
    torch.testing.assert_close(inside(torch.from_numpy(values)), found)

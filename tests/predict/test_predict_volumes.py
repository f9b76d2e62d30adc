"""Masks of a folder of volumes: each a file of its volume's kind, with its affine; resumed; and none in silence."""

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from torch import Tensor

from models.build import build_model
from models.image_batches import to_batch
from pipeline.compiler.agreement import classes
from pipeline.config.request_error import RequestError
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.command import loaded, takes_volumes
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Statements
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from tests.inputs.test_volume_files import nifti, read_labels, read_volume
from tests.predict.made_up_runs import AFFINE, Call, Told, save_mask, write_bundle, write_image, write_volumes_run

STORED = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


def with_affine(values: np.ndarray, order: str = "<", slope: float = 1.0, shift: float = 0.0) -> bytes:
    content = bytearray(nifti(values, big=order == ">", slope=slope, shift=shift))
    struct.pack_into(f"{order}h", content, 254, 1)  # the affine's code: a scanner's axes
    struct.pack_into(f"{order}4f", content, 76, 1.0, 1.5, 2.5, 3.5)
    struct.pack_into(f"{order}12f", content, 280, *AFFINE)
    return bytes(content)


def labels_of(depth: int, height: int, width: int, dtype: type[np.generic] = np.uint8) -> np.ndarray:
    return (np.arange(depth * height * width).reshape(depth, height, width) % 3).astype(dtype)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_mask_has_the_affine_of_its_volume(order: str, suffix: str, tmp_path: Path) -> None:
    """In the volume's order of bytes, with plain values whatever the volume's slope was."""
    content, labels = with_affine(STORED, order, slope=2.0, shift=-5.0), labels_of(2, 3, 4, np.uint16)
    source, mask = tmp_path / f"a{suffix}", tmp_path / f"mask{suffix}"
    source.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    save_mask(labels, mask, source, "eager", "a test", [])
    assert np.array_equal(read_labels(mask), labels)
    plain = gzip.decompress(mask.read_bytes()) if suffix.endswith("gz") else mask.read_bytes()
    assert struct.unpack_from(f"{order}12f", plain, 280) == AFFINE
    assert plain[76:92] == content[76:92], "the spacing"
    assert mask_files.is_made(mask, [], "a test", Statements(tmp_path).about(mask.name))


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".npy", ".tif"])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_values_are_of_the_volume_s_kind_too(suffix: str, channels: tuple[int, ...], tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 4, *channels)).astype(np.float32)
    source, answer = tmp_path / f"a{suffix}", tmp_path / f"answer{suffix}"
    content = with_affine(STORED, ">", slope=2.0)
    source.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    save_mask(values, answer, source, "eager", "a test", [])
    assert np.array_equal(read_volume(answer, values[0, 0, 0].size).reshape(values.shape), values)


def test_what_is_no_mask_of_ours_is_never_written_over(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", labels_of(2, 2, 2))
    tifffile.imwrite(tmp_path / "a.tif", labels_of(2, 2, 2), photometric="minisblack")
    (tmp_path / "a.nii").write_bytes(nifti(STORED))
    (tmp_path / "b.nii").write_bytes(b"no volume")
    (tmp_path / "c.nii.gz").write_bytes(b"nor this")
    (tmp_path / "d.nii").mkdir()
    for path in tmp_path.iterdir():
        with pytest.raises(RequestError, match="it is there and no mask of pipeline"):
            Statements(tmp_path).check(path.name)


def test_a_folder_of_volumes_is_predicted_and_resumed(scans: Path, tmp_path: Path, call: Call) -> None:
    run, out, generator = write_volumes_run(tmp_path), tmp_path / "masks", np.random.default_rng(1)
    np.save(scans / "same.npy", generator.normal(size=(8, 8, 8)))
    np.save(scans / "small.npy", generator.normal(size=(7, 8, 6)))
    np.save(scans / "large.npy", generator.normal(size=(8, 12, 8)))
    tifffile.imwrite(scans / "pages.tif", generator.integers(0, 99, (8, 8, 8), np.uint8), photometric="minisblack")
    (scans / "broken.nii.gz").write_bytes(gzip.compress(nifti(STORED))[:-20])
    (scans / "notes.txt").write_text("no volume")
    asked = (run, scans, "--out", out, "--stage", "eager")
    assert takes_volumes(loaded(run))
    code, said, told = call(*asked)
    assert (code, said) == (1, f"4 masks made, 1 volume without: {out}\n")
    assert "no mask of broken: " in told
    assert "left out, not read as volumes: notes.txt" in told
    net = build_model("tests.input_nets.Volumes", {}, str(tmp_path / "weights.safetensors"), 0)
    with torch.inference_mode():
        right = classes(net(to_batch(read_volume(scans / "same.npy", 1)[None], InputContract(1, "zscore", scale=1.0))))
    assert np.array_equal(read_labels(out / "same.npy"), right[0].numpy())
    assert {path.name: read_labels(path).shape for path in out.glob("[a-z]*") if path.suffix != ".json"} == {
        "same.npy": (8, 8, 8), "small.npy": (7, 8, 6), "large.npy": (8, 12, 8), "pages.tif": (8, 8, 8),
    }  # fmt: skip
    (out / "same.npy").unlink()
    assert call(*asked)[:2] == (1, f"1 mask made, 3 were there, 1 volume without: {out}\n")
    (scans / "broken.nii.gz").unlink()
    assert call(*asked, "--whole")[0] == 0
    assert read_labels(out / "large.npy").shape == (8, 12, 8)
    assert json.loads((out / "predict.json").read_text())["made_of"]["whole"]
    assert "--overlap 2: of images alone; volumes go by --step, such as 0.5" in call(*asked, "--overlap", "2")[2]


def a_predictor(size: tuple[int, ...], channels: int = 2, **fields: object) -> Predictor:
    def run(batch: torch.Tensor) -> torch.Tensor:
        return torch.stack([batch[:, 1], batch[:, 0]], 1)

    contract = InputContract(channels, "own", (0.0,), (1.0,), 1.0)
    made = Predictor("a test's", run, (1, channels, *size), torch.device("cpu"), contract, None)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_nnunet_names_of_volumes(scans: Path, tmp_path: Path) -> None:
    """case_0000.nii.gz and case_0001.nii.gz are channels of case.nii.gz; another kind beside it is told."""
    for number in range(2):
        (scans / f"a_{number:04d}.nii.gz").write_bytes(gzip.compress(nifti(STORED * (-1) ** number)))
    (scans / "b.nii.gz").write_bytes(gzip.compress(nifti(STORED)))
    cases = Given(scans, volumes=True, nnunet=True)
    assert ([case.mask for case in cases], cases.others) == (["a.nii.gz", "b.nii.gz"], [])
    found = Prediction(a_predictor((2, 3, 4)), tmp_path, "made by a test", Cut()).make(cases, print)
    assert found.made == 1
    assert "no channel in its name; b_0000.nii.gz" in found.failed["b"]
    assert np.array_equal(read_labels(tmp_path / "a.nii.gz"), STORED > 0)


def test_volumes_of_one_name_and_a_volume_that_changes(scans: Path, tmp_path: Path) -> None:
    (scans / "a.nii").write_bytes(nifti(STORED))
    cases = Given(scans, volumes=True)

    def cut(batch: Tensor) -> Tensor:
        (scans / "a.nii").write_bytes(b"cut")
        return torch.zeros(1, 2, *batch.shape[2:])

    predictor = replace(a_predictor((2, 3, 4), 1), run=cut)
    found = Prediction(predictor, tmp_path, "made by a test", Cut()).make(cases, print)
    assert "not a volume that can be read" in found.failed["a"]
    np.save(scans / "a.npy", STORED)
    with pytest.raises(RequestError, match=r"a\.nii, a\.npy would share the mask a\.nii"):
        len(Given(scans, volumes=True))


def test_a_zarr_is_a_case_whose_parts_all_count(scans: Path) -> None:
    (scans / "a.zarr").mkdir()
    (scans / "a.zarr" / "0").write_text("values")
    (scans / "a.nii").mkdir()
    cases = Given(scans, volumes=True, nnunet=False)
    assert ([case.mask for case in cases], cases.others) == (["a.npy"], ["a.nii"])
    before = mask_files.described(scans / "a.zarr")
    assert mask_files.is_same(before, scans / "a.zarr")
    (scans / "a.zarr" / "0").write_text("others")
    assert not mask_files.is_same(before, scans / "a.zarr")


def test_a_bundle_of_a_net_for_volumes(scans: Path, tmp_path: Path, call: Call, told: Told) -> None:
    np.save(scans / "a.npy", np.random.default_rng(2).normal(size=(8, 8, 8)))
    write_image(scans / "b.png", 8, 8)
    bundle, out = write_bundle(tmp_path / "bundle", write_volumes_run(tmp_path)), tmp_path / "masks"
    assert takes_volumes(loaded(bundle))
    assert "left out, not read as volumes: b.png" in told(0, bundle, scans, "--out", out)
    assert "a whole volume has no windows" in call(bundle, scans, "--out", out, "--whole", "--step", "0.5")[2]
    assert "the folder of the volumes; name another one" in call(bundle, scans, "--out", scans)[2]
    assert read_labels(out / "a.npy").shape == (8, 8, 8)

"""Folders of images and volumes: channels in several files, conversions of colours, order of channels and axes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.image_batches import to_batch
from pipeline.errors import ImageError
from pipeline.export.recorded_stage import with_ends
from pipeline.export.request import Ends
from pipeline.inputs.datasets import load_dataset
from pipeline.inputs.folders import folder_samples
from pipeline.inputs.input_contract import NAMED, InputContract, LabelRules
from pipeline.predict.mask_files import Look, content_of
from pipeline.records import codec
from tests.export.test_loaders import loader_in
from tests.inputs.test_volume_files import VALUES, nifti, read_labels, read_volume


def grey(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((4, 6), value, np.uint8)).save(path)


@pytest.mark.parametrize("channels", [2, 3])
def test_channels_in_files_of_their_own_are_one_image(channels: int, tmp_path: Path) -> None:
    for case in range(2):
        for channel in range(channels):
            grey(tmp_path / "images" / f"case_{case}_{channel:04d}.png", 10 * case + channel)
        grey(tmp_path / "labels" / f"case_{case}.png", case)
    asked = str(tmp_path / "images"), str(tmp_path / "labels"), InputContract(channels), LabelRules()
    found, left_out = folder_samples(*asked, volumes=False)
    assert left_out == []
    assert [part.image[0, 0].tolist() for part in found] == [
        [10 * case + channel for channel in range(channels)] for case in range(2)
    ]
    assert [int(part.label.max()) for part in found if part.label is not None] == [0, 1]
    (tmp_path / "images" / "case_1_0001.png").unlink()
    with pytest.raises(ImageError, match=r"1 channels, data\.channels=2|no such labels|would share one file of labels"):
        folder_samples(*asked, volumes=False)


def test_a_conversion_of_colours_is_told(tmp_path: Path) -> None:
    for name, mode in (("a.jpg", "CMYK"), ("b.png", "RGBA"), ("c.png", "RGBA"), ("d.png", "RGB")):
        Image.new(mode, (6, 4)).save(tmp_path / name)
    _, told = folder_samples(str(tmp_path), None, InputContract(), LabelRules(), volumes=False)
    assert told == [
        "a.jpg: CMYK, converted to RGB without a colour profile",
        "b.png and 1 more: transparency, which is dropped",
    ]


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        (InputContract(3, "own", (0.4,), (1.0,)), ""),
        (InputContract(3, "own", (100.0,), (1.0,), 1.0), ""),
        (InputContract(3, "own", (800.0,), (1.0,), 200.0), r"data\.mean=800: .* is 200, divided by data\.scale=200"),
        (InputContract(3, "imagenet", *NAMED["imagenet"], 100.0), ""),
        (InputContract(3, "unit", *NAMED["unit"], 1.0), ""),
        (InputContract(3, "imagenet", *NAMED["imagenet"], 1.0), r"data\.scale=1: the largest of all values is 200"),
        (InputContract(3, "centred", *NAMED["centred"], 20.0), r"data\.scale=20: the largest of all values is 200"),
    ],
)
def test_figures_far_beyond_the_values_are_refused(contract: InputContract, said: str, tmp_path: Path) -> None:
    grey(tmp_path / "images" / "a.png", 200)
    asked = str(tmp_path / "images"), None, contract, LabelRules()
    if not said:
        assert folder_samples(*asked, volumes=False)[0]
        return
    with pytest.raises(ImageError, match=said):
        folder_samples(*asked, volumes=False)


@pytest.mark.parametrize("size", [(64, 96), (32, 64)])
def test_oblong_windows_cover_each_pixel_once(size: tuple[int, int], tmp_path: Path) -> None:
    for folder, seed in (("images", 0), ("labels", 1)):
        (tmp_path / folder).mkdir()
        values = np.random.default_rng(seed).integers(0, 2, (100, 130), np.uint8)
        Image.fromarray(values).save(tmp_path / folder / "a.png")
    found = load_dataset("folder", str(tmp_path / "images"), str(tmp_path / "labels"), size, 30)
    assert found.images.shape[1:3] == size
    assert found.labels is not None
    assert int((found.labels[: found.windows] != 255).sum()) == 100 * 130


def test_bgr_is_reversed_wherever_images_are_normalised(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
    figures = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    rule = InputContract(3, "own", *figures, channel_order="bgr")
    expected = to_batch(np.ascontiguousarray(images[..., ::-1]), InputContract(3, "own", *figures))
    assert torch.equal(to_batch(images, rule), expected)
    inside = with_ends(nn.Identity(), rule, Ends(images_in=True), torch.device("cpu"))
    torch.testing.assert_close(inside(torch.from_numpy(images)), expected)
    for library in ("onnx", "torch"):
        place = loader_in(tmp_path, f"support_{library}.py", normalisation=codec.to_json(rule))
        given = images if library == "onnx" else torch.from_numpy(images)
        np.testing.assert_allclose(np.asarray(place["prepare"](given)), expected, rtol=1e-5, atol=1e-5)


def test_axes_may_be_those_of_nibabel(tmp_path: Path) -> None:
    """There and back: a mask has the axes of its volume."""
    path = tmp_path / "a.nii"
    path.write_bytes(nifti(VALUES))
    turned = read_volume(path, 1, axes="xyz")
    assert np.array_equal(turned[..., 0], VALUES.T)
    mask = (turned[..., 0] % 5).astype(np.uint8)
    (tmp_path / "mask.nii").write_bytes(content_of(mask, tmp_path / "mask.nii", path, Look(axes="xyz")))
    assert np.array_equal(read_labels(tmp_path / "mask.nii", "xyz"), mask)
    assert np.array_equal(read_labels(tmp_path / "mask.nii"), mask.T)
    np.save(tmp_path / "a.npy", VALUES)
    assert np.array_equal(read_volume(tmp_path / "a.npy", 1, axes="xyz")[..., 0], VALUES)

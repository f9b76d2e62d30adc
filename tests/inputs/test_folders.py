"""Folders of images and volumes: channels in several files, conversions of colours, order of channels and axes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from models.image_batches import to_batch
from pipeline.errors import ImageError
from pipeline.inputs.folders import folder_samples
from pipeline.inputs.input_contract import NAMED, InputContract, LabelRules
from pipeline.predict.mask_files import Look, content_of
from pipeline.records import codec
from pipeline.stages.common.ends import ends_of
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
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.new("RGB", (6, 4)).save(tmp_path / "e.jpg", exif=exif)
    _, told = folder_samples(str(tmp_path), None, InputContract(), LabelRules(), volumes=False)
    assert told[0].split("; ") == [
        "b.png, c.png: transparency, which is dropped",
        "a.jpg: CMYK, converted to RGB without a colour profile",
        "e.jpg: turned upright, as its header says",
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


BGR = InputContract(3, "own", (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), channel_order="bgr")
CT = InputContract(1, "ct", (10.0,), (50.0,), 1.0, (-100.0,), (200.0,))


@pytest.mark.parametrize(
    ("rule", "images", "expected"),
    [
        (BGR, np.array([0, 51, 255], np.uint8).reshape(1, 1, 1, 3), [3.0, -1.2, -2.0]),
        (CT, np.array([-1000, -100, 10, 60, 3000], np.float32).reshape(1, 1, 1, 5, 1), [-2.2, -2.2, 0.0, 1.0, 3.8]),
    ],
)
def test_bgr_is_reversed_and_ct_clipped_wherever_images_are_normalised(
    rule: InputContract, images: np.ndarray, expected: list[float], tmp_path: Path
) -> None:
    found = to_batch(images, rule)
    assert found.flatten().tolist() == pytest.approx(expected)
    inside = ends_of(rule, True, False, images.ndim, torch.device("cpu")).whole(nn.Identity())
    torch.testing.assert_close(inside(torch.from_numpy(images)), found)
    for library in ("onnx", "torch"):
        place = loader_in(tmp_path, f"support_{library}.py", normalisation=codec.to_json(rule))
        given = images if library == "onnx" else torch.from_numpy(images)
        np.testing.assert_allclose(np.asarray(place["prepare"](given)), found, rtol=1e-5, atol=1e-5)


def test_axes_may_be_those_of_nibabel(tmp_path: Path) -> None:
    path = tmp_path / "a.nii"
    path.write_bytes(nifti(VALUES))
    turned = read_volume(path, 1, axes="xyz")
    assert np.array_equal(turned[..., 0], VALUES.T)
    mask = (turned[..., 0] % 5).astype(np.uint8)
    (tmp_path / "mask.nii").write_bytes(content_of(mask, tmp_path / "mask.nii", path, Look(axes="xyz", volumes=True)))
    assert np.array_equal(read_labels(tmp_path / "mask.nii", "xyz"), mask)
    assert np.array_equal(read_labels(tmp_path / "mask.nii"), mask.T)
    np.save(tmp_path / "a.npy", VALUES)
    assert np.array_equal(read_volume(tmp_path / "a.npy", 1, axes="xyz")[..., 0], VALUES)

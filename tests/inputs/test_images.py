"""Real and drawn images, their labels and windows; folders: channels in files of their own, colours, axes, others."""

import os
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.color import rgb2hed
from skimage.filters import threshold_otsu
from torch import nn

from models import checkpoint, weights_file
from models.build import build_model
from models.image_batches import to_batch
from models.training import Drawn, batches, score
from models.unet import UNet
from pipeline.errors import ImageError
from pipeline.inputs.datasets import HELD_OUT, SAMPLE_FOLDER, SAMPLES, dataset_loader, dataset_of, stain_mask
from pipeline.inputs.folders import folder_samples, values_in
from pipeline.inputs.generated import CLASSES, SPLITS, Split, generated, several
from pipeline.inputs.image_files import read_image
from pipeline.inputs.input_contract import NAMED, UNLABELLED, InputContract, LabelRules
from pipeline.inputs.windows import Named, cut, viewable
from pipeline.predict.mask_files import Look, content_of
from pipeline.records import codec
from pipeline.records.request import DataSpec
from pipeline.stages.common.ends import ends_of
from pipeline.worker import workload
from tests.export.test_loaders import loader_in
from tests.inputs.test_volume_files import VALUES, nifti, read_labels, read_volume
from tests.models.test_checkpoint import SHIPPED


def picture(path: Path, size: tuple[int, int] = (40, 60), mode: str = "RGB") -> None:
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).convert(mode).save(path)


@pytest.mark.parametrize("size", [64, 256, 512, 600])
def test_samples_come_in_the_size_and_number_asked_for(size: int) -> None:
    dataset = dataset_loader("samples", None, None, size)(24)
    assert dataset.images.shape == (24, size, size, 3)
    assert len({image.tobytes() for image in dataset.images}) == 24
    assert (dataset.labels[0] != UNLABELLED).any()


def test_moved_and_mirrored_copies_are_of_one_picture() -> None:
    """However many windows there are, they count as the picture that they are cut from."""
    stain = dataset_loader("stain", None, None, 512)(5)
    assert (len(stain.images), set(stain.pictures), stain.windows) == (5, {"scikit-image ihc.png, held-out quarter"}, 1)
    samples = dataset_loader("samples", None, None, 256)(3)
    assert samples.pictures == ["scikit-image ihc.png"] * 3
    assert samples.windows > samples.distinct == 3


def test_the_stain_data_is_held_out_and_labelled_in_every_pixel() -> None:
    dataset = dataset_loader("stain", None, None, 512)(3)
    assert dataset.labels is not None
    assert set(np.unique(dataset.labels)) == {0, 1}
    assert np.array_equal(dataset.labels[0][:256, :256], stain_mask(read_image(SAMPLE_FOLDER / SAMPLES[0]))[HELD_OUT])
    assert len({image.tobytes() for image in dataset.images}) == 3


def wrong_folders(root: Path) -> None:
    (root / "empty").mkdir()
    picture(root / "inner" / "within" / "a.png")
    (root / "volumes").mkdir()
    (root / "volumes" / "case.nii.gz").touch()
    picture(root / "text" / "a.png")
    (root / "text" / "b.png").write_text("no picture")
    (root / "text" / "c.png").write_text("no picture")
    picture(root / "stranger" / "a.png")
    (root / "stranger" / "notes.txt").write_text("x")
    picture(root / "sizes" / "a.png")
    picture(root / "sizes" / "b.png", (50, 50))
    picture(root / "cut" / "a.png")
    whole = (root / "cut" / "a.png").read_bytes()
    (root / "cut" / "a.png").write_bytes(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nowhere", "no such folder"), ("empty", "no image in it among 0 files; .bmp"),
        ("inner", "no image in it among 0 files, and none is looked for in its folders, such as within; "),
        ("volumes", ".webp are read; data=volume reads those"), ("text", "text/b.png, "),
        ("text", "c.png: not an image"), ("stranger", "notes.txt: not an image"),
        ("sizes", "(2 sizes: 60×40, 50×50); set data.size"), ("cut", "a.png: not an image"),
    ],
)  # fmt: skip
def test_a_folder_that_is_none_of_images_is_one_line(tmp_path: Path, folder: str, said: str) -> None:
    wrong_folders(tmp_path)
    with pytest.raises(ImageError) as caught:
        dataset_loader("folder", str(tmp_path / folder), None, None)(1)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_of_another_size_are_refused(tmp_path: Path) -> None:
    """A turned camera's picture is read upright; labels drawn on it as it is stored have its sides the other way."""
    picture(tmp_path / "images" / "a.png")
    for size, said in (((9, 9), "labels of 9×9, and their image has 60×40$"), ((60, 40), "60×40; turn one of them")):
        picture(tmp_path / "masks" / "a.png", size, "L")
        with pytest.raises(ImageError, match=f"masks/a.png: .*{said}"):
            dataset_loader("folder", str(tmp_path / "images"), str(tmp_path / "masks"), None)(1)


def test_what_is_no_file_is_left_out_and_said(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").mkdir()
    os.mkfifo(tmp_path / "c.png")
    dataset = dataset_loader("folder", str(tmp_path), None, None)(1)
    assert (dataset.windows, dataset.left_out) == (1, ["b.png: no regular file", "c.png: no regular file"])
    assert values_in(str(tmp_path), volumes=False) == 40 * 60 * 3


def test_labels_of_no_image_are_said(tmp_path: Path) -> None:
    """Of an image that was forgotten, maybe; a file that the pattern doesn't name is none."""
    picture(tmp_path / "images" / "a.png")
    for name in ("a.png", "b.png", "notes.tif"):
        picture(tmp_path / "masks" / name, mode="1")
    dataset = dataset_loader("folder", str(tmp_path / "images"), str(tmp_path / "masks"), None)(1)
    assert dataset.left_out == ["masks/b.png: labels of no image"]


def test_two_images_of_one_label_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "masks" / "a.png", mode="L")
    for other, named in (("a.jpg", r"a\.jpg, a\.png"), ("a_0000.jpg", r"a\.png, a_0000\.jpg")):  # nnU-Net's name of a
        picture(tmp_path / "images" / other)
        with pytest.raises(ImageError, match=f"{named} would share one file of labels; give each its own"):
            dataset_loader("folder", str(tmp_path / "images"), str(tmp_path / "masks"), None)(1)
        (tmp_path / "images" / other).unlink()


def test_sixteen_bits_are_not_all_white(tmp_path: Path) -> None:
    """12 bits in a 16-bit file: dark by its type's range, right by data.scale=4095."""
    grey = np.linspace(0, 4095, 48).astype(np.uint16).reshape(6, 8)
    Image.fromarray(grey).save(tmp_path / "a.tif")
    scaled = InputContract(1, "unit", (0.0,), (1.0,), scale=4095)
    with pytest.raises(ImageError, match=r"is 4095, .* set data\.scale=4095 for 12 bits, or data\.scale=65535 to keep"):
        dataset_loader("folder", str(tmp_path), None, None, replace(scaled, scale=None))(1)
    for contract, largest in ((replace(scaled, scale=65535), 4095 / 65535), (scaled, 1.0)):
        dataset = dataset_loader("folder", str(tmp_path), None, None, contract)(1)
        batch = to_batch(dataset.images, contract)
        assert (batch.shape, float(batch.max())) == ((1, 1, 6, 8), pytest.approx(largest))
        assert viewable(dataset.images[0]).max() == 255
    Image.fromarray(np.full((6, 8), 255, np.uint8)).save(tmp_path / "b.png")  # becomes 65535
    with pytest.raises(ImageError, match=r"is 4095, .* set data\.scale=4095 for 12 bits"):
        dataset_loader("folder", str(tmp_path), None, None, replace(scaled, scale=None))(1)


def test_a_batch_is_normalised_as_the_contract_says() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), np.uint8)
    own = to_batch(images, InputContract(3, "own", (0.1, 0.2, 0.3), (0.5,)))
    expected = (images / 255 - np.array([0.1, 0.2, 0.3])) / 0.5
    assert np.allclose(own.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-6)
    assert (own.dtype, own.is_contiguous()) == (torch.float32, True)
    assert to_batch(np.array([0, 255], np.uint8).reshape(1, 1, 2, 1)).flatten().tolist() == [-2.0, 2.0]
    images[1, ..., 0] = 7
    scored = to_batch(images, InputContract(3, "zscore", (), ()))
    assert torch.allclose(scored.mean((2, 3)), torch.zeros(2, 3), atol=1e-5)
    assert torch.allclose(scored.std((2, 3), correction=0)[0], torch.ones(3), atol=1e-5)
    assert scored[1, 0].unique().tolist() == pytest.approx([0.0], abs=1e-6)


def test_the_shipped_weights_reach_what_their_header_says() -> None:
    net = build_model("models.unet.UNet", {"base": 16}, SHIPPED, 0)
    tissue = read_image(SAMPLE_FOLDER / SAMPLES[0])
    with torch.inference_mode():
        chosen = net(to_batch(tissue[None]))[0].argmax(0).numpy()[HELD_OUT] == 1
    right = stain_mask(tissue)[HELD_OUT] == 1
    iou = (chosen & right).sum() / (chosen | right).sum()
    dice = 2 * iou / (1 + iou)
    notes = checkpoint.notes(weights_file.find(SHIPPED))
    assert iou == pytest.approx(float(notes["held_out_iou"]), abs=1e-3)
    assert dice == pytest.approx(float(notes["held_out_dice"]), abs=1e-3)
    assert iou > 0.9


SIZES = [(8, 8), (20, 8), (21, 30), (5, 6), (8, 5), (16, 24)]


@pytest.mark.parametrize("window", [(8, 8), (6, 9)])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_each_labelled_pixel_is_in_one_window(height: int, width: int, window: tuple[int, int]) -> None:
    label = (np.arange(height * width) % 200).astype(np.uint8).reshape(height, width)
    image = np.repeat(label[..., None], 3, 2)
    tiles = cut(Named("a.png", image, label), window, whole=True)
    assert {tile.image.shape for tile in tiles} == {(*window, 3)}
    again = dataset_of([("a", tile) for tile in tiles], 2 * len(tiles) + 1, None, [])  # of which rolled ones have none
    assert again.labels is not None
    kept = again.labels[again.labels != 255]
    assert np.array_equal(np.sort(kept), np.sort(label.ravel()))
    for tile in tiles:
        known = tile.label != 255
        assert np.array_equal(tile.image[known][:, 0], tile.label[known])


def test_the_programs_own_images_are_cut_side_by_side() -> None:
    label = np.zeros((20, 8), np.uint8)
    image = np.zeros((20, 8, 3), np.uint8)
    assert [tile.source for tile in cut(Named("a", image, label), 8, whole=False)] == ["a at 0,0", "a at 8,0"]
    (tile,) = cut(Named("a", image[:5], label[:5]), 8, whole=False)
    assert (tile.label == 0).all()


@pytest.mark.parametrize(("side", "taken"), [(1, False), (3, False), (4, True)])
def test_an_image_is_not_made_of_its_mirror_image(side: int, taken: bool) -> None:
    small = Named("a.png", np.zeros((side, 20, 3), np.uint8), None)
    if taken:
        assert cut(small, 8, whole=False)[0].image.shape == (8, 8, 3)
        return
    with pytest.raises(ImageError, match=rf"a\.png: {side}×20 pixels, data\.size=8: most would be mirrored"):
        cut(small, 8, whole=False)


def half_black() -> np.ndarray:
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    image[:8] = 0
    return image


@pytest.mark.parametrize("image", [read_image(SAMPLE_FOLDER / SAMPLES[0]), half_black()], ids=["tissue", "half black"])
def test_the_stain_is_what_scikit_image_finds(image: np.ndarray) -> None:
    """In every pixel; a black one has a darkness, too, and no logarithm of 0."""
    brown = rgb2hed(image)[..., 2]
    expected = brown > threshold_otsu(brown)
    assert 0.1 < expected.mean() < 0.9
    assert np.array_equal(stain_mask(image), expected)


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


SMALL = (48, 40)


@pytest.mark.parametrize("split", SPLITS)
def test_an_image_is_the_same_for_the_same_number(split: Split) -> None:
    for first, again in zip(generated(split, 3, SMALL), generated(split, 3, SMALL), strict=True):
        assert np.array_equal(first, again)


def test_many_images_are_drawn_in_processes_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.inputs.generated.MANY", 5)
    for number, drawn in enumerate(several("train", 5, SMALL)):
        assert all(map(np.array_equal, drawn, generated("train", number, SMALL)))


def test_no_two_images_are_equal_in_any_split_or_seed() -> None:
    """Nor do their streams begin alike, so none is another one's crop."""
    drawn = [generated(split, number, SMALL, seed) for split, number, seed in product(SPLITS, range(4), range(2))]
    assert len({image.tobytes() for image, _ in drawn}) == len({label.tobytes() for _, label in drawn}) == len(drawn)


def test_every_image_has_the_size_and_every_class_is_there() -> None:
    images, labels = zip(*(generated("held_out", number, (256, 256)) for number in range(6)), strict=True)
    assert {(image.shape, image.dtype.name) for image in images} == {((256, 256, 3), "uint8")}
    shares = np.bincount(np.stack(labels).ravel(), minlength=len(CLASSES)) / np.stack(labels).size
    assert len(shares) == len(CLASSES)
    assert shares.min() > 0.03
    assert {generated("train", 0, (side, side))[0].shape for side in (1, 9)} == {(1, 1, 3), (9, 9, 3)}


def test_nuclei_differ_in_colour_and_no_threshold_tells_their_kinds_apart() -> None:
    """They are darker than what surrounds them; the red of two kinds overlaps."""
    images, labels = map(np.stack, zip(*(generated("train", n, (128, 128)) for n in range(8)), strict=True))
    red = [images[..., 0][labels == number] for number in range(len(CLASSES))]
    assert np.median(red[0]) > max(np.median(part) for part in red[1:]) + 25
    assert all(np.percentile(one, 75) > np.percentile(two, 25) for one in red[1:] for two in red[1:])


def test_as_many_held_out_images_are_judged_as_are_asked_for_and_others_calibrate() -> None:
    data = DataSpec("generated", size=32, batch_size=2, images=9)
    work = workload.workload_on(nn.Conv2d(3, 4, 1), data, True, torch.device("cpu"), None, None)  # type: ignore[arg-type]
    assert (work.judged, work.distinct, len(set(work.pictures))) == (9, 9, 9)
    assert sum(count for _, count in workload.further_batches(work)) == 9 - 2 * work.verified
    given = work.calibration(4)
    assert given.independent
    assert given.left_out == ()
    assert set(given.pictures).isdisjoint(work.pictures)
    judged = {image.numpy().tobytes() for batch in work.batches for image in batch}
    assert all(image.numpy().tobytes() not in judged for batch in given.batches for image in batch.first)


def test_grey_images_are_the_luminance_of_the_coloured_ones() -> None:
    grey, colour = (dataset_loader("generated", None, None, (24, 32), InputContract(count))(2) for count in (1, 3))
    assert grey.images.shape == (2, 24, 32, 1)
    assert grey.labels is not None
    assert colour.labels is not None
    assert np.array_equal(grey.labels, colour.labels)
    assert np.abs(grey.images[..., 0] - colour.images @ np.array([0.299, 0.587, 0.114])).max() <= 0.5 + 1e-9


def test_a_small_network_learns_the_kinds_and_is_scored_on_held_out_images() -> None:
    """Dice of every class rises well above that of a network that answers at random."""
    net, cpu = UNet(base=8, depth=2, classes=len(CLASSES)), torch.device("cpu")
    images, held_out = list(batches(Drawn("train", 64, side=64), cpu)), Drawn("held_out", 16, side=64)
    before = score(net.eval(), held_out, cpu)
    optimizer = torch.optim.Adam(net.train().parameters(), 5e-3)
    for image, label in 10 * images:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(image), label, weight=torch.tensor([0.3, 1.0, 2.0, 2.0])).backward()
        optimizer.step()
    after = score(net.eval(), held_out, cpu)
    assert after[0] > 0.9
    assert min(after[1:]) > 0.15 > max(before[1:])
    assert sum(after[1:]) > 1.2

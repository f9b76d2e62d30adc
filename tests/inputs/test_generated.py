"""Drawn images: the same for the same number, other ones in each split, and labelled in every pixel."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from models.training import Drawn, batches, score
from models.unet import UNet
from pipeline.inputs.datasets import load_dataset
from pipeline.inputs.generated import CLASSES, SPLITS, Split, generated
from pipeline.inputs.input_contract import InputContract
from pipeline.records.request import DataSpec
from pipeline.worker import workload

SMALL = (48, 40)


@pytest.mark.parametrize("split", SPLITS)
def test_an_image_is_the_same_for_the_same_number(split: Split) -> None:
    for first, again in zip(generated(split, 3, SMALL), generated(split, 3, SMALL), strict=True):
        assert np.array_equal(first, again)


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
    grey, colour = (load_dataset("generated", None, None, (24, 32), 2, InputContract(count)) for count in (1, 3))
    assert grey.images.shape == (2, 24, 32, 1)
    assert grey.labels is not None
    assert colour.labels is not None
    assert np.array_equal(grey.labels, colour.labels)
    assert np.abs(grey.images[..., 0] - colour.images @ np.array([0.299, 0.587, 0.114])).max() <= 0.5 + 1e-9


def test_a_small_network_learns_the_kinds_and_is_scored_on_held_out_images() -> None:
    """Dice of every class rises well above that of a network that answers at random."""
    torch.manual_seed(0)
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

"""The images that a slim network is trained on, and the held-out ones that it is judged on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.image_batches import normaliser
from pipeline.compiler.agreement import classes
from pipeline.compiler.network_calls import without_tf32
from pipeline.config.data_request import FOLDER, VOLUME
from pipeline.errors import ImageError
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.input_contract import UNLABELLED, InputContract
from pipeline.records.request import DataSpec
from pipeline.worker.workload import images_of

HELD_OUT = 0.25  # share of the user's pictures
# The program's own data: what to train on, and what is held out.
OWN = {
    "stain": ("stain_training", "stain"),
    "samples": ("stain_training", "stain"),
    "generated": ("generated_training", "generated"),
}
DRAWN_IMAGES = 8000  # to train on
MOST_ON_DEVICE = 2**33  # bytes of images that a GPU holds


def split(data: DataSpec, images: Path | None, labels: Path | None, seed: int) -> tuple[Dataset, Dataset]:
    """Return the training images and the held-out ones, which share no picture.

    `images` is a folder to train on, which leaves all of the run's images held out; without it a quarter is.
    """
    if images is not None:
        name = VOLUME if data.name == VOLUME else FOLDER
        training = replace(data, name=name, path=str(images), labels=str(labels) if labels else None)
        return images_of(training, None), images_of(data, None)
    if data.name in OWN:
        learnt, judged = OWN[data.name]
        drawn = images_of(replace(data, name=learnt, images=DRAWN_IMAGES), None)
        return drawn, images_of(replace(data, name=judged), None)
    every = images_of(data, None)
    names = list(dict.fromkeys(every.pictures))
    if len(names) < 2:
        raise ImageError(f"data.path={data.path}: one picture alone, and none could be held out; give --images")
    order = np.random.default_rng(seed).permutation(len(names))
    apart = {names[at] for at in order[: max(1, round(HELD_OUT * len(names)))]}
    is_held = np.array([name in apart for name in every.pictures])
    return chosen(every, ~is_held), chosen(every, is_held)


def chosen(every: Dataset, keep: np.ndarray) -> Dataset:
    """Return the images of a dataset for which `keep` [images] holds."""
    labels = None if every.labels is None else every.labels[keep]
    some = labels is not None and bool((labels != UNLABELLED).any())
    pictures, sources = ([names[at] for at in np.flatnonzero(keep)] for names in (every.pictures, every.sources))
    kept = replace(every, images=every.images[keep], pictures=pictures, sources=sources)
    return replace(kept, labels=labels if some else None)


class Batches:
    """Images and labels as batches on a device; drawn by seed and step, turned, mirrored, tinted and noisy."""

    def __init__(self, data: Dataset, contract: InputContract, device: torch.device, seed: int) -> None:
        home = device if data.images.nbytes < MOST_ON_DEVICE else torch.device("cpu")
        self.images = torch.from_numpy(np.array(data.images)).to(home)
        self.labels = None if data.labels is None else torch.from_numpy(np.array(data.labels)).to(home)
        self.device, self.seed = device, seed
        self.normalised = normaliser(contract, data.images.dtype, data.images.ndim, device)

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Return the network's input [batch, channels, height, width] of some images."""
        images: Tensor = self.images[rows].to(self.device).float()
        return self.normalised(images)

    def drawn(
        self, step: int, size: int, part: tuple[int, int] = (0, 1), strength: float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """Return a step's batch and labels, or one of several parts of it; `strength` is of tint and noise, 0 to 1."""
        generator = torch.Generator().manual_seed(hash((self.seed, step)) % 2**63)
        rows = torch.randint(0, len(self.images), (size,), generator=generator)[part[0] :: part[1]]
        rows = rows.to(self.images.device)
        turn, mirror = (int(number) for number in torch.randint(0, 4, (2,), generator=generator))
        inputs, labels = self.inputs(rows), None if self.labels is None else self.labels[rows].to(self.device)
        if strength > 0:
            own = torch.Generator(self.device).manual_seed(hash((self.seed, step, part)) % 2**63)
            ones = (*inputs.shape[:2], *[1] * (inputs.ndim - 2))
            gain, shift = strength * (0.3 * torch.rand(2, *ones, generator=own, device=self.device) - 0.15)
            noise = torch.randn(inputs.shape, generator=own, device=self.device)
            spread = 0.1 * strength * torch.rand(1, generator=generator).item()
            inputs = inputs * (1 + gain) + shift + spread * noise
        labels = None if labels is None else turned(labels, turn, mirror).contiguous()  # one compiled form of the loss
        return turned(inputs, turn, mirror), labels


def turned(values: Tensor, turn: int, mirror: int) -> Tensor:
    """Return images [..., height, width], turned by a multiple of 90° if they are square, and perhaps mirrored."""
    turn = turn if values.shape[-1] == values.shape[-2] else 2 * (turn % 2)
    values = torch.rot90(values, turn, (-2, -1))
    return values.flip(-1) if mirror % 2 else values


def masks(net: nn.Module, batches: Batches, size: int, most: int | None = None) -> np.ndarray:
    """Return the classes [images, height, width] that a network in fp32 gives the images."""
    net.eval()
    count = min(len(batches.images), most or len(batches.images))
    with torch.inference_mode(), without_tf32():
        parts = [classes(net(batches.inputs(slice(at, min(at + size, count))))).cpu() for at in range(0, count, size)]
    return torch.cat(parts).numpy()

"""The images that a slim network is trained on, and the held-out ones that it is judged on."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.image_batches import normaliser
from pipeline.compiler.agreement import classes
from pipeline.compiler.network_calls import without_tf32
from pipeline.config.data_request import FOLDER, VOLUME
from pipeline.errors import ImageError, few
from pipeline.inputs.datasets import Dataset
from pipeline.inputs.input_contract import UNLABELLED, InputContract
from pipeline.records.request import DataSpec
from pipeline.stats.dice import overlap
from pipeline.worker.workload import images_of

MOST_NAMED = 3  # images in a message
HELD_OUT = 0.25  # share of the user's pictures
OWN = {"stain": "stain", "samples": "stain", "generated": "generated"}  # the program's own data, and what is held out
DRAWN_IMAGES = 8000  # to train on, unless the user says otherwise
ON_DEVICE = 0.55  # of a GPU's free memory, for images, for labels, and for answers: some stays for the training
MOST_ANSWERS = 2**35  # bytes of answers that the host holds
MOST_VIEWS = 160_000  # of all images together, for which the full network is asked
LEAST_SHARE = 1e-7  # its logarithm is within fp16
ALIKE = 0.8  # mean Dice of the full network's masks of turned images against those of straight ones
Drawn = tuple[Tensor, Tensor | None, Tensor | None]  # inputs, labels, and the full network's answers
Answering = Callable[[Tensor], Tensor]  # gives shares [batch, classes, height, width] of a network's inputs


def split(
    data: DataSpec, images: Path | None, labels: Path | None, seed: int, drawn: int | None = None,
    held: int | None = None,
) -> tuple[Dataset, Dataset]:  # fmt: skip
    """Return the training images and the held-out ones, which share no picture.

    With `images`, a folder to train on, all of the run's are held out; else a quarter is. Of `data=generated` `drawn`
    images are trained on, and `held` ones, or as many as the run has, are held out.
    """
    if images is not None:
        name = VOLUME if data.name == VOLUME else FOLDER
        training = replace(data, name=name, path=str(images), labels=str(labels) if labels else None)
        learnt, every = images_of(training, None), images_of(data, None)
        seen, contents = {*map(content, learnt.images)} - {b""}, map(content, every.images)
        if shared := [source for source, found in zip(every.sources, contents, strict=True) if found in seen]:
            said = f"--images {images}: {few(shared, MOST_NAMED)} of the run's held-out images are there, too"
            raise ImageError(f"{said}; train on others, or leave --images out")
        return learnt, every
    if data.name in OWN:
        judged = OWN[data.name]
        learnt = images_of(replace(data, name=f"{judged}_training", images=drawn or DRAWN_IMAGES), None)
        return learnt, images_of(replace(data, name=judged, images=held or data.images), None)
    every = images_of(data, None)
    names = list(dict.fromkeys(every.pictures))
    if len(names) < 2:
        raise ImageError(f"data.path={data.path}: one picture alone, and none could be held out; give --images")
    apart = np.random.default_rng(seed).permutation(names)[: max(1, round(HELD_OUT * len(names)))]
    is_held = np.isin(every.pictures, apart)
    return chosen(every, ~is_held), chosen(every, is_held)


def content(image: np.ndarray) -> bytes:
    """Return a digest of an image; of one colour, such as a slide's margin, nothing."""
    return b"" if image.min() == image.max() else sha256(np.ascontiguousarray(image).data).digest()


def chosen(every: Dataset, keep: np.ndarray) -> Dataset:
    """Return the images of a dataset for which `keep` [images] holds."""
    labels = None if every.labels is None or (every.labels[keep] == UNLABELLED).all() else every.labels[keep]
    pictures, sources = ([names[at] for at in np.flatnonzero(keep)] for names in (every.pictures, every.sources))
    return replace(every, images=every.images[keep], labels=labels, pictures=pictures, sources=sources)


class Batches:
    """Images, labels and the full network's answers as batches, each image in a view: turned, perhaps mirrored."""

    def __init__(self, data: Dataset, contract: InputContract, device: torch.device, seed: int) -> None:
        self.device, self.seed = device, seed
        self.images = self._placed(torch.from_numpy(np.array(data.images)))
        self.labels = None if data.labels is None else self._placed(torch.from_numpy(np.array(data.labels)))
        self.answers: Tensor | None = None  # logarithms of the full network's shares [images, height, width, classes]
        self.normalised = normaliser(contract, data.images.dtype, data.images.ndim, device)
        sides = self.images.shape[1:-1]
        places = torch.arange(math.prod(sides)).reshape(sides)
        turns = [torch.rot90(places, turn, (-2, -1)) for turn in range(0, 4, 1 if sides[-1] == sides[-2] else 2)]
        views = [view.flatten() for turn in turns for view in (turn, turn.flip(-1))]
        self.views = torch.stack(views).to(device)  # the pixels of each in their order

    def _place(self, size: int) -> torch.device:
        fits = self.device.type != "cuda" or size < ON_DEVICE * torch.cuda.mem_get_info(self.device)[0]
        return self.device if fits else torch.device("cpu")

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self._place(values.nbytes))

    def _taken(self, values: Tensor, rows: Tensor, views: Tensor) -> Tensor:
        """Return rows of values [images, height, width, ...] on the device, each in its view."""
        sides = self.images.shape[1:-1]
        some = values[rows.to(values.device, non_blocking=True)].to(self.device).flatten(1, len(sides))
        numbers = torch.arange(len(rows), device=self.device)[:, None]
        seen: Tensor = some[numbers, self.views[views]].unflatten(1, sides)
        return seen

    def inputs(self, rows: Tensor | slice) -> Tensor:
        """Return the network's input [batch, channels, height, width] of some images."""
        return self.normalised(self.images[rows].to(self.device).float())

    def _answers(self, full: Answering, rows: Tensor, view: int) -> Tensor:
        """Return the full network's shares [batch, classes, pixels] of images in a view, turned back."""
        images = self._taken(self.images, rows, torch.full(rows.shape, view))
        return full(self.normalised(images.float())).flatten(2)[..., self.views[view].argsort()]

    def ask(self, full: Answering, size: int, say: Callable[[str], None]) -> None:
        """Keep the full network's answers, each the mean over views, unless they take too much memory.

        Views in which it sees other classes in `size` images are left out.
        """
        began, shape = time.monotonic(), self.images.shape[:-1]
        rows = torch.arange(size) % len(self.images)
        given = (self._answers(full, rows, view) for view in range(len(self.views)))
        seen = [(part.shape[1], part.argmax(1).cpu().numpy()) for part in given]
        classes, right = seen[0]
        alike = [overlap(mask, right, classes).mean_dice >= ALIKE for _, mask in seen]
        self.views = self.views[torch.tensor(alike)]
        if left_out := alike.count(False):
            say(f"note: the full network sees other classes in {left_out} turned or mirrored views: they are left out")
        place = self._place(needed := 2 * classes * math.prod(shape))
        if place.type == "cpu" and needed > MOST_ANSWERS:
            say("note: the full network's answers take too much memory, so each step asks it anew, in one view")
            return
        views = range(0, len(self.views), -(-len(self.views) // max(1, MOST_VIEWS // len(self.images))))
        self.answers = torch.empty((*shape, classes), dtype=torch.float16, device=place)
        for at in range(0, len(self.images), size):
            rows, mean = torch.arange(at, at + size) % len(self.images), torch.zeros((), device=self.device)
            for view in views:
                mean = mean + self._answers(full, rows, view) / len(views)
            logarithms = mean.clamp_min(LEAST_SHARE).log().unflatten(2, shape[1:])
            self.answers[rows] = logarithms.movedim(1, -1).to(self.answers)
        say(f"the full network's answers took {time.monotonic() - began:.0f} s")

    def drawn(self, step: int, size: int, part: tuple[int, int] = (0, 1), strength: float = 1.0) -> Drawn:
        """Return a step's inputs, labels and answers, or one of several parts; `strength` of tint and noise, 0 to 1."""
        generator = torch.Generator().manual_seed(hash((self.seed, step)) % 2**63)
        pinned = self.device.type == "cuda"  # so that the host need not wait for the GPU
        rows, views = (
            torch.randint(0, count, (size,), generator=generator, pin_memory=pinned)[part[0] :: part[1]]
            for count in (len(self.images), len(self.views))
        )
        views = views.to(self.device, non_blocking=True)
        inputs = self.normalised(self._taken(self.images, rows, views).float())
        labels = None if self.labels is None else self._taken(self.labels, rows, views)
        answers = None if self.answers is None else self._taken(self.answers, rows, views).movedim(-1, 1)
        if strength > 0:
            own = torch.Generator(self.device).manual_seed(hash((self.seed, step, part)) % 2**63)
            ones = (*inputs.shape[:2], *[1] * (inputs.ndim - 2))
            gain, shift = strength * (0.3 * torch.rand(2, *ones, generator=own, device=self.device) - 0.15)
            noise = torch.randn(inputs.shape, generator=own, device=self.device)
            inputs = inputs * (1 + gain) + shift + 0.1 * strength * torch.rand((), generator=generator).item() * noise
        return inputs, labels, answers


def masks(net: nn.Module, batches: Batches, size: int, most: int | None = None) -> np.ndarray:
    """Return the classes [images, height, width] that a network in fp32 gives the images."""
    net.eval()
    count = min(len(batches.images), most or len(batches.images))
    with torch.inference_mode(), without_tf32():
        parts = [classes(net(batches.inputs(slice(at, min(at + size, count))))).cpu() for at in range(0, count, size)]
    return torch.cat(parts).numpy()

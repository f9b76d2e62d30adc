"""The training of a network on drawn images (`pipeline.inputs.generated`), and its score on held-out ones.

A network of one channel is trained on the images' luminance.
"""

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from models import checkpoint
from models.build import build_model
from models.image_batches import to_batch
from models.model_output import described, tensors_of
from pipeline.command_line import show
from pipeline.errors import ModelError, per_cent
from pipeline.inputs.datasets import LABELS_BY, demo
from pipeline.inputs.generated import CLASSES, SIDE, Split, generated
from pipeline.inputs.windows import Named

# Peak for a network that begins with 16 channels; wider ones take less: at 64 this rate drove a convolution to 3e4,
# half of fp16's range.
LEARNING_RATE, CHANNELS = 2e-3, 16
GREY, COLOUR = 1, 3  # channels of the drawn images
BATCH, SIDES = 8, (128, SIDE)  # images a step, and their sides in pixels: the smallest that the network takes
ENDLESS = 2**31  # images of a training, of which as many are drawn as it takes
HELD_OUT, READERS = 100, 14  # images of the score; processes that draw images for a GPU, at most


@dataclass(frozen=True)
class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """The first `count` images of a split: each [channels, side, side], normalised, and its classes [side, side]."""

    split: Split
    count: int
    channels: int = COLOUR
    side: int = SIDE
    seed: int = 0

    def __len__(self) -> int:
        """Return the number of images."""
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Draw an image and its classes."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        image, label = generated(self.split, number, (self.side, self.side), self.seed)
        pixels = demo(Named("", image, label), self.channels).image
        return to_batch(pixels[None])[0], torch.from_numpy(label.astype(np.int64))


def batches(images: Drawn, device: torch.device, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches in order, in channels_last on the device; for a GPU, other processes draw them."""
    readers = min(READERS, (os.cpu_count() or 1) - 1) if device.type == "cuda" else 0
    for image, label in DataLoader(images, size, num_workers=readers, pin_memory=readers > 0):
        yield image.to(device, memory_format=torch.channels_last, non_blocking=True), label.to(device)


def first_layer(net: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """Return the convolution that is registered first, which is assumed to read the image; None without one."""
    return next((layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)


def peak_rate(net: nn.Module) -> float:
    """Return the highest learning rate of a network, by the channels that it begins with."""
    first = first_layer(net)
    return LEARNING_RATE * CHANNELS / max(first.out_channels if first else CHANNELS, CHANNELS)


def channels_read(net: nn.Module) -> int:
    """Return 1 if the first convolution reads 1 channel, else 3; raise ModelError for a network of volumes."""
    layer = first_layer(net)
    if isinstance(layer, nn.Conv3d):
        raise ModelError(
            f"{type(net).__name__} is a network of volumes, and the drawn labels are of images; choose a network of "
            "images: volumes need labelled volumes of your own"
        )
    return GREY if layer is not None and layer.in_channels == GREY else COLOUR


def check_answers(net: nn.Module, image: Tensor) -> None:
    """Raise ModelError unless an image [1, channels, height, width] is answered with logits of its size."""
    name, channels, layer = type(net).__name__, image.shape[1], first_layer(net)
    try:
        with torch.no_grad():
            answer = net(image)
    except RuntimeError:
        if layer and layer.in_channels != channels:
            raise ModelError(
                f"{name} reads {layer.in_channels} channels, and the drawn images have {COLOUR}; "
                f"choose a network of {COLOUR}, or of {GREY} for grey"
            ) from None
        raise
    if not isinstance(answer, Tensor):
        parts = ", ".join(f"model.output={part}" for part in tensors_of(answer))
        remedy = f"name the logits in it: {parts}" if parts else "choose a network that answers with logits"
        raise ModelError(f"model.output: {name} answers with a {described(answer)}; {remedy}")
    if answer.dim() != image.dim() or answer.shape[1] < len(CLASSES) or answer.shape[2:] != image.shape[2:]:
        raise ModelError(
            f"{name} answers {list(image.shape)} with {list(answer.shape)}; choose a network that gives logits of "
            f"{len(CLASSES)} classes or more, as large as the image"
        )


def side_of(net: nn.Module, image: Tensor) -> int:
    """Return the side of the training images: the first of `SIDES` of which the network takes a batch in train mode.

    A network that halves a map eight times needs 256 pixels. A copy is tried, as norms keep statistics.
    """
    refused = ""
    for side in SIDES:
        try:
            with torch.no_grad():
                copy.deepcopy(net).train()(image[..., :side, :side].expand(BATCH, -1, -1, -1))
        except (RuntimeError, ValueError) as error:  # too small for a window, or for a norm of one pixel
            refused = str(error).partition("\n")[0]
        else:
            return side
    sides = " or ".join(map(str, SIDES))
    raise ModelError(f"{type(net).__name__} can't be trained on images of {sides} pixels: {refused}")


def fit(
    net: nn.Module, drawn: Callable[[], tuple[Tensor, Tensor]], minutes: float, dice: Callable[[], list[float]]
) -> tuple[dict[str, str], list[float]]:
    """Train for `minutes` by AdamW with one cycle of the learning rate; return notes for the header, and the last Dice.

    `drawn` returns a batch [batch, channels, height, width] and its labels [batch, height, width]; of volumes with a
    depth before the height. The notes have the steps, and what the last quarter of them added to the mean Dice.
    """
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-4)
    peak, began, steps, said = peak_rate(net), time.monotonic(), 0, 0.0
    scores: list[list[float]] = []
    net.train()
    while (elapsed := (time.monotonic() - began) / (60 * minutes)) < 1:
        if not scores and elapsed >= 0.75:
            paused = time.monotonic()
            net.eval()
            scores.append(dice())
            net.train()
            began += time.monotonic() - paused
        optimizer.param_groups[0]["lr"] = peak * min(1.0, 10 * elapsed + 0.05) * (1 - elapsed) + 1e-6
        image, label = drawn()
        with torch.autocast(image.device.type, torch.bfloat16, enabled=image.is_cuda):
            loss = functional.cross_entropy(net(image).float(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if time.monotonic() - said > 15:
            said = time.monotonic()
            sys.stderr.write(f"{per_cent(elapsed):>5}, step {steps}, loss {loss.item():.4f}\n")
    net.eval()
    scores.append(dice())
    early, late = (statistics.fmean(scores[place]) for place in (0, -1))
    moved = f"{late - early:+.5f}" if len(scores) > 1 else "unknown"  # no step began in the last quarter
    return {"steps": str(steps), "dice_moved": moved}, scores[-1]


def score(net: nn.Module, images: Drawn, device: torch.device) -> list[float]:
    """Return Dice of each class over all images together, in 0 to 1."""
    both, sizes = torch.zeros(2, len(CLASSES), dtype=torch.int64)
    for image, label in batches(images, device):
        with torch.inference_mode():
            chosen = net(image).argmax(1)
        both += torch.bincount(label[chosen == label], minlength=len(CLASSES))[: len(CLASSES)].cpu()
        for mask in (chosen, label):
            sizes += torch.bincount(mask.flatten(), minlength=len(CLASSES))[: len(CLASSES)].cpu()
    dice: list[float] = (2 * both / sizes.clamp(min=1)).tolist()
    return dice


def net_of(typed: DictConfig, seed: int) -> nn.Module:
    """Make the network, in fp32, with random weights; raise ModelError if it doesn't take its options."""
    return build_model(typed.target, dict(typed.options), None, seed, typed.output, upsample=typed.upsample_logits)


def train_and_save(net: nn.Module, asked: argparse.Namespace) -> None:
    """Train a network, save it, and print its score as stored; raise ModelError first if it doesn't take them."""
    device, channels = torch.device(asked.device), channels_read(net)
    image = Drawn("train", 1, channels)[0][0][None].to(device)
    net.to(device)
    check_answers(net, image)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]  # 2.12's types lack it
    drawn = batches(Drawn("train", ENDLESS, channels, side_of(net, image), asked.seed), device)
    images = Drawn("held_out", HELD_OUT, channels)
    trained, dice = fit(
        net, lambda: next(drawn), asked.minutes, lambda: score(copy.deepcopy(net).half().float(), images, device)
    )
    named = " ".join(["python -m models.train", *asked.overrides])
    metadata = {
        "command": f"{named} --minutes {asked.minutes:g} --device {asked.device}",
        **trained,
        "held_out_dice": ", ".join(f"{name} {each:.5f}" for name, each in zip(CLASSES, dice, strict=True)),
        "labels": LABELS_BY["generated"],
        "torch": torch.__version__.partition("+")[0],
    }
    checkpoint.save(net, asked.out, metadata)
    said = f"{trained['steps']} steps, held-out Dice {metadata['held_out_dice']} (stored in fp16)"
    show(f"{asked.out}: {said}, its mean {trained['dice_moved']} in the last quarter\n")

"""The training of a network on the demo's labels.

The labels are a classical threshold (`pipeline.inputs.datasets`). One quarter of the one image is held out.
A network of one channel is trained on the image's luminance.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.nn import functional

from models import checkpoint
from models.build import build_model
from models.image_batches import to_batch
from models.model_output import described, tensors_of
from pipeline.command_line import show
from pipeline.errors import ModelError, per_cent
from pipeline.inputs.datasets import HELD_OUT, SAMPLE_FOLDER, SAMPLES, WORD, demo, stain_mask
from pipeline.inputs.image_files import read_image
from pipeline.inputs.windows import Named

# Peak for a network that begins with 16 channels; wider ones take less: at 64 this rate drove a convolution to 3e4,
# half of fp16's range.
LEARNING_RATE, CHANNELS = 2e-3, 16
GREY, COLOUR = 1, 3  # channels of the demo's image
CLASSES = 2  # in the demo's labels
BATCH, CROPS = 8, (128, 256)  # crops a step, and their sides in pixels: the smallest that the network takes


@dataclass(frozen=True)
class Tissue:
    """The image and its labels: [1, channels, 512, 512], of 3 channels or 1, and [1, 512, 512]."""

    image: Tensor
    label: Tensor

    @staticmethod
    def load(device: torch.device, channels: int = 3) -> "Tissue":
        """Read the image from scikit-image's wheel; of one channel its luminance, with the labels of its colours."""
        pixels = read_image(SAMPLE_FOLDER / SAMPLES[0])
        label = torch.from_numpy(stain_mask(pixels).astype(np.int64))
        image = demo(Named(SAMPLES[0], pixels, None), channels).image
        return Tissue(to_batch(image[None]).to(device), label[None].to(device))


def crops(tissue: Tissue, generator: torch.Generator, side: int = CROPS[0]) -> tuple[Tensor, Tensor]:
    """Draw images [8, channels, side, side] and labels [8, side, side]: random crops outside the held-out quarter.

    Each is rotated by a multiple of 90°, perhaps mirrored, tinted, and noise is added.
    """
    images: list[Tensor] = []
    labels: list[Tensor] = []
    while len(images) < BATCH:
        top, left = (int(part) for part in torch.randint(0, 512 - side + 1, (2,), generator=generator))
        if top + side > HELD_OUT[0].start and left + side > HELD_OUT[1].start:
            continue
        window = (..., slice(top, top + side), slice(left, left + side))
        turns, mirror = (int(part) for part in torch.randint(0, 4, (2,), generator=generator))
        tint = torch.rand(2, 1, tissue.image.shape[1], 1, 1, generator=generator)
        gain, shift = 0.3 * tint.to(tissue.image.device) - 0.15
        image, label = (torch.rot90(part[window], turns, (-2, -1)) for part in (tissue.image, tissue.label))
        if mirror % 2:
            image, label = image.flip(-1), label.flip(-1)
        noise = 0.1 * torch.randn(image.shape, generator=generator).to(image.device)
        images.append(image * (1 + gain) + shift + noise)
        labels.append(label)
    return torch.cat(images), torch.cat(labels)


def first_layer(net: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """Return the convolution that is registered first, which is assumed to read the image; None without one."""
    return next((layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)


def channels_read(net: nn.Module) -> int:
    """Return 1 if the first convolution reads 1 channel, else 3; raise ModelError for a network of volumes."""
    layer = first_layer(net)
    if isinstance(layer, nn.Conv3d):
        raise ModelError(
            f"{type(net).__name__} is a network of volumes, and the demo's labels are of images; choose a network of "
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
                f"{name} reads {layer.in_channels} channels, and the demo's images have {COLOUR}; "
                f"choose a network of {COLOUR}, or of {GREY} for grey"
            ) from None
        raise
    if not isinstance(answer, Tensor):
        parts = ", ".join(f"model.output={part}" for part in tensors_of(answer))
        remedy = f"name the logits in it: {parts}" if parts else "choose a network that answers with logits"
        raise ModelError(f"model.output: {name} answers with a {described(answer)}; {remedy}")
    if answer.dim() != image.dim() or answer.shape[1] < CLASSES or answer.shape[2:] != image.shape[2:]:
        raise ModelError(
            f"{name} answers {list(image.shape)} with {list(answer.shape)}; choose a network that gives logits of "
            f"{CLASSES} classes or more, as large as the image"
        )


def crop_of(net: nn.Module, image: Tensor) -> int:
    """Return the side of the training crops: the first of `CROPS` of which the network takes a batch in train mode.

    A network that halves a map eight times needs 256 pixels. A copy is tried, as norms keep statistics.

    Args:
        net: of images.
        image: [1, channels, height, width], at least as large as the largest crop.
    """
    refused = ""
    for side in CROPS:
        try:
            with torch.no_grad():
                copy.deepcopy(net).train()(image[..., :side, :side].expand(BATCH, -1, -1, -1))
        except (RuntimeError, ValueError) as error:  # too small for a window, or for a norm of one pixel
            refused = str(error).partition("\n")[0]
        else:
            return side
    sides = " or ".join(map(str, CROPS))
    raise ModelError(f"{type(net).__name__} can't be trained on crops of {sides} pixels: {refused}")


def train(net: nn.Module, tissue: Tissue, minutes: float, seed: int) -> int:
    """Train on `crops` in channels_last; return the number of steps."""
    generator, side = torch.Generator().manual_seed(seed), crop_of(net, tissue.image)

    def drawn() -> tuple[Tensor, Tensor]:
        image, label = crops(tissue, generator, side)
        return image.contiguous(memory_format=torch.channels_last), label

    return fit(net, drawn, minutes)


def fit(net: nn.Module, drawn: Callable[[], tuple[Tensor, Tensor]], minutes: float) -> int:
    """Train by AdamW with one cycle of the learning rate; return the number of steps.

    Args:
        net: of images, or of volumes.
        drawn: returns a batch [batch, channels, height, width] and its labels [batch, height, width]; of volumes with a
            depth before the height.
        minutes: duration.
    """
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-4)
    first = first_layer(net)
    peak = LEARNING_RATE * CHANNELS / max(first.out_channels if first else CHANNELS, CHANNELS)
    began, steps, said = time.monotonic(), 0, 0.0
    net.train()
    while (elapsed := (time.monotonic() - began) / (60 * minutes)) < 1:
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
    return steps


def score(net: nn.Module, tissue: Tissue) -> tuple[float, float]:
    """Return Dice and intersection over union of the stain on the held-out quarter [256, 256], both in 0 to 1."""
    with torch.inference_mode():
        predicted = net(tissue.image)[(..., *HELD_OUT)].argmax(1) == 1
    wanted = tissue.label[(..., *HELD_OUT)] == 1
    both, either = int((predicted & wanted).sum()), int((predicted | wanted).sum())
    return 2 * both / max(both + either, 1), both / max(either, 1)


def net_of(typed: DictConfig, seed: int) -> nn.Module:
    """Make the network, in fp32, with random weights; raise ModelError if it doesn't take its options."""
    return build_model(typed.target, dict(typed.options), None, seed, typed.output, upsample=typed.upsample_logits)


def train_and_save(net: nn.Module, asked: argparse.Namespace) -> None:
    """Train a network, save it, and print its score as stored.

    Raises:
        ModelError: it doesn't take the images or crops, or answers with no tensor; raised before training begins.
        OSError: the weights can't be written.
    """
    tissue = Tissue.load(torch.device(asked.device), channels_read(net))
    net.to(tissue.image.device)
    check_answers(net, tissue.image)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]  # 2.12's types lack it
    steps = train(net, tissue, asked.minutes, asked.seed)
    dice, iou = score(copy.deepcopy(net).half().float(), tissue)
    named = " ".join(["python -m models.train", *asked.overrides])
    metadata = {
        "command": f"{named} --minutes {asked.minutes:g} --device {asked.device}",
        "steps": str(steps),
        "held_out_dice": f"{dice:.5f}",
        "held_out_iou": f"{iou:.5f}",
        "labels": WORD,
        "torch": torch.__version__.partition("+")[0],
    }
    checkpoint.save(net, asked.out, metadata)
    show(f"{asked.out}: {steps} steps, held-out Dice {dice:.4f}, IoU {iou:.4f} (stored in fp16)\n")

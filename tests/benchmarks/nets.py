"""Nets of other houses, as their users build them, for the benchmarks: made when asked for, with what is installed."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models.unet import UNet


@dataclass(frozen=True)
class NetCase:
    """A net and what it is given.

    Attributes:
        make: gives the net, fp32, with random weights.
        shape: of the batch, [batch, channels, height, width].
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, int, int, int]


class Denoiser(nn.Module):
    """diffusers' UNet2DModel at one time step: latents [batch, channels, 64, 64] to noise of the same shape."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        blocks = ["DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"]
        self.net = importlib.import_module("diffusers").UNet2DModel(
            sample_size=64,
            in_channels=channels,
            out_channels=channels,
            block_out_channels=(128, 256, 256, 512),
            down_block_types=tuple(blocks),
            up_block_types=tuple(block.replace("Down", "Up") for block in reversed(blocks)),
        )

    def forward(self, latents: Tensor) -> Tensor:
        noise: Tensor = self.net(latents, torch.tensor(10, device=latents.device)).sample
        return noise


class PlainNnUNet(nn.Module):
    """nnU-Net's plain net of seven stages, 32 to 512 channels, as its plans of 512×512 patches have it.

    Takes images [batch, 3, height, width] to logits of two classes, [batch, 2, height, width].
    """

    def __init__(self) -> None:
        super().__init__()
        unet = importlib.import_module("dynamic_network_architectures.architectures.unet")
        norm = {"norm_op": nn.InstanceNorm2d, "norm_op_kwargs": {"eps": 1e-5, "affine": True}}
        ends = {"nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
        widths, strides = (32, 64, 128, 256, 512, 512, 512), (1, 2, 2, 2, 2, 2, 2)
        self.net = unet.PlainConvUNet(
            3, 7, widths, nn.Conv2d, 3, strides, 2, 2, (2,) * 6, conv_bias=True, **norm, **ends
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


def of_smp(architecture: str, encoder: str) -> nn.Module:
    """A net of segmentation-models-pytorch with two classes."""
    library = importlib.import_module("segmentation_models_pytorch")
    net: nn.Module = getattr(library, architecture)(encoder, encoder_weights=None, classes=2)
    return net


def of_monai(name: str, *arguments: Any, **options: Any) -> nn.Module:
    """A net of MONAI."""
    net: nn.Module = getattr(importlib.import_module("monai.networks.nets"), name)(*arguments, **options)
    return net


LARGE = (8, 3, 512, 512)
WIDTHS, HALVINGS = (32, 64, 128, 256, 512), (2, 2, 2, 2)
NETS: dict[str, NetCase] = {
    "classic": NetCase(UNet, LARGE),
    "classic, batch 1": NetCase(UNet, (1, *LARGE[1:])),
    "classic, bilinear": NetCase(partial(UNet, upsampling="bilinear"), LARGE),
    "smp Unet, ResNet-34": NetCase(partial(of_smp, "Unet", "resnet34"), LARGE),
    "MONAI UNet": NetCase(
        partial(of_monai, "UNet", 2, 3, 2, channels=WIDTHS, strides=HALVINGS, num_res_units=2), LARGE
    ),
    "MONAI BasicUNet": NetCase(partial(of_monai, "BasicUNet", 2, 3, 2), LARGE),
    "nnU-Net plain": NetCase(PlainNnUNet, LARGE),
    "diffusers UNet2DModel": NetCase(Denoiser, (8, 4, 64, 64)),
    "smp Unet, EfficientNet-b0": NetCase(partial(of_smp, "Unet", "efficientnet-b0"), LARGE),
    "smp Unet, ResNet-50, batch 1": NetCase(partial(of_smp, "Unet", "resnet50"), (1, *LARGE[1:])),
    "smp UnetPlusPlus, ResNet-18": NetCase(partial(of_smp, "UnetPlusPlus", "resnet18"), LARGE),
    "smp FPN, ResNet-34, 480×640": NetCase(partial(of_smp, "FPN", "resnet34"), (4, 3, 480, 640)),
    "MONAI AttentionUnet": NetCase(partial(of_monai, "AttentionUnet", 2, 3, 2, WIDTHS, HALVINGS), LARGE),
    "MONAI SegResNet": NetCase(partial(of_monai, "SegResNet", 2, 16, in_channels=3, out_channels=2), LARGE),
    "classic, 500×375": NetCase(UNet, (4, 3, 500, 375)),
    "classic, base 24": NetCase(partial(UNet, base=24), LARGE),
}

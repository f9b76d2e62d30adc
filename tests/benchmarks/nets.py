"""Nets of other houses, as their users build them, for the benchmarks: made when asked for, with what is installed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from models.library_nets import diffusers_net, monai_net, smp_net
from models.nnunet_nets import nnunet_net
from models.unet import UNet


@dataclass(frozen=True)
class NetCase:
    """A net and what it is given.

    Attributes:
        make: gives the net, fp32, with random weights.
        shape: of the batch, [batch, channels, height, width]; volumes have a depth before the height.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


LARGE, VOLUMES = (8, 3, 512, 512), (2, 1, 128, 128, 128)
WIDTHS, HALVINGS = (32, 64, 128, 256, 512), (2, 2, 2, 2)
BLOCKS = ("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D")
DENOISER = partial(
    diffusers_net,
    sample_size=64,
    in_channels=4,
    out_channels=4,
    block_out_channels=(128, 256, 256, 512),
    down_block_types=BLOCKS,
    up_block_types=tuple(block.replace("Down", "Up") for block in reversed(BLOCKS)),
)
FLAT, ROUND = [1, 3, 3], [3, 3, 3]  # windows within a slice, and across slices
THICK_SLICES = partial(
    nnunet_net,
    configuration="3d_fullres",
    input_channels=1,
    kernel_sizes=[FLAT, FLAT, *[ROUND] * 4],
    strides=[[1, 1, 1], [1, 2, 2], [1, 2, 2], *[[2, 2, 2]] * 3],
)
NETS: dict[str, NetCase] = {
    "classic": NetCase(UNet, LARGE),
    "classic, batch 1": NetCase(UNet, (1, *LARGE[1:])),
    "classic, bilinear": NetCase(partial(UNet, upsampling="bilinear"), LARGE),
    "smp Unet, ResNet-34": NetCase(smp_net, LARGE),
    "MONAI UNet": NetCase(partial(monai_net, channels=WIDTHS, strides=HALVINGS, num_res_units=2), LARGE),
    "MONAI BasicUNet": NetCase(partial(monai_net, "BasicUNet"), LARGE),
    "nnU-Net plain": NetCase(nnunet_net, LARGE),
    "diffusers UNet2DModel": NetCase(DENOISER, (8, 4, 64, 64)),
    "smp Unet, EfficientNet-b0": NetCase(partial(smp_net, "Unet", "efficientnet-b0"), LARGE),
    "smp Unet, ResNet-50, batch 1": NetCase(partial(smp_net, "Unet", "resnet50"), (1, *LARGE[1:])),
    "smp UnetPlusPlus, ResNet-18": NetCase(partial(smp_net, "UnetPlusPlus", "resnet18"), LARGE),
    "smp FPN, ResNet-34, 480×640": NetCase(partial(smp_net, "FPN"), (4, 3, 480, 640)),
    "MONAI AttentionUnet": NetCase(partial(monai_net, "AttentionUnet", channels=WIDTHS, strides=HALVINGS), LARGE),
    "MONAI SegResNet": NetCase(partial(monai_net, "SegResNet", init_filters=16), LARGE),
    "smp DeepLabV3Plus, ResNet-34": NetCase(partial(smp_net, "DeepLabV3Plus"), LARGE),
    "smp Unet, ResNeXt-50": NetCase(partial(smp_net, "Unet", "resnext50_32x4d"), LARGE),
    "smp Unet, MobileOne-s0": NetCase(partial(smp_net, "Unet", "mobileone_s0"), LARGE),
    "smp Unet, MiT-b0": NetCase(partial(smp_net, "Unet", "mit_b0"), LARGE),
    "classic, 500×375": NetCase(UNet, (4, 3, 500, 375)),
    "classic, base 24": NetCase(partial(UNet, base=24), LARGE),
    "nnU-Net plain, volumes": NetCase(partial(nnunet_net, configuration="3d_fullres", input_channels=1), VOLUMES),
    "nnU-Net plain, thick slices": NetCase(THICK_SLICES, (2, 1, 32, 256, 256)),
    "MONAI UNet, volumes": NetCase(
        partial(monai_net, spatial_dims=3, in_channels=1, channels=WIDTHS, strides=HALVINGS, num_res_units=2), VOLUMES
    ),
    "MONAI BasicUNet, volumes": NetCase(partial(monai_net, "BasicUNet", spatial_dims=3, in_channels=1), VOLUMES),
    "MONAI SegResNet, volumes": NetCase(
        partial(monai_net, "SegResNet", spatial_dims=3, in_channels=1, init_filters=16), VOLUMES
    ),
}

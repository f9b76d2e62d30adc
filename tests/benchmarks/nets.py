"""Third-party networks for the benchmarks, built with the options that their users choose."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.library_nets import diffusers_net, monai_net, smp_net
from models.nnunet_nets import nnunet_net
from models.torchvision_nets import SegmentationNet
from models.unet import UNet
from tests.benchmarks.research_nets import GatedUNet, NAFNet, R2UNet, ResUNetA, U2Net, UNet3Plus, WarpedUNet


@dataclass(frozen=True)
class NetCase:
    make: Callable[[], nn.Module]  # gives the net, fp32, with random weights
    shape: tuple[int, ...]  # of the batch, [batch, channels, height, width]; volumes have a depth before the height


class Pix2Pix(nn.Module):
    """The generator of pix2pix: windows of 4×4 halve a map eight times and double it again, with a skip at each size.

    Isola et al., Image-to-Image Translation with Conditional Adversarial Networks (2017), appendix 6.1.
    """

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 512, 512, 512, 512)) -> None:
        super().__init__()
        steps = [*pairwise((3, *widths))]
        self.down = nn.ModuleList(nn.Conv2d(small, wide, 4, 2, 1, bias=False) for small, wide in steps)
        self.down_norms = nn.ModuleList(nn.BatchNorm2d(wide) for wide in widths[1:-1])
        read = [2 * wide for wide in widths[:-1]] + [widths[-1]]
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(wide, small, 4, 2, 1) for wide, (small, _) in zip(read, steps, strict=True)
        )
        self.up_norms = nn.ModuleList(nn.BatchNorm2d(small) for small in widths[:-1])

    def forward(self, image: Tensor) -> Tensor:
        first, *others = self.down
        skips = [first(image)]
        for layer, norm in zip(others, [*self.down_norms, nn.Identity()], strict=True):
            skips.append(norm(layer(functional.leaky_relu(skips[-1], 0.2))))
        x = skips.pop()
        for layer, norm in zip(self.up[:0:-1], reversed(self.up_norms), strict=True):
            x = torch.cat([norm(layer(functional.relu(x))), skips.pop()], 1)
        drawn: Tensor = self.up[0](functional.relu(x))
        return drawn.tanh()


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
SLIM_VOLUMES: dict[str, Any] = {
    "configuration": "3d_fullres",
    "input_channels": 1,
    "features_per_stage": [16, 32, 64, 128, 160, 160],
}
THICK_SLICES = partial(
    nnunet_net,
    configuration="3d_fullres",
    input_channels=1,
    kernel_sizes=[FLAT, FLAT, *[ROUND] * 4],
    strides=[[1, 1, 1], [1, 2, 2], [1, 2, 2], *[[2, 2, 2]] * 3],
)
RESIDUAL_DYNAMIC: dict[str, Any] = {
    "kernel_size": [3] * 5,
    "strides": [1, 2, 2, 2, 2],
    "upsample_kernel_size": [2] * 4,
    "res_block": True,
}
NETS: dict[str, NetCase] = {
    "classic": NetCase(UNet, LARGE),
    "classic, batch 1": NetCase(UNet, (1, *LARGE[1:])),
    "classic, bilinear": NetCase(partial(UNet, upsampling="bilinear"), LARGE),
    "classic, aligned": NetCase(partial(UNet, upsampling="aligned"), LARGE),
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
    "smp Unet, DenseNet-121": NetCase(partial(smp_net, "Unet", "densenet121"), LARGE),
    "smp Unet, SE-ResNeXt-50": NetCase(partial(smp_net, "Unet", "se_resnext50_32x4d"), LARGE),
    "smp Unet, VGG-16": NetCase(partial(smp_net, "Unet", "vgg16_bn"), LARGE),
    "smp Unet, MobileNet-v2": NetCase(partial(smp_net, "Unet", "mobilenet_v2"), LARGE),
    "smp Unet, ConvNeXt-tiny": NetCase(partial(smp_net, "Unet", "tu-convnext_tiny"), LARGE),
    "smp Unet, RegNetY-032": NetCase(partial(smp_net, "Unet", "tu-regnety_032"), LARGE),
    "smp Unet, ResNet-34, scSE": NetCase(partial(smp_net, decoder_attention_type="scse"), LARGE),
    "smp MAnet, ResNet-34": NetCase(partial(smp_net, "MAnet"), LARGE),
    "smp Linknet, ResNet-34": NetCase(partial(smp_net, "Linknet"), LARGE),
    "smp UPerNet, ResNet-34": NetCase(partial(smp_net, "UPerNet"), LARGE),
    "smp PAN, ResNet-34": NetCase(partial(smp_net, "PAN"), LARGE),
    "smp PSPNet, ResNet-34": NetCase(partial(smp_net, "PSPNet"), LARGE),
    "smp Segformer, MiT-b0": NetCase(partial(smp_net, "Segformer", "mit_b0"), LARGE),
    "MONAI DynUNet": NetCase(partial(monai_net, "DynUNet", **RESIDUAL_DYNAMIC), LARGE),
    "MONAI MedNeXt": NetCase(partial(monai_net, "MedNeXt"), LARGE),
    "MONAI SwinUNETR": NetCase(partial(monai_net, "SwinUNETR", feature_size=24), LARGE),
    "torchvision DeepLabV3, ResNet-50": NetCase(partial(SegmentationNet, "deeplabv3_resnet50"), LARGE),
    "U2Net": NetCase(U2Net, LARGE),
    "UNet3+": NetCase(UNet3Plus, LARGE),
    "NAFNet": NetCase(NAFNet, LARGE),
    "R2U-Net": NetCase(R2UNet, LARGE),
    "attention gates": NetCase(GatedUNet, LARGE),
    "ResUNet-a": NetCase(ResUNetA, LARGE),
    "warped": NetCase(WarpedUNet, LARGE),
    "pix2pix": NetCase(Pix2Pix, (8, 3, 256, 256)),
    "classic, 500×375": NetCase(UNet, (4, 3, 500, 375)),
    **{f"classic, base {base}": NetCase(partial(UNet, base=base), LARGE) for base in (8, 16, 24, 32)},
    "nnU-Net plain, volumes": NetCase(partial(nnunet_net, configuration="3d_fullres", input_channels=1), VOLUMES),
    "nnU-Net plain, volumes, width 16": NetCase(partial(nnunet_net, **SLIM_VOLUMES), VOLUMES),
    "nnU-Net plain, thick slices": NetCase(THICK_SLICES, (2, 1, 32, 256, 256)),
    "MONAI UNet, volumes": NetCase(
        partial(monai_net, spatial_dims=3, in_channels=1, channels=WIDTHS, strides=HALVINGS, num_res_units=2), VOLUMES
    ),
    "MONAI BasicUNet, volumes": NetCase(partial(monai_net, "BasicUNet", spatial_dims=3, in_channels=1), VOLUMES),
    "MONAI SegResNet, volumes": NetCase(
        partial(monai_net, "SegResNet", spatial_dims=3, in_channels=1, init_filters=16), VOLUMES
    ),
}

"""Take many third-party networks through export, every pass and lowering, by the kernels' references, on a CPU.

    python -m tests.benchmarks.nets_by_reference [PART OF A NET'S NAME …]

Needs segmentation-models-pytorch with timm, monai with einops, and diffusers. Batch norms get real statistics, weights
are random. A line for each net: how far it is from itself (relative L2) after the passes, in fp32; lowered, where the
references round the first layer's weights to fp16; and with all in fp8 that may be, scaled by the same images, where
random weights make some nets useless. What is lowered must also be a file
that this program loads. Exit code 1 where one of them raised, or where the passes changed an answer.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from models.library_nets import diffusers_net, monai_net, smp_net
from models.torchvision_nets import NETS, SegmentationNet
from models.unet import UNet
from pipeline.compiler.agreement import distance
from pipeline.compiler.artifact import archive_of, checked_archive
from pipeline.compiler.batch import Batch
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import layers_in_fp8, scales
from pipeline.compiler.graph.layers import layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning.calibrate import largest
from pipeline.errors import typed_line
from tests.benchmarks.net_times import with_real_statistics
from tests.compiler.rewriting import rewrite_all
from tests.input_nets import SEVERAL

CHANGED = 1e-2  # relative L2 after the passes in fp32; nets of tiny maps and random weights amplify rounding to 4e-3
Inputs = tuple[Tensor, ...]  # of a call
Case = tuple[Callable[[], nn.Module], Callable[[], Inputs]]

ENCODERS = (
    "resnet18", "resnext50_32x4d", "vgg11_bn", "vgg13", "densenet121", "mobilenet_v2", "efficientnet-b1",
    "se_resnet50", "inceptionv4", "xception", "dpn68", "mit_b0", "tu-regnety_002", "tu-regnety_032", "tu-convnext_atto",
    "tu-mobilenetv3_small_100", "tu-hrnet_w18_small", "tu-ghostnet_100", "tu-resnest14d", "tu-seresnet18",
    "tu-edgenext_xx_small", "tu-repvgg_a0", "tu-nfnet_l0",
)  # fmt: skip
ARCHITECTURES = (
    "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet", "Segformer",
)  # fmt: skip
UNET: dict[str, Any] = {"channels": (16, 32, 64), "strides": (2, 2)}
MONAI: dict[str, dict[str, Any]] = {
    "UNet": {**UNET, "num_res_units": 2},
    "AttentionUnet": UNET,
    "DynUNet": {"kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3},
    "SegResNet": {"init_filters": 16},
    "SegResNetDS": {"init_filters": 16},
    "HighResNet": {},
    "AHNet": {},
    "RegUNet": {"num_channel_initial": 16, "depth": 3},
    "MedNeXt": {"init_filters": 8, "encoder_expansion_ratio": (2,) * 4, "decoder_expansion_ratio": (2,) * 4},
    "SwinUNETR": {"feature_size": 12},
    "UNETR": {"img_size": (64, 64), "feature_size": 8, "hidden_size": 96, "mlp_dim": 192, "num_heads": 4},
}
DENOISER: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (32, 64, 64),
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
}


CONDITIONED: dict[str, Any] = {
    "sample_size": 32,
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
}


class Autoencoder(nn.Module):
    """diffusers' autoencoder, there and back."""

    def __init__(self) -> None:
        super().__init__()
        blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
        make = import_module("diffusers").AutoencoderKL
        self.net = make(block_out_channels=(32, 64), norm_num_groups=8, **blocks)

    def forward(self, image: Tensor) -> Tensor:
        """The image again, [batch, 3, height, width]."""
        decoded: Tensor = self.net.decode(self.net.encode(image).latent_dist.mode()).sample
        return decoded


class TextToImage(nn.Module):
    """diffusers' UNet2DConditionModel: latents, a time step for each and hidden states of a text to noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = import_module("diffusers").UNet2DConditionModel(**CONDITIONED)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        """Noise [batch, channels, height, width]."""
        noise: Tensor = self.net(sample, timestep, encoder_hidden_states, return_dict=False)[0]
        return noise


def images(*shape: int) -> Callable[[], Inputs]:
    """What draws a batch, [batch, channels, height, width], for a net of one input."""
    return lambda: (torch.rand(shape),)


def of_text_to_image() -> Inputs:
    """What `TextToImage` takes, two samples."""
    return torch.randn(2, 4, 32, 32), torch.randint(1000, (2,)), torch.randn(2, 7, 32)


def cases() -> Iterator[tuple[str, Case]]:
    """Every net with its name and what draws its inputs."""
    for encoder in ENCODERS:
        yield f"smp Unet {encoder}", (partial(smp_net, "Unet", encoder), images(2, 3, 64, 96))
    for architecture in ARCHITECTURES:
        for encoder in ("resnet18", "efficientnet-b0"):
            yield f"smp {architecture} {encoder}", (partial(smp_net, architecture, encoder), images(2, 3, 128, 128))
    for name, options in MONAI.items():
        side = 128 if name == "AHNet" else 64
        yield f"monai {name}", (partial(monai_net, name, **options), images(1, 3, side, side))
    for name in NETS:
        yield f"torchvision {name}", (partial(SegmentationNet, name), images(1, 3, 65, 79))
    yield "diffusers UNet2DModel", (partial(diffusers_net, sample_size=32, **DENOISER), images(1, 4, 32, 32))
    yield "diffusers AutoencoderKL", (Autoencoder, images(1, 3, 64, 64))
    yield "classic, odd size", (partial(UNet, base=16, depth=3), images(1, 3, 53, 71))
    yield "classic, bilinear", (partial(UNet, base=16, depth=2, upsampling="bilinear"), images(1, 3, 54, 70))
    yield "diffusers UNet2DConditionModel", (TextToImage, of_text_to_image)
    for name, (make, drawn) in SEVERAL.items():
        yield f"several inputs, {name}", (make, partial(_tensors, drawn))


def _tensors(drawn: Callable[[], Batch]) -> Inputs:
    return drawn().tensors


@torch.no_grad()
def line(make: Callable[[], nn.Module], drawn: Callable[[], Inputs]) -> tuple[str, bool]:
    """What came of one net, and whether its answer stayed what it was."""
    torch.manual_seed(0)
    net, seen, other = make().eval(), drawn(), drawn()
    with_real_statistics(net, *[torch.cat(both) for both in zip(seen, other, strict=True)])
    wanted = net(*other)
    with torch.enable_grad():
        exported = export(net, named(seen), torch.float32)
    rewrite_all(exported)
    kept = distance(exported.module(*other), wanted)
    graph = lower(exported, Plan())
    lowered = distance(graph(*other), wanted)
    checked_archive(archive_of(graph, *seen))
    layers = sum(layer_of(exported.module, node) is not None for node in exported.module.graph.nodes)
    in_fp8 = with_fp8(exported, [named(seen), named(other)], wanted)
    return f"passes {kept:.1e}  lowered {lowered:.1e}  {in_fp8}  {layers} layers", kept <= CHANGED


def named(inputs: Inputs) -> Batch:
    """The inputs of a call under some names."""
    return Batch(inputs, tuple(map(str, range(len(inputs)))))


def with_fp8(exported: ExportedNet, batches: list[Batch], wanted: Tensor) -> str:
    """What comes of a net in fp8, scaled by batches and judged by the last."""
    known = scales(exported, [], largest(exported, batches))
    off = distance(lower(exported, Plan(known))(*batches[-1]), wanted)
    return f"fp8 {off:.2f} ({len(known)} values, {len(layers_in_fp8(exported, known))} layers)"


def main(wanted: list[str]) -> int:
    """A line for each net whose name holds one of the words, or for all."""
    torch.set_num_threads(1)
    wrong = 0
    for name, (make, drawn) in cases():
        if wanted and not any(part in name for part in wanted):
            continue
        began = time.monotonic()
        try:
            text, right = line(make, drawn)
        except Exception as error:  # noqa: BLE001 - the other nets are still to be tried
            traceback.print_exc()
            text, right = typed_line(error), False
        wrong += not right
        mark = "" if right else "  WRONG"
        sys.stdout.write(f"{name:34} {text}  {time.monotonic() - began:.0f} s{mark}\n")
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

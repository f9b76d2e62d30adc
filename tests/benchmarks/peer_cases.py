"""Networks of smp, torchvision, diffusers, transformers, MONAI and nnU-Net's library: small, with random weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]  # of a call


@dataclass(frozen=True)
class Peer:
    """A network and what draws the inputs of a call."""

    make: Callable[[], nn.Module]
    draw: Callable[[], Inputs]


class Answering(nn.Module):
    """A library's network that answers with one tensor: a part of its own answer."""

    def __init__(self, net: nn.Module, part: str | int | None = None, **fixed: object) -> None:
        super().__init__()
        self.net, self.part, self.fixed = net, part, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        answer: Any = self.net(*inputs, **self.fixed)
        if isinstance(self.part, str):
            answer = answer[self.part] if isinstance(answer, dict) else getattr(answer, self.part)
        elif self.part is not None:
            answer = answer[self.part]
        return answer


def of(module: str, name: str, part: str | int | None = None, fixed: Any = None, **options: Any) -> nn.Module:
    """Make a class of a library by its options."""
    return Answering(getattr(import_module(module), name)(**options), part, **(fixed or {}))


def images(*shape: int) -> Callable[[], Inputs]:
    """Return what draws a batch of that shape."""
    return lambda: (torch.rand(shape),)


def conditioned(*shape: int, words: int = 0) -> Callable[[], Inputs]:
    """Return what draws latents of that shape, a time step for each, and hidden states `words` wide."""
    states = ((shape[0], 7, words),) if words else ()
    return lambda: (torch.randn(shape), torch.randint(1000, shape[:1]), *map(torch.randn, states))


ENCODERS = (
    "resnet18", "resnet50", "resnext50_32x4d", "vgg11", "vgg11_bn", "vgg13", "densenet121", "dpn68", "mobilenet_v2",
    "efficientnet-b0", "efficientnet-b1", "se_resnet50", "se_resnext50_32x4d", "inceptionv4", "inceptionresnetv2",
    "xception", "mit_b0", "mit_b1", "mobileone_s0", "timm-skresnet18", "timm-efficientnet-b0",
    "timm-tf_efficientnet_lite0", "tu-regnety_002", "tu-regnety_032", "tu-convnext_atto", "tu-mobilenetv3_small_100",
    "tu-hrnet_w18_small", "tu-ghostnet_100", "tu-resnest14d", "tu-seresnet18", "tu-edgenext_xx_small", "tu-repvgg_a0",
    "tu-nfnet_l0", "tu-mobilevit_xxs", "tu-gernet_s", "tu-res2net50_26w_4s", "tu-eca_resnet33ts", "tu-mnasnet_small",
    "tu-rexnet_100", "tu-tinynet_e", "tu-darknet53", "tu-cspresnet50", "tu-mixnet_s", "tu-selecsls42",
    "tu-poolformer_s12", "tu-fastvit_t8", "tu-lcnet_050", "tu-hardcorenas_a",
)  # fmt: skip
DECODERS = (
    "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet", "Segformer",
)  # fmt: skip


def smp_peers() -> Iterator[tuple[str, Peer]]:
    """Yield networks of segmentation-models-pytorch."""
    library: dict[str, Any] = {"module": "segmentation_models_pytorch", "encoder_weights": None, "classes": 3}
    for encoder in ENCODERS:
        make = partial(of, name="Unet", encoder_name=encoder, **library)
        yield f"smp Unet {encoder}", Peer(make, images(2, 3, 64, 96))
    for decoder in DECODERS:
        for encoder in ("resnet18", "efficientnet-b0"):
            make = partial(of, name=decoder, encoder_name=encoder, **library)
            yield f"smp {decoder} {encoder}", Peer(make, images(2, 3, 128, 128))
    for attention in ("scse", "aux"):
        options = (
            {"decoder_attention_type": "scse"} if attention == "scse" else {"aux_params": {"classes": 4}, "part": 0}
        )
        make = partial(of, name="Unet", encoder_name="resnet18", **library, **options)
        yield f"smp Unet resnet18 {attention}", Peer(make, images(2, 3, 64, 64))
    dpt = partial(of, name="DPT", encoder_name="tu-vit_tiny_patch16_224", **library)
    yield "smp DPT vit_tiny", Peer(dpt, images(1, 3, 224, 224))


SEGMENTING = ("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
CLASSIFYING = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "mnasnet0_5", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18", "resnet50", "shufflenet_v2_x0_5",
    "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32", "maxvit_t", "wide_resnet50_2",
)  # fmt: skip


def torchvision_peers() -> Iterator[tuple[str, Peer]]:
    """Yield networks of torchvision."""
    for name in SEGMENTING:
        make = partial(of, "torchvision.models.segmentation", name, "out", weights=None, weights_backbone=None)
        yield f"torchvision {name}", Peer(make, images(1, 3, 65, 79))
    for name in CLASSIFYING:
        yield f"torchvision {name}", Peer(partial(of, "torchvision.models", name, weights=None), images(2, 3, 224, 224))
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        draw = images(1, 3, 16, 64, 64)
        yield f"torchvision {name}", Peer(partial(of, "torchvision.models.video", name, weights=None), draw)
    raft = partial(of, "torchvision.models.optical_flow", "raft_small", -1, weights=None, fixed={"num_flow_updates": 2})
    yield "torchvision raft_small", Peer(raft, lambda: (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)))


SMALL: dict[str, Any] = {"block_out_channels": (32, 64), "norm_num_groups": 8}
CROSS: dict[str, Any] = {
    **SMALL,
    "sample_size": 32,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
CODED: dict[str, Any] = {
    **SMALL,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DENOISERS: dict[str, tuple[str, str]] = {  # the second block of the way down, and the first of the way up
    "plain": ("DownBlock2D", "UpBlock2D"),
    "attention": ("AttnDownBlock2D", "AttnUpBlock2D"),
    "resnet": ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D"),
}
LATENTS: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16}


def denoiser(down: str, up: str) -> nn.Module:
    """Make a UNet2DModel of those blocks."""
    options = {**SMALL, "down_block_types": ("DownBlock2D", down), "up_block_types": (up, "UpBlock2D")}
    return of("diffusers", "UNet2DModel", "sample", in_channels=4, out_channels=4, sample_size=32, **options)


def diffusers_autoencoders() -> Iterator[tuple[str, Peer]]:
    """Yield autoencoders of diffusers."""
    library = partial(partial, of, "diffusers")
    photos = images(1, 3, 64, 64)
    yield "diffusers AutoencoderKL", Peer(library("AutoencoderKL", "sample", **CODED), photos)
    yield "diffusers VQModel", Peer(library("VQModel", "sample", **CODED, num_vq_embeddings=16), photos)
    tiny = library(
        "AutoencoderTiny", "sample", encoder_block_out_channels=(32,) * 4, decoder_block_out_channels=(32,) * 4
    )
    yield "diffusers AutoencoderTiny", Peer(tiny, photos)
    asymmetric = library(
        "AsymmetricAutoencoderKL", "sample", norm_num_groups=8, down_block_out_channels=(32, 64),
        up_block_out_channels=(32, 64), down_block_types=CODED["down_block_types"],
        up_block_types=CODED["up_block_types"],
    )  # fmt: skip
    yield "diffusers AsymmetricAutoencoderKL", Peer(asymmetric, photos)
    levels = {
        "block_out_channels": (32, 64),
        "layers_per_block": (1, 1),
        "block_types": ("ResBlock", "EfficientViTBlock"),
    }
    dc = library(
        "AutoencoderDC", "sample", latent_channels=8, attention_head_dim=16,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in levels.items()},
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
    )  # fmt: skip
    yield "diffusers AutoencoderDC", Peer(dc, photos)


def diffusers_peers() -> Iterator[tuple[str, Peer]]:
    """Yield denoisers and adapters of diffusers."""
    library = partial(partial, of, "diffusers")
    for name, blocks in DENOISERS.items():
        yield f"diffusers UNet2DModel {name}", Peer(partial(denoiser, *blocks), conditioned(2, 4, 32, 32))
    states = conditioned(2, 4, 32, 32, words=32)
    conditional: dict[str, dict[str, Any]] = {
        "": {},
        ", linear projections": {"use_linear_projection": True},
        ", two layers of attention": {"transformer_layers_per_block": 2},
        ", scale and shift": {"resnet_time_scale_shift": "scale_shift"},
        ", only cross attention": {"only_cross_attention": True},
    }
    for name, options in conditional.items():
        make = library("UNet2DConditionModel", "sample", **CROSS, **options)
        yield f"diffusers UNet2DConditionModel{name}", Peer(make, states)
    yield "diffusers ControlNetModel", Peer(
        library("ControlNetModel", "mid_block_res_sample", conditioning_embedding_out_channels=(16, 32),
                **{name: value for name, value in CROSS.items() if name not in ("up_block_types", "sample_size")}),
        lambda: (*states(), torch.rand(2, 3, 64, 64)),
    )  # fmt: skip
    dit = library(
        "DiTTransformer2DModel", "sample", **LATENTS, in_channels=4, num_embeds_ada_norm=1000, norm_num_groups=8
    )
    latent, step = partial(torch.randn, 2, 4, 16, 16), partial(torch.randint, 1000, (2,))
    yield "diffusers DiTTransformer2DModel", Peer(dit, lambda: (latent(), step(), step()))
    volumes = library("UNet3DConditionModel", "sample", **{
        **CROSS, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "sample_size": 16,
    })  # fmt: skip
    yield "diffusers UNet3DConditionModel", Peer(volumes, conditioned(1, 4, 2, 16, 16, words=32))
    sd3 = library("SD3Transformer2DModel", "sample", sample_size=16, patch_size=2, in_channels=4, num_layers=2,
                  attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32,
                  pooled_projection_dim=16, out_channels=4)  # fmt: skip
    described = partial(torch.randn, 2, 7, 32), partial(torch.randn, 2, 16)
    yield "diffusers SD3Transformer2DModel", Peer(sd3, lambda: (latent(), *(part() for part in described), step()))
    adapter = library("T2IAdapter", -1, channels=[32, 64], num_res_blocks=1, downscale_factor=8)
    yield "diffusers T2IAdapter", Peer(adapter, images(1, 3, 64, 64))


WIDTHS: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PATCHED: dict[str, Any] = {**WIDTHS, "image_size": 64, "patch_size": 8}
BACKBONE: dict[str, Any] = {"image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 2]}
FOUR: dict[str, Any] = {**PATCHED, "num_hidden_layers": 4}
LEVELS_OF_FOUR: dict[str, Any] = {**FOUR, "out_indices": [1, 2, 3, 4]}
DENSE: dict[str, Any] = {
    **FOUR, "backbone_out_indices": [0, 1, 2, 3], "is_hybrid": False, "neck_hidden_sizes": [16, 16, 32, 32],
    "fusion_hidden_size": 16,
}  # fmt: skip
HIDDEN = "last_hidden_state"
# By the class: its configuration, the part of its answer, and options. Images are of 64×64 pixels, unless these say 32.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "SegformerForSemanticSegmentation": ("SegformerConfig", "logits", {"depths": [1, 1, 1, 1]}),
    "GLPNForDepthEstimation": ("GLPNConfig", "predicted_depth", {"depths": [1, 1, 1, 1]}),
    "MobileViTForSemanticSegmentation": ("MobileViTConfig", "logits", {}),
    "MobileViTV2ForSemanticSegmentation": ("MobileViTV2Config", "logits", {}),
    "MobileNetV2ForSemanticSegmentation": ("MobileNetV2Config", "logits", {}),
    "BeitForSemanticSegmentation": ("BeitConfig", "logits", LEVELS_OF_FOUR),
    "Data2VecVisionForSemanticSegmentation": ("Data2VecVisionConfig", "logits", LEVELS_OF_FOUR),
    "DPTForDepthEstimation": ("DPTConfig", "predicted_depth", DENSE),
    "DPTForSemanticSegmentation": ("DPTConfig", "logits", DENSE),
    "ViTForMaskedImageModeling": ("ViTConfig", "reconstruction", PATCHED),
    "DeiTForMaskedImageModeling": ("DeiTConfig", "reconstruction", PATCHED),
    "Swinv2ForMaskedImageModeling": ("Swinv2Config", "reconstruction", {**BACKBONE, "window_size": 4}),
    "FocalNetForMaskedImageModeling": (
        "FocalNetConfig", "reconstruction", {"image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1]},
    ),
    "Swin2SRForImageSuperResolution": (
        "Swin2SRConfig", "reconstruction", {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2],
                                            "window_size": 8, "upscale": 2},
    ),
    "SuperPointForKeypointDetection": ("SuperPointConfig", "keypoints", {}),
    "EomtForUniversalSegmentation": (
        "EomtConfig", "masks_queries_logits", {**PATCHED, "num_blocks": 1, "num_queries": 8},
    ),
    "HieraModel": ("HieraConfig", HIDDEN, {"embed_dim": 16, "depths": [1, 1, 2, 1], "image_size": [64, 64],
                                           "num_heads": [1, 2, 2, 4], "num_query_pool": 2}),
    "ConvNextModel": ("ConvNextConfig", HIDDEN, {"hidden_sizes": [16] * 4, "depths": [1] * 4}),
    "ConvNextV2Model": ("ConvNextV2Config", HIDDEN, {"hidden_sizes": [16] * 4, "depths": [1] * 4}),
    "Dinov2Model": ("Dinov2Config", HIDDEN, PATCHED),
    "PvtModel": ("PvtConfig", HIDDEN, {"image_size": 64, "depths": [1] * 4}),
    "PvtV2Model": ("PvtV2Config", HIDDEN, {"image_size": 64, "depths": [1] * 4}),
    "RegNetModel": ("RegNetConfig", HIDDEN, {"hidden_sizes": [16] * 4, "depths": [1] * 4}),
    "ResNetModel": ("ResNetConfig", HIDDEN, {"hidden_sizes": [16] * 4, "depths": [1] * 4}),
    "PoolFormerModel": ("PoolFormerConfig", HIDDEN, {"depths": [1] * 4, "hidden_sizes": [16] * 4}),
    "SwiftFormerModel": ("SwiftFormerConfig", HIDDEN, {"depths": [1] * 4, "embed_dims": [16, 16, 32, 32]}),
    "MobileNetV1Model": ("MobileNetV1Config", HIDDEN, {}),
    "LevitModel": ("LevitConfig", HIDDEN, {"image_size": 64, "hidden_sizes": [32, 64, 96]}),
    "TextNetModel": ("TextNetConfig", HIDDEN, {}),
    "HGNetV2ForImageClassification": ("HGNetV2Config", "logits", {}),
}  # fmt: skip


def transformer(name: str, config: str, part: str, options: dict[str, Any]) -> nn.Module:
    """Make a network of transformers, by its configuration's options."""
    library = import_module("transformers")
    return Answering(getattr(library, name)(getattr(library, config)(**options)), part)


def mask_former(name: str) -> nn.Module:
    """Make a network of masks and queries, on a small Swin."""
    library = import_module("transformers")
    backbone = library.SwinConfig(**BACKBONE, window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"])
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 32}
    config = library.Mask2FormerConfig(
        backbone_config=backbone, **sizes, dim_feedforward=32, num_attention_heads=2, encoder_layers=1,
        decoder_layers=2, num_queries=8,
    )  # fmt: skip
    return Answering(getattr(library, name)(config), "masks_queries_logits")


def uper_net(name: str) -> nn.Module:
    """Make a pyramid with heads, on a small ConvNeXt or Swin."""
    library, stages = import_module("transformers"), ["stage1", "stage2", "stage3", "stage4"]
    backbone = (
        library.SwinConfig(**BACKBONE, window_size=4, out_features=stages)
        if name == "Swin"
        else library.ConvNextConfig(hidden_sizes=[16] * 4, depths=[1] * 4, out_features=stages)
    )
    config = library.UperNetConfig(backbone_config=backbone, hidden_size=32, use_auxiliary_head=False)
    return Answering(library.UperNetForSemanticSegmentation(config), "logits")


def transformers_peers() -> Iterator[tuple[str, Peer]]:
    """Yield networks of transformers."""
    for name, (config, part, options) in TRANSFORMERS.items():
        side = 32 if options.get("image_size") == 32 else 64
        yield f"transformers {name}", Peer(partial(transformer, name, config, part, options), images(1, 3, side, side))
    masks = "Mask2FormerForUniversalSegmentation"
    yield f"transformers {masks}", Peer(partial(mask_former, masks), images(1, 3, 64, 64))
    for name in ("Swin", "ConvNeXt"):
        yield f"transformers UperNet {name}", Peer(partial(uper_net, name), images(1, 3, 64, 64))


LEVELS: dict[str, Any] = {"channels": (16, 32, 64), "strides": (2, 2)}
PLAN: dict[str, Any] = {"in_channels": 1, "out_channels": 2}
# By the class: options beside spatial_dims, and the part of the answer. "2" and "3" are what it is made for.
MONAI: dict[str, tuple[str, dict[str, Any], str | int | None]] = {
    "UNet": ("23", {**PLAN, **LEVELS, "num_res_units": 2}, None),
    "BasicUNet": ("23", {**PLAN, "features": (16, 16, 32, 32, 64, 16)}, None),
    "BasicUNetPlusPlus": ("23", {**PLAN, "features": (16, 16, 32, 32, 64, 16)}, 0),
    "AttentionUnet": ("23", {**PLAN, **LEVELS}, None),
    "DynUNet": ("23", {**PLAN, "kernel_size": [3] * 4, "strides": [1, 2, 2, 2], "upsample_kernel_size": [2] * 3,
                       "filters": [16, 32, 32, 64]}, None),
    "SegResNet": ("23", {**PLAN, "init_filters": 8}, None),
    "SegResNetDS": ("23", {**PLAN, "init_filters": 8}, None),
    "SegResNetVAE": ("2", {**PLAN, "init_filters": 8, "input_image_size": [32, 32]}, 0),
    "HighResNet": ("23", PLAN, None),
    "VNet": ("23", PLAN, None),
    "AHNet": ("2", {"out_channels": 2}, None),
    "RegUNet": ("23", {**PLAN, "num_channel_initial": 8, "depth": 3}, None),
    "LocalNet": ("2", {**PLAN, "num_channel_initial": 8, "extract_levels": (0, 1, 2)}, None),
    "MedNeXt": ("23", {**PLAN, "init_filters": 8, "encoder_expansion_ratio": (2,) * 4,
                       "decoder_expansion_ratio": (2,) * 4}, None),
    "SwinUNETR": ("23", {**PLAN, "feature_size": 12}, None),
    "UNETR": ("23", {**PLAN, "img_size": 32, "feature_size": 8, "hidden_size": 32, "mlp_dim": 64,
                     "num_heads": 2}, None),
    "FlexibleUNet": ("2", {**PLAN, "backbone": "resnet18"}, None),
    "DiffusionModelUNet": ("23", {**PLAN, "channels": (16, 32), "attention_levels": (False, True), "norm_num_groups": 8,
                                  "num_res_blocks": 1, "num_head_channels": 8}, None),
    "AutoencoderKL": ("23", {**PLAN, "channels": (16, 32), "num_res_blocks": (1, 1), "norm_num_groups": 8,
                             "attention_levels": (False, False), "latent_channels": 4}, 0),
    "VQVAE": ("23", {**PLAN, "channels": (16, 16), "num_res_channels": (16, 16), "num_embeddings": 16,
                     "embedding_dim": 16, "downsample_parameters": ((2, 4, 1, 1),) * 2,
                     "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}, 0),
    "AutoEncoder": ("23", {**PLAN, "channels": (16, 32, 64), "strides": (2, 2, 2)}, None),
    "DenseNet121": ("2", PLAN, None),
    "VoxelMorphUNet": ("23", {"in_channels": 2, "unet_out_channels": 16, "channels": (8, 8, 16, 16),
                              "final_conv_channels": (8,)}, None),
    "PatchDiscriminator": ("2", {"channels": 8, "in_channels": 1}, -1),
}  # fmt: skip


def monai_peers() -> Iterator[tuple[str, Peer]]:
    """Yield networks of MONAI, for images and for volumes."""
    library = "monai.networks.nets"
    for name, (dimensions, options, part) in MONAI.items():
        for axes in map(int, dimensions):
            channels, side = options.get("in_channels", 1), {"AHNet": 128, "SwinUNETR": 64}.get(name, 32)
            asked = {**options, "deep_supervision": False} if name == "BasicUNetPlusPlus" else options
            draw = images(1, channels, *[side] * axes)
            if name == "DiffusionModelUNet":
                draw = conditioned(1, channels, *[side] * axes)
            yield f"monai {name} {axes}-D", Peer(partial(of, library, name, part, spatial_dims=axes, **asked), draw)
    yield "monai HoVerNet", Peer(partial(of, library, "HoVerNet", "nucleus_prediction"), images(1, 3, 256, 256))
    quick = partial(of, library, "Quicknat", num_classes=2, num_channels=1, num_filters=16)
    yield "monai Quicknat", Peer(quick, images(1, 1, 32, 32))
    shapes: dict[str, Any] = {"latent_shape": (8,), "start_shape": (16, 4, 4), "channels": (8, 8, 1)}
    yield "monai Generator", Peer(partial(of, library, "Generator", **shapes, strides=(2, 2, 1)), images(2, 8))
    yield "monai DAF3D", Peer(partial(of, library, "DAF3D", in_channels=1, out_channels=2), images(1, 1, 32, 32, 32))
    yield "monai DiNTS", Peer(dints, images(1, 1, 32, 32))


def dints() -> nn.Module:
    """Make MONAI's searched network, with every path on."""
    library = import_module("monai.networks.nets")
    space = library.TopologyInstance(
        channel_mul=0.2, num_blocks=4, num_depths=3, use_downsample=True, spatial_dims=2, device="cpu"
    )
    return Answering(library.DiNTS(space, in_channels=1, num_classes=2, spatial_dims=2, use_downsample=True))


def plan(axes: int, **options: Any) -> dict[str, Any]:
    """Return a plan as nnU-Net makes them, of four stages, for images or volumes."""
    convolution, norm = (nn.Conv2d, nn.InstanceNorm2d) if axes == 2 else (nn.Conv3d, nn.InstanceNorm3d)
    return {
        "input_channels": 1, "n_stages": 4, "features_per_stage": [8, 16, 32, 32], "conv_op": convolution,
        "kernel_sizes": 3, "strides": [1, 2, 2, 2], "num_classes": 2, "n_conv_per_stage_decoder": 1,
        "conv_bias": True, "norm_op": norm, "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}, **options,
    }  # fmt: skip


def nnunet_peers() -> Iterator[tuple[str, Peer]]:
    """Yield networks of nnU-Net's library."""
    unet, blocks = "dynamic_network_architectures.architectures.unet", "dynamic_network_architectures.building_blocks"
    for axes in (2, 3):
        draw, flat = images(1, 1, *[32] * axes), [[1, *[3] * (axes - 1)]] * 4
        variants: dict[str, dict[str, Any]] = {
            "": {},
            ", batch norm": {"norm_op": nn.BatchNorm2d if axes == 2 else nn.BatchNorm3d},
            ", flat": {"kernel_sizes": flat},
        }
        for name in ("PlainConvUNet", "ResidualEncoderUNet", "ResidualUNet"):
            count = "n_conv_per_stage" if name == "PlainConvUNet" else "n_blocks_per_stage"
            for words, options in variants.items():
                make = partial(of, unet, name, **plan(axes, **{count: 2}, **options))
                yield f"nnU-Net {name} {axes}-D{words}", Peer(make, draw)
        bottleneck = partial(bottlenecks, f"{blocks}.residual", unet, axes)
        yield f"nnU-Net ResidualEncoderUNet {axes}-D, bottlenecks", Peer(bottleneck, draw)
    primus = partial(
        of, "dynamic_network_architectures.architectures.primus", "Primus", input_channels=1, embed_dim=48,
        patch_embed_size=(8, 8, 8), num_classes=2, eva_depth=2, eva_numheads=2, input_shape=(32, 32, 32),
    )  # fmt: skip
    yield "nnU-Net Primus 3-D", Peer(primus, images(1, 1, 32, 32, 32))


def bottlenecks(blocks: str, unet: str, axes: int) -> nn.Module:
    """Make a residual encoder of bottlenecks."""
    block = import_module(blocks).BottleneckD
    return of(unet, "ResidualEncoderUNet", **plan(axes, n_blocks_per_stage=2, block=block, bottleneck_channels=8))


def peers() -> dict[str, Peer]:
    """Return every network by its name."""
    libraries = (
        smp_peers,
        torchvision_peers,
        diffusers_peers,
        diffusers_autoencoders,
        transformers_peers,
        monai_peers,
        nnunet_peers,
    )
    return {name: peer for library in libraries for name, peer in library()}

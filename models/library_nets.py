"""Networks of well-known libraries, made of the library's own classes, so that its checkpoints fit."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import InputError, ModelError

MOST_NAMED = 12  # networks or encoders in a message
CHANNELS = (32, 64, 128, 256, 512)  # of MONAI's networks that require them; the strides between them are 2
RESIDUAL_UNITS = 2  # of its UNet, as in MONAI's tutorials


def smp_net(
    architecture: str = "Unet",
    encoder_name: str = "resnet34",
    encoder_weights: str | None = None,
    in_channels: int = 3,
    classes: int = 2,
    **options: object,
) -> nn.Module:
    """Make a network of segmentation-models-pytorch, from images [batch, in_channels, height, width] to logits.

    Args:
        architecture: the class's name.
        encoder_name: one of smp's, or "tu-" and a name of timm's.
        encoder_weights: such as "imagenet", which smp downloads; None is random.
        in_channels: of the images.
        classes: of the logits.
        options: further ones of the class.

    Raises:
        ModelError: smp isn't installed, has no such architecture or encoder, or takes other options.
    """
    library = imported("segmentation_models_pytorch", "segmentation-models-pytorch", "smp")
    encoders = library.encoders.get_encoder_names()
    whose = "smp"
    if encoder_name.startswith("tu-"):
        timm = imported("timm", "timm", "smp")
        whose, encoders = "timm", [f"tu-{name}" for name in timm.list_models()]
        if ":" in encoder_name or timm.is_model(encoder_name.removeprefix("tu-")):  # of a hub, or by an earlier name
            encoders.append(encoder_name)
    if encoder_name not in encoders:
        raise ModelError(
            f"model.options.encoder_name={encoder_name}: no encoder of {whose}; {nearest(encoder_name, encoders)}"
        )
    chosen = {"encoder_name": encoder_name, "encoder_weights": encoder_weights, "in_channels": in_channels}
    cls = net_named(architecture, library, "architecture")
    by_timm = getattr(library.encoders, "is_equivalent_to_timm_universal", lambda _: False)  # by an earlier name
    if not (encoder_name.startswith("tu-") or by_timm(encoder_name)):
        _refuse_unknown(cls, options)
    return made(cls, {**chosen, "classes": classes, **options})


def _refuse_unknown(cls: type[nn.Module], options: Iterable[str]) -> None:
    """Raise for an option that a class of smp doesn't have and would drop: it passes others to timm alone."""
    kinds = inspect.signature(cls).parameters
    known = [key for key, kind in kinds.items() if kind.kind is not inspect.Parameter.VAR_KEYWORD]
    if unknown := next((key for key in options if key not in known), None):
        raise ModelError(f"model.options.{unknown}: no option of smp's {cls.__name__}; {nearest(unknown, known)}")


def monai_net(
    net: str = "UNet",
    spatial_dims: int = 2,
    in_channels: int = 3,
    out_channels: int = 2,
    **options: object,
) -> nn.Module:
    """Make a network of MONAI, from images [batch, in_channels, height, width] to logits of `out_channels` classes.

    Args:
        net: the class's name in monai.networks.nets.
        spatial_dims: 2 for images.
        in_channels: of the images.
        out_channels: classes of the logits.
        options: further ones of the class; None leaves one out. Required `channels` and `strides` have defaults, and
            so has UNet's `num_res_units`.

    Raises:
        ModelError: MONAI isn't installed, has no such network, or it takes other options.
    """
    library = imported("monai.networks.nets", "monai", "monai")
    chosen = {key: part for key, part in options.items() if part is not None}
    dimensions = {"spatial_dims": spatial_dims, "in_channels": in_channels, "out_channels": out_channels}
    cls = net_named(net, library, "net")
    return made(cls, {**dimensions, **_of_a_unet(cls, chosen), **chosen})


def _of_a_unet(cls: type[nn.Module], given: dict[str, Any]) -> dict[str, object]:
    """Return defaults of the options that a class such as MONAI's UNet requires and the user left out."""
    takes = inspect.signature(cls).parameters
    if not all(key in takes and takes[key].default is inspect.Parameter.empty for key in ("channels", "strides")):
        return {}
    channels = given.get("channels", CHANNELS)
    units = {"num_res_units": RESIDUAL_UNITS} if "num_res_units" in takes else {}
    return {"channels": channels, "strides": (2,) * (len(channels) - 1), **units}


def diffusers_net(timestep: int = 10, **options: object) -> nn.Module:
    """Make diffusers' UNet2DModel at one time step, from latents [batch, in_channels, height, width] to noise.

    Args:
        timestep: the step of all latents, as text-to-image pipelines call the network: one step for a whole batch.
        options: of the class; None leaves one out.

    Raises:
        ModelError: diffusers isn't installed, or the class takes other options.
    """
    library = imported("diffusers", "diffusers", "diffusers")

    class UNet2DModel(library.UNet2DModel):  # type: ignore[misc, name-defined]  # its weights keep their names
        def forward(self, latents: Tensor) -> Tensor:
            # Filled on the device: a scalar that is copied there would end the capture of a CUDA graph.
            step = torch.full((1,), timestep, dtype=torch.int64, device=latents.device)
            noise: Tensor = super().forward(latents, step, return_dict=False)[0]
            return noise

    return made(UNet2DModel, {key: part for key, part in options.items() if part is not None})


def imported(module: str, package: str, preset: str) -> ModuleType:
    """Import a library's module.

    Raises:
        ModelError: it isn't installed, or can't be imported; the line says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[
            0
        ]:  # it is installed, and a package that it needs isn't
            raise ModelError(f"model={preset}: {module} can't be imported: {error}; install what it needs") from None
        raise ModelError(f"model={preset}: {error}; install it: python -m pip install {package}") from None


def net_named(name: str, library: ModuleType, option: str) -> type[nn.Module]:
    """Return the class of a network in a library's module.

    Raises:
        ModelError: there is none; the line names the nearest, or some of the existing ones.
    """
    nets = {
        key: member
        for key, member in vars(library).items()
        if isinstance(member, type) and issubclass(member, nn.Module)
    }
    if name not in nets:
        raise ModelError(f"model.options.{option}={name}: no network of {library.__name__}; {nearest(name, nets)}")
    return nets[name]


def made(maker: Callable[..., nn.Module], options: Mapping[str, object]) -> nn.Module:
    """Return the network `maker(**options)`.

    Raises:
        ModelError: it doesn't take these options; the line says what it takes.
    """
    try:
        return maker(**options)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - libraries raise any type for their arguments
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        known = ", ".join(inspect.signature(maker).parameters)
        raise ModelError(f"model.options don't fit {maker.__name__}: {said}; it takes {known}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause that offers the nearest name, or the first few."""
    names = list(known)
    if close := get_close_matches(name, names, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    return f"choose one of: {', '.join(names[:MOST_NAMED])}{', …' if len(names) > MOST_NAMED else ''}"

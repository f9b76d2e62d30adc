"""Networks of well-known libraries, made of the library's own classes, so that its checkpoints fit."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from models.build import is_net
from pipeline.errors import InputError, ModelError, first_line, nearest
from pipeline.targets import words_that_set

CHANNELS = (32, 64, 128, 256, 512)  # of MONAI's networks that require them; the strides between them are 2
RESIDUAL_UNITS = 2  # of its UNet, as in MONAI's tutorials
SYNONYMS = {"in_channels": ("n_input_channels", "num_channels"), "out_channels": ("num_classes", "out_classes")}


def smp_net(
    architecture: str = "Unet", encoder_name: str = "resnet34", encoder_weights: str | None = None,
    in_channels: int = 3, classes: int = 2, **options: object,
) -> nn.Module:  # fmt: skip
    """Make a network of segmentation-models-pytorch, from images [batch, in_channels, height, width] to logits.

    Args:
        architecture: the class's name.
        encoder_name: one of smp's, or "tu-" and a name of timm's.
        encoder_weights: such as "imagenet", which smp downloads; None is random.
        in_channels: of the images.
        classes: of the logits.
        options: further ones of the class.
    """
    library = imported("segmentation_models_pytorch", "segmentation-models-pytorch", "smp")
    by_timm = encoder_name.startswith("tu-")
    if by_timm:
        timm = imported("timm", "timm", "smp")
        whose, encoders = "timm", [f"tu-{name}" for name in timm.list_models()]
        known = ":" in encoder_name or timm.is_model(encoder_name.removeprefix("tu-"))  # of a hub, or an earlier name
    else:
        whose, encoders = "smp", library.encoders.get_encoder_names()
        by_timm = known = getattr(library.encoders, "is_equivalent_to_timm_universal", lambda _: False)(encoder_name)
    if encoder_name not in encoders and not known:
        raise ModelError(
            f"model.options.encoder_name={encoder_name}: no encoder of {whose}; {nearest(encoder_name, encoders)}"
        )
    chosen = {"encoder_name": encoder_name, "encoder_weights": encoder_weights, "in_channels": in_channels}
    cls = net_named(architecture, library, "architecture")
    takes = [key for key, part in inspect.signature(cls).parameters.items() if part.kind is not Parameter.VAR_KEYWORD]
    strange = [] if by_timm else [key for key in options if key not in takes]  # smp would drop them
    for unknown in strange:
        raise ModelError(f"model.options.{unknown}: no option of smp's {cls.__name__}; {nearest(unknown, takes)}")
    return made(cls, {**chosen, "classes": classes, **options})


def monai_net(
    net: str = "UNet", spatial_dims: int | None = 2, in_channels: int | None = 3, out_channels: int | None = 2,
    **options: object,
) -> nn.Module:  # fmt: skip
    """Make a network of MONAI, from images [batch, in_channels, height, width] to logits of `out_channels` classes.

    Args:
        net: the name of a class or function in monai.networks.nets.
        spatial_dims: 2 for images; this and the next two are left out at their defaults where `net` doesn't take them.
        in_channels: of the images.
        out_channels: classes of the logits.
        options: further ones of the class; None leaves one out. Required ones of U-Nets have defaults.
    """
    maker = net_named(net, imported("monai.networks.nets", "monai", "monai"), "net")
    chosen = {key: part for key, part in options.items() if part is not None}
    takes, takes_any = arguments_of(maker)
    for key, value in {"spatial_dims": spatial_dims, "in_channels": in_channels, "out_channels": out_channels}.items():
        names = [name for name in (key, *SYNONYMS.get(key, ())) if name in takes] or [key] * takes_any
        if value is not None and names and names[0] not in chosen:
            chosen[names[0]] = value
        elif not names and value not in (None, inspect.signature(monai_net).parameters[key].default):
            raise ModelError(f"model.options.{key}={value}: MONAI's {net} doesn't take it; leave it out")
    chosen = {**of_a_unet(takes, chosen), **chosen}
    own = inspect.signature(maker).parameters
    if needed := [key for key in own if key in takes and own[key].default is Parameter.empty and key not in chosen]:
        documentation = f"{inspect.getdoc(maker)}\n{inspect.getdoc(getattr(maker, '__init__', None))}"
        words, explained = words_that_set(needed, "model.options", documentation)
        given = {key: list(part) if isinstance(part, tuple) else part for key, part in chosen.items()}
        rest = " ".join(f"'+model.options.{key}={part}'" for key, part in given.items())
        raise ModelError(
            f"model.options.net={net}: it also needs {words}, or type model=custom "
            f"model.target={maker.__module__}.{net} {words} {rest}, or name a function of yours{explained}"
        )
    return made(maker, chosen)


def arguments_of(maker: Callable[..., nn.Module]) -> tuple[dict[str, Parameter], bool]:
    """Return the arguments of a function, or a class with the bases it passes others to, and whether it takes any."""
    takes: dict[str, Parameter] = {}
    for each in (maker, *getattr(maker, "__mro__", ())[1:]):
        parameters = dict(inspect.signature(each).parameters)
        open_ended = [key for key, part in parameters.items() if part.kind is Parameter.VAR_KEYWORD]
        takes = {**{key: part for key, part in parameters.items() if part.kind not in (2, 4)}, **takes}
        if not open_ended or each is nn.Module:
            return takes, False
    return takes, True


def of_a_unet(takes: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, object]:
    """Return defaults of the options that a class such as MONAI's UNet requires and the user left out."""
    needed = {key for key, part in takes.items() if part.default is Parameter.empty}
    found: dict[str, object] = {}
    if {"channels", "strides"} <= needed:
        channels = given.get("channels", CHANNELS)
        if not isinstance(channels, list | tuple):
            raise ModelError(f"model.options.channels={channels}: expected a list, such as [32,64,128]")
        steps = len(channels) - ("inter_channels" not in takes)  # an autoencoder halves at each level
        found = {"channels": channels, "strides": (2,) * steps}
        found |= {"num_res_units": RESIDUAL_UNITS} if "num_res_units" in takes else {}
    elif {"strides", "upsample_kernel_size"} <= needed:  # DynUNet's
        found = {"kernel_size": (3,) * 5, "strides": (1, 2, 2, 2, 2), "upsample_kernel_size": (2,) * 4}
    return found | ({"backbone": "efficientnet-b0"} if "backbone" in needed else {})


def diffusers_net(timestep: int = 10, **options: object) -> nn.Module:
    """Make diffusers' UNet2DModel at one time step, from latents [batch, in_channels, height, width] to noise.

    All latents have the step `timestep`, as pipelines call the network. An option that is None is left out.
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
    """Import a library's module; raise ModelError if it isn't installed, or can't be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:  # it needs a package that isn't installed
            raise ModelError(f"model={preset}: {module} can't be imported: {error}; install what it needs") from None
        raise ModelError(f"model={preset}: {error}; install it: python -m pip install {package}") from None


def net_named(name: str, library: ModuleType, option: str) -> Callable[..., nn.Module]:
    """Return the class of a network in a library's module, or the function that makes one; else in its modules."""
    modules = [library, *(part for part in vars(library).values() if isinstance(part, ModuleType))]
    modules = [part for part in modules if part.__name__.startswith(library.__name__)]
    for module in modules:
        maker: Callable[..., nn.Module] | None = getattr(module, name, None)
        if is_net(maker) or (inspect.isfunction(maker) and maker.__module__.startswith(library.__name__)):
            return maker  # type: ignore[return-value]
    nets = [key for module in modules for key, member in vars(module).items() if is_net(member)]
    raise ModelError(f"model.options.{option}={name}: no network of {library.__name__}; {nearest(name, nets)}")


def made(maker: Callable[..., nn.Module], options: Mapping[str, object]) -> nn.Module:
    """Return the network `maker(**options)`; raise ModelError if it doesn't take these options."""
    try:
        return maker(**options)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - libraries raise any type for their arguments
        known = ", ".join(arguments_of(maker)[0])
        takes = f"; it takes {known}" if known else ""
        name = maker.__name__.replace("<lambda>", "this function")
        raise ModelError(f"model.options don't fit {name}: {first_line(error)}{takes}") from None

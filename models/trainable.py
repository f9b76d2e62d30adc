"""Whether a net can be trained on the demo's labels: what it reads, and whether it answers with a tensor."""

import copy

import torch
from torch import Tensor, nn

from models.model_output import described, tensors_of
from pipeline.errors import ModelError

GREY, COLOUR = 1, 3  # channels in which the demo's image can be had
CLASSES = 2  # of the demo's labels
BATCH, CROPS = 8, (128, 256)  # crops of a step, and their sides in pixels: the least that a net takes


def first_layer(net: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """The convolution that is registered first, which is assumed to read the image; None where there is none."""
    return next((layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)


def channels_read(net: nn.Module) -> int:
    """In how many channels a net is given the demo's image: 1 where its first convolution reads 1, else 3.

    Raises:
        ModelError: it is a net of volumes.
    """
    layer = first_layer(net)
    if isinstance(layer, nn.Conv3d):
        raise ModelError(
            f"{type(net).__name__} is a net of volumes, and the demo's labels are of images; choose a net of images: "
            "volumes need labelled volumes of your own"
        )
    return GREY if layer is not None and layer.in_channels == GREY else COLOUR


def check_answers(net: nn.Module, image: Tensor) -> None:
    """That the net, in eval mode, takes the image [1, channels, height, width] and answers with a tensor.

    A first convolution of other channels is refused only where it is given the image's: after a PixelUnshuffle one of
    12 reads an image of 3.

    Raises:
        ModelError: it reads another number of channels, or it answers with no tensor, without what `model.output`
            names, or with other shapes than logits of both classes for every pixel have.
    """
    name, given, layer = type(net).__name__, image.shape[1], first_layer(net)

    def check(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if layer and inputs and inputs[0].shape[1] == given != layer.in_channels:
            raise ModelError(
                f"{name} reads {layer.in_channels} channels, and the demo's images have {COLOUR}; "
                f"choose a net of {COLOUR}, or of {GREY} for grey"
            )

    hook = layer.register_forward_pre_hook(check) if layer else None
    try:
        with torch.no_grad():
            answer = net(image)
    finally:
        if hook:
            hook.remove()
    if not isinstance(answer, Tensor):
        parts = ", ".join(f"model.output={part}" for part in tensors_of(answer))
        remedy = f"name the logits in it: {parts}" if parts else "choose a net that answers with logits"
        raise ModelError(f"model.output: {name} answers with a {described(answer)}; {remedy}")
    if answer.dim() != image.dim() or answer.shape[1] < CLASSES or answer.shape[2:] != image.shape[2:]:
        raise ModelError(
            f"{name} answers {list(image.shape)} with {list(answer.shape)}; choose a net that gives logits of "
            f"{CLASSES} classes or more, as large as the image"
        )


def crop_of(net: nn.Module, image: Tensor) -> int:
    """The side of the crops on which the net is trained: the first of `CROPS` of which it takes a batch in train mode.

    A net that halves a map eight times needs 256 pixels. It is tried on a copy, as norms count what they see.

    Args:
        net: of images.
        image: [1, channels, height, width], at least as large as the largest crop.

    Raises:
        ModelError: it takes none of them; the line says why.
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

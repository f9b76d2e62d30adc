"""How a net's tensors lie and in which type: channels side by side, NHWC of images and NDHWC of volumes."""

import torch
from torch import Tensor, nn

from pipeline.records.run_record import Order

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes
IN_WORDS: dict[Order, str] = {"NHWC": "channels_last", "NCHW": "NCHW, as the net's own code needs"}


def laid_out(part: Tensor, layout: Order = "NHWC") -> Tensor:
    """Images [batch, channels, height, width] in NHWC, volumes [batch, channels, depth, …] in NDHWC; others as is.

    A net that is to run in NCHW is given all as it is.
    """
    if layout == "NCHW" or part.dim() not in CHANNELS_LAST:
        return part
    return part.contiguous(memory_format=CHANNELS_LAST[part.dim()])


def in_dtype(part: Tensor, dtype: torch.dtype) -> Tensor:
    """An input of any shape in the net's precision; whole numbers, and one number a sample as a time step is, stay."""
    return part.to(dtype) if part.is_floating_point() and part.dim() > 1 else part


def net_in_dtype(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The net itself, its weights and buffers in a precision; whole numbers and complex ones stay.

    `Module.to` would take complex ones for floating ones and drop their imaginary parts, of which Fourier layers are.
    """
    net._apply(lambda part: part.to(dtype) if part.is_floating_point() else part)
    return net


def net_laid_out(model: nn.Module, layout: Order = "NHWC") -> nn.Module:
    """The net itself, its weights laid out in NHWC, those of a net for volumes in NDHWC; for NCHW as they are."""
    for part in model.parameters():
        part.data = laid_out(part.data, layout)
    return model

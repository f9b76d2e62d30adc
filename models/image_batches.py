"""Batches: images as read from files, as normalised tensors."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipeline.inputs.input_contract import InputContract

AS_TODAY = InputContract()


def to_batch(images: np.ndarray, contract: InputContract = AS_TODAY) -> Tensor:
    """Return images [n, height, width, channels], or volumes, as a normalised batch [n, channels, ...], fp32."""
    normalised = normaliser(contract, images.dtype, images.ndim, torch.device("cpu"))
    return normalised(torch.from_numpy(images.astype(np.float32)))


def table_of(contract: InputContract, device: torch.device) -> Tensor:
    """Return what stands for each value of a byte in the network's input, [channels, 256], fp32."""
    values = np.arange(256, dtype=np.uint8)[None, None, :, None].repeat(contract.channels, 3)
    return to_batch(values, contract)[0, :, 0].to(device)


def normaliser(contract: InputContract, kind: np.dtype, axes: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that normalises images [n, height, width, channels], fp32, on the device, as `to_batch`.

    `kind` is the type of the files' values, whose largest is the scale if the contract has none; `axes` is 4, or 5 of
    volumes.
    """
    space, ones = tuple(range(2, axes)), [1] * (axes - 2)
    divisor = contract.scale or (1.0 if kind.kind == "f" else float(np.iinfo(kind).max))
    scale = torch.tensor(divisor, dtype=torch.float32, device=device)  # CUDA multiplies by a Python number's reciprocal
    low, high, mean, std = (
        torch.tensor(part, dtype=torch.float32, device=device).reshape(-1, *ones)
        for part in (contract.low, contract.high, contract.mean, contract.std)
    )

    def normalised(images: Tensor) -> Tensor:
        planes = images.movedim(-1, 1) / scale
        if contract.channel_order == "bgr":
            planes = planes.flip(1)
        if contract.normalize == "ct":
            planes = planes.clamp(low, high)
        if contract.normalize != "zscore":
            return ((planes - mean) / std).contiguous()
        own_mean, own_std = planes.mean(space, keepdim=True), planes.std(space, correction=0, keepdim=True)
        plain = planes.amax(space, keepdim=True) == planes.amin(space, keepdim=True)
        own_std = torch.where(plain, torch.ones_like(own_std), own_std)  # a channel of one value becomes 0
        return ((planes - own_mean) / own_std).contiguous()

    return normalised

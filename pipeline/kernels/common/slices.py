"""Volumes as images of their slices: one below the other, or each an image of its own, in the same memory."""

from torch import Tensor

from pipeline.kernels.common.epilogue import Outputs


def by_slice(value: Tensor | None, slices: int) -> Tensor | None:
    """A value [N, D · H, W, channels] as [N · D, H, W, channels], the same memory; None for None."""
    if value is None or slices == 1:
        return value
    return value.view(-1, value.shape[1] // slices, *value.shape[2:])


def stored_by_slice(outputs: Outputs, slices: int) -> Outputs:
    """Where [N, D · H, W, out] and [N, blocks, 2, out] are stored, for N · D images; H is one of whole blocks."""
    counted = outputs.statistics
    counted = None if counted is None else counted.view(len(counted) * slices, -1, *counted.shape[2:])
    return Outputs(by_slice(outputs.out, slices), statistics=counted)

"""Up-sampling and the convolution after it as one linear map, in float64: four phases of 2×2 taps of the small map.

Row 2 y + a of the large map is phase a of row y. Phase 0 reads the small map's rows y − 1 and y, phase 1 rows y and
y + 1; columns alike. Tap r of a 3×3 window reads row 2 y + a + r − 1 of the large map, hence row y + ⌊(a + r − 1) / 2⌋
of the small one, in phase (a + r − 1) mod 2. Nothing is rounded here: `pack` rounds once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.kernels.conv3x3 import pack as nine_taps

PHASES = ((0, 0), (0, 1), (1, 0), (1, 1))


@dataclass(frozen=True)
class Composition:
    """One linear map in float64, as `pack` takes it.

    Attributes:
        small: [16, out, in] taps of the small map: entry 8 a + 4 b + 2 i + j of phase (a, b) reads row y + a + i − 1
            and column x + b + j − 1; None for a convolution of stride 2.
        full: [9, out, skip] taps of the full-resolution map, row by row; None without one.
        bias: [out], of pixels off the border.
        border: [3, 3, out], what is added to the bias in the first, inner and last rows × first, inner and last
            columns; None for nothing.
        window_of_3: whether the taps (a, i) = (0, 0) and (b, j) = (0, 0) are 0, as a transposed window of 3 has them.
    """

    small: Tensor | None
    full: Tensor | None
    bias: Tensor
    border: Tensor | None = None
    window_of_3: bool = False


def compose_transposed(
    up: tuple[Tensor, Tensor | None], convolution: tuple[Tensor, Tensor | None], *, up_first: bool = False
) -> Composition:
    """Compose a 2×2 transposed convolution of stride 2 with a 3×3 convolution (padding 1) of it beside a skip.

    Args:
        up: weight [in, mid, 2, 2] and bias [mid].
        convolution: weight [out, skip + mid, 3, 3] and bias [out]; without a skip [out, mid, 3, 3].
        up_first: whether the up-sampled channels come before the skip's.

    Raises:
        ValueError: the convolution reads fewer channels than the transposed one makes.
    """
    up_weight, up_bias = up
    of_up, full = _sources(convolution[0], up_weight.shape[1], up_first=up_first)
    phases = up_weight.double()
    small = of_up.new_zeros(4, 2, 2, of_up.shape[0], up_weight.shape[0])
    for phase, (a, b) in enumerate(PHASES):
        for r, (i, from_row) in enumerate(_seen(a)):
            for s, (j, from_column) in enumerate(_seen(b)):
                small[phase, i, j] += of_up[:, :, r, s] @ phases[:, :, from_row, from_column].T
    bias, border = _bias_of(convolution), None
    if up_bias is not None:
        inner, border = _through_padding(of_up, up_bias.double())
        bias = bias + inner
    return Composition(small.flatten(0, 2), full, bias, border)


def compose_nearest(
    convolution: tuple[Tensor, Tensor | None], channels: int, *, up_first: bool = True
) -> Composition:  # fmt: skip
    """Nearest up-sampling by 2, then a 3×3 convolution (padding 1) of it beside a skip.

    Args:
        convolution: weight [out, channels + skip, 3, 3] and bias [out].
        channels: of the up-sampled map.
        up_first: whether they come before the skip's.

    Raises:
        ValueError: the convolution reads fewer channels.
    """
    of_up, full = _sources(convolution[0], channels, up_first=up_first)
    small = of_up.new_zeros(4, 2, 2, *of_up.shape[:2])
    for phase, (a, b) in enumerate(PHASES):
        for r, (i, _) in enumerate(_seen(a)):
            for s, (j, _) in enumerate(_seen(b)):
                small[phase, i, j] += of_up[:, :, r, s]
    return Composition(small.flatten(0, 2), full, _bias_of(convolution))


def transposed_alone(weight: Tensor, bias: Tensor | None, padding: int) -> Composition:
    """Write a transposed convolution of stride 2, which doubles height and width, as phases.

    Window 4 with padding 1, window 3 with padding 1 and output padding 1, window 2 with padding 0: output row Y gets
    tap Y + padding − 2 y of input row y, which for phase a and row offset d = a + i − 1 is tap a + padding − 2 d.

    Args:
        weight: [in, out, k, k].
        bias: [out].
        padding: of the transposed convolution.

    Raises:
        ValueError: window and padding are none of these three.
    """
    window = weight.shape[2]
    if (window, padding) not in {(4, 1), (3, 1), (2, 0)} or weight.shape[3] != window:
        raise ValueError(f"a window of {list(weight.shape[2:])} with padding {padding} has no phases of 2×2 taps")
    taps = weight.double()
    small = taps.new_zeros(4, 2, 2, weight.shape[1], weight.shape[0])
    for phase, (a, b) in enumerate(PHASES):
        for i in range(2):
            for j in range(2):
                row, column = (half + padding - 2 * (half + tap - 1) for half, tap in ((a, i), (b, j)))
                if 0 <= row < window and 0 <= column < window:
                    small[phase, i, j] = taps[:, :, row, column].T
    shift = _or_zeros(bias, weight.shape[1], weight)
    return Composition(small.flatten(0, 2), None, shift, window_of_3=window == 3)


def strided_alone(weight: Tensor, bias: Tensor | None) -> Composition:
    """Write a 3×3 convolution of stride 2 and padding 1 of a map of even height and width as phases.

    Args:
        weight: [out, in, 3, 3].
        bias: [out].
    """
    return Composition(None, nine_taps(weight.double()), _or_zeros(bias, weight.shape[0], weight))


def _seen(phase: int) -> list[tuple[int, int]]:
    """For each tap of a row or column of the window: which of the phase's two taps reads it, and from which phase."""
    places = [phase + tap - 1 for tap in range(3)]
    return [(place // 2 + 1 - phase, place % 2) for place in places]


def _sources(weight: Tensor, channels: int, *, up_first: bool) -> tuple[Tensor, Tensor | None]:
    """Return the part of a 3×3 weight on the `channels` of the up-sampled map, and the skip's as [9, out, skip]."""
    if weight.shape[1] < channels:
        raise ValueError(f"the convolution reads {weight.shape[1]} channels, and {channels} are up-sampled")
    skip = weight.shape[1] - channels
    parts = weight.double().split([channels, skip] if up_first else [skip, channels], dim=1)
    of_up, of_skip = parts if up_first else parts[::-1]
    return of_up, nine_taps(of_skip) if skip else None


def _through_padding(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pass a bias [mid] through a 3×3 weight [out, mid, 3, 3] with zero padding: inner [out], border [3, 3, out]."""
    seen = torch.einsum("ours,u->rso", weight, bias)
    inside = (slice(1, 3), slice(0, 3), slice(0, 2))  # the taps that lie in the map, for first, inner and last
    inner = seen.sum((0, 1))
    classes = [[seen[rows, columns].sum((0, 1)) - inner for columns in inside] for rows in inside]
    classes[1][1] = torch.zeros_like(inner)
    return inner, torch.stack([torch.stack(row) for row in classes])


def _bias_of(convolution: tuple[Tensor, Tensor | None]) -> Tensor:
    weight, bias = convolution
    return _or_zeros(bias, weight.shape[0], weight)


def _or_zeros(bias: Tensor | None, channels: int, like: Tensor) -> Tensor:
    return torch.zeros(channels, dtype=torch.float64, device=like.device) if bias is None else bias.double()

"""Operands of the kernels of the phases, their checks, and their weights in the kernels' types."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_epilogue, store_reference
from pipeline.kernels.common.nhwc import FP8_MAX, check, check_vector, in_fp8
from pipeline.kernels.conv3x3.conv3x3_grouped import BLOCK
from pipeline.kernels.polyphase.polyphase_compose import PHASES, Composition

FOLDS = frozenset({"statistics"})
# Of held taps that lie so that matrices share them, a block being one tap or zeros: from one matrix of a chunk of
# channels to the next, and of all of a chunk. The small map has four matrices for each offset; the full one three, and
# one block of zeros follows the last.
SMALL_PITCH, FULL_PITCH = 5, 4
SMALL_BLOCKS, FULL_BLOCKS = 4 * SMALL_PITCH, 3 * FULL_PITCH + 1
WINDOW, WIDER = 3, 4  # of a convolution with a stride; pix2pix, discriminators and Uformer halve a map by the wider


class Operands(NamedTuple):
    """The arguments of `polyphase.polyphase`, in one of three forms.

    With `small` alone: an up-sampling to twice its height and width. With `small` and `full`: the same, and a 3×3
    convolution of `full` into the same sums. With `full` alone: its 3×3 or 4×4 convolution of stride 2, padding 1. With
    a weight of 27 taps that is of volumes, whose slices lie one below the other as in `conv3x3_operands`: `full` is
    [N, D · H, W, skip], out [N, D' · H / 2, W / 2, out] with D' = D / 2, or D where the stride is of each slice alone,
    and the epilogue's slices are D.

    Attributes:
        epilogue: scale and bias [out], an activation, and statistics: of each phase, without a stride.
        outputs: out [N, 2 h, 2 w, out], or [N, H / 2, W / 2, out] of the strided convolution, fp16 or fp8, a channel
            slice of a wider tensor.
        small: [N, h, w, in], fp16 or fp8; None for the strided convolution.
        small_weight: [16, out, in] of its dtype, from `pack`.
        full: [N, H, W, skip] of the same dtype, with H = 2 h and W = 2 w; None for an up-sampling without a skip.
        full_weight: [9, out, skip] of its dtype, from `pack` or `conv3x3.pack`; [27, out, skip] from `conv3x3x3.pack`;
            [16, out, skip] of a window of 4.
        border: [3, 3, out] fp32, what is added to the bias in the first, inner and last rows × first, inner and last
            columns of the output; its middle, [1, 1], must be 0; None for nothing.
        window_of_3: whether `small_weight` is that of a transposed convolution with a window of 3: its taps (a, i) =
            (0, 0) and (b, j) = (0, 0) are 0, and a kernel may leave them out.
        grouped: whether `full_weight` is [9, out, window] of groups, as `conv3x3_grouped.pack` makes it; of a stride.
        window: of the convolution of `full`: 3, or 4 of one with a stride, which `polyphase_triton` alone runs.
        step: of volumes, how many slices of `full` one of the answer is further: 2, or 1 of a stride of 1×2×2.
    """

    epilogue: Epilogue
    outputs: Outputs
    small: Tensor | None = None
    small_weight: Tensor | None = None
    full: Tensor | None = None
    full_weight: Tensor | None = None
    border: Tensor | None = None
    window_of_3: bool = False
    step: int = 2
    grouped: bool = False
    window: int = WINDOW

    @property
    def strided(self) -> bool:
        """Return whether this is the convolution of stride 2."""
        return self.small is None

    @property
    def deep(self) -> int:
        """Return how many slices a tile reads: 3 of volumes, else 1."""
        return 1 if self.full_weight is None else len(self.full_weight) // self.window**2

    @property
    def made(self) -> int:
        """Return how many slices of the answer lie one below the other."""
        return 1 if self.deep == 1 else self.epilogue.slices // self.step

    @property
    def images(self) -> Tensor | None:
        """The full map, of volumes their slices [N · D, H, W, skip]: the same memory."""
        return None if self.full is None else slices_of(self.full, self.epilogue.slices)

    @property
    def sources(self) -> list[tuple[Tensor, Tensor]]:
        """The maps that exist, with their weights: small, full."""
        pairs = ((self.small, self.small_weight), (self.full, self.full_weight))
        return [(map_, weight) for map_, weight in pairs if map_ is not None and weight is not None]

    @property
    def outer(self) -> int:
        """Return how many output channels there are."""
        return self.sources[0][1].shape[1]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Images, or slices of a strided convolution's answer, and rows and columns of one phase."""
        if self.small is not None:
            batch, height, width, _ = self.small.shape
            return batch, height, width
        batch, height, width, _ = self.sources[0][0].shape
        slices = self.epilogue.slices
        return batch * self.made, height // slices // 2, width // 2


def slices_of(value: Tensor, slices: int) -> Tensor:
    """Return a view of [N, slices · H, W, channels] as [N · slices, H, W, channels]."""
    return value if slices == 1 else value.view(-1, value.shape[1] // slices, *value.shape[2:])


def check_operands(operands: Operands) -> None:
    """Check all that a kernel is given.

    Raises:
        ValueError: one of them isn't as `Operands` says; the text names it.
    """
    for name in ("small", "full"):
        if (getattr(operands, name) is None) != (getattr(operands, f"{name}_weight") is None):
            raise ValueError(f"{name} and {name}_weight must be given together")
    if not operands.sources:
        raise ValueError("small or full must be given")
    alone = operands.strided and not operands.grouped
    if operands.window != WINDOW and not (operands.window == WIDER and alone):
        raise ValueError(f"window must be 3, or 4 with a stride and without groups, got {operands.window}")
    batch, height, width = operands.grid
    outer, dtype, slices = operands.outer, operands.sources[0][0].dtype, operands.epilogue.slices
    if operands.deep > 1 or slices > 1:
        _check_volumes(operands)
        batch = batch // operands.made
    if operands.grouped:
        _check_groups(operands)
    grown = (batch, 2 * height * slices, 2 * width)
    for name, taps, seen in (
        ("small", 16, (batch, height, width)),
        ("full", operands.window**2 * operands.deep, grown),
    ):
        map_, weight = getattr(operands, name), getattr(operands, f"{name}_weight")
        if map_ is None:
            continue
        check(name, map_, (*seen, map_.shape[3]))
        check(f"{name}_weight", weight, (taps, outer, weight.shape[2] if operands.grouped else map_.shape[3]))
        if map_.dtype != dtype or weight.dtype != dtype:
            raise ValueError(f"{name} and {name}_weight must have one dtype, {dtype}, got {map_.dtype}, {weight.dtype}")
    if operands.border is not None and operands.strided:
        raise ValueError("border must not be given for a strided convolution")
    if operands.border is not None:
        check_vector("border, flat,", operands.border.flatten(), 9 * outer)
    out = (batch, height * operands.made, width) if operands.strided else grown
    if operands.epilogue.statistics and operands.epilogue.phases != (1 if operands.strided else 2):
        raise ValueError(f"phases must be 1 with a stride and 2 without, got {operands.epilogue.phases}")
    check_epilogue(operands.epilogue, operands.outputs, (*out, outer), FOLDS)


def _check_volumes(operands: Operands) -> None:
    """Check that volumes are of pairs of slices, and these of pairs of blocks of rows and of pairs of columns."""
    full, slices, step = operands.full, operands.epilogue.slices, operands.step
    if full is None or not operands.strided or operands.deep != 3 or step not in (1, 2) or slices < 1 or slices % step:
        wanted = f"a multiple of {step} slices, a weight of 27 taps and no map beside it"
        raise ValueError(f"full must have {wanted}, got {slices} and {9 * operands.deep} taps")
    if full.shape[1] % (2 * ROWS * slices) or full.shape[2] % 2:
        wanted = f"{slices} slices of a multiple of {2 * ROWS} rows and an even number of columns"
        raise ValueError(f"full must have {wanted}, got {list(full.shape)}")


def _check_groups(operands: Operands) -> None:
    """Check that a weight of groups is of as many channels as the map, and its window of whole blocks of them."""
    full, weight = operands.full, operands.full_weight
    alone = full is not None and weight is not None and operands.strided and operands.deep == 1
    if not alone or weight.shape[1:-1] != full.shape[3:] or weight.shape[2] % BLOCK:  # type: ignore[union-attr]
        wanted = f"[9, as many as full's channels, a multiple of {BLOCK}]"
        found = None if weight is None else list(weight.shape)
        raise ValueError(f"full_weight of groups must be {wanted}, with no map beside it, got {found}")


class Packed(NamedTuple):
    """Weights in the kernels' types, and what their epilogue needs: all but the maps, the activation and the outputs.

    Attributes:
        small: [16, out, in], fp16 or fp8; None for a convolution of stride 2.
        full: [9, out, skip], as `small`; None without a full map.
        scale: [out] fp32, of the sums; None in fp16 where every scale is 1.
        bias: [out] fp32.
        border: [3, 3, out] fp32; None for nothing.
        window_of_3: as in `Operands`.
    """

    small: Tensor | None
    full: Tensor | None
    scale: Tensor | None
    bias: Tensor
    border: Tensor | None = None
    window_of_3: bool = False

    def operands(self, small: Tensor | None, full: Tensor | None, activation: Activation, outputs: Outputs) -> Operands:
        """Return the operands of `polyphase`, with the maps [N, h, w, in] and [N, 2 h, 2 w, skip] that they read."""
        epilogue = Epilogue(self.scale, self.bias, activation)
        return Operands(epilogue, outputs, small, self.small, full, self.full, self.border, self.window_of_3)


def round_each(taps: Tensor, _: int) -> Tensor:
    """Convert a tensor of any shape to e4m3, each element by itself."""
    return in_fp8(taps)


class Scales(NamedTuple):
    """Of each map: stored value × scale = value; one number, or of a map that is read [in] for its channels."""

    small: float | Tensor = 1.0
    full: float | Tensor = 1.0
    out: float = 1.0


NO_SCALES = Scales()


def pack(
    composition: Composition,
    dtype: torch.dtype,
    scales: Scales = NO_SCALES,
    rounding: Callable[[Tensor, int], Tensor] = round_each,
) -> Packed:
    """Round a composition's weights to `dtype`, for maps that are stored with these scales.

    Both sources add to one accumulator, so an output channel has one scale. Each source's scale is first multiplied
    into its weights; then the largest weight of both becomes e4m3's largest value. A source with smaller products gets
    smaller weights. They lose no precision within 14 octaves, over which e4m3's relative step is constant.

    Args:
        composition: of `polyphase_compose`, on the device where the weights are to be.
        dtype: of the maps and the weights: float16 or float8_e4m3fn.
        scales: of the maps; that of `out` divides scale, bias and border.
        rounding: to e4m3, of scaled taps [..., taps, out, in] fp32 and the axis of the taps that are summed over a flat
            part of the image: four of each phase, nine of the full map.
    """
    small, full = _scaled(composition.small, scales.small), _scaled(composition.full, scales.full)
    bias = (composition.bias / scales.out).float().contiguous()
    border = None if composition.border is None else (composition.border / scales.out).float().contiguous()
    rest = (bias, border, composition.window_of_3)
    if dtype != torch.float8_e4m3fn:
        scale = None if scales.out == 1.0 else torch.full_like(bias, 1 / scales.out)
        halves = [None if taps is None else taps.to(dtype) for taps in (small, full)]
        return Packed(halves[0], halves[1], scale, *rest)
    largest = torch.stack([taps.abs().amax((0, 2)) for taps in (small, full) if taps is not None]).amax(0)
    by_channel = largest.clamp_min(1e-12) / FP8_MAX
    scale = (by_channel / scales.out).float().contiguous()
    if small is not None:
        phases = (small / by_channel[:, None]).float().unflatten(0, (4, 4))
        small = rounding(phases, 1).flatten(0, 1).contiguous()
    if full is not None:
        full = rounding((full / by_channel[:, None]).float(), 0).contiguous()
    return Packed(small, full, scale, *rest)


def _scaled(taps: Tensor | None, scale: float | Tensor) -> Tensor | None:
    return None if taps is None else taps * torch.as_tensor(scale, device=taps.device)


def spread_of(operands: Operands) -> int:
    """Return how many column phases the 64 rows of a product hold."""
    return 2 if operands.outer <= 32 and not operands.strided else 1


def split_of(operands: Operands) -> bool:
    """Return whether the groups of warps take half of a tile's rows each."""
    return operands.strided and operands.outer <= 64


def may_hold(operands: Operands) -> bool:
    """Return whether weights may stay in shared memory: of volumes it was never run, and no tap may be left out."""
    return operands.deep == 1 and not operands.window_of_3


def held_blocks(operands: Operands, depth: int) -> int:
    """Return how many blocks [64 / spread, depth] of taps stay, of a phase and a block of channels.

    With both column phases in a product, neighbouring matrices share blocks: `polyphase_loads` says how they lie.
    """
    small, full = operands.small, operands.full
    small_chunks = 0 if small is None else -(-small.shape[3] // depth)
    full_chunks = 0 if full is None else -(-full.shape[3] // depth)
    if spread_of(operands) == 2:
        return SMALL_BLOCKS * small_chunks + FULL_BLOCKS * full_chunks
    return 4 * 2 * small_chunks + 3 * 3 * full_chunks * (2 if operands.strided and not split_of(operands) else 1)


def phases_of(small: Tensor, taps: Tensor) -> Tensor:
    """Return the four phases by 2×2 taps [16, out, in] of small [N, in, h, w], put together as [N, out, 2 h, 2 w]."""
    batch, inner, height, width = small.shape
    out = small.new_empty(batch, taps.shape[1], height, 2, width, 2)
    for phase, (a, b) in enumerate(PHASES):
        window = taps[4 * phase : 4 * phase + 4].permute(1, 2, 0).reshape(-1, inner, 2, 2)
        padded = functional.pad(small, (1 - b, b, 1 - a, a))
        out[:, :, :, a, :, b] = functional.conv2d(padded, window)
    return out.reshape(batch, -1, 2 * height, 2 * width)


def window_of(full: Tensor, taps: Tensor, stride: int = 1) -> Tensor:
    """Return the 3×3 or 4×4 convolution, padding 1, by taps [9 or 16, out, in] of full [N, in, H, W]."""
    window = taps.permute(1, 2, 0).unflatten(2, [math.isqrt(len(taps))] * 2)
    return functional.conv2d(full, window, stride=stride, padding=1)


def strided_of_volumes(full: Tensor, taps: Tensor, slices: int, step: int) -> Tensor:
    """Return the 3×3×3 convolution, padding 1, by taps [27, out, in] of volumes [N, in, slices · H, W], as those.

    Its stride is 2 within slices, and `step` from slice to slice.
    """
    window = taps.permute(1, 2, 0).unflatten(2, (3, 3, 3))
    return functional.conv3d(full.unflatten(2, (slices, -1)), window, stride=(step, 2, 2), padding=1).flatten(2, 3)


def at_border(border: Tensor, height: int, width: int) -> Tensor:
    """Return what border [3, 3, out] adds to each pixel of an output of at least 2×2, as [out, height, width]."""
    lines = [(torch.arange(size, device=border.device), size - 1) for size in (height, width)]
    rows, columns = (1 + (line == last).long() - (line == 0).long() for line, last in lines)
    return border[rows[:, None], columns].permute(2, 0, 1)


def evaluate(composition: Composition, small: Tensor | None, full: Tensor | None = None) -> Tensor:
    """Apply a composition in its own precision to small [N, in, h, w] and full [N, skip, 2 h, 2 w]."""
    y = composition.bias[:, None, None]
    if small is not None and composition.small is not None:
        y = y + phases_of(small, composition.small)
    if full is not None and composition.full is not None:
        y = y + window_of(full, composition.full, 2 if small is None else 1)
    return y if composition.border is None else y + at_border(composition.border, *y.shape[2:])


def reference(operands: Operands) -> None:
    """Compute `polyphase.polyphase` in fp32 on any device, and store its outputs."""
    epilogue, sums = operands.epilogue, torch.zeros(())
    small, full = operands.small, operands.full
    if small is not None and operands.small_weight is not None:
        sums = phases_of(small.float().permute(0, 3, 1, 2), operands.small_weight.float())
    if full is not None and operands.full_weight is not None:
        seen, taps = full.float().permute(0, 3, 1, 2), operands.full_weight.float()
        if operands.deep == 3:
            sums = strided_of_volumes(seen, taps, operands.epilogue.slices, operands.step)
        else:
            window = window_of(seen, taps, 2 if operands.strided else 1)
            sums = window if operands.strided else sums + window
    sums = sums.permute(0, 2, 3, 1)
    if epilogue.scale is not None:
        sums = sums * epilogue.scale
    if epilogue.bias is not None:
        sums = sums + epilogue.bias
    if operands.border is not None:
        sums = sums + at_border(operands.border, *sums.shape[1:3]).permute(1, 2, 0)
    store_reference(epilogue.activation(sums), epilogue, operands.outputs)

"""The epilogue of a kernel: the operations on its fp32 sums before they are stored, and the outputs."""

from collections.abc import Collection
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.block_statistics import COLS, ROWS, blocks_of, statistics_of
from pipeline.kernels.common.nhwc import check, check_floats, continued, store

MOST_CLASSES = 8  # the width of the narrowest product: beyond it the head is a kernel of its own


class Head(NamedTuple):
    """The network's last 1×1 convolution: weight [classes, out] fp32, bias [classes] fp32."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Epilogue:
    """y = activation(sums · scale + bias + residual · residual_scale), and what else is made of y meanwhile."""

    scale: Tensor | None = None  # [out] fp32, a factor for each output channel; None for 1
    bias: Tensor | None = None  # [out] fp32; None for 0
    activation: Activation = NONE
    pool: bool = False  # whether the 2×2 maxima of y are stored, beside y or instead of it
    head: Head | None = None  # a 1×1 convolution of y, whose logits are stored
    slopes: Tensor | None = None  # [out] fp32, of an activation that has a slope for each channel
    residual: Tensor | None = None  # [N, H, W, out] fp16 or fp8, may be a channel slice; None for 0
    residual_scale: float = 1.0  # what a stored unit of the residual is worth: fp8's scale
    # whether mean and squared deviations of y in fp32 are stored, for each block of pixels and channel
    statistics: bool = False
    phases: int = 1  # what the pixels of a block are, as `block_statistics` has it
    # whether the weights were there before the kernel before this one began, so that they may be loaded meanwhile
    early: bool = False
    slices: int = 1  # of how many, one below the other, each map is made: a volume's depth, 1 for an image
    dilation: int = 1  # how many pixels apart the taps are that were summed
    padding_mode: str = "zeros"  # what surrounds the input by half a window: that, or torch's "reflect", "replicate"

    @property
    def key(self) -> str:
        """The tuner's key: all that affects speed, that is everything but the values."""
        ends = [str(self.activation), "scaled" if self.scale is not None else "", "pool" if self.pool else ""]
        ends.append(f"head {len(self.head.bias)}" if self.head else "")
        if self.residual is not None:
            added = self.residual
            ends.append(f"residual {str(added.dtype).removeprefix('torch.')} {list(added.stride())}")
        ends.append("statistics" if self.statistics else "")
        ends.append(f"{self.slices} slices" if self.slices > 1 else "")
        ends.append(f"dilation {self.dilation}" if self.dilation > 1 else "")
        ends.append(self.padding_mode if self.padding_mode != "zeros" else "")
        return ", ".join(part for part in ends if part)

    @property
    def parts(self) -> set[str]:
        """The parts beyond scale, bias and an activation of one slope, by the names of `KernelOp.folds`."""
        asked = {
            "pool": self.pool, "head": self.head is not None, "slopes": self.activation.kind.by_channel,
            "residual": self.residual is not None, "statistics": self.statistics, "dilation": self.dilation > 1,
            "padding_mode": self.padding_mode != "zeros",
        }  # fmt: skip
        return {name for name, wanted in asked.items() if wanted}

    @property
    def constants(self) -> dict[str, object]:
        """The activation as a kernel takes it."""
        return {"ACTIVATION": self.activation.kind.expression, "SLOPE": self.activation.slope}

    @property
    def factors(self) -> Tensor | None:
        """The scale, or any tensor of its kind where there is none: Gluon's kernels are told by SCALED."""
        return self.bias if self.scale is None else self.scale

    @property
    def residual_unit(self) -> float | None:
        """The value of a stored unit of the residual; None without one."""
        return None if self.residual is None else self.residual_scale

    def of(self, sums: Tensor) -> Tensor:
        """Return y for sums [..., out] in fp32, of the same shape; with a residual that is [N, H, W, out]."""
        scaled = sums * (1.0 if self.scale is None else self.scale)
        shifted = scaled if self.bias is None else scaled + self.bias
        if self.residual is not None:
            shifted = shifted + self.residual.float() * self.residual_scale
        return self.activation(shifted, self.slopes)


@dataclass(frozen=True)
class Outputs:
    """Where a kernel stores; all but the first are given where the epilogue asks for them."""

    # [N, H, W, out] fp16 or fp8, with its channels side by side; None where only the others are wanted
    out: Tensor | None = None
    pooled: Tensor | None = None  # [N, H // 2, W // 2, out], as `out`
    logits: Tensor | None = None  # [N, classes, H, W] fp32 contiguous
    statistics: Tensor | None = None  # [N, blocks, 2, out] fp32 contiguous

    @property
    def given(self) -> dict[str, Tensor]:
        """The outputs that exist, by name: the first is [N, H, W, out], the others as above."""
        return {name: part for name, part in vars(self).items() if part is not None}

    @property
    def required(self) -> Tensor:
        """The output [N, H, W, out] of a kernel that writes nothing else; ValueError if there is none."""
        if self.out is None:
            raise ValueError("out must be given: this kernel writes nothing else")
        return self.out


def sums_of(
    x: Tensor, weight: Tensor, *, stride: int | tuple[int, int, int] = 1, dilation: int = 1, slices: int = 1,
    groups: int = 1, padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    """Return the sums [N, H', W', out] of a convolution in plain PyTorch and fp32, padded by half of its window.

    X is [N, H, W, in], or `slices` one below the other, the weight [k², out, in / groups], of volumes [k³, out, in].
    """
    taps, planes = weight.float().permute(1, 2, 0), x.float().permute(0, 3, 1, 2)
    if len(weight) in (27, 125):
        volumes, side = planes.unflatten(2, (slices, -1)), 3 if len(weight) == 27 else 5
        window = taps.unflatten(2, (side, side, side))
        sums = functional.conv3d(volumes, window, stride=stride, padding=side // 2).flatten(2, 3)
    else:
        side = isqrt(len(weight))
        window, padding = taps.unflatten(2, (side, side)), (side - 1) // 2 * dilation
        assert isinstance(stride, int)
        if padding_mode != "zeros":
            planes, padding = continued(x.float(), padding, padding_mode).permute(0, 3, 1, 2), 0
        sums = functional.conv2d(planes, window, None, stride, padding, dilation, groups)
    return sums.permute(0, 2, 3, 1)


def store_reference(y: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Store what a kernel stores of y [N, H, W, out], which is fp32 and has been through the activation."""
    if outputs.out is not None:
        store(y, outputs.out)
    if outputs.pooled is not None:
        store(functional.max_pool2d(y.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1), outputs.pooled)
    if outputs.logits is not None and epilogue.head is not None:
        logits = functional.linear(y, epilogue.head.weight, epilogue.head.bias)
        outputs.logits.copy_(logits.permute(0, 3, 1, 2))
    if outputs.statistics is not None:
        outputs.statistics.copy_(statistics_of(y, epilogue.phases))


def check_epilogue(epilogue: Epilogue, outputs: Outputs, shape: tuple[int, ...], folds: Collection[str] = ()) -> None:
    """Raise ValueError, which begins with the name, where a part doesn't suit an output of shape [N, H, W, out]."""
    batch, height, width, outer = shape
    check_parts(epilogue, outputs, outer, folds)
    if outputs.out is not None or not {"pool", "head"} & set(folds):
        check("out", outputs.required, shape)
    if outputs.pooled is not None:
        check("pooled", outputs.pooled, (batch, height // 2, width // 2, outer))
    if epilogue.head is not None and outputs.logits is not None:
        classes = len(epilogue.head.bias)
        if classes > MOST_CLASSES:
            raise ValueError(f"a folded head has at most {MOST_CLASSES} classes, got {classes}")
        if tuple(epilogue.head.weight.shape) != (classes, outer):
            raise ValueError(f"head.weight must be {[classes, outer]}, got {list(epilogue.head.weight.shape)}")
        check_floats("logits", outputs.logits, batch, classes, height, width)
    if epilogue.residual is not None:
        check("residual", epilogue.residual, shape)
    check_floats("statistics", outputs.statistics, batch, blocks_of(height, width, epilogue.phases), 2, outer)


def check_convolution(x: Tensor, weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless TMA can move x [N, H, W, in] and a weight of this shape, of one dtype."""
    check("x", x, tuple(x.shape))
    check("weight", weight, shape)
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")


def check_blocks(epilogue: Epilogue, rows: int, cols: int) -> None:
    """Raise ValueError where a tile of `rows` × `cols` pixels isn't of the blocks whose statistics are asked for."""
    if epilogue.statistics and (rows % ROWS or cols % COLS):
        raise ValueError(f"statistics are of blocks of {ROWS} × {COLS} pixels, and the tile has {rows} × {cols}")


def check_parts(epilogue: Epilogue, outputs: Outputs, outer: int, folds: Collection[str]) -> None:
    """Raise ValueError for vectors not of [outer], a part the kernel lacks, half of a pair, or overlapping taps."""
    if epilogue.bias is None:
        raise ValueError("bias must be given")
    for name, vector in (("bias", epilogue.bias), ("scale", epilogue.scale), ("slopes", epilogue.slopes)):
        check_floats(name, vector, outer)
    for name, given in (("pool", outputs.pooled), ("head", outputs.logits), ("statistics", outputs.statistics)):
        if (name in epilogue.parts) != (given is not None):
            raise ValueError(f"{name} and its output must be given together")
    if epilogue.dilation < 1:
        raise ValueError(f"dilation must be at least 1, got {epilogue.dilation}")
    if epilogue.activation.kind.by_channel != (epilogue.slopes is not None):
        raise ValueError(f"slopes must be given with an activation that has them, got {epilogue.activation}")
    for name in sorted(epilogue.parts - set(folds)):
        raise ValueError(f"{name} must not be asked of this kernel")

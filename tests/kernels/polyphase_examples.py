"""Operands of `polyphase` with random values, poisoned outputs, and the check of what was stored."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.kernels.common.activation import RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.polyphase import Tile, polyphase
from pipeline.kernels.polyphase.polyphase_compose import phase_taps
from pipeline.kernels.polyphase.polyphase_operands import Operands, reference
from tests.kernels.examples import DEVICE, FP8, HALF, assert_near, poisoned, values


@dataclass(frozen=True)
class Phases:
    """What to run: `size` is the phase's height and width; without `inner` a stride of 2, without `skip` no skip.

    With `slices`, an even number, a stride of 2 along three axes of volumes of as many; with a `step` of 1 along two,
    of any number of slices.
    """

    batch: int = 1
    size: tuple[int, int] = (5, 7)
    inner: int = 32
    skip: int = 16
    outer: int = 48
    border: bool = True
    activation: Activation = RELU
    window_of_3: bool = False
    counts: bool = False  # whether statistics are wanted
    slices: int = 1
    step: int = 2
    window: int = 3  # of the skip's taps
    alone: bool = False  # whether the output has memory of its own


def no_taps_of_3() -> list[int]:
    """The taps of the phases that a transposed convolution with a window of 3 doesn't have."""
    return phase_taps(torch.ones(1, 1, 3, 3)).flatten().eq(0).nonzero().flatten().tolist()


def skip_of(case: Phases, dtype: torch.dtype) -> Tensor | None:
    """A map that is a channel slice of a wider one, whose last channels nobody may read; None where there is none."""
    if not case.skip:
        return None
    height, width = case.size
    wide = values(case.batch, 2 * height * case.slices, 2 * width, 3 * case.skip, dtype=dtype)
    wide[..., 2 * case.skip :] = float("nan")
    return wide[..., case.skip : 2 * case.skip]


def operands(case: Phases, dtype: torch.dtype = HALF, stored_as: torch.dtype | None = None) -> tuple[Operands, Tensor]:
    """Maps that are channel slices of wider ones, an output that is one too unless it is alone, and its buffer.

    The output is of the maps' dtype but for `stored_as`; where either is fp8 the sums are scaled, as a net's are.
    """
    stored_as = stored_as or dtype
    batch, (height, width), outer = case.batch, case.size, case.outer
    grow, taps = 2 if case.inner else 1, case.window**2 * (3 if case.slices > 1 else 1)
    stored = grow * height * max(1, case.slices // case.step)  # rows
    small = values(batch, height, width, 2 * case.inner, dtype=dtype)[..., case.inner :] if case.inner else None
    full = skip_of(case, dtype)
    spread = (4 * case.inner + taps * case.skip) ** -0.5
    buffer = poisoned(batch, stored, grow * width, outer if case.alone else 2 * outer, dtype=stored_as)
    scale = torch.linspace(0.5, 2, outer, device=DEVICE) if FP8 in (dtype, stored_as) else None
    border = values(3, 3, outer, dtype=torch.float32)
    border[1, 1] = 0
    statistics = poisoned(batch, blocks_of(stored, grow * width, grow), 2, outer, dtype=torch.float32)
    small_weight = (values(16, outer, case.inner) * spread).to(dtype)
    if case.window_of_3:
        small_weight[no_taps_of_3()] = 0
    made = Operands(
        Epilogue(
            scale,
            torch.linspace(-1, 1, outer, device=DEVICE),
            case.activation,
            statistics=case.counts,
            phases=grow if case.counts else 1,
            slices=case.slices,
        ),
        Outputs(buffer[..., -outer:], statistics=statistics if case.counts else None),
        small,
        small_weight if case.inner else None,
        full,
        (values(taps, outer, case.skip) * spread).to(dtype) if case.skip else None,
        border if case.border and case.inner else None,
        case.window_of_3,
        case.step,
        window=case.window,
    )
    return made, buffer


def check(made: Operands, buffer: Tensor, tile: Tile | None) -> None:
    """Run a tile twice on poisoned memory: it stores what the reference stores, the same each time, nothing beside."""
    out = made.outputs.out
    assert out is not None
    wanted, counted = torch.empty_like(out), made.outputs.statistics
    wanted_counts = None if counted is None else torch.empty_like(counted)
    reference(made._replace(outputs=Outputs(wanted, statistics=wanted_counts)))
    buffer.copy_(poisoned(*buffer.shape, dtype=buffer.dtype))
    polyphase(made, tile)
    dtype = made.sources[0][0].dtype
    assert_near(out, wanted, dtype)
    if counted is not None and wanted_counts is not None:
        assert_near(counted, wanted_counts, dtype)
    assert buffer[..., : -out.shape[-1]].float().isnan().all()
    if DEVICE.type == "cuda":
        first = [part.clone() for part in made.outputs.given.values()]
        polyphase(made, tile)
        for part, before in zip(made.outputs.given.values(), first, strict=True):
            assert torch.equal(part.float(), before.float())

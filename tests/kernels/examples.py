"""For any kernel of the list a layer with random values, where it stores, and what it must store there."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.ops import KERNELS
from pipeline.compiler.tuning.autotune import build_side_by_side
from pipeline.kernels import conv1x1, conv3x3_grouped, conv_first
from pipeline.kernels.common import kernel_op
from pipeline.kernels.common.activation import ACTIVATIONS, RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.capability import supported
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.polyphase import Tile, candidates, phase_taps, polyphase
from pipeline.kernels.polyphase.polyphase_triton import Operands, reference
from tests.process_state import own_switches

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # a CPU runs Triton's kernels in its interpreter
HALF, FP8 = torch.float16, torch.float8_e4m3fn
# What is read and what is stored: a net has layers in fp8 beside others in fp16.
MIXED = [pytest.param(FP8, HALF, id="fp8 to fp16"), pytest.param(HALF, FP8, id="fp16 to fp8")]
TYPES = [pytest.param(HALF, HALF, id="fp16"), pytest.param(FP8, FP8, id="fp8"), *MIXED]
# On a GPU, relative L2: what is left after the same rounding is the order of the sums, and for fp8 wgmma's own sums,
# which keep 13 bits or so. In the interpreter, each element; fp8: one step, 1/8, where the order tips a rounding.
FAR = {HALF: 1e-3, FP8: 2e-2}
# Those of one map in and one out; the others have examples of their own: `Phases`, test_narrow_kernels.
PLAIN = [op for op in KERNELS if not op.takes_second and not op.writes_logits]
GROUPED = (conv3x3_grouped.OP, conv3x3_grouped.STRIDED_OP)
MARGIN = {"conv3x3_valid": 2}  # how many rows and columns fewer the output has
ACTIVE = [Activation(name, 0.5 if kind.gains else 0.1 if kind.sloped else 0.0) for name, kind in ACTIVATIONS.items()]
STEP = {HALF: 2e-3, FP8: 0.13, torch.float32: 1e-2}


@dataclass(frozen=True)
class Layer:
    """A layer to run.

    `size` is the input's height and width; `classes` those of a folded head, 0 for none; `residual` its dtype;
    `stored_as` the output's dtype where it isn't the input's; `slices` of this size a volume's, one below the other;
    `dilation` how many pixels apart the window's taps are.
    """

    batch: int = 1
    size: tuple[int, int] = (13, 17)
    inner: int = 32
    outer: int = 48
    activation: Activation = RELU
    pool: bool = False
    classes: int = 0
    stored: bool = True  # whether the output is, beside what is folded
    residual: torch.dtype | None = None
    statistics: bool = False
    stored_as: torch.dtype | None = None
    slices: int = 1
    dilation: int = 1


@dataclass(frozen=True)
class Example:
    """A kernel set up: what it reads, where it stores, and the buffers that it stores a part of."""

    op: kernel_op.KernelOp
    x: Tensor
    weight: Tensor
    epilogue: Epilogue
    outputs: Outputs
    buffers: list[Tensor]
    dtype: torch.dtype
    second: kernel_op.SecondSource | None = None  # of a kernel that takes one

    def operands(self, outputs: Outputs) -> tuple[object, ...]:
        return self.x, self.weight, self.epilogue, outputs, *([] if self.second is None else [self.second])

    def candidates(self) -> list[Any]:
        return list(self.op.candidates(*self.operands(self.outputs)))

    def run(self, tile: Any = None) -> None:
        self.op.launch(*self.operands(self.outputs), tile or self.candidates()[0])

    def expected(self) -> dict[str, Tensor]:
        wanted = Outputs(**{name: torch.empty_like(part) for name, part in self.outputs.given.items()})
        self.op.reference(*self.operands(wanted))
        return wanted.given

    def poison(self) -> None:
        """Fill all that is stored to with NaN, so that what a kernel doesn't write is seen."""
        for buffer in self.buffers:
            buffer.copy_(poisoned(*buffer.shape, dtype=buffer.dtype))

    def check(self) -> None:
        """Assert that all was written as the reference writes it, and nothing beside it."""
        for name, wanted in self.expected().items():
            assert_near(getattr(self.outputs, name), wanted, self.dtype)
        for buffer in self.buffers:
            if buffer.shape[-1] % 2 == 0 and buffer.dtype != torch.float32:
                assert buffer[..., : buffer.shape[-1] // 2].float().isnan().all()

    def store_and_check(self, tile: Any = None) -> None:
        self.poison()
        self.run(tile)
        self.check()


def values(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def poisoned(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return torch.full(shape, float("nan"), device=DEVICE).to(dtype)


def example(op: kernel_op.KernelOp, dtype: torch.dtype, layer: Layer) -> Example:
    """A kernel on a layer: it reads a part of the channels of a wider tensor, and stores into parts of others."""
    less = MARGIN.get(op.name, 0)
    layer = replace(layer, size=(layer.slices * layer.size[0] + less, layer.size[1] + less))
    batch, (height, width), inner = layer.batch, layer.size, layer.inner
    outer = layer.outer if op.pack else inner
    if op.reads_image:
        sides = (layer.slices, height // layer.slices) if len(weight_shape(op, inner, outer)) == 5 else (height,)
        x = values(batch, inner, *sides, width, dtype=torch.float32)
    else:
        x = values(batch, height, width, 2 * inner, dtype=dtype)[..., inner:]
    weight, epilogue = kernel_op.NO_WEIGHT, Epilogue(scale=torch.full((inner,), 0.5, device=DEVICE), early=True)
    if op.pack is not None:
        shape = weight_shape(op, inner, outer)
        weight = op.pack(values(*shape, dtype=torch.float32) / (inner * shape[-1]) ** 0.5)
        weight = weight if op.reads_image else weight.to(dtype)
        epilogue = replace(epilogue_of(layer, dtype, outer, grown_size(op, layer)), phases=op.phases)
    stored_as = layer.stored_as or dtype
    grown = grown_size(op, layer)
    wide = poisoned(batch, *grown, 2 * outer, dtype=stored_as)
    small = poisoned(batch, grown[0] // 2, grown[1] // 2, 2 * outer, dtype=stored_as)
    logits = poisoned(batch, layer.classes, *grown, dtype=torch.float32)
    statistics = poisoned(batch, blocks_of(*grown, op.phases), 2, outer, dtype=torch.float32)
    outputs = Outputs(
        wide[..., outer:] if layer.stored else None,
        small[..., outer:] if layer.pool else None,
        logits if layer.classes else None,
        statistics if layer.statistics else None,
    )
    second = kernel_op.SecondSource() if op.takes_second else None
    return Example(op, x, weight, epilogue, outputs, [wide, small, logits, statistics], dtype, second)


def weight_shape(op: kernel_op.KernelOp, inner: int, outer: int) -> tuple[int, ...]:
    """Torch's own shape of a layer's weight; the window is in the kernel's name, else 3×3."""
    named = re.search(r"\d(x\d)+", op.name)
    window = tuple(map(int, named[0].split("x"))) if named else (3,) * (3 if op is conv_first.VOLUME_OP else 2)
    if op.name.startswith(("upconv", "transposed")):
        return (inner, outer, *window)
    return (outer, 1 if op.by_channel else 8 if op in GROUPED else inner, *window)


def grown_size(op: kernel_op.KernelOp, layer: Layer) -> tuple[int, int]:
    """Height and width of the output; a stride of 2 rounds up, and a volume's slices lie one below the other."""
    height, width = (math.ceil(side * op.growth) - MARGIN.get(op.name, 0) for side in layer.size)
    return int(height * op.growth_deep), width


def epilogue_of(layer: Layer, dtype: torch.dtype, outer: int, grown: tuple[int, int]) -> Epilogue:
    """All that the layer asks for; the residual is a part of the channels of a wider tensor."""
    residual = None
    if layer.residual is not None:
        residual = values(layer.batch, *grown, 2 * outer, dtype=layer.residual)[..., outer:]
    return Epilogue(
        scale=torch.linspace(0.5, 2, outer, device=DEVICE) if FP8 in (dtype, layer.stored_as) else None,
        bias=torch.linspace(-1, 1, outer, device=DEVICE),
        activation=layer.activation,
        pool=layer.pool,
        head=head_of(layer, outer),
        slopes=slopes_of(layer.activation, outer),
        residual=residual,
        residual_scale=0.5 if layer.residual == FP8 else 1.0,
        statistics=layer.statistics,
        early=True,  # as a lowered graph calls every kernel
        slices=layer.slices,
        dilation=layer.dilation,
    )


def slopes_of(activation: Activation, outer: int) -> Tensor | None:
    return torch.linspace(-0.1, 0.4, outer, device=DEVICE) if activation.kind.by_channel else None


def head_of(layer: Layer, outer: int) -> Head | None:
    if not layer.classes:
        return None
    return Head(values(layer.classes, outer, dtype=torch.float32), torch.linspace(-1, 2, layer.classes, device=DEVICE))


def assert_near(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Every element was written, and is the reference's but for what computing in `dtype` and rounding may do.

    In the interpreter powers of two are left out of fp8, and what is below 2^-7 is nothing: the interpreter of Triton
    3.9 drops the carry when it rounds up to a power of two, and says 16 for 31.99. A GPU has no such fault.
    """
    odd = found.float().isnan() != wanted.float().isnan()
    assert not odd.any(), f"{int(odd.sum())} of {odd.numel()} are NaN in one alone, from {odd.nonzero()[0].tolist()} on"
    finite = wanted.float().isfinite()
    assert torch.equal(found.float().isfinite(), finite)
    step = STEP[found.dtype]
    if DEVICE.type == "cuda":
        one, other = found.double()[finite], wanted.double()[finite]
        assert float((one - other).norm()) <= max(FAR[dtype], FAR.get(found.dtype, 0.0)) * float(other.norm())
    elif found.dtype == FP8:
        told = (wanted.contiguous().view(torch.uint8) & 7 != 0) | (wanted.float() == 0)
        assert told.float().mean() > 0.5
        torch.testing.assert_close(found[told].float(), wanted[told].float(), rtol=step, atol=2**-7)
    else:
        torch.testing.assert_close(found, wanted, rtol=step, atol=step, equal_nan=True)


def assert_outputs_near(found: Outputs, wanted: Outputs, dtype: torch.dtype) -> None:
    assert found.given.keys() == wanted.given.keys()
    for name, part in found.given.items():
        assert_near(part, wanted.given[name], dtype)


def twice(made: Example, tile: Any) -> None:
    """Run a tile on poisoned outputs, check it, run it again and assert the same bits: a race answers otherwise."""
    made.store_and_check(tile)
    first = {name: part.clone() for name, part in made.outputs.given.items()}
    made.run(tile)
    for name, part in made.outputs.given.items():
        assert torch.equal(part.float().nan_to_num(), first[name].float().nan_to_num())


def check_all(cases: list[tuple[Example, Any]]) -> None:
    build_side_by_side([lambda made=made, tile=tile: made.run(tile) for made, tile in cases])  # type: ignore[misc]
    for made, tile in cases:
        twice(made, tile)


@contextmanager
def gpu_for(*dtypes: torch.dtype) -> Iterator[None]:
    """Skip a GPU that lacks a type; within it products in fp32 are exact, as the references need them."""
    for dtype in dtypes:
        if reason := supported(torch.cuda.get_device_capability(), dtype):
            pytest.skip(reason)
    with own_switches():
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        yield


def taken(op: kernel_op.KernelOp, layer: kernel_op.LayerDescription) -> bool:
    return op.accepts is not None and bool(op.accepts(layer))


def for_kernel(op: kernel_op.KernelOp, layer: Layer) -> Layer:
    """The layer as a kernel takes it: few channels for one that reads the image, and no fold that it doesn't know."""
    inner, outer = op.most_channels
    height, width = layer.size
    counts = layer.statistics and "statistics" in op.folds
    by_block = op.growth_deep > 1 or (op is conv_first.VOLUME_OP and counts)
    pairs = op in (conv1x1.STRIDED_OP, conv3x3_grouped.STRIDED_OP)  # of rows, and for one of columns
    rows = 8 if by_block else 2 if pairs else 1  # of a slice, or of an image, a multiple
    return replace(
        layer,
        size=(-(-height // rows) * rows, width + width % 2 if op is conv3x3_grouped.STRIDED_OP else width),
        inner=min(3 if op.reads_image else layer.inner, inner or layer.inner),
        outer=layer.inner if op.by_channel or op in GROUPED else min(layer.outer, outer or layer.outer),
        pool=layer.pool and "pool" in op.folds,
        classes=layer.classes if "head" in op.folds else 0,
        stored=layer.stored or not {"pool", "head"} & op.folds,
        residual=layer.residual if "residual" in op.folds else None,
        statistics=counts,
    )


MODULES: list[tuple[nn.Module, Activation | None]] = [
    (nn.ReLU(), Activation("relu")), (nn.ReLU(inplace=True), Activation("relu")),
    (nn.LeakyReLU(), Activation("leaky_relu", 0.01)), (nn.LeakyReLU(0.2), Activation("leaky_relu", 0.2)),
    (nn.LeakyReLU(inplace=True), Activation("leaky_relu", 0.01)), (nn.SiLU(), Activation("silu")),
    (nn.GELU(), Activation("gelu")), (nn.GELU(approximate="tanh"), Activation("gelu_tanh")),
    (nn.ELU(0.5), Activation("elu", 0.5)), (nn.Hardswish(), Activation("hardswish")), (nn.Mish(), Activation("mish")),
    (nn.PReLU(4), Activation("prelu")), (nn.PReLU(1), Activation("prelu")), (nn.SELU(), None), (nn.ReLU6(), None),
    (nn.Tanh(), Activation("tanh")),
]  # fmt: skip


@dataclass(frozen=True)
class Phases:
    """What to run: `size` is the phase's height and width; without `inner` a stride of 2, without `skip` no skip."""

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


def skip_of(case: Phases, dtype: torch.dtype) -> Tensor | None:
    """A map that is a channel slice of a wider one, whose last channels nobody may read; None where there is none."""
    if not case.skip:
        return None
    height, width = case.size
    wide = values(case.batch, 2 * height * case.slices, 2 * width, 3 * case.skip, dtype=dtype)
    wide[..., 2 * case.skip :] = float("nan")
    return wide[..., case.skip : 2 * case.skip]


def operands(case: Phases, dtype: torch.dtype = HALF, stored_as: torch.dtype | None = None) -> tuple[Operands, Tensor]:
    """Maps that are channel slices of wider ones, an output that is one too unless it is alone, and its buffer."""
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
        absent = phase_taps(torch.ones(1, 1, 3, 3)).flatten().eq(0).nonzero().flatten().tolist()
        small_weight[absent] = 0
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
    tile = tile or next(candidates(made))
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

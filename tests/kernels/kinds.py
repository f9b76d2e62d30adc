"""Every kind of call that a pass can make of a kernel: what it reads, what it stores, and the parts of its epilogue.

Made of what the kernels say that they read, store and fold; tests/compiler/test_emitted_kinds.py asks that nets call
for nothing else. A kind is a kernel, types and parts. Activations are a list of their own, as each comes after the sums
of any type, and before all that is stored.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.compiler.ops import BY_NAME, KERNELS
from pipeline.kernels import conv3x3, conv_head, few_channels
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
from pipeline.kernels.conv1x1 import GATED_OP
from pipeline.kernels.conv3x3 import conv3x3_triton
from pipeline.kernels.depthwise import DILATED_OP
from pipeline.kernels.polyphase import UPSAMPLED, polyphase_triton
from tests.kernels import examples

TYPES_BY_NAME = {"fp16": examples.HALF, "fp8": examples.FP8, "fp32": torch.float32}
ROLES = ("result", "pooled", "logits", "statistics", "slopes", "second", "border")
ADDED = ("fp16-residual", "fp8-residual")


class Kind(NamedTuple):
    """A kernel by its name, the types of what it reads and stores, and the names of what it writes, adds and reads."""

    op: str
    reads: str
    stores: str
    parts: frozenset[str]

    def __str__(self) -> str:
        return f"{self.op}: {self.reads} to {self.stores}, {', '.join(sorted(self.parts))}"


def kind_of(op: KernelOp, reads: torch.dtype, given: Mapping[str, Tensor | None]) -> Kind:
    """The kind of a call that reads a map of a type."""
    stored = given["result"] if given["result"] is not None else given["pooled"]
    added = given["residual"]
    parts = {role for role in ROLES if given.get(role) is not None}
    parts |= set() if added is None else {f"{type_name(added.dtype)}-residual"}
    stores = "fp32" if stored is None else type_name(stored.dtype)
    return Kind(op.name, "fp32" if op.reads_image else type_name(reads), stores, frozenset(parts))


def type_name(dtype: torch.dtype) -> str:
    """A type of a map by its name; fp32, in which tests export nets, stands for the type of halves."""
    return "fp8" if dtype == examples.FP8 else "fp16"


def ends_of(op: KernelOp) -> list[set[str]]:
    """The parts of the kinds that store what the next layers read: each combination of those that a kernel folds."""
    seconds = {UPSAMPLED.name: ["", "second", "border", "second border"], GATED_OP.name: ["second"]}
    choices = [
        ["result", "result pooled", "pooled"] if "pool" in op.folds else ["result"],
        ["", *ADDED] if "residual" in op.folds else [""],
        *(["", name] for name in ("slopes", "statistics") if name in op.folds),
        seconds.get(op.name, [""]),
    ]
    ends = [{word for words in chosen for word in words.split()} for chosen in product(*choices)]
    return [parts for parts in ends if "result" in parts or "statistics" not in parts]


def heads_of(op: KernelOp) -> list[set[str]]:
    """The parts of the kinds that store the net's logits, which a head is folded for where nobody reads the map."""
    if op is conv_head.OP:
        return [{"logits"}]
    chosen = product(("", *ADDED), ("", "slopes")) if "head" in op.folds else ()
    return [{"logits", *added.split(), *slopes.split()} for added, slopes in chosen]


def kinds_of(op: KernelOp) -> list[Kind]:
    """Those of one kernel; what has or makes fewer than 16 channels is never in fp8, as they are no row for TMA."""
    few = op in (few_channels.OP, few_channels.TRANSPOSED_OP, conv_head.OP)
    reads = ["fp16"] if op in (few_channels.OP, conv_head.OP) else sorted(op.reads)
    stores = ["fp16"] if few else sorted(op.writes & {"fp16", "fp8"})
    kept = [] if op.writes_logits else [*product(reads, stores, ends_of(op))]
    heads = product(reads, ["fp32"], heads_of(op))
    return [Kind(op.name, read, stored, frozenset(parts)) for read, stored, parts in [*kept, *heads]]


KINDS: tuple[Kind, ...] = tuple(kind for op in KERNELS for kind in kinds_of(op))
GROUPS = {
    key: [kind for kind in KINDS if kind[:3] == key] for key in dict.fromkeys(kind[:3] for kind in KINDS)
}  # by kernel and types


def activations_of(op: KernelOp) -> list[Activation]:
    """What a pass may let a kernel end in: what mixes pixels has no activation."""
    if op.pack is None and op is not UPSAMPLED:
        return [NONE]
    return [activation for activation in examples.ACTIVE if not activation.kind.by_channel or "slopes" in op.folds]


TRIED = {(op.name, activation.name) for op in KERNELS for activation in activations_of(op)}


BY_ROWS = ("conv3x3_few", "transposed3x3_few", "upsample2x", "upsample2x_aligned")  # a program has a part of one row
OF_VOLUMES = ("conv3x3x3", "conv5x5x5", "conv1x3x3", "conv1x3x3_first", "conv1x3x3_strided", "upconv1x2x2",
              "upconv2x2x2", "conv3x3x3_strided", "conv3x3x3_strided_in_slices", "conv_first_volumes")  # fmt: skip
SMALL, WIDE, FEW = (
    examples.Layer(1, (2, 6), 32, 32),
    examples.Layer(2, (13, 17), 48, 80),
    examples.Layer(2, (26, 34), 32, 32),
)
PRELU = Activation("prelu")


def made_of(kind: Kind, layer: examples.Layer = SMALL, activation: Activation | None = None) -> examples.Example:
    """A kind on a layer's size and channels; it ends in ReLU, or as its parts say, unless told otherwise."""
    op, parts = BY_NAME[kind.op], kind.parts
    own = PRELU if "slopes" in parts else NONE if "statistics" in parts or op.pack is None else RELU
    asked = replace(
        suited(op, layer, counts="statistics" in parts),
        activation=activation or own,
        pool="pooled" in parts,
        classes=3 if "logits" in parts else 0,
        stored="result" in parts,
        residual=next((TYPES_BY_NAME[name.partition("-")[0]] for name in ADDED if name in parts), None),
        statistics="statistics" in parts,
        stored_as=None if "logits" in parts else TYPES_BY_NAME[kind.stores],
    )
    asked = replace(asked, outer=min(asked.outer, 64)) if "logits" in parts else asked  # a tile holds all of them
    dtype = TYPES_BY_NAME["fp16" if op.reads_image else kind.reads]
    if op is UPSAMPLED:
        return upsampled(kind, asked, dtype)
    if op is conv_head.OP:
        return head(asked, dtype)
    made = examples.example(op, dtype, asked)
    return with_gate(made) if op is GATED_OP else made


def suited(op: KernelOp, layer: examples.Layer, *, counts: bool) -> examples.Layer:
    """A layer of a size that a kernel takes: of volumes several slices, of an even height for a stride, taps apart."""
    height, width = layer.size
    if op.name in OF_VOLUMES:
        whole = counts or op.name not in OF_VOLUMES[:3]  # blocks of rows
        layer = replace(layer, slices=2, size=(max(8, height // 8 * 8) if whole else height, width))
        if op.growth < 1:
            layer = replace(layer, size=(16 * (1 + height // 16), width + width % 2))
    elif op.growth < 1 and not op.reads_image:
        layer = replace(layer, size=(height + height % 2, width + width % 2))
    if op.name in BY_ROWS and examples.DEVICE.type == "cpu":  # the interpreter walks over each row's windows
        layer = replace(layer, size=(1, width))
    apart = 2 if op in (conv3x3.DILATED_OP, DILATED_OP) else 1
    return examples.for_kernel(op, replace(layer, dilation=apart, statistics=counts))


def upsampled(kind: Kind, layer: examples.Layer, dtype: torch.dtype) -> examples.Example:
    """An up-sampling with the convolution after it; the skip has other channels than the small map."""
    case = examples.Phases(
        layer.batch, layer.size, layer.inner, 16 if "second" in kind.parts else 0, layer.outer,
        border="border" in kind.parts, activation=layer.activation, counts=layer.statistics,
    )  # fmt: skip
    parts, buffer = examples.operands(case, dtype, layer.stored_as)
    assert parts.small is not None
    assert parts.small_weight is not None
    second = SecondSource(parts.full, parts.full_weight, parts.border)
    epilogue = replace(parts.epilogue, phases=2)
    given = (UPSAMPLED, parts.small, parts.small_weight, epilogue, parts.outputs)
    return examples.Example(*given, [buffer], dtype, second)


def head(layer: examples.Layer, dtype: torch.dtype) -> examples.Example:
    x = examples.values(layer.batch, *layer.size, 2 * layer.inner, dtype=dtype)[..., layer.inner :]
    weight = conv3x3.pack(examples.values(3, layer.inner, 3, 3, dtype=torch.float32) / (9 * layer.inner) ** 0.5).to(
        dtype
    )
    logits = examples.poisoned(layer.batch, 3, *layer.size, dtype=torch.float32)
    bias = torch.linspace(-1, 1, 3, device=examples.DEVICE)
    epilogue = Epilogue(bias=bias, activation=layer.activation, early=True)
    return examples.Example(conv_head.OP, x, weight, epilogue, Outputs(logits=logits), [logits], dtype)


def with_gate(made: examples.Example) -> examples.Example:
    gate = examples.values(len(made.x), 1, 1, made.x.shape[3], dtype=torch.float32).sigmoid().to(made.x.dtype)
    return replace(made, second=SecondSource(gate))


def of_two_slices(made: examples.Example) -> examples.Example:
    assert made.op in (conv3x3.VOLUME_OP, conv3x3.WIDE_VOLUME_OP)
    return replace(made, weight=conv3x3.stacked(made.weight))


def small_tile(made: examples.Example) -> object:
    """A tile that suits the interpreter; the last candidate of kernels that have small ones."""
    types, counts = made.op.tile_types, made.epilogue.statistics
    out = 64 if "grouped" in made.op.name else 32
    if conv3x3_triton.Tile in types:
        return conv3x3_triton.Tile(8 if counts else 2, 16 if counts else 8, out, 32, warps=4)
    if polyphase_triton.Tile in types:
        return polyphase_triton.Tile(8 if counts else 2, 16 if counts else 8, out, 32, warps=4)
    return made.candidates()[-1]

"""Every kind of call that a pass can make of a kernel: what it reads, what it stores, and the parts of its epilogue.

Made of what the kernels say that they read, store and fold; tests/compiler/test_emitted_kinds.py asks that nets call
for nothing else. A kind is a kernel, types and parts. Activations are a list of their own, as each comes after the sums
of any type, and before all that is stored.
"""

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.compiler.ops import KERNELS
from pipeline.kernels import conv_head, few_channels
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.kernel_op import KernelOp
from pipeline.kernels.conv1x1 import GATED_OP
from pipeline.kernels.polyphase import UPSAMPLED
from tests.kernels.examples import ACTIVE, FP8, HALF

TYPES_BY_NAME = {"fp16": HALF, "fp8": FP8, "fp32": torch.float32}
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
    """The kind of a call that reads a map of a type.

    Args:
        op: the kernel.
        reads: the type; of a kernel that reads the image any.
        given: what it stores, as an operation names it, what it adds and what it reads besides; None for nothing.
    """
    stored = given["result"] if given["result"] is not None else given["pooled"]
    added = given["residual"]
    parts = {role for role in ROLES if given.get(role) is not None}
    parts |= set() if added is None else {f"{type_name(added.dtype)}-residual"}
    stores = "fp32" if stored is None else type_name(stored.dtype)
    return Kind(op.name, "fp32" if op.reads_image else type_name(reads), stores, frozenset(parts))


def type_name(dtype: torch.dtype) -> str:
    """A type of a map by its name; fp32, in which tests export nets, stands for the type of halves."""
    return "fp8" if dtype == FP8 else "fp16"


def ends_of(op: KernelOp) -> list[set[str]]:
    """The parts of the kinds that store what the next layers read: each combination of those that a kernel folds.

    Of a map that is summed for a norm, or for squeeze-and-excitation, there is always a reader beside them.
    """
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
    """What a pass may let a kernel end in: a head is taken after activations are, and what mixes pixels has none."""
    if op is conv_head.OP or (op.pack is None and op is not UPSAMPLED):
        return [NONE]
    return [activation for activation in ACTIVE if not activation.by_channel or "slopes" in op.folds]


TRIED = {(op.name, activation.name) for op in KERNELS for activation in activations_of(op)}

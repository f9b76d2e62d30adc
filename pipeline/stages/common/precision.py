"""Copies of a net in another precision or layout, and the switches of a process that decide how fp32 is computed."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from pipeline.compiler.batch_norm import BatchNorm, fold
from pipeline.compiler.computed_weights import compute_once
from pipeline.devices import host
from pipeline.devices.kinds import is_cuda
from pipeline.measure.batch import Batch, batched
from pipeline.measure.memory_formats import IN_WORDS, in_dtype, laid_out, net_in_dtype, net_laid_out
from pipeline.measure.module_casts import CAST_OWN_VALUES, cast_before_weights
from pipeline.records.run_record import Execution, Layout, Order, Precision
from pipeline.stages.api import Workload
from pipeline.stages.common.kept_fp32 import in_half
from pipeline.stages.common.seen_calls import run_in_order_alone, trial_copy

Dtype = Literal["auto", "fp16", "bf16"]
SHORT: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
FULL = torch.float32
FOLDED = ((nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions in fp32 round their inputs to TF32, or not: a switch of the process."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Within, fp32 is fp32; the switches are as they were afterwards."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    name = "allow_tf32"
    try:
        before = [switch.allow_tf32 for switch in switches]
    except RuntimeError:  # the net's module has set torch's newer ones, after which the older can't be read
        switches, name = [switches[0], switches[1].conv], "fp32_precision"
        before = [switch.fp32_precision for switch in switches]
    allow_tf32(False)
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)


def half_dtype(asked: str, device: torch.device, computes_bf16: Callable[[], bool] = host.computes_bf16) -> torch.dtype:
    """The half precision that was asked for; "auto" is fp16 on a GPU, on a CPU bf16 where it has units for it.

    Otherwise it is fp32 there: emulated, bf16 takes several times as long.
    """
    if asked != "auto":
        return HALVES[asked]
    if is_cuda(device.type):
        return torch.float16
    return torch.bfloat16 if computes_bf16() else torch.float32


def why_fp32(half: torch.dtype) -> dict[str, str]:
    """For the record of a stage that takes `half_dtype`: why it is fp32; nothing where it isn't."""
    return {"dtype": f"fp32, as {host.why_no_bf16()}; stage.dtype=bf16 emulates it"} if half == FULL else {}


def short(dtype: torch.dtype) -> Precision:
    """The name that people use: fp32, fp16, bf16."""
    return SHORT[dtype]


def eager_execution(precision: Precision, layout: Layout, captured: bool = False) -> Execution:
    """How a net runs that torch calls operator by operator."""
    return Execution(precision, layout=layout, provider="PyTorch eager", captured=captured, fuses=False)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # so that a net that reads a norm's statistics is seen to


def folded(model: nn.Module, inputs: Tensor | Batch | None = None) -> tuple[nn.Module, int]:
    """A copy whose batch norms are part of the convolutions before them, and how many were; it computes no weight.

    Where torch.fx can't trace the net, what a Sequential shows is folded if the net calls that whole with `inputs`,
    each [batch, ...]; without them nothing is.
    """
    net = compute_once(copy.deepcopy(model))
    try:
        pairs = _pairs(net)
    except Exception:  # noqa: BLE001 - a proxy makes a net's own code raise whatever it likes, such as a KeyError of einops
        return net, _fold_neighbours(net, None if inputs is None else batched(inputs))
    return net, sum(_merge(conv, norm) for conv, norm in pairs)


def _pairs(net: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """The layers of which one alone reads what the other answers, each called once, and nothing else reads of them."""
    trial, copies = trial_copy(net)
    graph = _Tracer().trace(trial)
    originals = {copied: part for part, copied in copies.items()}
    called = {node: trial.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}
    read = {id(attrgetter(str(node.target))(trial)) for node in graph.nodes if node.op == "get_attr"}
    calls = Counter(called.values())
    pairs = []
    for node, layer in called.items():
        before = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if before is None or before not in called or len(before.users) > 1:
            continue
        pair = called[before], layer
        if any(calls[part] > 1 for part in pair):  # folded for one call, it would be wrong for the other
            continue
        if any(id(held) in read for part in pair for held in (*part.parameters(), *part.buffers())):
            continue  # such as a weight that a decoder is tied to
        pairs.append((originals[pair[0]], originals[pair[1]]))
    return pairs


def _merge(conv: nn.Module, norm: nn.Module) -> bool:
    """Let a convolution do what both do, and its norm nothing; False where that can't be.

    They themselves are changed: a net may hold them under several names, and in lists of its own.
    """
    both = in_one(conv, norm)
    if both is not None:
        conv._parameters = both._parameters
        norm._parameters, norm._buffers = {}, {}
        norm.__class__ = nn.Identity
    return both is not None


def _fold_neighbours(net: nn.Module, inputs: Batch | None) -> int:
    """Fold where a Sequential that is called whole shows that a batch norm follows a convolution, nothing between."""
    blocks = [part for part in net.modules() if _computes_as(part, nn.Sequential)]
    alone = run_in_order_alone(net, blocks, tuple(kind for kinds in FOLDED for kind in kinds), inputs)
    count = 0
    for block in blocks:
        for (name, conv), (after, norm) in pairwise(list(block._modules.items())):
            both = in_one(conv, norm) if conv in alone and norm in alone else None
            if both is not None:
                setattr(block, name, both)
                setattr(block, after, nn.Identity())
                count += 1
    return count


def in_one(conv: nn.Module, norm: nn.Module) -> nn.Conv2d | nn.Conv3d | None:
    """A convolution that does what both do; None where they aren't a convolution and a batch norm in eval mode.

    Nor are they where a subclass computes otherwise, or a hook sees or changes what lies between them or comes of them.
    """
    fits = any(_computes_as(conv, kinds[0]) and _computes_as(norm, kinds[1]) for kinds in FOLDED)
    fits = fits and not (conv._forward_hooks or norm._forward_pre_hooks or norm._forward_hooks)
    if not fits or not isinstance(conv, nn.Conv2d | nn.Conv3d) or not isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d):
        return None
    if norm.running_mean is None or norm.running_var is None or "weight" not in conv._parameters:
        return None  # statistics of each batch, or a weight that a hook of the net's own computes
    known = BatchNorm(norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    both = copy.deepcopy(conv)
    with torch.no_grad():
        weight, bias = fold(conv.weight, conv.bias, known)
    both.weight, both.bias = nn.Parameter(weight.to(conv.weight.dtype)), nn.Parameter(bias.to(conv.weight.dtype))
    return both


def _computes_as(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of one of torch's classes, or of one that is derived from it and computes alike."""
    names = [name for name in ("forward", "_conv_forward") if hasattr(kind, name)]
    own = [getattr(getattr(part, name, None), "__func__", None) for name in names]
    return isinstance(part, kind) and own == [getattr(kind, name) for name in names]


class Half(nn.Module):
    """The net in half precision or fp32, batch norm folded; it casts and lays out the user's fp32 batch itself.

    Modules called `kept` stay in fp32 (`kept_fp32.in_half`); `inputs` are for `folded`.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        kept: Sequence[str] = (),
        layout: Order = "NHWC",
        inputs: Batch | None = None,
    ) -> None:
        super().__init__()
        net, self.folds = folded(model, inputs)
        self.net = net_laid_out(in_half(net, dtype, kept), layout)
        self.dtype = dtype
        self.layout: Order = layout
        self.casts_own_values = False

    @property
    def in_words(self) -> str:
        """Such as "fp16 weights, channels_last, 18 batch norms folded"."""
        return f"{short(self.dtype)} weights, {IN_WORDS[self.layout]}, {self.folds} batch norms folded{self.and_casts}"

    @property
    def and_casts(self) -> str:
        """What a stage's description adds where the net's own values are cast; "" where they aren't."""
        return f", {CAST_OWN_VALUES}" if self.casts_own_values else ""

    def cast_own_values_if_needed(self, *inputs: Tensor) -> None:
        """Let modules with weights cast what they are given, where the net doesn't take these inputs without, but so.

        Inputs are a batch [batch, channels, height, width] and what others the net has.
        """
        if self.dtype != FULL and not self._takes(*inputs):
            casts = cast_before_weights(self.net, self.dtype)
            self.casts_own_values = self._takes(*inputs)
            for cast in [] if self.casts_own_values else casts:
                cast.remove()

    def _takes(self, *inputs: Tensor) -> bool:
        try:
            with torch.inference_mode():
                self(*inputs)
        except Exception:  # noqa: BLE001 - a net's own code raises whatever it likes, and raises it again in the stage
            return False
        return True

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Logits [batch, classes, height, width] in that precision of a batch [batch, channels, height, width].

        Of a net with several inputs they are `others`; volumes have a depth before the height.
        """
        logits: Tensor = self.net(*[laid_out(in_dtype(part, self.dtype), self.layout) for part in (batch, *others)])
        return logits


def half_net(workload: Workload, dtype: torch.dtype, kept: Sequence[str] = ()) -> Half:
    """The workload's net as `Half`, in eval mode, in the layout that it takes, and with the casts that it needs."""
    half = Half(workload.model, dtype, kept, workload.layout, workload.inputs[0]).eval()
    if not kept:  # with which it casts already
        half.cast_own_values_if_needed(*workload.inputs[0])
    return half


class AsItLies(nn.Module):
    """As `Half`, in the layout that the net has: for a runtime that chooses its own, or for whom NHWC is no matter."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, inputs: Batch | None = None) -> None:
        super().__init__()
        self.net, self.folds = folded(model, inputs)
        net_in_dtype(self.net, dtype)
        self.dtype = dtype

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """As `Half`'s: logits [batch, classes, height, width]."""
        logits: Tensor = self.net(*[in_dtype(part, self.dtype) for part in (batch, *others)])
        return logits

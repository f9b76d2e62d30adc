"""Copies of a net in another precision or layout."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline.devices import host
from pipeline.devices.kinds import is_cuda
from pipeline.measure.batch import Batch
from pipeline.measure.memory_formats import IN_WORDS, in_dtype, laid_out, net_in_dtype, net_laid_out
from pipeline.measure.module_casts import CAST_OWN_VALUES, cast_own_values
from pipeline.records.run_record import Execution, Layout, Order, Precision
from pipeline.stages.api import Workload
from pipeline.stages.common.folding import folded
from pipeline.stages.common.kept_fp32 import in_half

Dtype = Literal["auto", "fp16", "bf16"]
SHORT: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
FULL = torch.float32
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


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


class Cast(nn.Module):
    """A net in another precision, which may cast values of its own."""

    casts_own_values = False

    @property
    def and_casts(self) -> str:
        """What a stage's description adds where the net's own values are cast; "" where they aren't."""
        return f", {CAST_OWN_VALUES}" if self.casts_own_values else ""


class Half(Cast):
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
        self.kept = [*kept]
        self.layout: Order = layout

    @property
    def in_words(self) -> str:
        """Such as "fp16 weights, channels_last, 18 batch norms folded"."""
        return f"{short(self.dtype)} weights, {IN_WORDS[self.layout]}, {self.folds} batch norms folded{self.and_casts}"

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """Logits [batch, classes, height, width] in that precision of a batch [batch, channels, height, width].

        Of a net with several inputs they are `others`; volumes have a depth before the height.
        """
        logits: Tensor = self.net(*[laid_out(in_dtype(part, self.dtype), self.layout) for part in (batch, *others)])
        return logits


def half_net(workload: Workload, dtype: torch.dtype, kept: Sequence[str] = ()) -> Half:
    """The workload's net as `Half`, in eval mode, in the layout that it takes, and with the casts that it needs."""
    half = Half(workload.model, dtype, kept, workload.layout, workload.inputs[0]).eval()
    half.casts_own_values = cast_own_values(half, half.net, dtype, workload.inputs[0])
    return half


class AsItLies(Cast):
    """As `Half`, in the layout that the net has: for a runtime that chooses its own, or for whom NHWC is no matter."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, inputs: Batch | None = None) -> None:
        super().__init__()
        self.net, self.folds = folded(model, inputs)
        net_in_dtype(self.net, dtype)
        self.dtype = dtype
        if inputs is not None:
            self.casts_own_values = cast_own_values(self, self.net, dtype, inputs)

    def forward(self, batch: Tensor, *others: Tensor) -> Tensor:
        """As `Half`'s: logits [batch, classes, height, width]."""
        logits: Tensor = self.net(*[in_dtype(part, self.dtype) for part in (batch, *others)])
        return logits

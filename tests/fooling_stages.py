"""Stages with faults that happen in practice, on any device, each with the outcome that its worker must report."""

import copy
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler.network_calls import allow_tf32
from pipeline.records.run_record import Execution, FailureKind, Precision, Status
from pipeline.stages import Runner
from pipeline.stages.api import Workload

Run = Callable[[Tensor], Any]
SLEEPS = 10_000_000  # cycles of the GPU, about 5 ms: longer than the host takes to queue the net's kernels


def nothing(batch: Tensor) -> Tensor:
    """Return zeros in the shape of the network's answer, two classes."""
    return batch.new_zeros((len(batch), 2, *batch.shape[2:]))


def wrong_from_the_eighth_call(net: nn.Module) -> Run:
    numbers = itertools.count(1)
    return lambda batch: net(batch) if next(numbers) < 8 else nothing(batch)


def not_a_number_from_the_eighth_call(net: nn.Module) -> Run:
    numbers = itertools.count(1)
    return lambda batch: net(batch) * (1 if next(numbers) < 8 else float("nan"))


def stale(net: nn.Module) -> Run:
    """Answer the batch of the call before, as a graph whose inputs are copied too late."""
    kept: list[Tensor] = []

    def run(batch: Tensor) -> Tensor:
        kept.append(net(batch).clone())
        return kept.pop(0) if len(kept) > 1 else kept[0]

    return run


def remembering(key: Callable[[Tensor], object]) -> Callable[[nn.Module], Run]:
    """Return a stage that computes an answer once for each key of its input."""

    def fault(net: nn.Module) -> Run:
        kept: dict[object, Tensor] = {}

        def run(batch: Tensor) -> Tensor:
            if (known := key(batch)) not in kept:
                kept[known] = net(batch).clone()
            return kept[known]

        return run

    return fault


class Lazy:
    def __init__(self, net: nn.Module, batch: Tensor) -> None:
        self.net, self.batch = net, batch
        self.shape = (len(batch), 2, *batch.shape[2:])

    def float(self) -> Tensor:
        return self.net(self.batch).float()


def lazy(net: nn.Module) -> Run:
    return lambda batch: Lazy(net, batch)


def scales_its_input(net: nn.Module) -> Run:
    return lambda batch: net(batch.mul_(1.0001))


def scales_the_weights(net: nn.Module) -> Run:

    def run(batch: Tensor) -> Tensor:
        next(net.parameters()).data.mul_(1.000001)
        return net(batch)

    return run


def takes_threads(net: nn.Module) -> Run:

    def run(batch: Tensor) -> Tensor:
        torch.set_num_threads(3)
        return net(batch)

    return run


def computes_on_the_cpu(net: nn.Module) -> Run:
    there = copy.deepcopy(net).cpu()
    return lambda batch: there(batch.cpu()).to(batch.device)


def works_on_the_side(net: nn.Module) -> Run:
    """Queues long work on a stream that nobody waits for, and returns."""
    side = torch.cuda.Stream()

    def run(batch: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())  # the batch may be on its way
        batch.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEPS)
            return net(batch)

    return run


def rounds_by_flag(net: nn.Module) -> Run:
    """TF32 within the call, and the switches as they were before it."""

    def run(batch: Tensor) -> Tensor:
        allow_tf32(True)
        answer: Tensor = net(batch)
        allow_tf32(False)
        return answer

    return run


def in_bf16(net: nn.Module) -> Run:
    """Half precision under a declaration of fp32."""
    there = copy.deepcopy(net).bfloat16()
    return lambda batch: there(batch.bfloat16())


class Recompiled(nn.Module):
    """A layer that Dynamo must compile again at every call, until it gives up."""

    calls = 0

    def forward(self, batch: Tensor) -> Tensor:
        self.calls += 1
        return batch * (self.calls / self.calls)


def gives_up_compiling(net: nn.Module) -> Run:
    """Eager, in the name of a compiler, after its recompile limit."""
    first = torch.compile(Recompiled(), backend="eager")
    return lambda batch: net(first(batch))


def one_buffer(net: nn.Module) -> Run:
    """Honest: every call writes over the answer of the one before, as a replayed graph does."""
    kept: list[Tensor] = []

    def run(batch: Tensor) -> Tensor:
        answer = net(batch)
        if not kept:
            kept.append(torch.empty_like(answer))
        return kept[0].copy_(answer)

    return run


@dataclass(frozen=True)
class Fault:
    """A misbehaving stage and what must come of it."""

    make: Callable[[nn.Module], Run]  # its call from the workload's net
    said: str  # words that stand in the reason
    failure: FailureKind | None = "wrong answer"  # the kind; None of an honest stage
    status: Status = "inaccurate"  # of its record
    declares: Precision | None = None  # its precision, where it claims one
    gpu_only: bool = False  # it has no form on a CPU
    disagrees: bool = False  # it is right, and its clocks disagree, so that it isn't ranked


FAULTS = {
    "honest": Fault(lambda net: net, "", None, "ok"),
    "one_buffer": Fault(one_buffer, "", None, "ok"),
    "wrong_from_the_eighth_call": Fault(wrong_from_the_eighth_call, "after the samples the answer to batch"),
    "not_a_number_from_the_eighth_call": Fault(
        not_a_number_from_the_eighth_call, "after the samples the logits of batch 0 hold NaN"
    ),
    "zeros": Fault(lambda net: nothing, "one class"),
    "not_a_number": Fault(lambda net: lambda batch: net(batch) * float("nan"), "NaN"),
    "black": Fault(lambda net: lambda batch: net(batch) + torch.tensor([1e4, 0.0]).reshape(1, 2, 1, 1), "one class"),
    "half_the_batch": Fault(lambda net: lambda batch: net(batch[: max(1, len(batch) // 2)]), "shape"),
    "stale": Fault(stale, "logits differ by"),
    "remembers_by_address": Fault(remembering(Tensor.data_ptr), "after the samples the answer to batch"),
    "remembers_by_object": Fault(remembering(id), "after the samples the answer to batch"),
    "remembers_by_shape": Fault(remembering(lambda batch: batch.shape), "one class"),
    "remembers_by_sum": Fault(remembering(lambda batch: round(float(batch.sum()))), "batch that it had never seen is"),
    "half_of_the_batch_twice": Fault(
        lambda net: lambda batch: torch.cat([net(batch[: len(batch) // 2])] * 2), "logits differ by"
    ),
    "changes_places": Fault(lambda net: lambda batch: net(batch).roll(1, 0), "logits differ by"),
    "scales_its_input": Fault(scales_its_input, "changed its input: batch 0", "broken contract", "failed"),
    "scales_the_weights": Fault(
        scales_the_weights, "changed the network that it was given", "broken contract", "failed"
    ),
    "takes_threads": Fault(takes_threads, "changed the process for all that follows", "broken contract", "failed"),
    "gives_up_compiling": Fault(
        gives_up_compiling, "fell back to eager: Dynamo reached its recompile limit", "wrong device"
    ),
    "in_bf16": Fault(
        in_bf16, "it declares fp32, and 100 % of its FLOPs ran in bf16", "not as declared", declares="fp32"
    ),
    "lazy": Fault(lazy, "it answers with a tests.fooling_stages.Lazy", "broken contract", "failed"),
    "computes_on_the_cpu": Fault(computes_on_the_cpu, "did no work on the GPU", "wrong device", gpu_only=True),
    "works_on_the_side": Fault(works_on_the_side, "", None, "ok", gpu_only=True, disagrees=True),
    "rounds_by_flag": Fault(rounds_by_flag, "ran in tf32", "not as declared", declares="fp32", gpu_only=True),
}


def build(workload: Workload, *, fault: str) -> Runner:
    chosen = FAULTS[fault]
    if "torch._dynamo" in sys.modules:  # of a fault before this one in the same process
        torch._dynamo.reset()
        torch._dynamo.utils.clear_compilation_metrics()
    execution = Execution(chosen.declares) if chosen.declares else None
    return Runner(chosen.make(workload.model), "a fault", execution)

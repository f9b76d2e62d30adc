"""A stage that fails, of a net that doesn't take channels_last: another attempt with all as its weights and images lie.

Stages lay a net out with its channels side by side. Any net takes that but one whose own code takes a view
(`Tensor.view`) of a weight or a map which that layout doesn't allow, or asks how its tensors lie, or says so itself
(`Tensor.as_strided`). Whether it is so is asked where a stage that chose the layout fails, or answers wrongly.
"""

import copy
import gc
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch, laid_out, net_laid_out
from pipeline.compiler.network_calls import trial, without_tf32
from pipeline.records.plan import Phase
from pipeline.records.run_record import FailureKind, Order
from pipeline.stages.api import LayoutChoice, Skip, StageError
from pipeline.worker.bench import Bench
from pipeline.worker.failures import failure_of
from pipeline.worker.guard import ANSWER_MOVED, Finding
from pipeline.worker.half_retry import LOCATED, Reporter, Verify

ORDERS: tuple[Order, ...] = ("NCHW", "NHWC")
OF_A_NET: tuple[FailureKind, ...] = ("error", "unsupported")  # kinds of failures that a layout may be behind


def built(bench: Bench, again: Callable[[str], None]) -> dict[str, object]:
    """What `bench.build` reports, of a second build in NCHW where the net needs it.

    Args:
        bench: the stage's.
        again: is told that it is built a second time.

    Raises:
        Skip, StageError, Exception: as the stage's build or first call raised it.
    """
    try:
        return bench.build()
    except Skip:
        raise
    except Exception as error:
        why = refusal(bench, error) if _lays_out(bench) and failure_of(error)[0] in OF_A_NET else ""
        if not why:
            raise
        traceback.print_exc()
    return _built_as_it_lies(bench, again, why)


def verified(bench: Bench, reporter: Reporter, verify: Verify) -> Finding:
    """What is wrong with a stage's answer, of a second build in NCHW where the net answers otherwise in channels_last.

    Args:
        bench: with the stage built.
        reporter: is told of that second build.
        verify: compares the answer with the reference, and reports that.
    """
    found = verify(bench)
    if found.failure not in LOCATED or not _lays_out(bench) or not _answers_otherwise(bench):
        return found
    again, why = partial(begun_again, reporter, Phase.VERIFY), "the net's own code answers otherwise in channels_last"
    work, runner = bench.workload, bench.runner
    try:
        reporter.report(**_built_as_it_lies(bench, again, why))
    except StageError:
        raise  # such as of a stage that is channels_last alone
    except Exception:  # noqa: BLE001 - the first build's outcome stands
        traceback.print_exc()
        bench.workload, bench.runner = work, runner
        return found
    return verify(bench)


def begun_again(reporter: Reporter, phase: Phase, text: str) -> None:
    """A stage is built a second time within a phase, as none goes back to an earlier: its time limit starts anew."""
    reporter.enter(phase)
    reporter.progress(text)


def _lays_out(bench: Bench) -> bool:
    return bench.workload.layout_choice.taken == "NHWC"


def _built_as_it_lies(bench: Bench, again: Callable[[str], None], why: str) -> dict[str, object]:
    again("again in NCHW, as the net doesn't take channels_last")
    gc.collect()
    if bench.job.device == "cuda":
        torch.cuda.empty_cache()
    bench.workload = replace(bench.workload, layout_choice=LayoutChoice("NCHW", why))
    found = bench.build()
    said = f"{bench.job.stage.name} takes the net in NCHW, as {why}; its set-up is that of a second build"
    bench.warn("something else ran", said, "let that code take any layout, as Tensor.reshape does, and measure again")
    return found


def _answers_otherwise(bench: Bench) -> bool:
    """Whether the net itself, in fp32, answers otherwise in channels_last than as it lies."""
    net, inputs = bench.workload.model, bench.workload.inputs[0]
    answers = []
    try:
        for layout in ORDERS:
            with trial(inputs), without_tf32():
                answers.append(_answer(net, inputs, layout))
    except Exception:  # noqa: BLE001 - the stage's answer is known to be wrong; only this isn't known then
        traceback.print_exc()
        return False
    return distance(*answers) > ANSWER_MOVED


def _answer(net: nn.Module, inputs: Batch, layout: Order) -> Tensor:
    """What a copy of the net in a layout answers, [batch, ...]."""
    logits: Tensor = net_laid_out(copy.deepcopy(net), layout)(*[laid_out(part, layout) for part in inputs.clone()])
    return logits


def refusal(bench: Bench, error: Exception) -> str:
    """What the net's own code says that answers as its weights and images lie, and not in channels_last.

    Empty where it takes both, or neither. What the stage held as it failed is let go before the net is called.
    """
    traceback.clear_frames(error.__traceback__)
    bench.__dict__.pop("runner", None)
    net, inputs = bench.workload.model, bench.workload.inputs[0]
    said = _raised(net, inputs, "NHWC")
    return "" if not said or _raised(net, inputs, "NCHW") else said


def _raised(net: nn.Module, inputs: Batch, layout: Order) -> str:
    """What a copy of the net in a layout says that it can't be called; empty where it can, or where memory ran out."""
    try:
        with torch.inference_mode():
            _answer(net, inputs, layout)
    except Exception as error:  # noqa: BLE001 - a net's own code raises whatever it likes
        kind, reason = failure_of(error)
        return "" if kind == "out of memory" else f"the net's own code doesn't take channels_last: {reason}"
    return ""

"""What runs in the place of the rewritten net, where the project's kernels take nothing of it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pipeline.compiler.autotune import Tuner
from pipeline.compiler.capture import Captured
from pipeline.compiler.half import FULL, Half, short
from pipeline.compiler.network_calls import refuses
from pipeline.compiler.timing import full_load_ms
from pipeline.records.run_record import Precision
from pipeline.stages.api import IMAGE_RANK, VOLUME_RANK, Runner, Workload
from pipeline.stages.common.inductor import check_compiled
from pipeline.stages.common.inductor_search import INDUCTOR, MODES, SEARCHED, Search, most_seconds, worth_it
from pipeline.stages.common.net_candidate import (
    Candidate,
    captured,
    described,
    execution,
    net_digest,
    quoted,
    switch_on_the_library,
)
from pipeline.stages.common.precision import eager_execution, half_net
from pipeline.stages.common.time_limit import TooLongError


def by_inductor_alone(workload: Workload, why: str, tuner: Tuner, search: Search, kept: Sequence[str] = ()) -> Runner:
    """The half net by Inductor in one CUDA graph, for inputs that no kernel of the project takes.

    A net that doesn't run in half precision, such as one with an operation that torch has in fp32 alone, is in TF32.
    """
    switch_on_the_library()
    half = half_net(workload, torch.float16, kept)
    if refuses(half, workload.inputs[0]):
        half, why = half_net(workload, torch.float32), f"in fp16 it doesn't run; {why}"
    try:
        found, times = _fastest_mode(half, workload, tuner, search)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        traceback.print_exc()
        return in_pieces(half, workload, f"{why}; as one graph by Inductor: {quoted(error)}")
    return Runner(
        found.captured,
        description=f"{described(found, '', found.details.get('refused', {}))}{half.and_casts}: {why}",
        execution=found.execution,
        details=found.details | {"not_rewritten": why, "candidates_ms": times},
        uncaptured=found.call,
        traffic=lambda *_: (found.moved_bytes, "Inductor"),
    )


def _fastest_mode(half: Half, workload: Workload, tuner: Tuner, search: Search) -> tuple[Candidate, dict[str, float]]:
    """The net in the mode of Inductor that is the fastest, or that an earlier build found to be, with milliseconds."""

    def made(name: str) -> Candidate:
        workload.progress(f"all of it by {name}")
        limit, how = most_seconds(name, search), execution(precision_of(half), 0, order=workload.layout)
        return captured(name, half, how, *workload.inputs[0], mode=MODES[name], most_seconds=limit)

    name = f"half net {net_digest(str(half), half, workload.inputs[0], [search, half.and_casts, *half.kept])}"
    known = tuner.known(name)
    times, winner, given_up = known.get("tried_ms"), known.get("choice"), known.get("given_up")
    candidates: dict[str, Candidate] = {}
    try:
        if winner == SEARCHED and isinstance(times, dict):
            return _known(made(SEARCHED)), times
        candidates[INDUCTOR] = made(INDUCTOR)
        if winner == INDUCTOR and isinstance(times, dict):
            return _known(candidates[INDUCTOR], given_up if isinstance(given_up, dict) else {}), times
        if not worth_it(search, {INDUCTOR: 0.0}):
            return candidates[INDUCTOR], {INDUCTOR: 0.0}
        candidates[SEARCHED] = made(SEARCHED)
    except Exception as error:
        if winner != SEARCHED and not candidates:
            raise
        traceback.print_exc()
        default = candidates.get(INDUCTOR) or made(INDUCTOR)
        default.details["refused"] = refused = {SEARCHED: quoted(error)}
        if isinstance(error, TooLongError):  # anything else may pass, such as memory that another program has
            tuner.keep(name, {"choice": INDUCTOR, "tried_ms": {INDUCTOR: 0.0}, "given_up": refused})
        return default, {INDUCTOR: 0.0}
    taken = full_load_ms([candidate.captured.graph for candidate in candidates.values()])
    times = dict(zip(candidates, taken, strict=True))
    winner = min(times, key=times.__getitem__)
    tuner.keep(name, {"choice": winner, "tried_ms": times})
    return candidates[winner], times


def _known(found: Candidate, given_up: dict[str, str] | None = None) -> Candidate:
    """A candidate that an earlier build found to be the fastest, and the search that it gave up."""
    found.details |= {"known": True} | ({"refused": given_up} if given_up else {})
    return found


def beyond_kernels(workload: Workload) -> str:
    """Why the project's kernels take nothing of a net with such inputs; empty where they may."""
    if (rank := len(workload.shape)) not in (IMAGE_RANK, VOLUME_RANK):
        return f"the project's kernels are for images and volumes, and this net's input has {rank} axes"
    return ""


def in_pieces(half: Half, workload: Workload, why: str) -> Runner:
    """By Inductor as `compile` runs it, for a net that is no single graph; the half net, where that fails."""
    workload.progress("by Inductor, with graph breaks")
    try:
        with torch.inference_mode():
            compiled = torch.compile(half)
            compiled(*workload.inputs[0])
        check_compiled()
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        traceback.print_exc()
        return uncompiled(half, workload, f"{why}; in pieces: {quoted(error)}")
    precision = precision_of(half)
    how = replace(execution(precision, 0, order=workload.layout), captured=False)
    said = f"{precision}, by Inductor, with graph breaks{half.and_casts}: {why}"
    return Runner(compiled, said, how, {"not_rewritten": why})


def uncompiled(half: Half, workload: Workload, why: str) -> Runner:
    """The half net by torch's own operations, in a CUDA graph unless it can't be captured."""
    run: Callable[..., Tensor] = half
    where = "in one CUDA graph"
    try:
        run = Captured(half, *workload.inputs[0])
    except Exception as error:  # noqa: BLE001 - whatever CUDA raises, such as for a net that looks at its values
        traceback.print_exc()
        where = "uncaptured"
        why = f"{why}; captured: {quoted(error)}"
    precision = precision_of(half)
    how = eager_execution(precision, workload.layout, captured=run is not half)
    return Runner(run, f"{precision} half net {where}{half.and_casts}: {why}", how, {"not_rewritten": why})


def precision_of(half: Half) -> Precision:
    """In which it computes here, where fp32 is TF32."""
    return short(half.dtype) if half.dtype != FULL else "tf32"

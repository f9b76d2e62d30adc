"""What an earlier build of the same net found out, kept beside the choices of tiles: which candidate is the fastest.

So a build from caches makes that one alone. It is checked as in the first build, beside torch's own operations.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from pipeline.stages.api import Runner
from pipeline.stages.common.inductor_search import INDUCTOR, SEARCHED
from pipeline.stages.common.net_candidate import Candidate, net_digest
from pipeline.stages.common.rewritten_net import COMPOSED, Rewritten, as_stage, fastest

Makers = dict[str, Callable[[], Candidate | None]]


def without_fp8(rewritten: Rewritten) -> Makers:
    """What builds the candidates in fp16; Inductor's comes first, as the others are checked against it."""
    if rewritten.barred:
        return {INDUCTOR: lambda: rewritten.by_inductor, COMPOSED: rewritten.composed}
    return {
        INDUCTOR: lambda: rewritten.by_inductor,
        "fp16": lambda: rewritten.candidate({}, "fp16"),
        "fp16, own norms": lambda: rewritten.candidate({}, "fp16", own_norms=True),
    }


def fastest_or_known(
    rewritten: Rewritten, makers: Makers, given: str = "", scales: Sequence[Mapping[str, float]] = ({},)
) -> Runner:
    """The candidate that an earlier build of the same found to be the fastest; without one, the fastest of all.

    Args:
        rewritten: the net.
        makers: what builds each candidate, in this order.
        given: what else the candidates come from, such as the digest of their images.
        scales: of the candidates by own kernels, whose kernels are compiled beside the first candidate, Inductor's.
    """
    name = f"whole net {digest_of(rewritten, [*makers, rewritten.search, given])}"
    known = rewritten.tuner.known(name)
    times = known.get("tried_ms")
    winner = (makers | {SEARCHED: lambda: rewritten.by_searching_inductor}).get(str(known.get("choice")))
    if winner is not None and isinstance(times, dict) and (found := winner()) is not None:
        found.details["known"] = True
        given_up = known.get("given_up")
        rewritten.refused |= given_up if isinstance(given_up, dict) else {}
        return as_stage(rewritten, found, times)
    with rewritten.compiling(*scales):
        candidates = {INDUCTOR: makers[INDUCTOR]()}
    candidates |= {maker: make() for maker, make in makers.items() if maker != INDUCTOR}
    stage = fastest(rewritten, list(candidates.values()))
    candidates[SEARCHED] = vars(rewritten).get("by_searching_inductor")
    best = [maker for maker, found in candidates.items() if found is not None and found.captured is stage.run]
    if best:
        tried = {"tried_ms": stage.details["candidates_ms"], "given_up": rewritten.given_up}
        rewritten.tuner.keep(name, {"choice": best[0], **tried})
    return stage


def digest_of(rewritten: Rewritten, others: Iterable[str]) -> str:
    """SHA-256 of a net as it was exported, with its inputs, why kernels are barred, and other texts."""
    plain, inputs = rewritten.plain, rewritten.workload.inputs[0]
    return net_digest(str(plain.graph), plain, inputs, [rewritten.barred or "", *others])


def values_digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the values of tensors of any shape."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
    return whole.hexdigest()

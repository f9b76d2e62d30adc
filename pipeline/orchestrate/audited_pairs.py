"""Pairs of two workers' samples, and whether the run's own clock agrees with them."""

from collections.abc import Mapping, Sequence

from pipeline.orchestrate.audit import Doubt, audited, claim_of
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.interleaved_pair import InterleavedWorker, interleaved
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.records.request import StageSpec
from pipeline.records.samples import Pair

Sampled = tuple[Pair, Doubt | None]  # of a stage, and what stands against it


def audited_pair(
    context: RunContext,
    workers: tuple[InterleavedWorker, InterleavedWorker],
    spec: StageSpec,
    known: Mapping[str, object],
) -> Sampled:
    """The pair of baseline and stage, and what stands against the stage.

    Where its time alone does, both are sampled once more: of an honest stage the machine has changed since, and now it
    agrees; one that forges its samples does so again.

    Args:
        context: of the run.
        workers: baseline and stage.
        spec: of the stage.
        known: what the stage's worker has reported, as it is at its end.
    """
    for first in (True, False):
        pair = context.sampled(*workers, spec.name)
        if known.get("status", "ok") != "ok":  # nobody believes it anyway
            return pair, None
        doubt = audited(*workers, claim_of([pair], tolerances(spec, context.spec)))
        if doubt is None or doubt.failure == "wrong answer":
            break
        if first:
            warn_of_another_look(context, spec, doubt)
    return pair, doubt


def warn_of_another_look(context: RunContext, spec: StageSpec, doubt: Doubt) -> None:
    """Tell that the run's own clock stood against a stage's samples, and that it was sampled once more."""
    text = f"{spec.name} was sampled once more: {doubt.reason}"
    context.warn("drift", text, "leave the machine to the run, or measure longer")


def head_to_head(
    context: RunContext, best: WorkerProcess, contender: WorkerProcess, specs: Sequence[StageSpec]
) -> Pair:
    """Samples of two stages, interleaved; each is held to what they say of it, as beside the baseline.

    Args:
        context: of the run.
        best: the first one's worker, warm.
        contender: the second one's.
        specs: of both.

    Raises:
        WorkerGone: one of them is gone, or isn't what its samples say.
    """
    with interleaved(best, contender) as (first, second):
        pair = context.sampled(first, second, f"{best.name} against {contender.name}")
        claim = claim_of([pair], tolerances(*specs))
        for other, one, its in ((first, second, claim), (second, first, claim.seen_from_the_other_side())):
            if doubt := audited(other, one, its):
                raise WorkerGone(doubt.failure, f"{one.name} beside {other.name}: {doubt.reason}", doubt.status)
    return pair


def tolerances(*specs: StageSpec) -> list[float]:
    """Of stages, relative L2."""
    return [spec.tolerance.relative_l2 for spec in specs]

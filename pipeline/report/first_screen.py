"""The first screen in sentences: which stage, how much faster, is it right, at what cost. Plain text throughout.

Every answer is one function, in the order in which they are read: `answers` lists them.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.devices.kinds import is_cuda
from pipeline.records.run_record import EAGER, RunRecord, RunWarning, StageRecord
from pipeline.records.samples import Accuracy
from pipeline.report.formatting import (
    clean,
    images,
    interval,
    listed,
    plural,
    remedy,
    seconds,
    share,
    significant,
    size,
    times,
)
from pipeline.report.sections import attribution_section
from pipeline.stats.warnings import CLOCKS_DISAGREE, SLOWER_AT_FULL_LOAD

Answer = tuple[str, str]  # the question, and the answer to it

SHARED, NAMED = 3, 3  # stages with the same warning, from which it is given once, and how many of them are named
NAMED_PACKAGES = ("torch", "triton", "onnxruntime-gpu", "onnxruntime")
NOT_WELL = {"failed": "failed", "timeout": "took too long", "inaccurate": "gave a wrong answer", "skipped": "skipped"}
QUESTION = "Which stage should I use?"
DOUBTS = {
    "not resolved": "the ratios aren't resolved",
    "baseline drifted": "the baseline drifted too far for times of different moments to be compared",
}
CPU_PRESET = ": a smaller net and image, because no GPU was used; its ratios say nothing of a GPU's"


@dataclass(frozen=True)
class Machine:
    """What gave the numbers, in a few words each."""

    device: str
    preset: str
    shape: str
    versions: str


def machine(run: RunRecord) -> Machine:
    """The device, the preset, the work and the versions of a run."""
    model, data, found = run.settings.model, run.settings.data, run.environment
    images_at = f"images at {data.image_size}×{data.image_size}" if data.image_size else "images at their own size"
    shape = f"{model.name or 'a net'}, batch {data.batch_size or '?'}, {images_at}"
    preset = f"preset {run.preset}{CPU_PRESET if run.preset == 'cpu' else ''}"
    if found is None:
        return Machine("the machine was never described", preset, shape, "versions unknown")
    where = found.device_name if is_cuda(found.device) else f"CPU: {found.cpu_name}, {found.cpu_threads} threads"
    return Machine(where, preset, shape, _versions(run))


def _versions(run: RunRecord) -> str:
    found = run.environment
    if found is None:
        return ""
    packages = [f"{name} {found.packages[name]}" for name in NAMED_PACKAGES if name in found.packages]
    libraries = [("CUDA", found.cuda), ("cuDNN", found.cudnn), ("driver", found.driver)]
    drivers = [f"{label} {version}" for label, version in libraries if version]
    return ", ".join([f"Python {found.python}", *packages, *drivers])


def state(run: RunRecord) -> str:
    """Why the run is not the whole answer; empty when it is."""
    if run.finished:
        return ""
    done = plural(len(run.stages), "stage")
    return f"This run did not finish: {done} on record. Everything below holds for those alone."


def headline(summary: RunSummary) -> str:
    """The answer in one line."""
    winner = summary.winner
    if summary.ranking.unresolved:
        return "Not resolved: measure longer or on an idle machine"
    if winner is None or winner.ratio is None:
        return "No stage won"
    if winner.name == summary.baseline:
        return f"{winner.name}: nothing is faster here"
    if winner.compared.outcome != "faster":
        return f"{winner.name} leads, by no margin that this run resolves"
    name = listed([winner.name, *summary.ranking.ties])
    return f"{name}: {times(winner.ratio)} {summary.baseline}{', a tie' if summary.ranking.ties else ''}"


def answers(summary: RunSummary) -> list[Answer]:
    """The questions that a person has, in order, with the run's answers."""
    winner, name = summary.winner, summary.ranking.winner
    if name is None:
        return [(QUESTION, _none(summary))]
    if winner is None:
        return [(QUESTION, f"{name}: nothing measured here is faster than the baseline itself.")]
    return [
        (QUESTION, which(summary, winner)),
        ("How much faster is it?", how_much(summary, winner)),
        (attribution_section.QUESTION, attribution_section.why(summary, winner)),
        ("Is it still right?", right(winner.stage)),
        ("What does it cost?", cost(summary, winner)),
        ("For how many images?", how_many(summary)),
    ]


def _none(summary: RunSummary) -> str:
    if not summary.stages:
        return "None yet: no stage is on record."
    if summary.ranking.unresolved:
        again = summary.measure_again
        return f"Not resolved: measure longer or on an idle machine ({again}). {remedy(summary.ranking.unresolved)}"
    return "None: no stage is both right and measured. The table gives the status of each."


def which(summary: RunSummary, winner: StageSummary) -> str:
    """The winner, and the ties that a reader may choose as well."""
    text = f"{winner.name}: {winner.stage.summary}" if winner.stage.summary else winner.name
    text += " (legacy: its library deprecates it)." if winner.stage.legacy else "."
    if summary.ranking.ties:
        verb = "isn't" if len(summary.ranking.ties) == 1 else "aren't"
        text += f" It ties with {listed(summary.ranking.ties)}, which {verb} shown to be slower."
    return text


def how_much(summary: RunSummary, winner: StageSummary) -> str:
    """The ratio with its interval and its outcome, and what it is relative to."""
    ratio, compared = winner.ratio, winner.compared
    assert ratio is not None
    if winner.name == summary.baseline:
        return f"Nothing is shown to be faster than the baseline, {summary.baseline}."
    text = f"{times(ratio)} as fast as {summary.baseline} {interval(ratio)}".rstrip() + f": {compared.outcome}"
    text += f" ({plural(ratio.blocks, 'block')} of interleaved samples, 95 % interval)." if ratio.bounded else "."
    if summary.baseline != EAGER and compared.eager_ratio and winner.name != EAGER:
        text += f" Against eager fp32: {times(compared.eager_ratio)} {interval(compared.eager_ratio)}".rstrip() + "."
    unresolved = remedy_of(winner)
    return text + at_full_load(summary, winner) + (f" {unresolved}" if unresolved else "")


def remedy_of(stage: StageSummary) -> str:
    """What would resolve a stage's ratio; empty where it is resolved."""
    return remedy(stage.compared.unresolved) if stage.compared.unresolved else ""


def at_full_load(summary: RunSummary, winner: StageSummary) -> str:
    """How the two compare at sustained full load, if the winner is then slower than interleaved by enough to tell."""
    baseline = summary.stage(summary.baseline)
    first, own = baseline.sustained_seconds if baseline else None, winner.sustained_seconds
    if first is None or not own or not any(warning.code == SLOWER_AT_FULL_LOAD for warning in winner.warnings):
        return ""
    return f" At sustained full load: {significant(first / own)} ×, {seconds(own)} against {seconds(first)}."


def right(stage: StageRecord) -> str:
    """The accuracy beside its limits."""
    found, limit = stage.accuracy, stage.tolerance
    if found is None:
        return "Not checked."
    text = "Yes" if stage.status == "ok" else "No"
    text += f": {share(found.flipped_share)} of pixels change class (limit {share(limit.flipped_share)})"
    text += f", relative L2 {significant(found.relative_l2, 2)} (limit {significant(limit.relative_l2, 2)})"
    if found.dice and found.reference_dice:
        text += f"; Dice {_scores(found.dice)}, of the fp32 net {_scores(found.reference_dice)}"
    named = oddities(found)
    return f"{text}, on {plural(found.images, 'image')}.{' ' + named if named else ''}"


def _scores(values: list[float]) -> str:
    return " / ".join(f"{value:.4f}" for value in values)


def oddities(found: Accuracy) -> str:
    """NaN logits and masks of one class, by name: they look like healthy empty masks."""
    parts = []
    if found.nan_share > 0:
        parts.append(f"{share(found.nan_share)} of its logits are NaN or infinite.")
    if found.one_class:
        parts.append("Its masks have one class only, where the reference has more: an empty (black) mask.")
    return " ".join(parts)


def cost(summary: RunSummary, winner: StageSummary) -> str:
    """Memory and build time of the winner, beside the baseline's."""
    baseline = summary.stage(summary.baseline)
    text = memory_text(winner.stage)
    if baseline and baseline.stage.memory and winner.stage.memory and baseline.name != winner.name:
        text += f" ({summary.baseline}: {memory_text(baseline.stage)})"
    if winner.setup_seconds is None:
        return f"{text}."
    first = seconds(winner.stage.first_call_seconds)
    text += f"; {seconds(winner.stage.build_seconds)} to build and {first} for the first call."
    return text + break_even(summary.baseline, winner)


def memory_text(stage: StageRecord) -> str:
    """The memory that decides: the allocator's peak and the process on a GPU, resident memory on a CPU."""
    memory = stage.memory
    if memory is None:
        return "memory not measured"
    if memory.allocated_peak_bytes is None:
        return f"{size(memory.host_peak_bytes)} of memory at the peak"
    text = f"{size(memory.allocated_peak_bytes)} at the allocator's peak"
    return text + (f", {size(memory.process_bytes)} as the device sees it" if memory.process_bytes else "")


def break_even(baseline: str, stage: StageSummary) -> str:
    """After how many images the set-up has paid for itself; empty where there is nothing to say."""
    if stage.name == baseline or stage.break_even_doubt:
        return ""
    if stage.break_even is None:
        return f" Against {baseline} the set-up never pays for itself."
    if stage.break_even < 1:
        return " The set-up pays for itself from the first image."
    return f" The set-up has paid for itself against {baseline} after {images(stage.break_even)} images."


def how_many(summary: RunSummary) -> str:
    """Whether a few images, a service and very many want different stages."""
    if summary.doubt:
        return f"That can't be said: {DOUBTS[summary.doubt]}."
    few, many, service = summary.best_for_few, summary.best_for_many, summary.best_for_service
    if few == many == service:
        return f"{many} for 100 images, for a service and for ten million alike."
    stage = summary.stage(service)
    tail = f" (p99 {seconds(stage.latency.p99)} per call)" if stage and stage.latency else ""
    warm = f"{service} for a service that is built and warm{tail}"
    return f"{few} for 100, set-up included; {warm}; {many} for ten million."


def unwell(summary: RunSummary) -> list[str]:
    """A line for every stage that can't be ranked, with its reason."""
    lines = []
    for stage in summary.stages:
        reason = clean(stage.stage.reason)
        if stage.stage.status in NOT_WELL:
            lines.append(f"{stage.name} {NOT_WELL[stage.stage.status]}: {reason or 'no reason given'}")
        elif not stage.ranked:
            lines.append(f"{stage.name} is {stage.status}: {reason or _why_unranked(stage)}")
    return lines


def _why_unranked(stage: StageSummary) -> str:
    disagree = (warning.text for warning in stage.warnings if warning.code == CLOCKS_DISAGREE)
    return next(disagree, "no interleaved samples are on record")


def all_warnings(summary: RunSummary) -> list[tuple[str, RunWarning]]:
    """Every warning with whom it concerns, the run's own first; one that many stages share is given once."""
    same: dict[tuple[str, str], list[tuple[str, RunWarning]]] = defaultdict(list)
    for stage in summary.stages:
        for warning in stage.warnings:
            same[warning.code, warning.remedy].append((stage.name, warning))
    grouped = [[_together(each)] if len({name for name, _ in each}) >= SHARED else each for each in same.values()]
    return [("the run", warning) for warning in summary.warnings] + [one for each in grouped for one in each]


def _together(each: list[tuple[str, RunWarning]]) -> tuple[str, RunWarning]:
    """A warning of many stages, with the first one's figures."""
    names = list(dict.fromkeys(name for name, _ in each))
    shown = names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} more"]
    first, warning = each[0]
    text = f"{first}: {warning.text} (each stage's section has its own figures)"
    return listed(shown), replace(warning, text=text)


def trust(summary: RunSummary) -> str:
    """The smallest difference that this run may claim."""
    pairs = len([pair for pair in summary.run.aa_pairs if pair.blocks])
    effect = share(summary.ranking.effect)
    if not pairs:
        return f"The baseline was not measured against itself (A/A); differences under {effect} are not claimed."
    control = f"{plural(pairs, 'A/A control pair')} (the baseline against itself in fresh processes)"
    return f"Minimum detectable effect: {effect}, from {control}. Smaller differences are not claimed."

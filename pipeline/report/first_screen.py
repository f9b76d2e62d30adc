"""The first screen in sentences: which stage, how much faster, is it right, at what cost. Plain text throughout."""

from collections import defaultdict
from dataclasses import dataclass, replace

from pipeline.analysis.summary import Digest, Row
from pipeline.records.run_record import Accuracy, RunRecord, RunWarning, StageRecord
from pipeline.report import formatting as words
from pipeline.stats.warnings import SLOWER_ALONE

Answer = tuple[str, str]  # the question, and the answer to it

SHARED, NAMED = 3, 3  # stages with the same caution, from which it is given once, and how many of them are named
NAMED_PACKAGES = ("torch", "triton", "onnxruntime-gpu", "onnxruntime")
NOT_WELL = {"failed": "failed", "timeout": "took too long", "inaccurate": "gave a wrong answer", "skipped": "skipped"}


@dataclass(frozen=True)
class Machine:
    """What gave the numbers, in a few words each."""

    device: str
    preset: str
    shape: str
    versions: str


def machine(run: RunRecord) -> Machine:
    """The device, the preset, the work and the versions of a run."""
    model, data = run.config.get("model") or {}, run.config.get("data") or {}
    size = data.get("size")
    shape = f"{model.get('name', 'a net')}, batch {data.get('batch_size', '?')}, "
    shape += f"images at {size}×{size}" if size else "images at their own size"
    preset = f"preset {run.preset}"
    if run.preset == "cpu":
        preset += ": a smaller net and image, because no GPU was used; its ratios say nothing of a GPU's"
    found = run.environment
    if found is None:
        return Machine("the machine was never described", preset, shape, "versions unknown")
    versions = [f"Python {found.python}"]
    versions += [f"{name} {found.packages[name]}" for name in NAMED_PACKAGES if name in found.packages]
    versions += [f"{label} {value}" for label, value in _drivers(run) if value]
    where = found.device_name if found.device == "cuda" else f"CPU: {found.cpu_name}, {found.cpu_threads} threads"
    return Machine(where, preset, shape, ", ".join(versions))


def _drivers(run: RunRecord) -> list[tuple[str, str | None]]:
    found = run.environment
    return [("CUDA", found.cuda), ("cuDNN", found.cudnn), ("driver", found.driver)] if found else []


def state(run: RunRecord) -> str:
    """Why the run is not the whole answer; empty when it is."""
    if run.finished:
        return ""
    done = words.plural(len(run.stages), "stage")
    return f"This run did not finish: {done} on record. What follows holds for those alone."


def answers(found: Digest) -> list[Answer]:
    """The questions that a person has, in order, with the run's answers."""
    winner, name = found.winner, found.ranking.winner
    if name is None:
        return [("Which stage should I use?", _none(found))]
    if winner is None:
        return [("Which stage should I use?", f"{name}: nothing measured here is faster than the baseline itself.")]
    asked = [
        ("Which stage should I use?", which(found, winner)),
        ("How much faster is it?", how_much(found, winner)),
        ("Is it still right?", right(winner.stage)),
        ("What does it cost?", cost(found, winner)),
    ]
    return [*asked, ("For how many images?", how_many(found))]


def _none(found: Digest) -> str:
    if not found.rows:
        return "None yet: no stage is on record."
    return "None: no stage is both right and measured. The table says what became of each."


def which(found: Digest, winner: Row) -> str:
    """The winner, and the ties that a reader may choose as well."""
    text = f"{winner.name}: {winner.stage.summary}" if winner.stage.summary else winner.name
    text += " (legacy: its library deprecates it)." if winner.stage.legacy else "."
    if found.ranking.ties:
        verb = "isn't" if len(found.ranking.ties) == 1 else "aren't"
        text += f" It ties with {words.listed(found.ranking.ties)}, which {verb} shown to be slower."
    return text


def how_much(found: Digest, winner: Row) -> str:
    """The ratio with its interval, its word, and what it is relative to."""
    run, ratio = found.run, winner.ratio
    assert ratio is not None
    if winner.name == run.baseline:
        return f"Nothing is shown to be faster than the baseline, {run.baseline} in fp32."
    text = f"{words.times(ratio)} as fast as {run.baseline} fp32 {words.interval(ratio)}: {winner.word}"
    text += f" ({words.plural(ratio.blocks, 'block')} of turns, 95 % interval)." if ratio.bounded else "."
    if winner.second and winner.second_word:
        text += f" Against {run.second_baseline}, what people run today: {words.times(winner.second)}"
        text += f" {words.interval(winner.second)}, {winner.second_word}."
    return text + at_full_load(found, winner) + (f" {winner.unresolved}" if winner.unresolved else "")


def at_full_load(found: Digest, winner: Row) -> str:
    """How the two compare when each runs alone, if the winner then is slower than in turns by what is worth a word."""
    baseline = found.row(found.run.baseline)
    first = baseline.sustained_seconds if baseline else None
    if first is None or not winner.sustained_seconds or not any(part.name == SLOWER_ALONE for part in winner.warnings):
        return ""
    times = words.significant(first / winner.sustained_seconds)
    return (
        f" At full load, each alone: {times} ×, {words.seconds(winner.sustained_seconds)} for {words.seconds(first)}."
    )


def right(stage: StageRecord) -> str:
    """The accuracy beside its limits."""
    found, limit = stage.accuracy, stage.tolerance
    if found is None:
        return "Not checked."
    text = "Yes" if stage.status == "ok" else "No"
    text += f": {words.share(found.flipped_share)} of pixels change class (limit {words.share(limit.flipped_share)})"
    text += f", relative L2 {words.significant(found.relative_l2, 2)}"
    text += f" (limit {words.significant(limit.relative_l2, 2)})"
    if found.dice and found.reference_dice:
        text += f"; Dice {_scores(found.dice)} for the fp32 net's {_scores(found.reference_dice)}"
    named = oddities(found)
    return f"{text}, on {words.plural(found.images, 'image')}.{' ' + named if named else ''}"


def _scores(values: list[float]) -> str:
    return " / ".join(f"{value:.4f}" for value in values)


def oddities(found: Accuracy) -> str:
    """NaN logits and masks of one class, by name: they look like healthy empty masks."""
    parts = []
    if found.nan_share > 0:
        parts.append(f"{words.share(found.nan_share)} of its logits are NaN or infinite.")
    if found.one_class:
        parts.append("Its masks have one class only, where the reference has more: an empty (black) mask.")
    return " ".join(parts)


def cost(found: Digest, winner: Row) -> str:
    """Memory and build time of the winner, beside the baseline's."""
    baseline = found.row(found.run.baseline)
    text = memory_words(winner.stage)
    if baseline and baseline.stage.memory and winner.stage.memory and baseline.name != winner.name:
        text += f" ({found.run.baseline}: {memory_words(baseline.stage)})"
    if winner.setup_seconds is None:
        return f"{text}."
    first = words.seconds(winner.stage.first_call_seconds)
    text += f"; {words.seconds(winner.stage.build_seconds)} to build and {first} for the first call."
    return text + break_even(found.run, winner)


def memory_words(stage: StageRecord) -> str:
    """The memory that decides: the allocator's peak and the process on a GPU, resident memory on a CPU."""
    memory = stage.memory
    if memory is None:
        return "memory not measured"
    if memory.allocated_peak_bytes is None:
        return f"{words.size(memory.host_peak_bytes)} of memory at the peak"
    text = f"{words.size(memory.allocated_peak_bytes)} at the allocator's peak"
    return text + (f", {words.size(memory.process_bytes)} as the device sees it" if memory.process_bytes else "")


def break_even(run: RunRecord, row: Row) -> str:
    """After how many images the set-up has paid for itself; empty where there is nothing to say."""
    if row.name == run.baseline:
        return ""
    if row.break_even is None:
        return f" Against {run.baseline} that never pays."
    if row.break_even < 1:
        return " That pays from the first image."
    return f" That has paid for itself against {run.baseline} after {words.images(row.break_even)} images."


def how_many(found: Digest) -> str:
    """Whether a few images, a service and very many want different stages."""
    few, many, service = found.best_for_few, found.best_for_many, found.best_for_service
    if few == many == service:
        return f"{many} for 100 images, for a service and for ten million alike."
    row = found.row(service)
    tail = f" (p99 {words.seconds(row.latency.p99)} a call)" if row and row.latency else ""
    warm = f"{service} for a service that is built and warm{tail}"
    return f"{few} for 100, set-up included; {warm}; {many} for ten million."


def unwell(found: Digest) -> list[str]:
    """A line for every stage that can't be ranked, with its reason."""
    lines = []
    for row in found.rows:
        if row.stage.status in NOT_WELL:
            reason = words.clean(row.stage.reason) or "no reason given"
            lines.append(f"{row.name} {NOT_WELL[row.stage.status]}: {reason}")
        elif not row.ranked:
            lines.append(f"{row.name} is {row.status}: {words.clean(row.stage.reason) or _why_unranked(row)}")
    return lines


def _why_unranked(row: Row) -> str:
    return next((part.text for part in row.warnings if part.name == "clocks disagree"), "no turns are on record")


def all_cautions(found: Digest) -> list[tuple[str, RunWarning]]:
    """Every caution with whom it concerns, the run's own first; one that many stages share is given once."""
    same: dict[tuple[str, str], list[tuple[str, RunWarning]]] = defaultdict(list)
    for row in found.rows:
        for part in row.warnings:
            same[part.name, part.remedy].append((row.name, part))
    grouped = [[_together(each)] if len({name for name, _ in each}) >= SHARED else each for each in same.values()]
    return [("the run", part) for part in found.warnings] + [one for each in grouped for one in each]


def _together(each: list[tuple[str, RunWarning]]) -> tuple[str, RunWarning]:
    """A caution of many stages, with the first one's figures."""
    names = list(dict.fromkeys(name for name, _ in each))
    shown = names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} more"]
    first, caution = each[0]
    text = f"{first}: {caution.text} (the others' figures: with each stage)"
    return words.listed(shown), replace(caution, text=text)


def trust(found: Digest) -> str:
    """How far equal things lie apart here: what the instrument can claim."""
    pairs = len([pair for pair in found.run.aa_pairs if pair.blocks])
    floor = words.share(found.ranking.floor)
    if not pairs:
        return f"The baseline was not measured against itself (A/A); differences under {floor} are not claimed."
    ratios = words.plural(pairs, "pair")
    return f"The baseline against itself ({ratios} of fresh processes): differences under {floor} are not claimed."

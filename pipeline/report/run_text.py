"""Text on a run besides its answer (`answer.py`): machine, sources of figures, warnings, what isn't ranked."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import PurePath

from pipeline.analysis.bottleneck import Moved, Source
from pipeline.analysis.summary import RunSummary
from pipeline.config.data_request import TENSORS, words_for_kind
from pipeline.config.model_request import CUSTOM
from pipeline.errors import few, plural
from pipeline.records.codec import to_json
from pipeline.records.diagnostics import LayersSource, Note
from pipeline.records.request import DataSpec
from pipeline.records.run_record import RunRecord, RunWarning
from pipeline.report import WORDS
from pipeline.report.formatting import clean, held, listed, method, share, significant
from pipeline.stats.intervals import samples_of
from pipeline.stats.warnings import CLOCKS_DISAGREE, GRAVITY, SIDES

SHARED, NAMED = 3, 3  # stages with the same warning, from which it is given once, and how many of them are named
NAMED_PACKAGES = ("torch", "triton", "onnxruntime-gpu", "onnxruntime")
NOT_WELL = {"failed": "failed", "timeout": "took too long", "inaccurate": "gave a wrong answer"}
REFUSED = {"broken contract", "not as declared", "impossible", "wrong device"}  # although its answer may be right
COUNTED_BY: dict[Source | None, str] = WORDS["run_text"]["counted_by"]
LAYERS_FROM: dict[LayersSource | None, str] = WORDS["run_text"]["layers_from"]


@dataclass(frozen=True)
class Machine:
    """Where and how the run was measured, a few words for each field."""

    device: str
    preset: str
    shape: str
    versions: str


def machine(run: RunRecord) -> Machine:
    """Return the device, the preset, the work and the versions of a run."""
    data, found = run.config.data, run.environment
    shape = f"{net_name(run)}, batch {data.batch_size or '?'}, {inputs_at(data)}"
    preset = f"preset {run.config.preset}"
    if found is None:
        return Machine("machine unknown", preset, shape, "versions unknown")
    packages = [f"{name} {found.packages[name]}" for name in NAMED_PACKAGES if name in found.packages]
    libraries = [("CUDA", found.cuda), ("cuDNN", found.cudnn), ("driver", found.driver)]
    drivers = [f"{label} {version}" for label, version in libraries if version]
    variables = [clean(f"{name}={value}") for name, value in (found.variables or {}).items()]
    versions = ", ".join([f"Python {found.python}", *packages, *drivers, *variables])
    if found.device == "cuda":
        return Machine(found.device_name, preset, shape, versions)
    where = f"CPU: {found.cpu_name}, {plural(found.cpu_threads, 'thread')}"
    return Machine(where, f"{preset}: no GPU was used; these ratios do not apply to a GPU", shape, versions)


def inputs_at(data: DataSpec) -> str:
    """Return the inputs and their size: "volumes at 64×128×128" of `data=volume` with planes of 128×128."""
    what = "tensors" if data.name == TENSORS else words_for_kind(data.name).samples
    return f"{what} at {'×'.join(map(str, data.sides)) or 'their own size'}"


def net_name(run: RunRecord) -> str:
    """Return the network's name; of a library's with the one that was chosen, of a user's own its class."""
    model, options = run.config.model, run.config.model.options
    if model.file:
        return clean(PurePath(model.file).name)
    own = model.name == CUSTOM and bool(model.target)
    chosen = "" if own else options.get("architecture") or options.get("net") or ""
    encoder = f"({options['encoder_name']})" if options.get("encoder_name") else ""
    target = options.get("made_of", model.target)  # of a notebook's network, its class
    return clean(f"{target if own else model.name} {chosen} {encoder}") or "a network"


def bytes_text(moved: Moved) -> str:
    """Return who counted the bytes, or why they are unknown."""
    if moved.source is None:
        return f"unknown: {clean(moved.unknown) or 'nothing on record'}"
    return COUNTED_BY[moved.source]


def note_text(note: Note) -> str:
    """Return a note with its topic."""
    return f"{note.topic}: {clean(note.text)}"


def state(run: RunRecord) -> str:
    """Return why the run is not the whole answer; empty when it is."""
    if run.finished:
        return ""
    ends = ["interrupted" if each.failure == "interrupted" else each.status for each in run.stages]
    counts = [f"{count} {'measured' if end == 'ok' else end}" for end, count in Counter(ends).items()]
    return f"This run did not finish. Its stages so far: {listed(counts) or 'none'}."


def provenance(run: RunRecord) -> str:
    """Return the GPU's own facts, as far as they are on record, the range of its clock, and who else used it."""
    found = run.environment
    if found is None or found.device != "cuda":
        return ""
    every = (sample for stage in run.stages for side in SIDES for sample in samples_of(stage.pairs, side))
    clocks = [sample.clock_mhz for sample in every if sample.clock_mhz]
    memory = found.device_memory_bytes
    facts = {
        f"compute capability {found.capability}": found.capability,
        f"{found.multiprocessors} multiprocessors": found.multiprocessors,
        held(memory): memory,
        f"power limit {significant(found.power_limit_watts or 0)} W": found.power_limit_watts,
        f"{found.celsius} °C at the start": found.celsius,
        f"SM clock {min(clocks, default=0)} to {max(clocks, default=0)} MHz in the samples": clocks,
        f"UUID with SHA-256 {(found.uuid_sha256 or '')[:16]}": found.uuid_sha256,
    }
    others = f"beside {'; '.join(map(clean, found.others_on_device))}" if found.others_on_device else "no other process"
    return ", ".join([*(text for text, known in facts.items() if known), f"{others} on it at the start"])


def samples_text(run: RunRecord) -> str:
    """Return how many samples the run took, from how many pictures, and what their labels are."""
    if run.reference is None:
        return ""
    sources = {clean(name) for name in run.reference.images[: run.reference.distinct]}
    count, words = len(run.reference.images), run.words
    shifted = f", {plural(len(sources), words.source)} and {words.moved} of {'it' if len(sources) == 1 else 'them'}"
    named, labels = sorted(sources), f"; labels: {clean(run.reference.labels)}" if run.reference.labels else ""
    named[NAMED:] = [f"{len(sources) - NAMED} more"] if len(sources) > NAMED else []
    return f"{words.counted(count)}{shifted if len(sources) < count else ''}: {listed(named)}{labels}"


def skipped(summary: RunSummary) -> str:
    """Return the stages that have no form here in one line, those of a reason together."""
    why: dict[str, list[str]] = defaultdict(list)
    for stage in summary.stages:
        if stage.stage.status == "skipped":
            why[clean(stage.stage.reason) or "no reason given"].append(method(stage.name))
    return "; ".join(f"{listed(names)} ({reason})" for reason, names in why.items())


def citation(run: RunRecord) -> str:
    """Return a line that names the run to a reader: what ran where and when, and the digest of its record."""
    found = run.environment
    commit = f", commit {found.commit[:12]}{' with changes' if found.dirty else ''}" if found and found.commit else ""
    samples = sha256(json.dumps(to_json([stage.pairs for stage in run.stages])).encode()).hexdigest()[:16]
    where = machine(run)
    return f"unet-ladder{commit}: {clean(run.command)}; {where.device}, {clean(run.started_at)[:10]}; samples {samples}"


def faults(summary: RunSummary) -> list[str]:
    """Return a line for every other stage that can't be ranked, with its reason."""
    lines = []
    for stage in summary.stages:
        record, reason = stage.stage, clean(stage.stage.reason)
        if record.status in NOT_WELL:
            refused = record.status == "inaccurate" and record.failure in REFUSED
            what = "was refused" if refused else NOT_WELL[record.status]
            what = "misses an accuracy limit" if record.failure == "accuracy limit" else what
            lines.append(f"{method(stage.name)} {what}: {reason or 'no reason given'}")
        elif not stage.ranked and record.status != "skipped":
            disagree = (warning.text for warning in stage.warnings if warning.code == CLOCKS_DISAGREE)
            why = reason or next(disagree, "no interleaved samples are on record")
            lines.append(f"{method(stage.name)} is {stage.status}: {why}")
    return lines


def all_warnings(summary: RunSummary) -> list[tuple[str, RunWarning]]:
    """Return every warning with whom it concerns, the gravest first; one that many stages share is given once."""
    same: dict[tuple[str, str], list[tuple[str, RunWarning]]] = defaultdict(list)
    for stage in summary.stages:
        for warning in stage.warnings:
            same[warning.code, warning.remedy].append((method(stage.name), warning))
    found = [("the run", warning) for warning in summary.warnings]
    for each in same.values():
        names = list(dict.fromkeys(name for name, _ in each))
        if len(names) < SHARED:
            found += each
            continue
        whose, warning = next((pair for pair in each if pair[0] == method(summary.ranking.winner or "")), each[0])
        found.append((few(names, NAMED), replace(warning, text=f"{whose}: {warning.text}")))
    return sorted(found, key=lambda pair: GRAVITY.index(pair[1].code))


def grave_warnings(summary: RunSummary) -> list[tuple[str, RunWarning]]:
    """Return doubts about all answers or times, and those about the answers of stages but the winner, each once."""
    own = {warning.code for warning in summary.winner.warnings} if summary.winner else set()
    grave = {*GRAVITY[: GRAVITY.index(CLOCKS_DISAGREE)]} - own
    of_run = [("the run", warning) for warning in summary.warnings if warning.code in {*grave, "unfair"}]
    firsts = [(stage.warnings[0], method(stage.name)) for stage in summary.stages if stage.warnings]
    whose = {found: [name for first, name in firsts if first == found] for found, _ in firsts if found.code in grave}
    return [*of_run, *((few(names, NAMED), warning) for warning, names in whose.items())]


def trust(summary: RunSummary) -> str:
    """Return the smallest difference that this run may claim."""
    pairs = len([pair for pair in summary.run.aa_pairs if pair.blocks])
    effect = share(summary.ranking.noise.least)
    if not pairs:
        return f"The baseline was not measured against itself; differences under {effect} are not claimed."
    control = f"the baseline against itself, {plural(pairs, 'pair')} in fresh processes"
    return f"Noise floor {effect} ({control}); smaller differences are not claimed."

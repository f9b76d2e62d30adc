"""One stage's own part of the page."""

import json
from collections import defaultdict

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.diagnostics import fault_text
from pipeline.records.run_record import EAGER, CompileFacts, StageRecord
from pipeline.report import answer, formatting, run_text
from pipeline.report.formatting import clean, held, interval, method, remedy, seconds, significant, tail, times, two
from pipeline.report.sections import accuracy, bottleneck, ladder, memory


def marks(summary: RunSummary) -> dict[int, str]:
    """Return the classes of the ladder's rows, by their places."""
    kinds = ["winner" if row.place == "winner" else "" if row.ranked else "out" for row in ladder.by_time(summary)]
    return dict(enumerate(kinds))


def gist(summary: RunSummary, stage: StageSummary) -> str:
    """Return what is shown while the stage's part is folded."""
    fast = f"{times(stage.ratio)} {method(summary.baseline)}" if stage.ratio and stage.ranked else ""
    fast += ", not resolved" if fast and stage.compared.outcome == "not resolved" else ""
    said = [fast, seconds(stage.pace) if stage.pace else "", clean(stage.stage.spec.adds)]
    return " · ".join(text for text in said if text)


def essentials(summary: RunSummary, stage: StageSummary) -> list[tuple[str, str]]:
    """Return name and text of what one reads of a stage first."""
    record, each = stage.stage, stage.joules_per_image
    idle = f"{two(record.energy.idle_watts)} W" if record.energy else ""
    kept = {True: ", kept in fp32", False: ""}
    faults = [f"{clean(fault_text(found))}{kept[found.kept]}" for found in record.precision_faults]
    reason = f"Reason for this limit: {record.spec.tolerance.reason}."
    asked = ", ".join(f"{key}={plain(value)}" for key, value in record.spec.options.items())
    latency, own, outside = "", stage.latency, stage.host_latency
    if own:
        latency = f"single calls: p50 {seconds(own.p50)}, p90 {seconds(own.p90)}, {tail(own)}"
        latency += f"; from host memory and back p50 {seconds(outside.p50)}, {tail(outside)}" if outside else ""
    setup, warm_up = "", record.warm_up
    if record.build_seconds is not None:
        setup = f"{seconds(record.build_seconds)} to build, {seconds(record.first_call_seconds)} for the first call"
    if setup and warm_up:
        end = "settle" if warm_up.steady else "warm up, still unsteady"
        setup += f", {plural(warm_up.calls, 'call')} in {seconds(warm_up.seconds)} to {end}"
    facts = [
        ("speed", _speed(summary, stage)),
        ("time", _time(summary, stage)),
        ("bottleneck", bottleneck.sentence(stage)),
        ("latency", latency),
        ("accuracy", f"{accuracy.right(stage)} {reason}" if record.accuracy else ""),
        ("accuracy limits", answer.limits(summary.run.config.accuracy, record)),
        ("half precision", " ".join(f"{text}." for text in faults)),
        ("calibrated on", accuracy.calibrated_on(record, stage.words)),
        ("memory", _memory(record)),
        ("energy", f"{significant(each)} J {stage.words.one}; the idle device draws {idle}" if each and idle else ""),
        ("set-up", setup),
        ("asked", asked),
        ("ran", record.description),
    ]
    return [(name, text) for name, text in facts if text]


def besides(stage: StageSummary) -> list[tuple[str, str]]:
    """Return name and text of a stage's memory and counters, and of what is unknown."""
    facts, seen = [("at the peak", memory.holders(stage))], stage.stage.explained.counted
    if seen:  # such as "3.10 GB read and 2.02 GB written, of 14.1 GB asked of the L2 cache"
        read, written, cache = map(formatting.gigabytes, (seen.read_bytes, seen.written_bytes, seen.cache_bytes))
        text = f"{read} GB read and {written} GB written, of {cache} GB asked of the L2 cache ({clean(seen.tool)})"
        same = "" if seen.alike == seen.kernels else f"; {seen.alike} of its {seen.kernels} kernels are the profile's"
        facts.insert(0, ("counted bytes", f"{text}{same}."))
    facts += [("unknown", run_text.note_text(note)) for note in stage.stage.explained.notes]
    return [(name, text) for name, text in facts if text]


def details(record: StageRecord) -> list[tuple[str, list[str]]]:
    """Return name and lines of what the stage records besides."""
    own = [(key.replace("_", " "), lines(value)) for key, value in record.details.items()]
    return [*compile_lines(record.compile_facts), *own]


def _speed(summary: RunSummary, stage: StageSummary) -> str:
    ratio, eager = stage.ratio, stage.eager_ratio
    if not stage.ranked or ratio is None:
        return ""
    said = [f"{times(ratio)} {interval(ratio)} {method(summary.baseline)}, {stage.compared.outcome}"]
    if summary.baseline != EAGER and eager:
        said.append(f"{times(eager)} {interval(eager)} {EAGER} fp32")
    return f"{'; '.join(said)}. {remedy(stage.compared.unresolved) if stage.compared.unresolved else ''}".strip()


def _time(summary: RunSummary, stage: StageSummary) -> str:
    if stage.seconds is None:
        return ""
    text = f"{seconds(stage.seconds.value)} per call, interleaved with {method(summary.baseline)}"
    if stage.sustained_seconds:
        text += f"; {seconds(stage.sustained_seconds)} at steady state"
    rate = f", {significant(stage.images_per_second)} {stage.words.samples}/s" if stage.images_per_second else ""
    return f"{text}{rate}{'' if stage.ranked else ' (not ranked)'}"


def _memory(record: StageRecord) -> str:
    """Return the memory that decides: the process on the GPU, the resident peak on a CPU."""
    memory = record.memory
    if memory is None:
        return ""
    if memory.allocated_peak_bytes is None:
        return f"{held(memory.host_peak_bytes)} of memory at the peak"
    return f"{held(memory.process_bytes)} of GPU memory" if memory.process_bytes else "GPU memory unknown"


def plain(value: object) -> str:
    """Return text as it is, and another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def compile_lines(facts: CompileFacts | None) -> list[tuple[str, list[str]]]:
    """Return the counts of a compilation by name; what wasn't counted is left out."""
    if facts is None:
        return []
    counted = {
        "graphs": facts.graphs, "graph breaks": facts.breaks, "graph break reasons": facts.graph_breaks,
        "recompiles": facts.recompiles, "recompile reasons": facts.recompile_reasons,
        "generated kernels": facts.generated_kernels, "cache bytes": facts.cache_bytes,
        "candidates measured": facts.candidates_measured,
    }  # fmt: skip
    return [(name, lines(value)) for name, value in counted.items() if value is not None]


def lines(value: object) -> list[str]:
    """Return a detail's value: one line for each entry, those with the same value together."""
    if not isinstance(value, dict):
        return [told(value)]
    alike: dict[str, list[str]] = defaultdict(list)
    for key, each in value.items():
        alike[told(each)].append(str(key))
    return [f"{', '.join(keys)}: {text}" for text, keys in alike.items()] or ["none"]


def told(value: object) -> str:
    """Return a detail in one line."""
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(told, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {told(each)}" for key, each in value.items())
    return plain(value)

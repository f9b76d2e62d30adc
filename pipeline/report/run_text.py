"""What every renderer says of a run besides its answer (`answer.py`): machine, warnings, what isn't well."""

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import PurePath

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.config.data_request import OWN_IMAGES, TENSORS, VOLUME, words_for_kind
from pipeline.errors import plural
from pipeline.records.run_record import RunRecord, RunWarning, StageRecord
from pipeline.report.formatting import (
    clean,
    listed,
    remedy,
    share,
    size,
)
from pipeline.stats.warnings import CLOCKS_DISAGREE

SHARED, NAMED = 3, 3  # stages with the same warning, from which it is given once, and how many of them are named
NAMED_PACKAGES = ("torch", "triton", "onnxruntime-gpu", "onnxruntime")
NOT_WELL = {"failed": "failed", "timeout": "took too long", "inaccurate": "gave a wrong answer", "skipped": "skipped"}
REFUSED = {"broken contract", "not as declared", "impossible", "wrong device"}  # although its answer may be right
NOT_ENOUGH = "isn't as accurate as was asked for"
CUSTOM = "custom"  # of the config that takes any class
LIBRARIES = ("smp", "monai", "nnunet", "torchvision")  # presets for many nets, which model.options choose among
LAPTOPS_NET = "unet_small"  # of the preset for CPUs, unless another is typed
NO_GPU = "its ratios say nothing of a GPU's"


@dataclass(frozen=True)
class Machine:
    """What gave the numbers, in a few words each."""

    device: str
    preset: str
    shape: str
    versions: str


def machine(run: RunRecord) -> Machine:
    """The device, the preset, the work and the versions of a run."""
    data, found = run.config.data, run.environment
    shape = f"{net_name(run)}, batch {data.batch_size}, {inputs_at(data.name, data.size, data.depth)}"
    preset = f"preset {run.config.preset}{of_a_cpu(run) if run.config.preset == 'cpu' else ''}"
    if found is None:
        return Machine("the machine was never described", preset, shape, "versions unknown")
    where = (
        found.device_name if found.device == "cuda" else f"CPU: {found.cpu_name}, {plural(found.cpu_threads, 'thread')}"
    )
    return Machine(where, preset, shape, _versions(run))


def of_a_cpu(run: RunRecord) -> str:
    """What the preset for CPUs made smaller, of what isn't the user's own."""
    own_net, own_images = run.config.model.name != LAPTOPS_NET, run.config.data.name not in OWN_IMAGES
    parts = (("net", own_net), (run.words.sample, own_images))
    smaller = " and ".join(part for part, own in parts if not own)
    return f": a smaller {smaller}, because no GPU was used; {NO_GPU}" if smaller else f": no GPU was used; {NO_GPU}"


def inputs_at(name: str, size: int | None, depth: int | None) -> str:
    """What the net is given and how large: "volumes at 64×128×128" of `data=volume` with planes of 128×128."""
    what = "tensors" if name == TENSORS else words_for_kind(name).samples
    if not size:
        return f"{what} at their own size"
    sides = [depth or size, size, size] if name == VOLUME else [size, size]
    return f"{what} at {'×'.join(map(str, sides))}"


def net_name(run: RunRecord) -> str:
    """The net's name; of a library's with the net of it that was chosen, of one only called "custom" its class."""
    model = run.config.model
    if model.file:
        return clean(PurePath(model.file).name)
    options = model.options
    encoder = f" ({options['encoder_name']})" if options.get("encoder_name") else ""
    if model.name != CUSTOM or not model.target:
        chosen = options.get("architecture") or options.get("net")
        return clean(f"{model.name} {chosen}{encoder}" if chosen and model.name in LIBRARIES else model.name) or "a net"
    return clean(f"{model.target}{encoder}")


def _versions(run: RunRecord) -> str:
    found = run.environment
    if found is None:
        return ""
    packages = [f"{name} {found.packages[name]}" for name in NAMED_PACKAGES if name in found.packages]
    libraries = [("CUDA", found.cuda), ("cuDNN", found.cudnn), ("driver", found.driver)]
    drivers = [f"{label} {version}" for label, version in libraries if version]
    variables = [clean(f"{name}={value}") for name, value in (found.variables or {}).items()]
    return ", ".join([f"Python {found.python}", *packages, *drivers, *variables])


def state(run: RunRecord) -> str:
    """Why the run is not the whole answer; empty when it is."""
    if run.finished:
        return ""
    done = plural(len(run.stages), "stage")
    return f"This run did not finish: {done} on record. Everything below holds for those alone."


def remedy_of(stage: StageSummary) -> str:
    """What would resolve a stage's ratio; empty where it is resolved."""
    return remedy(stage.compared.unresolved) if stage.compared.unresolved else ""


def samples_text(run: RunRecord) -> str:
    """How many samples the run took, from how many pictures, and what their labels are."""
    if run.reference is None:
        return ""
    sources = {clean(name) for name in run.reference.images[: run.reference.distinct]}
    count, words = len(run.reference.images), run.words
    shifted = f", {plural(len(sources), words.source)} and {words.moved} of {'it' if len(sources) == 1 else 'them'}"
    text = f"{words.counted(count)}{shifted if len(sources) < count else ''}: {listed(sorted(sources)[:NAMED])}"
    more = f" and {len(sources) - NAMED} more" if len(sources) > NAMED else ""
    return f"{text}{more}{f'; labels: {clean(run.reference.labels)}' if run.reference.labels else ''}"


def memory_text(stage: StageRecord) -> str:
    """The memory that decides: the process as the GPU sees it, the resident peak on a CPU."""
    memory = stage.memory
    if memory is None:
        return "memory not measured"
    if memory.allocated_peak_bytes is None:
        return f"{size(memory.host_peak_bytes)} of memory at the peak"
    return f"{size(memory.process_bytes)} of the device" if memory.process_bytes else "memory of the device unknown"


def unwell(summary: RunSummary) -> list[str]:
    """A line for every stage that can't be ranked, with its reason; those that were skipped come last."""
    return [*faults(summary), *skipped(summary)]


def skipped(summary: RunSummary) -> list[str]:
    """A line for every stage that has no form here, with the reason."""
    return _not_ranked([stage for stage in summary.stages if stage.stage.status == "skipped"])


def faults(summary: RunSummary) -> list[str]:
    """A line for every other stage that can't be ranked, with its reason."""
    return _not_ranked([stage for stage in summary.stages if stage.stage.status != "skipped"])


def _not_ranked(stages: list[StageSummary]) -> list[str]:
    lines = []
    for stage in stages:
        reason = clean(stage.stage.reason)
        if stage.stage.status in NOT_WELL:
            refused = stage.stage.status == "inaccurate" and stage.stage.failure in REFUSED
            what = "was refused" if refused else NOT_WELL[stage.stage.status]
            what = NOT_ENOUGH if stage.stage.failure == "accuracy limit" else what
            lines.append(f"{stage.name} {what}: {reason or 'no reason given'}")
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
    grouped = [
        [_together(each, summary.ranking.winner)] if len({name for name, _ in each}) >= SHARED else each
        for each in same.values()
    ]
    return [("the run", warning) for warning in summary.warnings] + [one for each in grouped for one in each]


def _together(each: list[tuple[str, RunWarning]], winner: str | None) -> tuple[str, RunWarning]:
    """A warning of many stages, with the winner's figures where it is one of them, else the first one's."""
    names = list(dict.fromkeys(name for name, _ in each))
    shown = names if len(names) <= NAMED + 1 else [*names[:NAMED], f"{len(names) - NAMED} more"]
    whose, warning = next((pair for pair in each if pair[0] == winner), each[0])
    return listed(shown), replace(warning, text=f"{whose}: {warning.text}")


def trust(summary: RunSummary) -> str:
    """The smallest difference that this run may claim."""
    pairs = len([pair for pair in summary.run.aa_pairs if pair.blocks])
    effect = share(summary.ranking.noise.least)
    if not pairs:
        return f"The baseline was not measured against itself; differences under {effect} are not claimed."
    control = f"{plural(pairs, 'pair')} of the baseline against itself in fresh processes (A/A)"
    return f"Differences under {effect} are not claimed: that is what {control} can tell apart."

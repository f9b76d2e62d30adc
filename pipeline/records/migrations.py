"""Turns the JSON of a record written by an older version into what this version reads, one version at a time.

Each step takes the whole document of one schema version and returns that of the next; no step looks further.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pipeline.devices.kinds import is_cuda
from pipeline.records import schema3_sentences as sentences
from pipeline.records.renamed import MEASURE_KNOBS
from pipeline.records.run_record import INDUCTOR, SCHEMA_VERSION
from pipeline.records.run_settings import settings_of

Document = dict[str, Any]

# Names of schema 3 and of schema 4.
RUN_FIELDS = {
    "ceilings": "measured_peaks",
    "twins": "aa_pairs",
    "pairings": "head_to_head",
    "cautions": "warnings",
}
STAGE_FIELDS = {
    "ran": "description",
    "facts": "details",
    "warm": "warm_up",
    "cautions": "warnings",
    "why": "diagnostics",
}
SAMPLE_FIELDS = {"redone": "retries"}
MOST_RETRIES = 3  # of a sample, where the config doesn't say
# Codes of the warnings that `pipeline.stats.warnings` computes on reading.
COMPUTED_WARNINGS = {
    "clocks differ",
    "clocks disagree",
    "drift",
    "not at rest",
    "outliers",
    "processes alternated",
    "reference in doubt",
    "shared device",
    "slower at full load",
    "throttled",
    "unfair",
    "unsteady",
}


def migrated(document: Document) -> Document:
    """The document in this version's schema.

    Raises:
        KeyError: its version is none that this program reads.
    """
    while (version := document["schema_version"]) != SCHEMA_VERSION:
        document = STEPS[version](document) | {"schema_version": version + 1}
    return document


def renamed(part: Document, names: Mapping[str, str]) -> Document:
    """The same object with its keys renamed."""
    return {names.get(key, key): value for key, value in part.items()}


def unchanged(document: Document) -> Document:
    """Fields that a version added have defaults: an older document is read as having none of them."""
    return document


def from_3(document: Document) -> Document:
    """The field's usual names, and figures as data in place of sentences."""
    run = renamed(document, RUN_FIELDS)
    config = run["config"]
    if isinstance(config.get("measure"), dict):
        config = {**config, "measure": renamed(config["measure"], MEASURE_KNOBS)}
    most_retries = (config.get("measure") or {}).get("most_retries", MOST_RETRIES)
    pairs = {name: [_pair(pair, most_retries) for pair in run.get(name, [])] for name in ("aa_pairs", "head_to_head")}
    layers = [layer["name"] for layer in (run.get("reference") or {}).get("layers") or []]
    on_gpu = is_cuda((run.get("environment") or {}).get("device", ""))
    return {
        **run,
        **pairs,
        "config": config,
        "settings": msgspec.to_builtins(settings_of(config)),
        "warnings": _warnings(run),
        "stages": [_stage(stage, layers, most_retries, on_gpu) for stage in run.get("stages", [])],
    }


def _stage(old: Document, layers: list[str], most_retries: int, on_gpu: bool) -> Document:
    stage = renamed(old, STAGE_FIELDS)
    stage = {**stage, "details": stage.get("details") or {}}
    facts, details = sentences.compile_facts(stage["details"])
    why = stage.get("diagnostics")
    return {
        **stage,
        "execution": sentences.execution(stage, on_gpu),
        "failure": sentences.failure(stage["status"], str(stage.get("reason") or "")),
        "compile_facts": facts,
        "details": details,
        "pairs": [_pair(pair, most_retries) for pair in stage.get("pairs", [])],
        "diagnostics": sentences.diagnostics(why, layers) if why else None,
        "warnings": _warnings(stage),
    }


def _warnings(part: Document) -> list[Document]:
    """Those that a record keeps; the others are computed from its samples, by today's rules and in today's words."""
    found = [sentences.warning(old) for old in part.get("warnings", [])]
    return [each for each in found if each["code"] not in COMPUTED_WARNINGS]


def _pair(pair: Document, most_retries: int) -> Document:
    return {**pair, "blocks": [_block(block, most_retries) for block in pair["blocks"]]}


def _block(block: Document, most_retries: int) -> Document:
    sides = {side: [_sample(sample, most_retries) for sample in block[side]] for side in ("baseline", "stage")}
    return {**block, **sides}


def _sample(old: Document, most_retries: int) -> Document:
    """One retry too many said that the last one, too, was disturbed."""
    sample = renamed(old, SAMPLE_FIELDS)
    retries = sample.get("retries", 0)
    return {**sample, "retries": min(retries, most_retries), "disturbed": retries > most_retries}


def from_4(document: Document) -> Document:
    """The second baseline was always autocast, and is known by its name."""
    return {key: value for key, value in document.items() if key != "second_baseline"}


def from_9(document: Document) -> Document:
    """What names and options told is data."""
    stages = [_stage_of_9(stage, is_cuda(_device(document))) for stage in document["stages"]]
    return {**document, "reference": _reference_of_9(document), "stages": stages}


def _device(document: Document) -> str:
    return str((document.get("environment") or {}).get("device", "cpu"))


def _reference_of_9(document: Document) -> Document | None:
    """The input's rank was known from the kind of the data alone: volumes, or images; of tensors it wasn't kept.

    Images that were rolled, or repeated, came after all others, and those that were rolled were called so.
    """
    reference, kind = document.get("reference"), document.get("settings", {}).get("data", {}).get("name")
    if reference is None:
        return None
    dims = {"volume": 3, "tensors": None}.get(kind, 2)
    distinct = len({name.split(", rolled")[0] for name in reference["images"]})
    return {**reference, "spatial_dims": dims, "distinct": distinct}


def _stage_of_9(stage: Document, on_gpu: bool) -> Document:
    """Who was asked to search stood in the stages' own options; a place's kind was how its name began."""
    options, execution, diagnostics = stage.get("options", {}), stage.get("execution"), stage.get("diagnostics")
    asked: list[Document] = []
    if on_gpu and options.get("cudnn_benchmark") is True:
        asked.append({"searcher": "cuDNN"})
    if on_gpu and options.get("algo_search"):
        asked.append({"searcher": "cuDNN for ONNX Runtime", "method": str(options["algo_search"]).lower()})
    compiled = (execution or {}).get("provider") == INDUCTOR
    if compiled and str(options.get("mode", "")).startswith("max-autotune"):
        asked.append({"searcher": "Inductor"})
    placed = {"layout": [_placed(change) for change in diagnostics.get("layout", [])]} if diagnostics else {}
    return {**stage, "searches_asked": asked, "diagnostics": {**diagnostics, **placed} if diagnostics else None}


def _placed(change: Document) -> Document:
    where, source = change["where"], change["source"]
    if where is None:
        return change
    if where.split(" ")[0] in ("before", "between", "after"):
        return {**change, "where_kind": "gap"}
    return {**change, "where_kind": {"trace": "layer", "generated code": "operators", "ONNX graph": "node"}[source]}


STEPS: dict[int, Callable[[Document], Document]] = {
    1: unchanged,
    2: unchanged,
    3: from_3,
    4: from_4,
    5: unchanged,
    6: unchanged,
    7: unchanged,
    8: unchanged,
    9: from_9,
    10: unchanged,
    11: unchanged,
    12: unchanged,
    13: unchanged,
    14: unchanged,
}

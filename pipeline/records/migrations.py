"""Turns the JSON of a record written by an older version into what this version reads, one version at a time.

Each step takes the whole document of one schema version and returns that of the next; no step looks further.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.records.run_record import SCHEMA_VERSION

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
MEASURE_KNOBS = {
    "gpu_slice_seconds": "gpu_sample_seconds",
    "cpu_slice_seconds": "cpu_sample_seconds",
    "least_calls": "min_calls",
    "settling_calls": "sample_warmup_calls",
    "most_redone": "most_retries",
    "warm_least_calls": "warmup_min_calls",
    "warm_least_seconds": "warmup_min_seconds",
    "warm_window_seconds": "warmup_window_seconds",
    "warm_tolerance": "warmup_tolerance",
    "warm_limit_seconds": "warmup_limit_seconds",
    "looks": "interim_analyses",
    "turns_seconds": "sampling_seconds",
    "twin_pairs": "aa_pairs",
    "twin_blocks": "aa_blocks",
    "launches": "trials",
    "pairings": "head_to_head",
    "ceilings": "measured_peaks",
    "ceilings_limit_seconds": "peaks_limit_seconds",
    "warm_phase_limit_seconds": "warmup_phase_limit_seconds",
    "slice_limit_seconds": "sample_limit_seconds",
    "series_limit_seconds": "latency_limit_seconds",
}


def migrated(document: Document) -> Document:
    """The document in this version's schema.

    Raises:
        KeyError: its version is none that this program reads.
    """
    while (version := document["schema_version"]) != SCHEMA_VERSION:
        document = STEPS[version](document) | {"schema_version": version + 1}
    return document


def renamed(part: Mapping[str, Any], names: Mapping[str, str]) -> Document:
    """The same object with its keys renamed."""
    return {names.get(key, key): value for key, value in part.items()}


def unchanged(document: Document) -> Document:
    """Fields that a version added have defaults: an older document is read as having none of them."""
    return document


def from_3(document: Document) -> Document:
    """The field's usual names."""
    run = renamed(document, RUN_FIELDS)
    config = run["config"]
    if isinstance(config.get("measure"), dict):
        config = {**config, "measure": renamed(config["measure"], MEASURE_KNOBS)}
    pairs = {name: [_pair(pair) for pair in run.get(name, [])] for name in ("aa_pairs", "head_to_head")}
    return {**run, **pairs, "config": config, "stages": [_stage(stage) for stage in run.get("stages", [])]}


def _stage(stage: Mapping[str, Any]) -> Document:
    found = renamed(stage, STAGE_FIELDS)
    return {**found, "pairs": [_pair(pair) for pair in found.get("pairs", [])]}


def _pair(pair: Mapping[str, Any]) -> Document:
    return {**pair, "blocks": [_block(block) for block in pair["blocks"]]}


def _block(block: Mapping[str, Any]) -> Document:
    sides = {side: [renamed(sample, SAMPLE_FIELDS) for sample in block[side]] for side in ("baseline", "stage")}
    return {**block, **sides}


STEPS: dict[int, Callable[[Document], Document]] = {1: unchanged, 2: unchanged, 3: from_3}

"""What older versions called keys and files of the configuration: recorded commands still name them so."""

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
FILES = {  # of conf/, by their group
    "model": {
        "regime_compute": "bottleneck_compute",
        "regime_memory": "bottleneck_memory",
        "regime_overhead": "bottleneck_overhead",
    },
}


def of_today(word: str) -> str:
    """A word of a command, such as `model=regime_compute`, by the names that this version has."""
    key, equals, value = word.partition("=")
    group, dot, name = key.rpartition(".")
    if group.lstrip("+~") == "measure":
        key = f"{group}{dot}{MEASURE_KNOBS.get(name, name)}"
    return f"{key}{equals}{FILES.get(key, {}).get(value, value)}"

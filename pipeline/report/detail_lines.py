"""What a stage records besides, in lines that a person reads."""

import json
from collections import defaultdict

from pipeline.records.run_record import CompileFacts

NONE = "none"


def lines(value: object) -> list[str]:
    """A detail's value: one line for each entry, those with the same value together."""
    if not isinstance(value, dict):
        return [told(value)]
    alike: dict[str, list[str]] = defaultdict(list)
    for key, part in value.items():
        alike[told(part)].append(str(key))
    return [f"{', '.join(keys)}: {text}" for text, keys in alike.items()] or [NONE]


def told(value: object) -> str:
    """In one line."""
    if value is None or value in ("", [], {}):
        return NONE
    if isinstance(value, list):
        return ", ".join(map(told, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {told(part)}" for key, part in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def compile_lines(facts: CompileFacts | None) -> list[tuple[str, list[str]]]:
    """What compiling came to, by name; what nobody counted is left out."""
    if facts is None:
        return []
    counted = {
        "graphs": facts.graphs,
        "graph breaks": facts.breaks,
        "graph break reasons": facts.graph_breaks,
        "recompiles": facts.recompiles,
        "recompile reasons": facts.recompile_reasons,
        "generated kernels": facts.generated_kernels,
        "cache bytes": facts.cache_bytes,
        "candidates measured": facts.candidates_measured,
    }
    return [(name, lines(value)) for name, value in counted.items() if value is not None]

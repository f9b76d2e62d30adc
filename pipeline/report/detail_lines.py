"""What a stage notes besides, in lines that a person reads."""

import json
from collections import defaultdict
from typing import Any

NONE = "none"


def lines(value: Any) -> list[str]:
    """A fact's value: an entry a line, those with the same value together."""
    if not isinstance(value, dict):
        return [told(value)]
    alike: dict[str, list[str]] = defaultdict(list)
    for key, part in value.items():
        alike[told(part)].append(str(key))
    return [f"{', '.join(keys)}: {text}" for text, keys in alike.items()] or [NONE]


def told(value: Any) -> str:
    """In one line."""
    if value is None or value in ("", [], {}):
        return NONE
    if isinstance(value, list):
        return ", ".join(map(told, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {told(part)}" for key, part in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

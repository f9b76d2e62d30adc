"""`python -m tests.house.json_schema > docs/results.schema.json`: the JSON Schema of results.json."""

import json
import sys
from typing import Any

import msgspec

from pipeline.records.run_record import SCHEMA_VERSION, RunRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of a record; NaN and infinities, which JSON lacks, are null."""
    schema = msgspec.json.schema(RunRecord)
    return {"$schema": DIALECT, "title": f"results.json, schema version {SCHEMA_VERSION}", **_tidied(schema)}


def _tidied(schema: object) -> Any:
    """Return the schema with null beside every plain number, and without the docstrings."""
    if isinstance(schema, list):
        return [_tidied(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _tidied(part) for key, part in schema.items() if key != "description"}
    return found | {"type": ["number", "null"]} if found.get("type") == "number" else found


def text() -> str:
    """Return the schema as text."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())

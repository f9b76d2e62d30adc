"""`python -m pipeline.records.json_schema > docs/results.schema.json`: the JSON Schema of results.json."""

import json
import sys

import msgspec

from pipeline.records.run_record import SCHEMA_VERSION, RunRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, object]:
    """The JSON Schema of a run's record, in this version; NaN and infinities are beyond JSON and stand as NaN there."""
    schema = msgspec.json.schema(RunRecord)
    return {"$schema": DIALECT, "title": f"results.json, schema version {SCHEMA_VERSION}", **schema}


def text() -> str:
    """The schema as it is committed."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())

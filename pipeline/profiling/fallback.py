"""Whether what torch.compile was asked to compile runs compiled: Dynamo goes on eagerly where it gives up."""

import sys

from pipeline.records.places import without_places

DYNAMO = "torch._dynamo.utils"  # holds the metrics; only a process that compiles has it


def gave_up() -> str:
    """Why compiled calls run eagerly in this process, in one line; empty where they don't.

    Dynamo gives up for good where a frame has been compiled `recompile_limit` times, and where it could compile none
    (with `suppress_errors`).
    """
    if DYNAMO not in sys.modules:
        return ""
    entries = sys.modules[DYNAMO].get_compilation_metrics()
    for entry in entries:
        said = f"{entry.fail_type} {entry.fail_reason}".lower()
        if "recompile" in said and "limit" in said:
            said = without_places(str(entry.recompile_reason or "nothing says why"))
            cause = said.splitlines()[0].partition("#")[0].strip()
            return f"fell back to eager: Dynamo reached its recompile limit ({cause})"
    if entries and all(entry.fail_type for entry in entries):
        return f"fell back to eager: Dynamo compiled none of {len(entries)} frames ({entries[-1].fail_type})"
    return ""

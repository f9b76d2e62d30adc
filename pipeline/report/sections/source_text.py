"""Where figures come from, in words."""

from pipeline.analysis.traffic import Moved, Source
from pipeline.records.diagnostics import Diagnostics, LayersSource, MemoryTimeline, Note, Watched
from pipeline.report.formatting import clean

COUNTED_BY: dict[Source | None, str] = {
    "hardware counters": "hardware counters",
    "operators": "the inputs and outputs of torch's operators, each once",
    "Inductor": "Inductor's count of what its kernels read and write",
    "rewritten graph": "what each operation of the rewritten graph reads and writes",
    "layers": "at least: each layer's input and output once",
    "computing layers": "at least: the layers with FLOPs, the rest fused",
    None: "unknown",
}
LAYERS_FROM: dict[LayersSource | None, str] = {
    "profile": "the stage's own profile",
    "uncaptured": "the same kernels launched one by one",
    "layer order": "the order of the eager net's layers, which no runtime can change; what follows one counts for it",
    None: "nothing on record",
}
WATCHED: dict[Watched, str] = {
    "layers": "Allocator statistics before and after every layer",
    "allocations": "Every allocation that torch's allocator recorded",
    "nothing allocated": "torch's allocator recorded no allocation",
    "ends": "Beginning, peak and end alone",
}


def bytes_text(moved: Moved) -> str:
    """Who counted the bytes, or why they are unknown."""
    if moved.source is None:
        return f"unknown: {clean(moved.unknown) or 'nothing on record'}"
    return COUNTED_BY[moved.source]


def layers_text(diagnostics: Diagnostics | None) -> str:
    """How a kernel's layer was determined."""
    return LAYERS_FROM[diagnostics.layers_source if diagnostics else None]


def note_text(note: Note) -> str:
    """A note with its topic."""
    return f"{note.topic}: {clean(note.text)}"


def watched_text(timeline: MemoryTimeline) -> str:
    """Which call a memory timeline is of and how it was watched."""
    call = ", of the same kernels launched one by one" if timeline.call == "uncaptured" else ""
    return f"{WATCHED[timeline.watched]}{call}"

"""What records of schema 3 and older say in sentences, as the fields that hold it since schema 4.

Only the migration reads sentences; whatever is written today is data.
"""

import re
from typing import Any

Document = dict[str, Any]

PRECISIONS = ("fp8", "bf16", "fp16", "tf32", "fp32")
LAYERS_SOURCES = {"its own profile": "profile", "the same kernels launched one by one": "uncaptured"}
BYTES_SOURCES = {
    "the inputs and outputs of torch's operators, each once": "operators",
    "Inductor's count of what its kernels read and write": "Inductor",
    "what each operation of the rewritten graph reads and writes": "rewritten graph",
    "hardware counters": "hardware counters",
}
SEARCHES = {
    "cuDNN: problems": ("cuDNN", "problems"),
    "Inductor's templates: problems": ("Inductor's templates", "problems"),
    "Inductor: candidates timed": ("Inductor", "candidates"),
    "own kernels: candidates timed": ("own kernels", "candidates"),
}
CAPTURING_MODES = ("reduce-overhead", "max-autotune")  # of Inductor
ONNX_RUNTIME_SEARCH = re.compile(r"cuDNN for ONNX Runtime, (?P<method>\w+): nodes")
NOTES = {  # how a note begins, and its topic
    "layers": "layers",
    "fusion": "fusion",
    "time split": "time split",
    "growth with the batch": "scaling",
    "growth with the image": "scaling",
    "layout": "layout",
    "memory timeline": "memory timeline",
    "memory": "memory timeline",
    "hardware counters": "hardware counters",
    "searches": "searches",
}
NOTE_CODES = {  # what a note says, and its code; anything else quotes an error
    "the replayed kernels aren't those": "kernels differ",
    "on a CPU this runtime doesn't say": "hidden layers",
    "this runtime doesn't say": "hidden layers",
    "could run in another order": "ambiguous order",
    "torch keeps no books": "no allocator statistics",
}
WARNING_CODES = {"slower alone": "slower at full load", "pairing failed": "head-to-head failed"}
PHASES = ("latencies", "profile", "explain", "export")
WATCHED = {
    "read before and after every layer": "layers",
    "every change that torch's allocator recorded": "allocations",
    "torch's allocator gave out nothing": "nothing allocated",
    "its beginning, its peak and its end alone": "ends",
}
MIB = 2**20
HOLDERS_NAMED = 6  # at most, in schema 3
AFTER_A_LAYER = 3  # a reading's place modulo four, in a timeline that was read at every layer


def execution(stage: Document, on_gpu: bool) -> Document | None:
    """`Execution` by the stage's description and options; None where nothing ran."""
    said = str(stage.get("description") or "")
    if not said:
        return None
    precision = _precision(said)
    kept = stage["details"].get("kept_fp16") or []
    own = re.search(r"(\d+) layers by own kernels", said)
    layout = "NHWC" if own or re.search("channels_last|NHWC", said) else "NCHW" if "contiguous" in said else None
    return {
        "precision": precision,
        "layer_precision": dict.fromkeys(kept, "fp16") if precision == "fp8" else {},
        "layout": layout,
        "provider": _provider(said),
        "captured": "CUDA graph" in said or (on_gpu and stage["options"].get("mode") in CAPTURING_MODES),
        "fuses": None if "frozen" in said else bool(own) or "Inductor" in said or "ExecutionProvider" in said,
        "own_kernels": int(own[1]) if own else 0,
        "unknown": "" if precision and layout else f"schema 3 kept what ran as a sentence only: {said}",
    }


def _precision(said: str) -> str | None:
    """The precision that a description names first: "fp32 with TF32" is tf32, "fp16 (no layer reads fp8)" is fp16."""
    text = said.lower().replace("tf32 off", "").replace("fp32 with tf32", "tf32")
    named = [name for name in PRECISIONS if name in text]
    return min(named, key=text.index) if named else None


def _provider(said: str) -> str:
    if provider := re.search(r"\w+ExecutionProvider", said):
        return f"ONNX Runtime {provider[0]}"
    if "own kernels" in said:
        return "own kernels"
    return "Inductor" if "Inductor" in said else "TorchScript" if "frozen" in said else "PyTorch eager"


def failure(status: str, reason: str) -> str | None:
    """The `FailureKind` of a stage that isn't ok."""
    if status == "failed":
        if "out of memory" in reason.lower() and "SIGKILL" not in reason:
            return "out of memory"
        if "SIGKILL" in reason:
            return "killed"
        return "died" if reason.startswith("died in") else "error"
    return {"timeout": "timeout", "inaccurate": "wrong answer", "skipped": "unsupported"}.get(status)


def compile_facts(details: Document) -> tuple[Document | None, Document]:
    """`CompileFacts` from the details that held them, and the rest of the details."""
    names = {"graph_break_reasons": "graph_breaks"}
    kept = ("graphs", "graph_break_reasons", "recompile_reasons", "generated_kernels", "cache_bytes")
    found = {names.get(key, key): details[key] for key in (*kept, "candidates_measured") if key in details}
    moved = {*kept, "candidates_measured", "graph_breaks", "recompiles"}
    return found or None, {key: part for key, part in details.items() if key not in moved}


def diagnostics(why: Document, layers: list[str]) -> Document:
    """`Diagnostics` of schema 4.

    Args:
        why: schema 3's.
        layers: of the net, in the order in which they run.
    """
    known = {key: part for key, part in why.items() if key != "layers_from"}
    return {
        **known,
        "layers_source": _layers_source(str(why.get("layers_from") or "")),
        "layout": [{**change, "where": _where(change["where"])} for change in why.get("layout") or []],
        "fusion": _fusion(why.get("fusion")),
        "timeline": _timeline(why.get("timeline"), layers),
        "searches": [_search(who, count) for who, count in (why.get("searches") or {}).items()],
        "notes": [_note(text) for text in why.get("notes") or []],
    }


def _layers_source(said: str) -> str | None:
    return "layer order" if said.startswith("the order of the eager net's layers") else LAYERS_SOURCES.get(said)


def _where(said: str) -> str | None:
    return None if said == "unknown" else said


def _fusion(fusion: Document | None) -> Document | None:
    if fusion is None:
        return None
    said = str(fusion["bytes_from"])
    known = {key: part for key, part in fusion.items() if key != "bytes_from"}
    unknown = "" if said in BYTES_SOURCES else said.removeprefix("unknown: ")
    return {**known, "bytes_source": BYTES_SOURCES.get(said), "bytes_unknown": unknown}


def _search(who: str, count: int) -> Document:
    if found := ONNX_RUNTIME_SEARCH.fullmatch(who):
        return {"searcher": "cuDNN for ONNX Runtime", "unit": "nodes", "count": count, "method": found["method"]}
    searcher, unit = SEARCHES[who]
    return {"searcher": searcher, "unit": unit, "count": count, "method": None}


def _note(said: str) -> Document:
    begin = next((begin for begin in sorted(NOTES, key=len, reverse=True) if said.startswith(begin)), "")
    topic = NOTES.get(begin, "layers")
    text = said.removeprefix(begin).removeprefix(":").strip()
    failed = "not read" if topic == "hardware counters" else "failed"
    code = next((code for part, code in NOTE_CODES.items() if part in said), failed)
    return {"topic": topic, "code": code, "text": text}


def _timeline(timeline: Document | None, layers: list[str]) -> Document | None:
    if timeline is None:
        return None
    said = str(timeline.get("source") or "")
    by_layer = timeline["weights_bytes"] is not None
    watched = next((word for part, word in WATCHED.items() if part in said), "layers" if by_layer else "ends")
    holders = [_holder(text) for text in timeline.get("peak_holders") or []]
    gone = ("source", "replayed", "peak_holders")
    return {
        **{key: part for key, part in timeline.items() if key not in gone},
        "peak_layer": _peak_layer(timeline["allocated_bytes"], holders, layers),
        "holders": holders,
        "holders_left_out": None if len(holders) >= HOLDERS_NAMED else 0,
        "call": "uncaptured" if timeline.get("replayed") else "own",
        "watched": watched,
    }


def _holder(said: str) -> Document:
    """Of such as "encoder.bn1, encoder.relu: 128.0 MiB"."""
    names, _, size = said.rpartition(": ")
    return {"layers": names.split(", "), "size_bytes": round(float(size.removesuffix(" MiB")) * MIB)}


def _peak_layer(amounts: list[int], holders: list[Document], layers: list[str]) -> str | None:
    """The layer that ran at the peak: of those whose outputs were alive there, the last in the net's order.

    After the first reading there are four to a layer, the most since the last one and what stands: both before it and
    both after it. Only the third holds what the layer itself asked for.
    """
    at = max(range(len(amounts)), key=amounts.__getitem__)
    if at % 4 != AFTER_A_LAYER or len(holders) >= HOLDERS_NAMED:
        return None
    names = [name for holder in holders for name in holder["layers"]]
    return next((layer for layer in reversed(layers) if layer in names), None)


def warning(old: Document) -> Document:
    """A `RunWarning` with its code."""
    name, text = str(old["name"]), str(old["text"])
    phase = name.removesuffix(" failed")
    if phase in PHASES:
        return {"code": "phase failed", "text": f"{phase}: {text}", "remedy": old["remedy"]}
    return {"code": WARNING_CODES.get(name, name), "text": text, "remedy": old["remedy"]}

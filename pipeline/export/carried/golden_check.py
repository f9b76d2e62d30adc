"""Compare this bundle's answers with the exported ones: `python -I load.py --check` prints JSON, exit code 0 or 1.

The check also tells the seconds from the start of loading to the first answer, and the memory that the process then
holds. `--batches FOLDER` writes the answers to other batches as fp64 beside their files. `--time SECONDS` adds the time
of a call, and of the path from images in host memory to masks there.
"""

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TYPES = {"F32": "float32", "U8": "uint8", "U16": "uint16", "I64": "int64", "BOOL": "bool"}  # by safetensors' names
FURTHER = "further_batch_"  # before the number of a further input
STRETCHES = 10
# Allowed distance of each batch, as a share of the golden one's: that of dynamic axes holds an image twice.
SHARES = (1.0, 2.0)
NORMALISED_ALIKE = 1e-4  # sums of a z-score may have another order

Loader = Mapping[str, Any]  # names that load.py defines


def seconds(word: str) -> float:
    """Parse a finite number above 0."""
    if not 0 < (found := float(word)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{word}: expected a number of seconds above 0")
    return found


def main(loader: Loader) -> int:
    """Return the exit code; `loader` holds the names that load.py defines."""
    parser = argparse.ArgumentParser(prog="load.py")
    parser.add_argument("--check", action="store_true", help="compare with the golden answers")
    parser.add_argument("--batches", type=Path, metavar="FOLDER", help="write the answers to its files")
    parser.add_argument("--time", type=seconds, default=0.0, metavar="SECONDS", help="time calls for so long")
    asked = parser.parse_args()
    golden, began = tensors(loader, loader["HERE"] / "golden.safetensors"), time.perf_counter()
    run = loader["load"]()
    logits = run(*inputs_of(golden))
    loader["wait"]()
    taken = time.perf_counter() - began
    dtype = str(logits.dtype).removeprefix("torch.")
    found: dict[str, object] = {"shape": list(logits.shape), "dtype": dtype}
    if asked.check:
        found["service"] = service(loader, taken)
    exact = loader["exact"](logits)
    for path in sorted(asked.batches.glob("*.safetensors")) if asked.batches else ():
        answer = run(*inputs_of(tensors(loader, path)))
        path.with_suffix(".bin").write_bytes(content_of(loader["exact"](answer)))
    if asked.check:
        found |= compared(loader, run, golden, exact) | {"finite": finite(loader, run, *inputs_of(golden))}
    if asked.time:
        found["milliseconds"] = 1e3 * seconds_per_call(lambda: run(*inputs_of(golden)), loader["wait"], asked.time)
        if "images" in golden and is_of_masks(loader["CONTRACT"]):
            there = loader["on_the_host"]
            images = there(golden["images"])
            path_seconds = seconds_per_call(lambda: there(loader["masks"](run, images)), loader["wait"], asked.time)
            found["path_milliseconds"] = 1e3 * path_seconds
    sys.stdout.write(f"{json.dumps(found)}\n")
    return 0 if found.get("right", True) else 1


def service(loader: Loader, load_seconds: float) -> dict[str, float | None]:
    """Return the seconds to the first answer and the bytes that this process holds; None where nobody counts them."""
    statistics_of, resident = Path("/proc/self/statm"), None
    if statistics_of.exists():
        resident = int(statistics_of.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    on_gpu = loader["CONTRACT"]["measured"]["device"] == "cuda"
    return {
        "load_seconds": load_seconds,
        "host_bytes": resident,
        "reserved_bytes": loader["reserved_bytes"](),
        "device_bytes": device_bytes() if on_gpu else None,
    }


def device_bytes() -> int | None:
    """Return the GPU memory of this process by nvidia-smi; None where it isn't told."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        rows = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    own = (row.split(",")[1].strip() for row in rows if row.split(",")[0].strip() == str(os.getpid()))
    return sum(int(mebibytes) for mebibytes in own if mebibytes.isdigit()) * 2**20 or None


def content_of(exact: Any) -> bytes:
    """Return the bytes of an array, or of a contiguous tensor on the CPU, of which bytes() takes microseconds each."""
    if hasattr(exact, "tobytes"):
        return bytes(exact.tobytes())
    return ctypes.string_at(exact.data_ptr(), exact.numel() * exact.element_size())


def inputs_of(golden: Mapping[str, Any]) -> list[Any]:
    """Return the golden batch and the network's further inputs, in order."""
    further = [name for name in golden if name.startswith(FURTHER)]
    return [golden["batch"], *(golden[f"{FURTHER}{number}"] for number in range(len(further)))]


def finite(loader: Loader, run: Callable[..., Any], first: Any, *others: Any) -> bool:
    """Return whether the answers to a constant first input, of 0 and of its largest value, hold no NaN or infinity."""
    answers = (loader["exact"](run(part, *others)) for part in (first * 0, first * 0 + first.max()))
    return all(bool((abs(answer) < math.inf).all()) for answer in answers)


def compared(loader: Loader, run: Callable[..., Any], golden: Mapping[str, Any], logits: Any) -> dict[str, object]:
    """Return the distances of logits or classes from the fp32 network's, and from the exported answer."""
    contract, classes = loader["CONTRACT"], loader["classes"]
    masks = is_of_masks(contract)
    pairs = [(logits, golden["reference"])]
    if "other_batch" in golden:
        pairs.append((loader["exact"](run(golden["other_batch"])), golden["other_reference"]))
    off, flipped = zip(
        *(distances(classes if masks else None, one, loader["exact"](other)) for one, other in pairs), strict=True
    )
    allowed = contract.get("golden") or contract["tolerance"]
    judged = contract["masks_judged"] or contract["classes_out"]
    found: dict[str, object] = {"relative_l2": max(off)}
    right = all(part <= share * allowed["relative_l2"] for share, part in zip(SHARES, off, strict=False))
    if masks:
        found["flipped_share"] = max(flipped)
    if "images" in golden:
        pair = loader["prepare"](golden["images"]), golden["batch"]
        found["normalisation"] = apart = relative_l2(*(loader["exact"](part) for part in pair))
        right = right and apart <= NORMALISED_ALIKE
    moved = any(part > share * allowed["flipped_share"] for share, part in zip(SHARES, flipped, strict=False))
    found["right"] = bool(right and not (judged and moved))
    if "logits" in golden:
        before = loader["exact"](golden["logits"])
        found["same_bits"] = bool((logits == before).all())
        if masks:
            found["masks_moved"] = int((classes(logits) != classes(before)).sum())
    return found


def is_of_masks(contract: Mapping[str, object]) -> bool:
    """Return whether the answer holds classes, or logits of classes."""
    return bool(contract.get("task", "segmentation") == "segmentation")


def distances(classes: Callable[..., Any] | None, answer: Any, logits: Any) -> tuple[float, float]:
    """Return the relative L2 of an answer in fp64, 0 for classes, and the share of pixels whose class differs.

    Without `classes` the answer holds values of any shape, and the share is 0.
    """
    of_classes = classes is not None and answer.ndim == logits.ndim - 1
    expected = classes(logits) if classes and of_classes else logits
    if tuple(answer.shape) != tuple(expected.shape):
        raise ValueError(f"an answer of shape {list(answer.shape)}, the golden one has {list(expected.shape)}")
    off = 0.0 if of_classes else relative_l2(answer, logits)
    if classes is None:
        return off, 0.0
    differ = classes(answer) != classes(logits)
    return off, int(differ.sum()) / math.prod(differ.shape)


def relative_l2(one: Any, other: Any) -> float:
    """Return the relative L2 of two fp64 arrays of one shape; infinite for NaN."""
    off = float(((one - other) ** 2).sum() / (other**2).sum()) ** 0.5
    return math.inf if math.isnan(off) else off


def seconds_per_call(call: Callable[[], object], wait: Callable[[], None], seconds: float) -> float:
    """Return the median time of a call in ten stretches, each ended by `wait`; a third of the time warms up."""
    started, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() - started < seconds / 3:
        call()
        wait()
        calls += 1
    each, stretches = max(1, calls // 5), []
    for _ in range(STRETCHES):
        before = time.perf_counter()
        for _ in range(each):
            call()
        wait()
        stretches.append((time.perf_counter() - before) / each)
    return statistics.median(stretches)


def tensors(loader: Loader, path: Path) -> dict[str, Any]:
    """Read the arrays of a safetensors file by name: 8 bytes of length, a header of JSON, and raw values."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {
        name: loader["array"](
            content[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]],
            TYPES[entry["dtype"]],
            entry["shape"],
        )
        for name, entry in header.items()
    }

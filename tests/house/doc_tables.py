"""Computes the tables of docs again, from the raw samples that lie beside them, with nothing of the program.

    python -m tests.house.doc_tables

A table is found by its page and heading. Its rows are given in the page's order, each with the figures of its columns.
"""

import json
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.house.network_table import milliseconds
from tests.house.recompute import Statement, block_ratio, interval, samples, tables, told

DOCS = Path(__file__).parents[2] / "docs"
Row = dict[str, float | tuple[float, ...]]  # by column; several figures of one cell in their order
H200_NETS = (
    "nnU-Net plain, thick slices", "smp DeepLabV3Plus, ResNet-34", "smp Unet, ResNeXt-50", "smp Unet, MobileOne-s0",
    "U2Net", "UNet3+", "NAFNet", "R2U-Net", "attention gates", "ResUNet-a", "warped",
)  # fmt: skip
H100_NETS = (
    "pix2pix", "smp Unet, DenseNet-121", "smp Unet, SE-ResNeXt-50", "smp Unet, ResNet-34, scSE",
    "smp MAnet, ResNet-34", "smp Linknet, ResNet-34", "smp Unet, VGG-16", "smp Unet, MobileNet-v2",
    "smp UPerNet, ResNet-34", "smp Unet, ConvNeXt-tiny",
)  # fmt: skip
LADDER = [
    *(("run_in_batch8/plain", name) for name in ("eager", "tf32", "channels_last", "amp", "half", "torchscript")),
    ("run_in_batch8/rest", "cuda_graph"),
    *(("run_in_batch8/compiled", name) for name in ("compile", "compile_max", "onnxruntime", "fused", "fp8")),
]  # fmt: skip
OWN, COMPILED = ("fused", "fp8"), ("compile", "compile_max")
FOUR = {"classic": (*COMPILED, *OWN), "smp": (*COMPILED, *OWN), "pix2pix": (*COMPILED, *OWN),
        "resnet18_batch1": ("compile", *OWN)}  # fmt: skip
ON_CPU = (
    "openvino", "inductor_int8", "aot_inductor", "compile", "half", "thunder", "openvino_compile", "amp",
    "onnxruntime_int8", "onnxruntime", "xla", "tvm",
)  # fmt: skip
RECORDS = (  # folder, the page about it, heading, stages in the order of the rows, and columns
    ("h200/classic", "fewer-bits.md", "On an H200", OWN,
     ("error", "pixels that change", "Dice", "ms", "× autocast", "GB moved", "file MiB")),
    ("cpu/everything", "cpu/everything/README.md", "stage=everything on a CPU", ON_CPU,
     ("× eager, 95 %", "pixels that change", "error of the logits")),
)  # fmt: skip
WEIGHTS = (".pt2", ".bin", ".onnx")  # endings of the files that hold them


def loaded(name: str) -> Any:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def runs(machine: str) -> dict[str, dict[str, Any]]:
    """The stages of every run of one machine, by the run's name."""
    return {run["run"]: run["stages"] for run in loaded(f"{machine}/runs.json")}


def beside(page: str, heading: str, rows: Iterable[Row]) -> Iterator[Statement]:
    """What the table with these columns under a heading prints, beside the figures of its first rows."""
    text, figures = (DOCS / page).read_text(encoding="utf-8").partition(f"# {heading}\n")[2], list(rows)
    columns = figures[0].keys()
    printed = next(found for found in tables(re.split(r"\n#+ ", text)[0]) if columns <= found[0].keys())
    assert len(printed) >= len(figures), heading
    for cells, row in zip(printed, figures, strict=False):
        for column, value in row.items():
            values = value if isinstance(value, tuple) else (value,)
            found = re.findall(r"−?\d[\d,.]*(?:e-\d+)?(?: %)?", cells[column])
            for number, own in zip(found, values, strict=False):
                sign = -1 if number.startswith("−") else 1
                what = f"{page}, {heading}: {column} of {next(iter(cells.values()))}"
                yield Statement(what, number.removeprefix("−"), sign * own)


def of_stage(stage: dict[str, Any]) -> Row:
    """The figures of a recorded stage under all names that the tables have for them."""
    changed = {} if stage.get("flipped_share") is None else dict.fromkeys(
        ("pixels that change", "pixels that change class"), stage["flipped_share"]
    )  # fmt: skip
    times, run = milliseconds(stage), {"pairs": [stage]}
    return {"ms": times, "ms a call": times, "× autocast": (block_ratio(run), *interval([stage])), **changed}


def only(row: Row, *columns: str) -> Row:
    return {column: row[column] for column in columns if column in row}


def ladders() -> Iterator[Statement]:
    """The classic network's ladders, and the four networks of the H100."""
    found, columns = runs("h200"), ("ms a call", "× autocast")
    rows = [of_stage(found[run][stage]) for run, stage in LADDER]
    yield from beside("h200/README.md", "The ladder at batch 8", [only(row, *columns) for row in rows])
    order = (*COMPILED, "onnxruntime", "xla", *OWN)
    single = [of_stage(found["batch1"][stage]) for stage in order]
    yield from beside("h200/README.md", "The ladder at batch 1", [only(row, *columns) for row in single])
    rows, others = [], runs("h100")
    for run, stages in FOUR.items():
        best = [milliseconds(others[run][name]) for name in COMPILED if others[run][name]["blocks"]]
        for name in stages:
            row = only(of_stage(others[run][name]), "ms", "× autocast", "pixels that change")
            if name in OWN and len(best) == len(COMPILED):
                row["of the better compiler"] = milliseconds(others[run][name]) / min(best)
            rows.append(row)
    yield from beside("h100/README.md", "Four networks in full", rows)


def interleaved(files: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Row]:
    """`fused` and Inductor in one process; the last file that has a network counts."""
    known: dict[str, Any] = {}
    for file in files:
        known = loaded(file) | known
    for name in names:
        times = known[f"{name}: fused"]["milliseconds"]
        own = min(value for key, value in times.items() if key != "Inductor")
        yield {"Inductor": times["Inductor"], "`fused`": own, "ratio": times["Inductor"] / own}


def run_in() -> Iterator[Row]:
    """By how much a sample after a run-in is faster than the last fifth of the same loop."""
    recorded = loaded("h100/pace.json")
    for length in (0.5, 1.0):
        for rested in ("after rest", "after amp"):
            windows = recorded[rested]["windows"]
            ends = windows[-1]["began"]
            settled = statistics.fmean(each["ms"] for each in windows if each["began"] >= 0.8 * ends)
            row: Row = {}
            for after in (0.0, 0.3, 1.0, 2.0, 3.0, 6.0, 10.0):
                sample = [each["ms"] for each in windows if after <= each["began"] < after + length]
                row[f"{after:g}"] = 1 - statistics.fmean(sample) / settled
            yield row


def kernels() -> Iterator[Statement]:
    """The classic network's layers, each alone."""
    every = {batch: loaded(f"h200/kernels{batch}.json") for batch in (1, 8)}
    sums: list[Row] = []
    for dtype in ("fp16", "fp8"):
        layers = {batch: [each for each in found if each["dtype"] == dtype] for batch, found in every.items()}
        one, eight = (sum(each["ms"] for each in layers[batch]) for batch in (1, 8))
        flops = sum(each["tflops"] * each["ms"] for each in layers[8])
        sums.append({"batch 1": one, "batch 8": eight, "batch 8, TFLOP/s": flops / eight})
    yield from beside("kernels.md", "The kernels", sums)


def recorded(folder: str) -> dict[str, Row]:
    """The figures of a whole record's stages, under the names that the tables of pages about it have."""
    run, rows = loaded(f"{folder}/results.json"), {}
    for stage in run["stages"]:
        found, fusion = stage["accuracy"], (stage["diagnostics"] or {}).get("fusion") or {}
        if stage["status"] == "ok":
            files = [file["size_bytes"] for file in stage["artefacts"] if file["path"].endswith(WEIGHTS)]
            rows[stage["spec"]["name"]] = {
                "error": found["relative_l2"],
                "error of the logits": found["relative_l2"],
                "pixels that change": found["flipped_share"],
                "Dice": statistics.fmean(found["dice"]),
                "ms": 1e3 * statistics.median(samples(stage, "stage")),
                "× autocast": block_ratio(stage),
                "× eager, 95 %": (block_ratio(stage), *interval(stage["pairs"])),
                "GB moved": (fusion.get("bytes_per_call") or 0) / 1e9,
                "file MiB": sum(files) / 2**20,
            }
    return rows


def statements() -> Iterator[Statement]:
    """Every figure of the tables that have raw samples."""
    yield from ladders()
    h200 = interleaved(("h200/net-times.json", "h200/research-nets.json"), H200_NETS)
    yield from beside("h200/README.md", "`fused` beside Inductor", h200)
    h100 = interleaved(("h100/net-times.json", "h100/net-times-later.json"), H100_NETS)
    yield from beside("h100/README.md", "Ten more networks", h100)
    yield from beside("h100/README.md", "How long a run-in has to be", run_in())
    yield from kernels()
    for folder, page, heading, stages, columns in RECORDS:
        rows = recorded(folder)
        yield from beside(page, heading, [only(rows[name], *columns) for name in stages])


if __name__ == "__main__":
    sys.exit(told(statements()))

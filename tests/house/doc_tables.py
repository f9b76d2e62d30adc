"""Computes the tables of docs again, from the raw samples that lie beside them, with nothing of the program.

    python -m tests.house.doc_tables

A table is found by its page and heading. Its rows are given in the page's order, each with the figures of its columns.
"""

import json
import lzma
import math
import re
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks.hard_nets import HARD
from tests.benchmarks.record_all import NETS
from tests.house.figures import pattern
from tests.house.network_table import LADDER, MODES, OWN, recorded
from tests.house.recompute import SIDES, Statement, block_ratio, interval, samples, tables, told

DOCS = Path(__file__).parents[2] / "docs"
Row = dict[str, float | tuple[float, ...]]  # by column; several figures of one cell in their order
ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))  # of tables, in their order
JPEG, PNG = "bundle, jpg, this", "bundle, png, this"


def loaded(name: str) -> Any:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def by_stage(runs: list[Any]) -> list[dict[str, Any]]:
    """The timed stages of each run, by name."""
    timed = [[stage for stage in run["stages"] if stage["status"] == "ok" and stage["pairs"]] for run in runs]
    return [{stage["spec"]["name"]: stage for stage in stages} for stages in timed]


def beside(page: str, heading: str, rows: Iterable[Row]) -> Iterator[Statement]:
    """What the table with these columns under a heading prints, beside the figures of its first rows."""
    text, figures = (DOCS / page).read_text(encoding="utf-8").partition(f"# {heading}\n")[2], list(rows)
    if not figures:
        assert "Not recorded." in text, heading
        return
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


def networks(fewest: int) -> Iterator[Row]:
    """The networks that have records, in the order of the recording, card by card."""
    named = [name for name, net in NETS.items() if net.builds >= fewest]
    for builds, others in (map(by_stage, each) for name in named for each in recorded(name)):
        taken: dict[str, list[float]] = {}
        for run in [*builds, *others]:
            in_graph = [run[own]["details"].get("candidates_ms", {}).get("Inductor") for own in OWN if own in run]
            for method in LADDER:
                if method in run and (run in builds or "compile" in method):
                    taken.setdefault(method, []).append(1e3 * statistics.median(samples(run[method], "stage")))
            if any(in_graph):
                taken.setdefault("compile, graph", []).append(min(filter(None, in_graph)))
        graphs = [times for method, times in taken.items() if "compile" in method]
        shown = {"best torch.compile, ms": min(graphs, key=statistics.median)} if graphs else {}
        shown |= {f"own {kind}, ms": taken[own] for kind, own in zip(("fp16", "fp8"), OWN, strict=True) if own in taken}
        middle = [statistics.median(times) for times in shown.values()]
        row: Row = {"builds": len(builds), **dict(zip(shown, middle, strict=True))}
        if graphs:
            row["ratio to best torch.compile"] = tuple(middle[0] / each for each in middle[1:])
        shares = [run["fp8"]["accuracy"]["flipped_share"] for run in builds if "fp8" in run]
        if shares and None not in shares:
            row["pixels changed"] = statistics.median(shares)
        if shown:
            row["spread"] = max((max(times) - min(times)) / statistics.median(times) for times in shown.values())
        yield row


def ladder(name: str) -> Iterator[Row]:
    """All methods on one network, each beside autocast of its own run."""
    runs, others = max(recorded(name), key=lambda each: len(each[1]), default=([], []))
    found: dict[str, Any] = {}
    for run in reversed(by_stage([*runs[:1], *others])):
        found |= run
    first = [found[method] for method in ("fused", *LADDER) if method in found][:1]
    for method in LADDER if first else ():
        side, stage = ("baseline", first[0]) if method == "amp" else ("stage", found.get(method))
        if stage:
            own: Row = {"ms a call": 1e3 * statistics.median(samples(stage, side))}
            if method != "amp":
                own |= {"× autocast": block_ratio(stage), "pixels that change": stage["accuracy"]["flipped_share"]}
            yield own


def of_records() -> Iterator[Statement]:
    """Networks and ladders that record_all recorded."""
    yield from beside("../README.md", "unet-ladder", networks(3))
    for batch, name in ((8, "classic"), (1, "classic_batch1")):
        yield from beside("ladders.md", f"The ladder at batch {batch}", ladder(name))
    yield from beside("ladders.md", "Networks", networks(1))


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
    (path,) = DOCS.glob("*/kernels.json")
    rows = loaded(str(path))["rows"]
    sums: list[Row] = []
    for dtype in ("fp16", "fp8"):
        layers = [[each for each in rows if (each["dtype"], each["batch"]) == (dtype, batch)] for batch in (1, 8)]
        one, eight = (sum(statistics.median(each["rounds_ms"]) for each in found) for found in layers)
        flops = sum(each["flops"] for each in layers[1])
        sums.append({"batch 1": one, "batch 8": eight, "batch 8, TFLOP/s": flops / eight / 1e9})
    yield from beside("kernels.md", "The kernels", sums)
    rates: list[Row] = []
    for size, width, folds in ((512, 64, "pool"), (512, 64, "head"), (256, 128, "")):
        layer = {"kind": "conv3x3", "size": size, "inner": width, "outer": width, "folds": folds}
        half, eight = (each for each in rows if (each["layer"], each["batch"]) == (layer, 8))
        times = {"fp16": half["rounds_ms"], "cuDNN, fp16": half["library_rounds_ms"], "fp8": eight["rounds_ms"]}
        rates.append({column: half["flops"] / statistics.median(rounds) / 1e9 for column, rounds in times.items()})
    yield from beside("kernels.md", "`conv3x3`", rates)


def on_cpu() -> Iterator[Row]:
    """The stages of the run on a CPU."""
    stages = {stage["spec"]["name"]: stage for stage in loaded("cpu/everything/results.json")["stages"]}
    for stage in map(stages.__getitem__, ROWS["on_cpu"]):
        found = stage["accuracy"]
        own: Row = {"error of the logits": found["relative_l2"], "pixels that change": found["flipped_share"]}
        yield own | {"× eager, 95 %": (block_ratio(stage), *interval(stage["pairs"]))}


def hard() -> Iterator[Statement]:
    """Networks on which the kernels win little, and the lines below their table of what misses its goal."""
    files, text = sorted(DOCS.glob("*/hard/*.json")), (DOCS / "hard-nets.md").read_text(encoding="utf-8")
    known = {(file.parts[-3].upper(), key): row for file in files for key, row in loaded(str(file)).items()}
    rows, missed = list[Row](), 0
    for card, name in ((card, name) for card in sorted({card for card, _ in known}) for name in HARD):
        if cold := known.get((card, f"{name}, cold")):
            builds = [cold, known.get((card, f"{name}, warm"), {"ran": ()})]
            times = {form: statistics.median(rounds) for form, rounds in cold["rounds_ms"].items()}
            row: Row = {f"{mode}, ms": times[mode] for mode in MODES if mode in times}
            inside = cold["ran"].get("fused", {}).get("candidates_ms", {}).get("Inductor") or math.nan
            faster = min(row.values(), default=inside)
            for kind, own in zip(("fp16", "fp8"), OWN, strict=True):
                share, goal = times.get(own, math.nan) / faster, cold["goals"][own] or math.inf
                line = re.search(rf"^- {name}, {card}, [^:\n]*\({kind}\): .*\.$", text, re.MULTILINE)
                yield Statement(f"{name}, {card}, {kind} has a line", str(int(line is not None)), float(share > goal))
                if line:
                    spent = {part: us / times[own] / 1e3 for part, us in cold["kinds_us"][own].items()}
                    yield from of_a_miss(line[0].partition(": ")[2], [share, goal, times[own]], spent)
                missed += share > goal
                if own in times:
                    row |= {f"own {kind}, ms": times[own], f"{kind} ÷ faster compiler": (share, goal)}
                row[f"{kind} built, s"] = tuple(each["build_seconds"][own] for each in builds if own in each["ran"])
            rows.append(row | {"error of fp8": cold["relative_l2"].get("fp8", math.nan)})
    yield Statement("goals that are missed", str(text.count(": missed)")), float(missed))
    yield from beside("hard-nets.md", "Against torch.compile", rows)


def of_a_miss(line: str, figures: list[float], spent: dict[str, float]) -> Iterator[Statement]:
    """What a line says of a miss: its figures, and the kinds of kernels that take a hundredth of the call or more."""
    spent["no kernel"] = 1 - sum(spent.values())
    parts = dict(re.findall(r"(\w[\w ]*?) (−?[\d.]+ %)", line))
    assert parts.keys() == {kind for kind, share in spent.items() if share >= 0.01}, line
    yield from (Statement(line, *each) for each in zip(re.findall(r"[\d.]+", line)[:3], figures, strict=True))
    yield from (Statement(line, part, spent[kind]) for kind, part in parts.items())


def masks_per_second() -> Iterator[Row]:
    """`predict` and loops that do its work."""
    classic, smp, h100 = (
        loaded(f"{name}.json") for name in ("h200/predict/classic", "h200/predict/smp", "h100/predict/png")
    )
    jpeg, png, loop, recipe = (classic[row] for row in (JPEG, PNG, "plain loop", "ray loop"))
    for row in (jpeg, png, loop, recipe, smp[JPEG], h100[PNG]):
        rate = row["masks_per_second"]
        rates = (rate, rate / loop["masks_per_second"]) if row is jpeg else rate
        alone = {"the network alone": row["network_per_second"]} if "network_per_second" in row else {}
        yield {"masks a second after the first": rates, **alone}


def first_masks() -> Iterator[Row]:
    """Medians of the seconds before the first mask."""
    calls = loaded("h200/predict/first-mask.json")["calls"]
    ends = ("", ", ended at the first mask", ", empty cache of Triton")
    for files, end in zip(("4,000", "84,000", "4,000"), ends, strict=True):
        alike = [call for call in calls if call["of"] == f"{files} files{end}"]
        parts = {name: statistics.median(call["parts"].get(name, 0) for call in alike) for name in alike[0]["parts"]}
        named = {name: parts[name] for name in ("start Python", "list files", "import torch, check files")}
        every = statistics.median(call["seconds_before_the_first_mask"] for call in alike)
        yield {**named, "load the network": parts["load or build the network"], "all": every}


def in_prose() -> Iterator[Statement]:
    """Sentences outside tables whose figures have records, in which a sample is [calls, seconds]."""

    def pairs(blocks: Any) -> Any:
        def named(one: list[float]) -> dict[str, float]:
            return {"calls": one[0], "seconds": one[1]}

        return {"pairs": [{"blocks": [{side: list(map(named, block[side])) for side in SIDES} for block in blocks]}]}

    packed = lzma.decompress((DOCS / "h200/earlier-runs.json.xz").read_bytes())
    earlier = {run["run"]: run for run in json.loads(packed)}
    xla, *own = (row["ms a call"] for row in [*ladder("classic")][-3:])
    alike = [block_ratio(pairs(blocks)) - 1 for blocks in earlier["aa_pairs"]["aa_blocks"]]
    found = [earlier[name]["stages"]["fp8"] for name in ("batch8", "batch8_parts/compiled", "nets/classic_budget")]
    fp8 = [statistics.median(samples(pairs(stage["blocks"]), "stage")) for stage in found]
    ratios, soak = [block_ratio(pairs(stage["blocks"])) for stage in found[:2]], loaded("h200/soak.json")
    values = {
        "aa": [len(alike), 100 * min(alike), max(alike)], "fp8": [1e3 * fp8[0], fp8[1]],
        "fp8 ratios": [*ratios, 1e3 * fp8[0], fp8[1]], "budget": [fp8[2], found[2]["flipped_share"]],
        "rounds": [len(soak["rounds"])], "replays": [sum(graph["replays"] for graph in soak["graphs"].values())],
        "xla": [1e-3 * xla, *(xla / each for each in own)],
    }  # fmt: skip
    for page, template, name in ROWS["prose"]:
        printed = pattern(template).search(" ".join((DOCS / page).read_text(encoding="utf-8").split()))
        assert printed, template
        for number, value in zip(printed.groups(), values[name], strict=True):
            yield Statement(f"{page}: {template}", number, value)


def statements() -> Iterator[Statement]:
    """Every figure of the tables that have raw samples."""
    yield from of_records()
    yield from beside("h100/README.md", "How long a run-in has to be", run_in())
    yield from kernels()
    yield from beside("predict.md", "On a GPU", masks_per_second())
    yield from beside("predict.md", "On a GPU", first_masks())
    yield from hard()
    yield from beside("cpu/everything/README.md", "stage=everything on a CPU", on_cpu())
    yield from in_prose()


if __name__ == "__main__":
    sys.exit(told(statements()))

"""Prints the tables of networks and ladders that records of record_all make, or writes them into README and docs.

    python -m tests.house.network_table [--write]

Records lie in docs/MACHINE/KIND/NAME/BUILD/results.json.xz. README.md shows the networks of three builds on `MACHINE`,
docs/MACHINE/README.md all of them; a table stands between <!-- networks --> and <!-- /networks -->, or with `ladder
NAME` between the first words. A figure is the median over builds of the median over all samples.
"""

import argparse
import json
import lzma
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from pipeline.report.formatting import method, significant
from tests.benchmarks.record_all import NETS, milliseconds

ROOT = Path(__file__).parents[2]
MACHINE = "h200"  # of the README's table
PAGES = {"README.md": MACHINE, "docs/h200/README.md": "h200", "docs/h100/README.md": "h100"}
COMPILED, OWN = ("compile", "compile_graph", "compile_max"), ("fused", "fp8")
LADDER = ("eager", "tf32", "channels_last", "amp", "half", "torchscript", "cuda_graph", *COMPILED, "onnxruntime", "xla",
          *OWN)  # fmt: skip
HEAD = (
    "| network | builds | best torch.compile, ms | own fp16, ms | own fp8, ms | ratio to the best compiler | spread | "
    "pixels changed |"
)
LADDER_HEAD = "| method | ms a call | × autocast | pixels that change |"
Stages = dict[str, dict[str, Any]]


def builds(machine: str, kind: str, name: str) -> list[dict[str, Any]]:
    """Return the records of a network, build by build."""
    paths = sorted((ROOT / "docs" / machine / kind / name).glob("*/results.json.xz"))
    return [json.loads(lzma.decompress(path.read_bytes())) for path in paths]


def stages_of(run: dict[str, Any]) -> Stages:
    return {stage["spec"]["name"]: stage for stage in run["stages"] if stage["status"] == "ok" and stage["pairs"]}


def ratio(stage: dict[str, Any]) -> float:
    """Return the median over blocks of the baseline's time over the stage's, by geometric means of two samples."""
    logs = []
    for block in stage["pairs"][0]["blocks"]:
        two = [[math.log(taken["seconds"] / taken["calls"]) for taken in block[side]] for side in ("baseline", "stage")]
        logs.append(statistics.fmean(two[0]) - statistics.fmean(two[1]))
    return math.exp(statistics.median(logs))


def times(runs: list[Stages], name: str) -> list[float]:
    """Return a method's milliseconds in each build that has it."""
    if name == "Inductor":  # in one CUDA graph, as the builds of own kernels time it
        own = [[stages[key]["details"].get("candidates_ms", {}) for key in OWN if key in stages] for stages in runs]
        return [min(each["Inductor"] for each in found) for found in own if found and "Inductor" in found[0]]
    return [milliseconds(stages[name]) for stages in runs if name in stages]


def row(name: str, runs: list[Stages], others: list[Stages]) -> str:
    """Return a network's line, of its builds and of other runs with further compilers."""
    compiled = [found for each in (*COMPILED, "Inductor") if (found := times([*runs, *others], each))]
    shown = [min(compiled, key=statistics.median), *(times(runs, each) for each in OWN)]
    medians = [statistics.median(found) if found else None for found in shown]
    ratios = [f"{medians[0] / own:.1f} ×" for own in medians[1:] if medians[0] and own]
    spread = max((max(found) - min(found)) / statistics.median(found) for found in shown if found)
    changed = [stages["fp8"]["accuracy"]["flipped_share"] for stages in runs if "fp8" in stages]
    cells = [
        NETS[name].title + ("" if times([*runs, *others], "compile_max") else " ᵃ"),
        str(len(runs)),
        *("–" if value is None else significant(value) for value in medians),
        " / ".join(ratios),
        f"{100 * spread:.1f} %" if len(runs) > 1 else "–",
        "–" if not changed or None in changed else f"{100 * statistics.median(changed):.3f} %",
    ]
    return f"| {' | '.join(cells)} |"


def networks(machine: str, least: int) -> str:
    """Return the table of the recorded networks of which at least so many builds are planned."""
    lines, known = [HEAD, re.sub(r"[^|]+", " --- ", HEAD)], {}
    for name, net in NETS.items():
        known[name] = builds(machine, "net", name) if net.builds >= least else []
        if known[name]:
            own, others = ([stages_of(run) for run in found] for found in (known[name], builds(machine, "rungs", name)))
            lines.append(row(name, own, others))
    runs = [run for found in known.values() for run in found]
    packages = {f"torch {run['environment']['packages']['torch']}" for run in runs}
    blocks = [block for run in runs for block in stages_of(run)["fused"]["pairs"][0]["blocks"]]
    samples = [taken["seconds"] for block in blocks for taken in block["stage"]]
    cards = {run["environment"]["device_name"] for run in runs}
    about = f"One {' or '.join(sorted(cards))} for each build, {', '.join(sorted(packages))}."
    tenth, most = (statistics.quantiles(samples, n=10)[end] for end in (0, -1))
    return "\n".join([f"{about} Samples last {tenth:.1f} to {most:.1f} s.", "", *lines])


def ladder(machine: str, name: str) -> str:
    """Return the table of all methods on one network, each beside autocast of its own run."""
    found: Stages = {}
    for run in (*builds(machine, "net", name)[:1], *builds(machine, "rungs", name)):
        found = stages_of(run) | found
    lines = [LADDER_HEAD, re.sub(r"[^|]+", " --- ", LADDER_HEAD)]
    for stage in LADDER:
        if stage == "amp":
            lines.append(f"| autocast (`amp`) | {significant(milliseconds(found['fused'], 'baseline'))} | 1 | – |")
        elif stage in found:
            changed = found[stage]["accuracy"]["flipped_share"]
            share = "–" if changed is None else f"{100 * changed:.2g} %"
            figures = f"{significant(milliseconds(found[stage]))} | {significant(ratio(found[stage]))}"
            lines.append(f"| {method(stage)} (`{stage}`) | {figures} | {share} |")
    return "\n".join(lines)


def drawn(page: str) -> str:
    """Return a page with the tables between its markers drawn again."""
    text, machine = (ROOT / page).read_text(encoding="utf-8"), PAGES[page]
    for marker in re.findall(r"<!-- (networks|ladder \w+) -->", text):
        kind, _, name = marker.partition(" ")
        new = ladder(machine, name) if kind == "ladder" else networks(machine, 2 if page == "README.md" else 1)
        before, opened, rest = text.partition(f"<!-- {marker} -->\n")
        _, closed, after = rest.partition(f"<!-- /{kind} -->")
        text = f"{before}{opened}{new}\n{closed}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    asked = parser.parse_args()
    for page in PAGES:
        text = drawn(page)
        if asked.write:
            (ROOT / page).write_text(text, encoding="utf-8")
        found = re.findall(r"<!-- (?:networks|ladder \w+) -->\n.*?(?=\n<!-- /)", text, flags=re.DOTALL)
        sys.stdout.write("\n\n".join([f"{page}:", *found, ""]))


if __name__ == "__main__":
    main()

"""Computes again what a run's report prints, from the raw samples in results.json alone.

    python -m tests.house.recompute docs/h200/net/classic/1

It uses nothing of the program: another reading of the record, and other arithmetic. A statement agrees when the number
that is printed is the recomputed one, rounded to as many digits.
"""

import json
import lzma
import math
import re
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "%": 0.01, "GiB": 2.0**30, "MiB": 2.0**20}
BASELINES = {"amp": "autocast", "eager": "eager"}
SIDES = ("baseline", "stage")
WITHOUT_FIGURE = ("–", "", "not judged", "not resolved", "the baseline", "never", "unknown", "at once")
NUMBER = re.compile(r"^[▸= ]*(?P<digits>[\d,]+(?:\.(?P<decimals>\d+))?)(?P<power>e[-+]\d+)?\s*(?P<unit>\S*)")


@dataclass(frozen=True)
class Statement:
    """A printed number, and what the raw samples make of it; in the unit that is printed."""

    what: str
    printed: str
    recomputed: float

    @property
    def agrees(self) -> bool:
        """Whether the printed number is the recomputed one, rounded."""
        found = NUMBER.match(self.printed)
        if found is None:
            return False
        plain = found["digits"].replace(",", "")
        digits = len(found["decimals"] or "")
        zeros = 0 if digits else len(plain) - len(plain.rstrip("0"))
        power = float(f"1{found['power']}") if found["power"] else 1.0
        step = 10.0 ** (zeros - digits) * power
        return abs(float(plain) * power - self.recomputed / UNITS.get(found["unit"], 1.0)) <= 0.501 * step


def samples(stage: dict[str, Any], side: str) -> list[float]:
    """Seconds a call of every sample of one side."""
    blocks = [block for pair in stage["pairs"] for block in pair["blocks"]]
    return [taken["seconds"] / taken["calls"] for block in blocks for taken in block[side]]


def set_up(stage: dict[str, Any]) -> float:
    """Seconds of the build and the first call."""
    return float(stage["build_seconds"] + stage["first_call_seconds"])


def sustained(stage: dict[str, Any]) -> bool:
    """Whether the stage's blocks were taken at full load."""
    return any(pair.get("sustained") for pair in stage["pairs"])


def block_ratio(stage: dict[str, Any]) -> float:
    """The median over blocks of √(A1·A2 / (B1·B2)), A the baseline's seconds a call and B the stage's."""
    each = []
    for pair in stage["pairs"]:
        for block in pair["blocks"]:
            first, second, third, fourth = (each["seconds"] / each["calls"] for side in SIDES for each in block[side])
            each.append((first * second / third / fourth) ** 0.5)
    each.sort()
    lower, upper = each[(len(each) - 1) // 2], each[len(each) // 2]
    return float((lower * upper) ** 0.5)


def interval(pairs: list[dict[str, Any]], between: float = 0.0011) -> tuple[float, float]:
    """The 95 % interval of that median by order statistics.

    It is widened by the spread of a ratio between runs, and by a baseline that drifted by a tenth or more.
    """
    logs = sorted(math.log(block_ratio({"pairs": [{"blocks": [each]}]})) for pair in pairs for each in pair["blocks"])
    count, rank, below = len(logs), 0, 0.5 ** len(logs)
    while below <= 0.025:
        rank += 1
        below += math.comb(count, rank) / 2**count
    middle, ends = statistics.median(logs), (logs[max(rank, 1) - 1], logs[-max(rank, 1)])
    low, high = (math.hypot(end - middle, 1.96 * between) for end in ends)
    times = samples({"pairs": pairs}, "baseline")
    quarter = max(1, len(times) // 4)
    change = statistics.median(times[-quarter:]) / statistics.median(times[:quarter])
    drift = abs(math.log(change)) if abs(change - 1) >= 0.1 else 0.0
    return math.exp(middle - low - drift), math.exp(middle + high + drift)


def at_full_load(run: dict[str, Any], stage: dict[str, Any]) -> float:
    """Seconds a call, called back to back: of samples that were taken so, or of the stretch for the energy."""
    if sustained(stage) or not stage["energy"]:
        return statistics.median(samples(stage, "stage"))
    energy = stage["energy"]
    return float(energy["seconds"] / energy["images"] * run["config"]["data"]["batch_size"])


def tables(text: str) -> list[list[dict[str, str]]]:
    """Every table of a report.md, each row by its column's title."""
    found: list[list[dict[str, str]]] = []
    for block in re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in block.splitlines()]
        head, _, *rows = ([cell.strip().replace("\\", "") for cell in line] for line in lines)
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def named(row: dict[str, str]) -> str:
    """The stage that a row is about."""
    key = re.search(r"`(\w+)`", row["method"])
    return key[1] if key else re.sub(r"^[▸=] ", "", row["method"]).strip()


def words_of(run: dict[str, Any]) -> tuple[str, str]:
    """What one of a batch is called, and one place of it."""
    return ("volume", "voxel") if run["config"]["data"]["name"] == "volume" else ("image", "pixel")


def statements(folder: Path) -> Iterator[Statement]:
    """What report.md says in its title, its paragraphs and its tables, beside the raw samples."""
    packed = folder / "results.json.xz"
    run = json.loads(
        lzma.decompress(packed.read_bytes()) if packed.exists() else (folder / "results.json").read_bytes()
    )
    text = (folder / "report.md").read_text(encoding="utf-8")
    stages = {stage["spec"]["name"]: stage for stage in run["stages"] if stage["status"] == "ok"}
    paces = {name: at_full_load(run, stage) for name, stage in stages.items()}
    ratios = {name: block_ratio(stage) for name, stage in stages.items()}
    sample, point = words_of(run)
    title = text.partition("\n")[0]
    keys = dict(re.findall(r"^\| (?:[▸=] )?([^|`]+?) \(`(\w+)`\)", text, flags=re.MULTILINE))
    keys |= {method: name for name, method in BASELINES.items()} | {name: name for name in stages}
    winner = re.search(r"^\| ▸ ([^|`]+?) \(`", text, flags=re.MULTILINE)
    best = keys[winner[1]] if winner else run["baseline"]
    for value, method in re.findall(r"([\d.]+) × (?:as fast as )?([^,;]+)", title):  # of a wide interval its ends
        other = 1.0 if keys[method] == run["baseline"] else ratios[keys[method]]
        yield Statement(f"title: times {method}", value, ratios[best] / other)
    for changed in re.findall(rf"([\d.]+ %) of {point}s", title):  # a net whose answer isn't classes has none
        yield Statement(f"title: {point}s that change", changed, stages[best]["accuracy"]["flipped_share"])
    yield from sentences(run, text, {name: stages[key] for name, key in keys.items() if key in stages}, paces)
    for table in tables(text):
        for row in table:
            if named(row) in stages:
                stage = stages[named(row)]
                figures = of_a_call(stage, paces, point) | times_as_fast(run, ratios, stage)
                figures |= of_many(run, stage, paces, sample)
                if run["baseline"] not in stages and ratios[named(row)] > 1:  # it has no set-up of its own
                    saved = paces[named(row)] * (ratios[named(row)] - 1) / run["config"]["data"]["batch_size"]
                    figures["worth it from"] = set_up(stage) / saved
                for column, value in figures.items():
                    if row.get(column, "–") not in WITHOUT_FIGURE:
                        yield Statement(f"{named(row)}: {column}", row[column], value)
                ends = re.findall(r"[\d.]+", row.get("95 % interval", ""))
                for end, value in zip(ends, interval(stage["pairs"]), strict=False):
                    yield Statement(f"{named(row)}: 95 % interval", end, value)


def sentences(run: dict[str, Any], text: str, methods: dict[str, Any], paces: dict[str, float]) -> Iterator[Statement]:
    """What the paragraphs say of methods by their names, the winner's build, and the service."""
    for name, value in re.findall(r"transfers to and from the GPU, ([^,]+?) is ([\d.]+) ×", text):
        yield Statement("host to host", value, times_as_fast(run, {}, methods[name])["× host to host"])
    for name, value in re.findall(r"Without fp8: ([^,]+), ([\d.]+ \S+)\.", text):
        yield Statement("without fp8", value, paces[methods[name]["spec"]["name"]])
    for value in re.findall(r"Building takes ([\d.]+ \w+)", text):
        stage = methods[next(re.finditer(r"^\| ▸ ([^|`]+?) \(`", text, flags=re.MULTILINE))[1]]
        yield Statement("set-up", value, set_up(stage))
    for name, rest in re.findall(r"built and warm: ([^,]+), (.*)", text):
        stage, pace = methods[name], paces[methods[name]["spec"]["name"]]
        found = re.findall(r"([\d.]+ [mµ]?s) per call|p50 ([\d.]+ [mµ]?s), slowest of \d+ ([\d.]+ [mµ]?s)", rest)
        for printed in found:
            values = (pace, statistics.median(stage["latencies"]), max(stage["latencies"]))
            yield from (Statement("service", each, value) for each, value in zip(printed, values, strict=True) if each)
        for value in re.findall(r"then cost ([\d.]+) times the price", text):
            yield Statement("hours", value, 1e6 * pace / run["config"]["data"]["batch_size"] / 3600)
        for value in re.findall(r"Replicas: (\d+) fit", text):
            fitting = run["environment"]["device_memory_bytes"] // stage["memory"]["process_bytes"]
            yield Statement("replicas", value, fitting)


def times_as_fast(run: dict[str, Any], ratios: dict[str, float], stage: dict[str, Any]) -> dict[str, float]:
    """A stage's ratios to the baseline and to eager, by their columns' titles."""
    own, base = ratios.get(stage["spec"]["name"], 1.0), run["baseline"]
    found = {f"× {BASELINES[base]}": own}
    firsts = [each["host_latencies"] for each in run["stages"] if each["spec"]["name"] == base]
    first = next(iter(firsts), run["baseline_host_latencies"])
    if first and stage["host_latencies"]:
        found["× host to host"] = statistics.median(first) / statistics.median(stage["host_latencies"])
    return found | {"× eager": own / ratios["eager"]} if "eager" in ratios and base != "eager" else found


def of_a_call(stage: dict[str, Any], paces: dict[str, float], point: str) -> dict[str, float]:
    """The figures of one call by their columns' titles."""
    pace, taken = paces[stage["spec"]["name"]], {"p50 ms": stage["latencies"], "host p50 ms": stage["host_latencies"]}
    held = (stage["memory"] or {}).get("process_bytes")  # XLA's pool isn't torch's: none is recorded of it
    return {
        "ms": 1e3 * pace,
        "ms at steady state": 1e3 * pace,
        "ms interleaved": 1e3 * statistics.median(samples(stage, "stage")),
        **{name: 1e3 * statistics.median(seconds) for name, seconds in taken.items() if seconds},
        f"slowest of {len(stage['latencies'])}, ms": 1e3 * max(stage["latencies"], default=0.0),
        "Dice": statistics.fmean(stage["accuracy"]["dice"] or [0.0]),
        **({"GiB": held / 2**30, "memory GiB": held / 2**30} if held else {}),
        "set-up": set_up(stage),
        f"{point}s that change": stage["accuracy"]["flipped_share"],
        "error": stage["accuracy"]["relative_l2"],
    }


def of_many(run: dict[str, Any], stage: dict[str, Any], paces: dict[str, float], sample: str) -> dict[str, float]:
    """The figures of throughput and of a million samples by their columns' titles."""
    each, energy = paces[stage["spec"]["name"]] / run["config"]["data"]["batch_size"], stage["energy"]
    rates = {f"{sample}s/s": 1 / each, "hours": 1e6 * each / 3600}
    if not energy:
        return rates
    joules = energy["joules"] / energy["images"]
    return rates | {f"J/{sample}": joules, f"{sample}s/J": 1 / joules, "kWh": 1e6 * joules / 3.6e6}


def told(statements: Iterator[Statement]) -> int:
    """A line for what differs, and how many agree; 1 where any differs."""
    found = list(statements)
    wrong = [statement for statement in found if not statement.agrees]
    for statement in wrong:
        sys.stdout.write(f"{statement.what}: printed {statement.printed}, recomputed {statement.recomputed:.6g}\n")
    sys.stdout.write(f"{len(found) - len(wrong)} of {len(found)} statements agree\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(told(statements(Path(sys.argv[1]))))

"""The figures of a report, from its raw record, with nothing of the program; figures.yaml says what prints them."""

import math
import operator
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.house.recompute import BASELINES, LEFT, NUMBER, SIDES, block_ratio, drift, interval, logs_of, samples

PRINTED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
BYTES = {"int8": 1, "fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8}
WEIGHTS = ("onnx", "data", "bin", "safetensors", "pt", "pt2")
BESIDES = ("", "skip connections")  # what the record's layers have beside those of the network
BUILDS = {"compile": 0.014, "compile_max": 0.013, "fused": 0.007, "fp8": 0.04}  # of ln ratio, between builds
Rows = list[dict[str, Any]]
Found = dict[str, Any]


def pattern(template: str) -> re.Pattern[str]:
    """The sentence as an expression, which captures its figures and words."""
    tokens = {r"\#": f"({NUMBER})", "@": r"⟨\w+⟩", r"\~": r"\w+", r"\*": r"([^,;]+?)"}
    return re.compile(re.sub(r"\\[#~*]|@", lambda found: tokens[found[0]], re.escape(template)))


SENTENCES = [(pattern(template), template, figures) for template, figures in PRINTED["sentences"].items()]


def total(rows: Rows, what: str = "seconds_per_call") -> float:
    return float(sum(row[what] or 0.0 for row in rows))


def keys_in(text: str) -> list[str]:
    return re.findall(r"⟨(\w+)⟩", text)


def of_counts(counts: Found) -> Found:
    """The figures of masks by the pixels counted of each image, in place of those that the record has."""
    shares, pictures = [flipped / counts["pixels"] for flipped in counts["flipped"]], counts["pictures"]
    found = {"flipped_share": sum(counts["flipped"]) / (counts["pixels"] * len(shares)), "images": len(shares)}
    found |= {"worst_flipped_share": max(shares)} | ({"pictures": len({*pictures})} if pictures else {})
    if not counts["hits"]:
        return found

    def dice(side: str, times: Any) -> Any:  # of each class, with every image as often as it was drawn
        hits, sizes = (times @ np.array(counts[side + what]) for what in ("hits", "sizes"))
        return np.divide(2 * hits, sizes, out=np.ones(hits.shape), where=sizes > 0)

    def loss(points: float, drawn: Any) -> Found:
        return {"points": points, **dict(zip(("low", "high"), np.quantile(drawn, (0.025, 0.975)), strict=True))}

    own, exact = (dice(side, np.ones(len(shares))) for side in ("", "reference_"))
    found |= {"dice": own.tolist(), "reference_dice": exact.tolist()}
    labelled = {picture for picture, sizes in zip(pictures, counts["reference_sizes"], strict=False) if any(sizes)}
    if len(labelled) >= 10:
        count = len({*pictures})
        times = np.random.default_rng(0).multinomial(count, np.ones(count) / count, 2000)[:, pictures]
        points, drawn = 100 * (exact - own), 100 * (dice("reference_", times) - dice("", times))
        there = np.any(counts["sizes"], 0) | np.any(counts["reference_sizes"], 0)
        counted = [at for at in np.flatnonzero(there).tolist() if at] or [0]
        found["dice_lost"] = loss(points[counted].mean(), drawn[:, counted].mean(1))
        of_each = zip(points, drawn.T, there, strict=True)
        found["class_lost"] = [loss(*each) if known else None for *each, known in of_each]
    return found


class Figures:
    """One run, read again."""

    def __init__(self, run: Found, winner: str) -> None:
        self.run, self.data, self.device, self.line = run, run["config"]["data"], run["environment"], ""
        self.batch, self.base = self.data["batch_size"], run["baseline"]
        self.winner, self.won = winner or self.base, winner
        for accuracy in filter(None, (stage["accuracy"] for stage in run["stages"])):
            accuracy.update(of_counts(accuracy["counts"]) if accuracy.get("counts") else {})
        self.every = {stage["spec"]["name"]: stage for stage in run["stages"] if stage["build_seconds"] is not None}
        self.stages = {name: stage for name, stage in self.every.items() if stage["status"] == "ok" and stage["pairs"]}
        self.work: Rows = [layer for layer in run["reference"]["layers"] if layer["flops"]]
        self.ratio = {self.base: 1.0} | {name: block_ratio(stage) for name, stage in self.stages.items()}
        own = [sample for stage in self.stages.values() for sample in samples(stage, "baseline")]
        self.call = {name: statistics.median(own) / ratio for name, ratio in self.ratio.items()}
        self.matmul = {name: 1e12 * rate for name, rate in (run["measured_peaks"] or {}).get("tflops", {}).items()}
        self.bandwidth = (run["measured_peaks"] or {}).get("bandwidth_bytes_per_s", math.nan)
        self.peaks, ends = self.reached(), ("build_seconds", "first_call_seconds")
        self.set_up = {name: sum(each[end] or 0.0 for end in ends) for name, each in self.every.items()}
        self.of: dict[str, Found] = {name: self.of_stage(name) for name in self.every}
        drifts = [abs(drift(stage["pairs"])) for stage in self.stages.values()]
        self.sample, self.point = ("volume", "voxel") if self.data["name"] == "volume" else ("image", "pixel")
        self.whole = {
            "batch": self.batch, "side": self.data["size"], "depth": self.data["depth"] or self.data["size"],
            "noise": self.noise(), "controls": len(run["aa_pairs"]), "measured": len(self.stages),
            "run_drift": slower_or_faster(run["drift"] or 0.0), "further": len(self.stages) - 3,
            "further_drifting": sum(0.02 <= each < 0.1 for each in drifts) - 3,
            "fewest_blocks": min((len(logs_of(stage["pairs"])) for stage in self.stages.values()), default=0),
            "only_class": next(iter(run["reference"].get("mask_classes") or []), math.nan),
            **Counter(stage["status"] for stage in run["stages"]),
        }  # fmt: skip

    # Where a figure stands.

    def of_a_cell(self, name: str, column: str, cell: str) -> Iterator[tuple[str, float]]:
        """Each figure of a cell as printed, and recomputed."""
        titles = {"sample": self.sample, "point": self.point, "base": BASELINES[self.base]}
        columns = {title.format(**titles): figures for title, figures in PRINTED["columns"].items()}
        figures, printed = columns.get(re.sub(r"^slowest of.*", "slowest", column)), LEFT.findall(cell)
        if printed and figures != []:
            values = self.values(figures, [name], ()) if figures else [math.nan] * len(printed)
            yield from zip(printed, [1.0] if cell == "1 ×" else values, strict=True)

    def of_a_line(self, line: str) -> Iterator[tuple[str, str, float]]:
        """Each figure of a line with its sentence, as printed, and recomputed; not a number where nothing does."""
        self.line, rest = line, line
        for words in self.quoted():
            rest = rest.replace(words, "")
        for expression, template, figures in SENTENCES:
            for found in expression.finditer(rest):
                values = self.values(figures, keys_in(found[0]) or keys_in(line) or [self.winner], found.groups())
                tokens = re.findall(r"[#*]", template)
                printed = [group for group, token in zip(found.groups(), tokens, strict=True) if token == "#"]
                for number, value in zip(printed, values, strict=True):
                    yield template, number, math.nan if value is None else value
            rest = expression.sub("", rest)
        for number in LEFT.findall(rest):
            yield f"nothing recomputes “{rest.strip()[:70]}”", number, math.nan

    def values(self, figures: str | list[str], keys: list[str], words: tuple[str, ...]) -> list[Any]:
        """The figures of a sentence, by one function or each by its name or path."""
        if isinstance(figures, str):
            return list(getattr(self, figures)(keys, *words))
        found = []
        for factor, name, key in (re.fullmatch(r"(?:([\d.e-]+)\*)?(\S+) ?(\w?)", each).groups() for each in figures):
            stage = (self.won or keys[0]) if key == "w" else keys[int(key)] if key else ""
            value = (self.of.get(stage, {}) if stage else self.whole).get(name)
            place = self.every.get(stage, {}) if stage else self.run
            for part in name.split(".") if value is None else ():
                place = (place or {}).get(part)
            found.append((place or 0.0 if value is None else value) * float(factor or 1))
        return found

    def quoted(self) -> list[str]:
        """What the record says in words, and the constants of definitions."""
        every = [*self.run["warnings"], *(found for stage in self.run["stages"] for found in stage["warnings"])]
        named = {"Python": "python", "CUDA": "cuda", "cuDNN": "cudnn", "driver": "driver"}
        named = {shown: self.device[key] for shown, key in named.items()} | self.device["packages"]
        versions = [f"{name} {version}" for name, version in named.items()]
        versions += [f"{name}={value}" for name, value in (self.device.get("variables") or {}).items()]
        warned = [re.sub(r"(?<=\d)%", " %", found[part]) for found in every for part in ("text", "remedy")]
        reasons = [stage["reason"] for stage in self.run["stages"] if stage["reason"]]
        said = [*PRINTED["quoted"], *warned, *reasons, *self.device["others_on_device"]]
        return [*sorted(versions, key=len, reverse=True), self.run["started_at"], *said]

    # Figures of one stage.

    def of_stage(self, name: str) -> Found:
        """Every figure of a stage by its name, as far as its record goes."""
        stage = self.every[name]
        found = {"set_up": self.set_up[name], "kept": len((stage["calibration"] or {}).get("kept") or [])}
        if not stage["pairs"]:
            return found
        found |= self.of_times(stage) | self.of_changes(stage) | self.of_memory(stage)
        dice, exact = (stage["accuracy"][kind] or [] for kind in ("dice", "reference_dice"))
        lost = stage["accuracy"].get("class_lost") or dice
        counted = [score for score, known in list(zip(dice, lost, strict=True))[1:] if known is not None]
        found["mean_dice"] = statistics.fmean(counted or dice or [0.0])
        found["dice_change"] = 100 * min(map(operator.sub, dice, exact), default=0.0)
        found["low"], found["high"] = interval(stage["pairs"])
        if name in self.stages and (stage["execution"] or {}).get("precision") in self.peaks:
            found |= self.of_roofs(stage, found["pace"])
        seen = (stage["profile"] or {}).get("kernels", [])
        if busy := explained(stage, "split").get("device_seconds"):
            idle = 1 - busy / explained(stage, "split")["wall_seconds"]
            found["idle"] = max(0.0, min(idle, 1 - total(seen) / found["beside"] if seen else idle))
        turned = [row for row in seen if row["kind"] == "layout change"]
        found |= {"converting": total(turned), "conversions": total(turned, "launches_per_call")}
        return found | {"converting_share": total(turned) / total(seen) if seen else None}

    def of_times(self, stage: Found) -> Found:
        """Times, rates, ratios and energy; the pace is of calls back to back, also of the stretch for the energy."""
        name, energy, beside = stage["spec"]["name"], stage["energy"], statistics.median(samples(stage, "stage"))
        steady = any(pair.get("sustained") for pair in stage["pairs"]) or not energy
        pace = beside if steady else energy["seconds"] / energy["images"] * self.batch
        first = self.stages.get(self.base, {}).get("host_latencies") or self.run["baseline_host_latencies"]
        found = {"pace": pace, "beside": beside, "rate": self.batch / pace, "ratio": block_ratio(stage)}
        found |= {"hours": 1e6 * pace / self.batch / 3600, "calls": len(stage["latencies"])}
        found["to_eager"] = found["ratio"] / (1.0 if self.base == "eager" else self.ratio.get("eager", math.nan))
        found |= {"paid": self.crossing(self.base, name)} if name in self.call else {}
        if energy:
            found |= {"joules": energy["joules"] / energy["images"], "per_joule": energy["images"] / energy["joules"]}
        if stage["latencies"]:
            found |= {"p50": statistics.median(stage["latencies"]), "slowest": max(stage["latencies"])}
        if stage["host_latencies"]:
            own = statistics.median(stage["host_latencies"])
            found |= {"host_p50": own, "host_to_host": statistics.median(first or [0.0]) / own}
            found["copies"] = own - found["p50"]
        return found | self.of_path(stage["host_path"], beside)

    def of_path(self, path: Rows, beside: float) -> Found:
        """The way from host memory and back, move by move."""
        if not path:
            return {}
        times = [statistics.median(each["seconds_per_call"]) for each in path]
        found = {f"move.{new['move'].replace(' ', '_')}": before / after
                 for new, (before, after) in zip(path[1:], pairwise(times), strict=True)}  # fmt: skip
        found |= {"path": times[0], "last_path": times[-1], "all_moves": times[0] / times[-1]}
        return found | {"of_path": beside / times[0], "of_last_path": beside / times[-1]}

    def of_changes(self, stage: Found) -> Found:
        """Changes of layout, kernels that a compiler wrote, and the growth with batch and size."""
        changes: Rows = explained(stage, "layout", [])
        wrote: Rows = explained(stage, "fusion").get("kernels", [])
        at: Counter[str] = Counter()
        for change in changes:
            at[change["where"]] += change["seconds_per_call"] or 0.0  # type: ignore[assignment]
        found = {"changes": total(changes, "times_per_call"), "change_seconds": total(changes)}
        found |= {"change_share": total(changes) / statistics.median(samples(stage, "stage"))}
        found |= {"worst_change": max(at.values(), default=0.0), "written": len(wrote)}
        ways = Counter(each["direction"] for each in wrote)
        found |= {f"fuse.{way}": ways[way] for way in ("vertical", "horizontal", "both", "single")}
        found["launched"] = total(wrote, "launches_per_call")
        for name, kind, of in (("growth", "growth", "images"), ("growth_by_size", "image_growth", "pixels")):
            if grown := explained(stage, kind):
                (n1, n2), (t1, t2) = grown[of][-2:], grown["seconds"][-2:]
                found[name] = math.log(t2 / t1) / math.log(n2 / n1)
        return found

    def of_memory(self, stage: Found) -> Found:
        """Bytes held, allocated, moved and stored. XLA's pool isn't torch's: no process's bytes are recorded of it."""
        memory, timeline, files = stage["memory"] or {}, explained(stage, "timeline"), stage["artefacts"]
        held = memory.get("process_bytes" if memory.get("allocated_peak_bytes") is not None else "host_peak_bytes")
        kept = [file for file in files if file["path"].rpartition(".")[2] in WEIGHTS]
        seen = explained(stage, "counted").get("moved_bytes"), explained(stage, "fusion").get("bytes_per_call")
        parts = {part: timeline.get(f"{part}_bytes") or 0 for part in ("held", "activations", "workspace")}
        found = {"moved": seen[0] or seen[1] or 0.0, "allocated": sum(parts.values())}
        served = (stage.get("service") or {}).get
        holds = served("device_bytes") or served("reserved_bytes") or served("host_bytes") or held
        found |= {"held": held, "held_gib": (held or 0) / 2**30, "served_gib": (holds or 0) / 2**30}
        found["replicas"] = (self.device["device_memory_bytes"] or 0) // holds if holds else None
        return found | {"file_mib": total(kept, "size_bytes") / 2**20}

    # Layers and their roofs.

    def groups(self, stage: Found) -> list[tuple[Rows, Found]]:
        """Each timed layer, after an untimed one that runs with it, with its time."""
        times = {each["name"]: each for each in explained(stage, "layers", [])}
        found: list[tuple[Rows, Found]] = []
        waiting: Rows = []
        apart = {layer["name"]: layer for layer in self.run["reference"]["layers"] if layer["name"] in BESIDES}
        for layer in self.run["reference"]["layers"]:
            if layer["name"] in times and layer["name"] not in apart:
                before = waiting if layer["flops"] and len(waiting) == 1 else []
                found.append(([*before, layer], times[layer["name"]]))
                waiting = []
            elif layer["flops"]:
                waiting.append(layer)
        computing = [layers for layers, _ in found if layers[-1]["flops"]]
        if computing and len(waiting) == 1 and len(computing[-1]) == 1:
            computing[-1].extend(waiting)
        return [*found, *(([layer], times[name]) for name, layer in apart.items() if name in times)]

    def flops(self, stage: Found, layers: Rows, timed: str) -> float:
        merged = (stage["execution"] or {}).get("layer_flops", {})
        return float(self.batch * merged.get(timed, total(layers, "flops")))

    def reached(self) -> dict[str, float]:
        """The most FLOP/s by precision: of a product of matrices, or of a layer that is at most 1.3 times as fast."""
        most = dict(self.matmul)
        for stage in self.run["stages"]:
            for layers, time in self.groups(stage) if stage["status"] == "ok" else []:
                bits, rate = precision(stage, layers), math.inf
                if time["seconds_per_call"]:
                    rate = self.flops(stage, layers, time["name"]) / time["seconds_per_call"]
                if bits in most and rate <= 1.3 * self.matmul[bits]:
                    most[bits] = max(most[bits], rate)
        return most

    def layers(self, stage: Found) -> list[tuple[str, float, float, float]]:
        """Level, seconds, and seconds at the arithmetic and at the memory roof of each timed layer."""
        found, groups = [], self.groups(stage)
        sizes = [BYTES[precision(stage, layers)] for layers, _ in groups]
        last = max((at for at, (layers, _) in enumerate(groups) if layers[-1]["flops"]), default=len(groups) - 1)
        for at, (layers, time) in enumerate(groups):
            written = max(sizes[at], 2) if at == last else sizes[at + 1] if at < last else sizes[at]
            read = sizes[at] * (self.batch * layers[0]["read_elements"] + total(layers, "weight_elements"))
            moved = read + written * self.batch * layers[-1]["written_elements"]
            rate = self.peaks.get(precision(stage, layers)) or self.peaks[precision(stage, [])]
            compute = self.flops(stage, layers, time["name"]) / rate
            found.append((self.level(time["name"]), time["seconds_per_call"], compute, moved / self.bandwidth))
        return found

    def level(self, name: str) -> str:
        """The level of a layer; one that enlarges belongs to the next one's."""
        every = self.run["reference"]["layers"]
        at = next(at for at, layer in enumerate(every) if layer["name"] == name)
        while every[at]["kind"].startswith(("ConvTranspose", "Upsample")):
            at += 1
        return str(every[at]["level"])

    def floors(self, stage: Found) -> list[tuple[float, float]]:
        """The computing layers at their roofs; where a profile hides a tenth of their work, those of the network."""
        timed = {layer["name"] for layers, _ in self.groups(stage) if layers[-1]["flops"] for layer in layers}
        if total([layer for layer in self.work if layer["name"] in timed], "flops") >= 0.9 * total(self.work, "flops"):
            return [(compute, memory) for _, _, compute, memory in self.layers(stage) if compute]
        found, own = [], precision(stage, [])
        for layer in self.work:
            elements = self.batch * (layer["read_elements"] + layer["written_elements"]) + layer["weight_elements"]
            rate = self.peaks.get(precision(stage, [layer])) or self.peaks[own]
            found.append((self.batch * layer["flops"] / rate, BYTES[own] * elements / self.bandwidth))
        return found

    def of_roofs(self, stage: Found, pace: float) -> Found:
        """Shares of the peaks over a call, and of the kernels' time near each roof, in matrix work and in passes."""
        own, layers, roofs = precision(stage, []), self.layers(stage), self.floors(stage)
        known = [self.of_memory(stage)["moved"], self.bandwidth * sum(memory for *_, memory in layers)]
        images = self.batch * (total(self.work, "read_elements") + total(self.work, "written_elements"))
        least = next(filter(None, known), BYTES[own] * (images + total(self.work, "weight_elements")))
        found = {"peak": self.peaks[own], "of_the_peak": sum(compute for compute, _ in roofs) / pace}
        found |= {"of_the_bandwidth": least / pace / self.bandwidth}
        seen: Rows = (stage["profile"] or {}).get("kernels", [])
        every, matrix = total(seen), total([row for row in seen if row["kind"] in ("convolution", "matmul")])
        on_roofs, fused = sum(map(max, roofs)), explained(stage, "fusion").get("bytes_per_call") or math.inf
        if not every:
            return found
        reach = on_roofs / matrix if matrix else math.inf
        through = max(0.0, fused / self.bandwidth - sum(memory for _, memory in roofs))
        passing = through / (every - matrix) if every > matrix else 1.0  # share of the bandwidth
        near, passes = matrix if reach >= 0.5 else 0.0, every - matrix if passing >= 0.25 else 0.0
        compute = near * sum(compute for compute, memory in roofs if compute >= memory) / on_roofs
        found |= {"near_arithmetic": compute / every, "near_bandwidth": (near - compute + passes) / every}
        found |= {"matrix": matrix / every, "matrix_reach": reach}
        found |= {"passes": 1 - matrix / every, "passes_reach": passing}
        names = {layer["name"] for layers, _ in self.groups(stage) for layer in layers if layer["name"]}
        return found | {"between": total([row for row in explained(stage, "layers", []) if row["name"] not in names])}

    # Figures of several stages, or of a sentence's words.

    def noise(self) -> float:
        """The least difference that is claimed: by the baseline against itself, in other processes and in this run."""
        squares = [math.log(block_ratio({"pairs": [pair]})) ** 2 for pair in self.run["aa_pairs"]]
        low, high = interval(self.stages[self.base]["pairs"]) if self.base in self.stages else (1.0, 1.0)
        return max(0.01, 2.57 * statistics.fmean(squares or [0.0]) ** 0.5, high - 1, 1 / low - 1)

    def crossing(self, before: str, after: str) -> int | None:
        """The images from which the later one, built and run, takes less; none where it is no faster."""
        saved = (self.call[before] - self.call[after]) / self.batch
        extra = self.set_up.get(after, 0.0) - self.set_up.get(before, 0.0)
        return math.ceil(extra / saved) if saved > 0 else None

    def change_overs(self, keys: list[str], *_: str) -> list[Any]:
        return [self.crossing(before, after) for before, after in pairwise(keys)]

    def times(self, keys: list[str], *_: str) -> list[float]:
        return [self.ratio[self.winner] / (1.0 if keys[0] == self.base else self.ratio[keys[0]])]

    def builds(self, keys: list[str], *_: str) -> list[float]:
        """What other builds may do to the winner's ratio; stages without their own spread have the first."""
        spreads = (BUILDS.get(name, BUILDS["compile"]) for name in (self.winner, keys[0]))
        return [math.expm1(1.96 * math.hypot(*spreads))]

    def eight_bits(self, keys: list[str]) -> list[float]:
        fewer = [BYTES.get(precision(self.every[keys[0]], [layer])) == 1 for layer in self.work]
        return [sum(fewer), len(fewer)]

    def dice(self, keys: list[str], at: str, *printed: str) -> list[float]:
        own, place = self.every[keys[0]]["accuracy"], int(at)
        lost = own["class_lost"][place]["high"] if own.get("class_lost") else 0.0
        return [own["dice"][place], own["reference_dice"][place], max(lost, 0.0)][: len(printed)]

    def throttled(self, keys: list[str], *_: str) -> list[float]:
        """The share of each side's samples with lowered clocks; at steady state the power cap is expected."""
        pairs = self.stages[keys[-1]]["pairs"]
        every = {"power"} if any(pair.get("sustained") for pair in pairs) else set()
        blocks = [block for pair in pairs for block in pair["blocks"]]
        taken = ([sample for block in blocks for sample in block[side]] for side in SIDES)
        return [statistics.fmean(bool({*sample["throttle_reasons"]} - every) for sample in side) for side in taken]

    def outliers(self, keys: list[str], *_: str) -> list[float]:
        times = samples(self.stages[keys[-1]], "stage")
        far = [abs(each - statistics.median(times)) for each in times]
        return [sum(each > 14.8 * statistics.median(far) for each in far), len(times)]

    def alone(self, keys: list[str], words: str, *_: str) -> list[float]:
        """What a layer that keeps 16 bits takes of the budget."""
        choice = self.every.get(keys[0], {}).get("details", {}).get("fp8_choice", {})
        return [choice.get("refused", {}).get(words.rpartition(" ")[2], math.nan)]

    def last_drift(self, keys: list[str], *_: str) -> list[float]:
        return [slower_or_faster(drift(self.stages[keys[-1]]["pairs"]))]

    def step(self, keys: list[str], *_: str) -> list[float]:
        return [self.call[keys[1]] - self.call[keys[0]]]

    def largest_step(self, *_: object) -> list[float]:
        """Of the stages from the baseline to the winner, those that beat all before them by more than the noise."""
        kept: list[str] = []
        order = list(self.stages)
        for name in order[: order.index(self.winner)]:
            if not kept or self.call[name] * (1 + self.whole["noise"]) <= self.call[kept[-1]]:
                kept.append(name)
        kept = [name for name in kept if self.base not in order or order.index(name) >= order.index(self.base)]
        return [min(self.call[after] - self.call[before] for before, after in pairwise([*kept, self.winner]))]

    def of_a_class(self, keys: list[str], words: str, *_: str) -> list[float]:
        """The change of a class of work between two stages, and its launches in both."""
        kind = words.rpartition(": ")[2].strip()
        old, new = ([row for row in self.stages[key]["profile"]["kernels"] if row["kind"] == kind] for key in keys[:2])
        return [total(new) - total(old), total(old, "launches_per_call"), total(new, "launches_per_call")]

    def rest(self, keys: list[str], *_: str) -> list[float]:
        named = re.findall(r"(?:: |, )([a-z ]+) [−+][\d.]+ \w+ \(", self.line)
        return [self.step(keys)[0] - sum(self.of_a_class(keys, kind)[0] for kind in named)]

    def longest_class(self, keys: list[str], words: str, *_: str) -> list[float]:
        return [total([row for row in self.stages[self.winner]["profile"]["kernels"] if row["kind"] == words])]

    def headroom(self, *_: object) -> list[float]:
        """The most that a level takes above its layers' roofs, and all of them."""
        above: Counter[str] = Counter()
        for level, seconds, compute, memory in self.layers(self.stages[self.winner]):
            above[level] += max(0.0, seconds - max(compute, memory)) if compute or memory else 0.0  # type: ignore[assignment]
        return [max(above.values()), sum(above.values())]


def slower_or_faster(change: float) -> float:
    return max(change, 1 / (1 + change) - 1)


def explained(stage: Found, what: str, default: Any = None) -> Any:
    """What the diagnostics say; empty where they don't."""
    return (stage["diagnostics"] or {}).get(what) or ({} if default is None else default)


def precision(stage: Found, layers: Rows) -> str:
    """The precision of layers that run as one: the last one's own, else the stage's."""
    ran = stage["execution"] or {}
    own = [ran.get("layer_precision", {}).get(layer["name"]) for layer in reversed(layers)]
    return next(filter(None, own), ran.get("precision") or "")

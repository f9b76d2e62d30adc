"""Prints the tables that records of record_all and hard_nets make, or writes them into README and docs.

    python -m tests.house.network_table [--take records] [--write]

`--take` puts the finished runs of a recording in place of what docs have of other commits, names what is missing, and
writes; parts of one recording may be taken one after another. They lie in docs/CARD/KIND/NAME/BUILD/results.json.xz,
layers in CARD/kernels.json, lessons in CARD/lessons. README.md shows the networks of three builds, docs/ladders.md all;
a table stands between <!-- networks --> and <!-- /networks -->, or with `ladder NAME` in the first. A figure is the
median over builds of that over samples. What failed has a dash.

The table `hard` takes what tests.benchmarks.hard_nets wrote: all files docs/CARD/hard/*.json, which are of one commit.
"""

import argparse
import io
import json
import lzma
import math
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.records.disk import sources_digest
from pipeline.report.formatting import method, significant
from tests.benchmarks.hard_nets import HARD
from tests.benchmarks.record_all import MOST_MOVED, NETS, RUNS, SCRIPTS, TRAINING, milliseconds, moved, plan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("README.md", "docs/ladders.md", "docs/hard-nets.md")
SOURCES = ("pipeline", "models", "pipeline/compiler")  # as `code_digest` has them
FULL = ("report.md", "report.html", "results.csv", "check.py")  # beside a record that has them all
COMPILED, OWN = ("compile", "compile_graph", "compile_max"), ("fused", "fp8")
MODES = ("reduce-overhead", "max-autotune")
LADDER = ("eager", "tf32", "channels_last", "amp", "half", "torchscript", "cuda_graph", *COMPILED, "onnxruntime", "xla",
          *OWN)  # fmt: skip
HEAD = (
    "| network | on | builds | best torch.compile, ms | own fp16, ms | own fp8, ms | ratio to best torch.compile | "
    "spread | pixels changed |"
)
HARD_HEAD = (
    "| network | on | reduce-overhead, ms | max-autotune, ms | own fp16, ms | own fp8, ms | fp16 ÷ faster compiler | "
    "fp8 ÷ faster compiler | error of fp8 | fp16 built, s | fp8 built, s |"
)
LADDER_HEAD = "| method | ms a call | × autocast | pixels that change |"
# In pages: CARD/net/NAME/BUILD/report.md, CARD/kernels.json, CARD/lessons/lessons.md; earlier runs had lessons_NAME
LINK = r"[\w-]+/(net/\w+/\d/report\.\w+|kernels\.json|lessons(?=\w*/lessons\.md))\w*(?=[)#/])"
Stages = dict[str, dict[str, Any]]
Run = dict[str, Any]


def read(path: Path) -> Run:
    run: Run = json.loads(lzma.decompress(path.read_bytes()))
    return run


def card_of(run: Run) -> str:
    """Return the name of the device: H100 of "NVIDIA H100 80GB HBM3"."""
    found = run["environment"]
    name: str = found["device_name"].removeprefix("NVIDIA ").split()[0]
    return "CPU" if found.get("device") == "cpu" else name


def recorded(name: str) -> Iterator[tuple[list[Run], list[Run]]]:
    """Yield a network's builds, and the runs of its other rungs, card by card."""
    for card in sorted(folder.parents[1] for folder in DOCS.glob(f"*/net/{name}")):
        own, others = (map(read, sorted(card.glob(f"{kind}/{name}/*/results.json.xz"))) for kind in RUNS)
        yield [*own], [*others]


def stages_of(run: Run) -> Stages:
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
        graphs = [[each["Inductor"] for each in found if "Inductor" in each] for found in own]
        return [min(found) for found in graphs if found]
    return [milliseconds(stages[name]) for stages in runs if name in stages]


def row(name: str, card: str, runs: list[Stages], others: list[Stages]) -> str:
    """Return a network's line, of its builds and of other runs with further compilers."""
    compiled = [found for each in (*COMPILED, "Inductor") if (found := times([*runs, *others], each))]
    shown = [min(compiled, key=statistics.median, default=[]), *(times(runs, each) for each in OWN)]
    medians = [statistics.median(found) if found else None for found in shown]
    ratios = [f"{medians[0] / own:.1f} ×" if medians[0] and own else "–" for own in medians[1:]]
    spreads = [(max(found) - min(found)) / statistics.median(found) for found in shown if len(found) > 1]
    changed = [stages["fp8"]["accuracy"]["flipped_share"] for stages in runs if "fp8" in stages]
    cells = [
        NETS[name].title + ("" if times([*runs, *others], "compile_max") else " ᵃ"),
        card,
        str(len(runs)),
        *("–" if value is None else significant(value) for value in medians),
        " / ".join(ratios),
        f"{100 * max(spreads):.1f} %" if spreads and len(runs) > 1 else "–",
        "–" if not changed or None in changed else f"{100 * statistics.median(changed):.3f} %",
    ]
    return f"| {' | '.join(cells)} |"


def about(runs: list[Run]) -> str:
    """Return the devices, versions and commits of runs, and how long their samples last."""
    found = [run["environment"] for run in runs]
    cards = " or ".join(sorted({each["device_name"] for each in found}))
    versions = ", ".join(sorted({f"torch {each['packages']['torch']}" for each in found}))
    commits = {each["commit"] or "unknown" for each in found}
    commit = f"commit {commits.pop()[:8]}" if len(commits) == 1 else f"{len(commits)} commits"
    blocks = [block for run in runs for stage in stages_of(run).values() for block in stage["pairs"][0]["blocks"]]
    tenth, *_, most = statistics.quantiles([taken["seconds"] for block in blocks for taken in block["stage"]], n=10)
    return f"One {cards} for each run, {versions}, {commit}. Samples last {tenth:.1f} to {most:.1f} s.\n"


def networks(least: int) -> str:
    """Return the table of the recorded networks of which at least so many builds are planned."""
    lines, runs = [HEAD, re.sub(r"[^|]+", " --- ", HEAD)], []
    for name in (name for name, net in NETS.items() if net.builds >= least):
        for own, others in recorded(name):
            lines.append(row(name, card_of(own[0]), *([stages_of(run) for run in each] for each in (own, others))))
            runs += own
    return "\n".join([about(runs), *lines]) if runs else "Not recorded."


def ladder(name: str) -> str:
    """Return the table of all methods on one network, each beside autocast of its own run."""
    own, others = max(recorded(name), key=lambda each: len(each[1]), default=([], []))
    found: Stages = {}
    runs = [*own[:1], *others]
    for run in runs:
        found = stages_of(run) | found
    if not found:
        return "Not recorded."
    lines = [LADDER_HEAD, re.sub(r"[^|]+", " --- ", LADDER_HEAD)]
    for stage in LADDER:
        if stage == "amp":
            beside = next(found[each] for each in ("fused", *LADDER) if each in found)
            lines.append(f"| autocast (`amp`) | {significant(milliseconds(beside, 'baseline'))} | 1 | – |")
        elif stage in found:
            changed = found[stage]["accuracy"]["flipped_share"]
            share = "–" if changed is None else f"{100 * changed:.2g} %"
            figures = f"{significant(milliseconds(found[stage]))} | {significant(ratio(found[stage]))}"
            lines.append(f"| {method(stage)} (`{stage}`) | {figures} | {share} |")
    return "\n".join([about(runs), *lines])


def hard_rows() -> dict[tuple[str, str], Run]:
    """Return what hard_nets recorded, by card and by "NETWORK, cold" or "NETWORK, warm".

    Raises:
        ValueError: the files are of several commits, two have the same network on one card, or one is of another card.
    """
    rows: dict[tuple[str, str], Run] = {}
    for path in sorted(DOCS.glob("*/hard/*.json")):
        for key, found in json.loads(path.read_text(encoding="utf-8")).items():
            if rows.setdefault((path.parts[-3].upper(), key), found) is not found:
                raise ValueError(f"{path}: another file of {path.parent} has {key}, too")
            if path.parts[-3].upper() not in found["gpu"]:
                raise ValueError(f"{path}: {key} is of {found['gpu']}")
    if len(codes := {(found.get("commit"), found.get("code_sha256")) for found in rows.values()}) > 1:
        raise ValueError(f"docs/*/hard: records of {len(codes)} commits or sources, not of one")
    return rows


def hard_row(name: str, card: str, cold: Run, warm: Run) -> tuple[str, list[str]]:
    """Return a network's line, and a line for each goal that it misses and for each form that failed."""
    taken = {form: statistics.median(rounds) for form, rounds in cold["rounds_ms"].items()}
    inside = cold["ran"].get("fused", {}).get("candidates_ms", {}).get("Inductor")  # where other forms fail
    best = min((taken[mode] for mode in MODES if mode in taken), default=inside)
    shares, goals, missed = {own: taken[own] / best for own in OWN if best and own in taken}, cold["goals"], []
    told = {own: f"{share:.3f}" for own, share in shares.items()}
    for own in (own for own in shares if goals[own]):
        late = shares[own] > goals[own]
        told[own] += f" (goal {goals[own]:g}: {'missed' if late else 'reached'})"
        if late:
            spent = [(0.1 * us / taken[own], kind) for kind, us in cold["kinds_us"][own].items()]
            spent.append((100 - sum(share for share, _ in spent), "no kernel"))
            parts = ", ".join(f"{kind} {share:.1f} %" for share, kind in sorted(spent, reverse=True) if share >= 1)
            figures = f"{shares[own]:.3f} instead of {goals[own]:g}. Of {significant(taken[own])} ms: {parts}."
            missed.append(f"- {name}, {card}, {method(own)}: {figures}")
    for form, why in {**cold["failed"], **warm["failed"]}.items():
        missed.append(f"- {name}, {card}: {form} failed, `{why.splitlines()[0].replace('`', '')[:160]}`.")
    cells = [
        name + ("" if {*MODES} & {*taken} else " ᵇ"),
        card,
        *(significant(taken[form]) if form in taken else "–" for form in (*MODES, *OWN)),
        *(told.get(own, "–") for own in OWN),
        f"{cold['relative_l2']['fp8']:.2g}" if "fp8" in cold["relative_l2"] else "–",
        *(" / ".join(f"{each['build_seconds'][own]:.1f}" if own in each["ran"] else "–" for each in (cold, warm))
          for own in OWN),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |", missed


def hard() -> str:
    """Return the table of the networks on which the kernels win little, and where the time of each miss goes."""
    rows, lines, missed = hard_rows(), [HARD_HEAD, re.sub(r"[^|]+", " --- ", HARD_HEAD)], []
    for card in sorted({card for card, _ in rows}):
        for name in (name for name in HARD if (card, f"{name}, cold") in rows):
            cold = rows[card, f"{name}, cold"]
            line, own = hard_row(name, card, cold, rows.get((card, f"{name}, warm"), {"ran": {}, "failed": {}}))
            lines.append(line)
            missed += own
    if not rows:
        return "Not recorded."
    cards, versions = (" or ".join(sorted({found[key] for found in rows.values()})) for key in ("gpu", "torch"))
    commit = next(iter(rows.values())).get("commit") or "unknown"
    opening = f"One {cards} for each network, torch {versions}, commit {commit[:8]}.\n"
    return "\n".join([opening, *lines, "", *missed])


def drawn(page: str) -> str:
    """Return a page with the tables between its markers drawn again."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for marker in re.findall(r"<!-- (networks|ladder \w+|hard) -->", text):
        kind, _, name = marker.partition(" ")
        least = 2 if page == "README.md" else 1
        new = {"hard": hard, "ladder": partial(ladder, name), "networks": partial(networks, least)}[kind]()
        before, opened, rest = text.partition(f"<!-- {marker} -->\n")
        _, closed, after = rest.partition(f"<!-- /{kind} -->")
        text = f"{before}{opened}{new}\n{closed}{after}"
    return text


def digest_of(commit: str) -> str:
    """Return the digest that a run of a commit records of its sources; raise ValueError if the commit isn't here."""
    packed = subprocess.run(["git", "-C", ROOT, "archive", commit, *SOURCES[:2]], capture_output=True, check=False)
    if packed.returncode:
        raise ValueError(f"commit {commit}: {packed.stderr.decode().strip()}")
    with TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
        return sources_digest(Path(folder, name) for name in SOURCES)


def refuse_mixed(runs: dict[str, Run], digest_of: Callable[[str], str] = digest_of) -> None:
    """Raise if runs are not of one commit's sources, or those of a network are of several cards."""
    codes = {(run["environment"]["commit"], run["code_sha256"]): step for step, run in runs.items()}
    if len(codes) != 1:
        raise ValueError(f"records of {len(codes)} commits or sources, not of one: {', '.join(codes.values())}")
    ((commit, digest),) = codes
    if not commit or digest != digest_of(commit):
        raise ValueError(f"the sources that ran are not those of commit {commit or 'unknown'}")
    cards = sorted({(step.split("/")[1], card_of(run)) for step, run in runs.items() if step.startswith(RUNS)})
    if mixed := [f"{name} on {one} and {two}" for (name, one), (other, two) in pairwise(cards) if name == other]:
        raise ValueError(f"a row is of one card: {', '.join(mixed)}; record it again on one")


def lacking(runs: dict[str, Run]) -> Iterator[str]:
    """Yield a line for each planned build that has no record, or whose record lacks a stage."""
    for step in (step for step in plan() if step.kind in RUNS):
        run = runs.get(f"{step.kind}/{step.name}/{step.build}")
        left = [stage for stage in step.stages if run and stage not in stages_of(run)]
        of = "README, " if NETS[step.name].builds > 1 else ""
        if run is None or left:
            yield f"missing ({of}{step.kind}): {step.name} {step.build}{': ' * bool(left)}{', '.join(left)}"
    others = [(step.kind, step.name, "warm" if step.kind == "hard" else step.build) for step in plan()]
    others = [other for other in others if other[0] not in RUNS and "{}/{}/{}".format(*other) not in runs]
    yield from (f"missing ({kind}): {name}" for kind, name, _ in others)


def ran_where(kind: str, rows: Run) -> dict[str, Run]:
    """Return where rows of another benchmark ran, of keys "NAME, BUILD", by "KIND/NAME/BUILD"."""
    ran = {}
    for key, row in rows.items():
        where = row.get("environment") or {"device_name": row["gpu"], "commit": row["commit"]}
        ran[f"{kind}/{key.replace(', ', '/')}"] = {"environment": where, "code_sha256": row.get("code_sha256")}
    return ran


def other_records(source: Path) -> tuple[dict[Path, str], dict[str, Run]]:
    """Return a recording's files of other benchmarks in docs, and where each ran, by "KIND/NAME/BUILD"."""
    texts, ran = dict[Path, str](), dict[str, Run]()
    for path in sorted(path for kind in SCRIPTS for path in source.glob(f"{kind}/*/1/results.json.xz")):
        (kind, name), found = path.parts[-4:-2], read(path)
        own = ran_where(kind, found if kind == "hard" else {f"{name}, 1": found})
        into = {"hard": f"hard/{name}.json", "kernels": "kernels.json", "lessons": "lessons/lessons.json"}[kind]
        folder = DOCS / card_of(next(iter(own.values()))).lower()
        texts[folder / into] = json.dumps(found, indent=1)
        drawn = path.parent.glob("lessons.[hm]*")
        texts |= {folder / kind / page.name: page.read_text(encoding="utf-8") for page in drawn}
        ran |= own
    return texts, ran


def published(commit: str | None) -> tuple[dict[str, Path], dict[str, Run]]:
    """Return where docs have runs and hard networks of a commit, and the records, by "KIND/NAME/BUILD"."""
    paths, runs = dict[str, Path](), dict[str, Run]()
    for path in sorted(path for kind in RUNS for path in DOCS.glob(f"*/{kind}/*/*/results.json.xz")):
        if commit and (run := read(path))["environment"].get("commit") == commit:
            step = "/".join(path.parts[-4:-1])
            paths[step], runs[step] = path.parent, run
    for path in sorted(DOCS.glob("*/hard/*.json")):
        rows = ran_where("hard", json.loads(path.read_text(encoding="utf-8")))
        if commit and {row["environment"]["commit"] for row in rows.values()} == {commit}:
            paths, runs = paths | dict.fromkeys(rows, path), runs | rows
    return paths, runs


def published_of(kind: str) -> list[Path]:
    """Return the files or folders of a kind of record in docs; networks and their rungs are one kind."""
    if kind in RUNS:
        return [path for each in RUNS for path in DOCS.glob(f"*/{each}/*/*")]
    if kind == "hard":
        return [*DOCS.glob("*/hard/*")]
    return [path for path in DOCS.glob("*/*") if re.split("[_.]", path.name)[0] == kind]


def take(source: Path) -> list[str]:
    """Put a recording's finished runs of stable networks in place of what docs have of others; return what is missing.

    Raises:
        ValueError: they can't be shown in one table, or a link would lead nowhere.
    """
    paths = {str(path.parent.relative_to(source)): path for path in sorted(source.glob("*/*/*/results.json.xz"))}
    paths = {step: path for step, path in paths.items() if step.split("/")[0] in RUNS}
    trained = {step: path for step, path in paths.items() if NETS[step.split("/")[1]].weights != "random"}
    unstable = {step: by for step, path in trained.items() if (by := moved(path.with_name(TRAINING))) > MOST_MOVED}
    left_out = [f"left out: {step}, whose Dice still moved by {by:.4f}" for step, by in unstable.items()]
    runs = {step: read(path) for step, path in paths.items() if step not in unstable}
    texts, others = other_records(source)
    if not runs | others:
        raise ValueError("; ".join(left_out) or "it has no finished run")
    kept, earlier = published(next(iter((runs | others).values()))["environment"].get("commit"))
    every = earlier | runs | others
    refuse_mixed(every)
    files: dict[Path, Path] = {}
    for step, run in runs.items():
        full, training = [paths[step].with_name(name) for name in FULL], paths[step].with_name(TRAINING)
        beside = (*(full if all(map(Path.exists, full)) else ()), *filter(Path.exists, [training]))
        into = DOCS / card_of(run).lower() / step
        files |= {into / path.name: path for path in (paths[step], *beside)}
    stay = {path for step, path in kept.items() if step not in runs | others}
    kinds = {step.split("/")[0] for step in runs | others}
    old = {path for kind in kinds for path in published_of(kind)}  # a kind that the recording lacks wholly stays
    pages = {page: page.read_text(encoding="utf-8") for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md"))}
    linked = {link for text in pages.values() for link in re.findall(LINK, text)}
    into_docs = [path.relative_to(DOCS).parts for path in (*files, *texts, *(each / "report.md" for each in stay))]
    new = {link: card for card, *rest in into_docs for link in (rest[0], "/".join(rest))}
    lost = sorted(link for link in linked - {*new} if link.startswith(RUNS))
    if lost and runs:
        raise ValueError(f"pages link to what is not recorded: {', '.join(lost)}")
    for path in old - stay:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for into, path in files.items():
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, into)
    for into, text in texts.items():
        into.parent.mkdir(parents=True, exist_ok=True)
        into.write_text(text, encoding="utf-8")
    for page, text in pages.items():
        own = re.sub(LINK, lambda link: f"{new[link[1]]}/{link[1]}" if link[1] in new else link[0], text)
        page.write_text(own, encoding="utf-8")
    return [*left_out, *lacking(every)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--take", type=Path, metavar="RECORDS", help="publish this recording first, and write")
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    asked = parser.parse_args()
    missing: list[str] = []
    try:
        missing = take(asked.take) if asked.take else []
    except ValueError as error:
        parser.error(f"--take {asked.take}: {error}")
    for page in PAGES:
        text = drawn(page)
        if asked.write or asked.take:
            (ROOT / page).write_text(text, encoding="utf-8")
        found = re.findall(r"<!-- (?:networks|ladder \w+|hard) -->\n.*?(?=\n<!-- /)", text, flags=re.DOTALL)
        sys.stdout.write("\n\n".join([f"{page}:", *found, ""]))
    sys.stdout.writelines(f"{line}\n" for line in missing)


if __name__ == "__main__":
    main()

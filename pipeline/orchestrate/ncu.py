"""Count each stage's bytes by the GPU's own counters: one call, in a process under Nsight Compute (ncu)."""

import csv
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from io import StringIO
from pathlib import Path

from conf import child
from pipeline.orchestrate.context import RunContext
from pipeline.orchestrate.interruption import waiting
from pipeline.records.chrome_trace import complete, of
from pipeline.records.diagnostics import CountedBytes, Note
from pipeline.records.request import SCRATCH, StageSpec
from pipeline.records.run_record import StageRecord

READ, WRITTEN, CACHE = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"
METRICS = (READ, WRITTEN, CACHE)
HELPERS = re.compile("init_device_workspace")
LONG_WORD = 12  # letters: shorter words, and those in _t, are types, which ncu and CUPTI write differently
NOBODYS = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous class\)")
ERROR = re.compile(r"^==ERROR==\s*(.*)$", re.MULTILINE)
VERSION = re.compile(r"Version (\d[\w.]*)")
PHASE = "counters"
KEPT = "counters.csv"
PERMISSION = "ERR_NVGPUCTRPERM"
USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
# Clocks and caches are left as they are; nothing before the one call is counted.
OPTIONS = (
    "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--target-processes",
    "application-only", "--csv", "--print-units", "base", "--metrics", ",".join(METRICS),
)  # fmt: skip


class CountersError(Exception):
    """Counters that can't be read; one line."""


@dataclass
class Launch:
    """One kernel, as ncu ran it."""

    name: str
    counted: dict[str, int] = field(default_factory=dict)  # metric to its sum

    @property
    def moved(self) -> int:
        """Bytes to and from device memory."""
        return self.counted[READ] + self.counted[WRITTEN]


def launches(log: str) -> list[Launch]:
    """Return the kernels in the log of `ncu --csv --print-units base`, in the order in which they ran."""
    rows = csv.DictReader(line for line in log.splitlines() if not line.startswith("=="))
    by_id: dict[int, Launch] = {}
    for row in rows:
        try:
            launch = by_id.setdefault(int(row["ID"]), Launch(row["Kernel Name"]))
            launch.counted[row["Metric Name"]] = int(float(row["Metric Value"].replace(",", "")))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CountersError(f"ncu's log has a line that can't be read ({error})") from error
    if not by_id:
        said = ERROR.search(log)
        raise CountersError(said[1].split(" - ")[0].strip() if said else "ncu saw no kernel")
    if lacking := [launch.name for launch in by_id.values() if set(METRICS) - set(launch.counted)]:
        raise CountersError(f"ncu gave no bytes for {lacking[0][:60]}")
    return [by_id[number] for number in sorted(by_id)]


def totals(found: list[Launch], profiled: list[str], tool: str) -> CountedBytes:
    """Return the sums of one call; `profiled` are its kernels' names in the profile, which ncu may write otherwise."""
    pairs = alike(found, profiled)
    whole = Counter(profiled[at] for _, at in pairs)
    by_kernel: dict[str, int] = defaultdict(int)
    for launch, at in pairs:
        if whole[profiled[at]] == profiled.count(profiled[at]):
            by_kernel[profiled[at]] += launch.moved
    sums = {metric: sum(launch.counted[metric] for launch in found) for metric in METRICS}
    return CountedBytes(sums[READ], sums[WRITTEN], sums[CACHE], len(found), len(pairs), tool, dict(by_kernel))


def alike(found: list[Launch], profiled: list[str]) -> list[tuple[Launch, int]]:
    """Return the launches with a partner at the same place of the profile, and that place; none if the counts differ.

    A library that times its algorithms may choose others in another process: those have no partner. Kernels that only
    prepare its memory are left out of the counting of places.
    """
    ours = [launch for launch in found if not HELPERS.search(launch.name)]
    theirs = [(at, name) for at, name in enumerate(profiled) if not HELPERS.search(name)]
    if len(ours) != len(theirs):
        return []
    full: dict[str, set[str]] = defaultdict(set)
    for name in profiled:
        full[plain(name)].add(name)
    return [
        (launch, at)
        for launch, (at, name) in zip(ours, theirs, strict=True)
        if plain(launch.name) == plain(name) and (len(full[plain(name)]) == 1 or words(launch.name) == words(name))
    ]


def table(found: list[Launch]) -> str:
    """Return the launches in order, as CSV: the part of ncu's log that is kept."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kernel", *METRICS])
    writer.writerows([launch.name, *(launch.counted[metric] for metric in METRICS)] for launch in found)
    return text.getvalue()


def words(name: str) -> set[str]:
    """Return the long words of a kernel's full name: they tell what it computes, however its template is written."""
    every_word = re.findall(r"\w+", NOBODYS.sub("", name))
    return {word for word in every_word if len(word) >= LONG_WORD and not word.endswith("_t")}


def plain(name: str) -> str:
    """Return a kernel's function name without return type, namespaces, template arguments and parameters."""
    head = re.split(r"[<(]", NOBODYS.sub("", name), maxsplit=1)[0]
    return head.split("::")[-1].split(" ")[-1]


def profiled_call(trace: Path, calls: int) -> list[str]:
    """Return the names of one call's kernels in a stage's trace, in order; nothing where the calls differ."""
    try:
        events = complete(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    except (EOFError, ValueError, KeyError, gzip.BadGzipFile) as error:
        raise CountersError(f"the stage's trace can't be read ({type(error).__name__})") from error
    names = [event.name for event in of(events, "kernel")]
    each = len(names) // calls
    return names[:each] if each and names == names[:each] * calls else []


def with_counted_bytes(context: RunContext, spec: StageSpec, record: StageRecord) -> StageRecord:
    """Return the record with the counters of one call, or with a note of why they weren't read."""
    wanted = context.config.plan.counters and context.config.device == "cuda"
    diagnostics = record.diagnostics
    if not wanted or record.status != "ok" or record.profile is None or diagnostics is None:
        return record
    try:
        if context.no_counters:
            raise CountersError(context.no_counters)
        context.observer.phase_entered(spec.name, PHASE)
        return replace(record, diagnostics=replace(diagnostics, counted=count(context, spec, record)))
    except (CountersError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        note = Note("hardware counters", "not read", str(reason))
        return replace(record, diagnostics=replace(diagnostics, notes=[*diagnostics.notes, note]))


def count(context: RunContext, spec: StageSpec, record: StageRecord) -> CountedBytes:
    """Return the counters of one call of the stage; the context notes a reason that holds for all stages."""
    tool = find_ncu(os.environ)
    if tool is None:
        context.no_counters = "ncu, of NVIDIA Nsight Compute, isn't installed"
        raise CountersError(context.no_counters)
    folder = context.folder / spec.name
    scratch = folder / SCRATCH / PHASE
    scratch.mkdir(parents=True, exist_ok=True)
    job = replace(context.config.job(spec, "counted", context.folder), folder=str(scratch))
    (scratch / "job.json").write_text(json.dumps(asdict(replace(job, earlier=str(folder / SCRATCH)))))
    log = run(tool, scratch, context.config.plan.counters_limit_seconds)
    if PERMISSION in log:
        context.no_counters = f"the driver lets administrators alone read them ({PERMISSION})"
        raise CountersError(context.no_counters)
    counted = launches(log)
    (folder / KEPT).write_text(table(counted), encoding="utf-8")
    assert record.profile is not None
    profiled = profiled_call(folder / "trace.json.gz", record.profile.calls)
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    version = VERSION.search(said)
    return totals(counted, profiled, f"ncu {version[1]}" if version else "ncu")


def find_ncu(environment: Mapping[str, str]) -> str | None:
    """Return ncu from the path, the toolkit of the environment, or where NVIDIA's installers put it."""
    homes = [environment[key] for key in ("CUDA_HOME", "CUDA_PATH") if environment.get(key)]
    toolkit = [str(place) for home in homes if os.access(place := Path(home, "bin", "ncu"), os.X_OK)]
    usual = [str(place) for pattern in USUAL_PLACES for place in sorted(Path("/").glob(pattern[1:]), reverse=True)]
    return next(iter([*filter(None, [shutil.which("ncu", path=environment.get("PATH"))]), *toolkit, *usual]), None)


def run(tool: str, scratch: Path, limit: float) -> str:
    """Run ncu on the process that makes the call, and return its log; `scratch` holds the job."""
    log = scratch / "ncu.csv"
    called = child("pipeline.worker", str(scratch / "job.json"))
    with (scratch / "log.txt").open("wb") as output:
        process = subprocess.Popen(
            [tool, *OPTIONS, "--log-file", str(log), *called["args"]],
            env=called["env"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            with waiting():
                process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise CountersError(f"counting took longer than {limit:g} s and was ended") from None
        finally:
            with suppress(ProcessLookupError):  # its group has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    said = (scratch / "log.txt").read_text(encoding="utf-8", errors="replace")
    if PERMISSION in said:
        return said
    if process.returncode and PERMISSION not in text:
        last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no word")
        raise CountersError(f"ncu ended with exit code {process.returncode}: {last}")
    return text

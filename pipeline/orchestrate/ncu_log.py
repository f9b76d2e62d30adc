"""What NVIDIA Nsight Compute's command line (ncu) counted of one call."""

import csv
import gzip
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from pipeline.records.chrome_trace import complete, of
from pipeline.records.diagnostics import CountedBytes

READ, WRITTEN, CACHE = "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"
METRICS = (READ, WRITTEN, CACHE)
HELPERS = re.compile("init_device_workspace")
LONG_WORD = 12  # letters: shorter ones, and those in _t, are types and casts, which ncu and CUPTI write as each likes
NOBODYS = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous class\)")
ERROR = re.compile(r"^==ERROR==\s*(.*)$", re.MULTILINE)
VERSION = re.compile(r"Version (\d[\w.]*)")


class CountersError(Exception):
    """Nothing was counted; one line."""


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
    """The kernels in ncu's log, in the order in which they ran.

    Args:
        log: of `ncu --csv --print-units base`: a line for every metric of every kernel, among ncu's own lines.

    Raises:
        CountersError: it holds none, for the reason that ncu gives, or a line that isn't one of a metric.
    """
    rows = csv.DictReader(line for line in log.splitlines() if not line.startswith("=="))
    found: dict[int, Launch] = {}
    for row in rows:
        try:
            launch = found.setdefault(int(row["ID"]), Launch(row["Kernel Name"]))
            launch.counted[row["Metric Name"]] = int(float(row["Metric Value"].replace(",", "")))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CountersError(f"ncu's log has a line that can't be read ({error})") from error
    if not found:
        said = ERROR.search(log)
        raise CountersError(said[1].split(" - ")[0].strip() if said else "ncu saw no kernel")
    if lacking := [launch.name for launch in found.values() if set(METRICS) - set(launch.counted)]:
        raise CountersError(f"ncu gave no bytes for {lacking[0][:60]}")
    return [found[number] for number in sorted(found)]


def totals(found: list[Launch], profiled: list[str], tool: str) -> CountedBytes:
    """The sums of one call.

    Args:
        found: its kernels.
        profiled: the names of one call's kernels in the stage's profile, in order; ncu writes some of them otherwise.
        tool: ncu and its version.
    """
    pairs = alike(found, profiled)
    whole = Counter(profiled[at] for _, at in pairs)
    by_kernel: dict[str, int] = defaultdict(int)
    for launch, at in pairs:
        if whole[profiled[at]] == profiled.count(profiled[at]):
            by_kernel[profiled[at]] += launch.moved
    sums = {metric: sum(launch.counted[metric] for launch in found) for metric in METRICS}
    return CountedBytes(sums[READ], sums[WRITTEN], sums[CACHE], len(found), len(pairs), tool, dict(by_kernel))


def alike(found: list[Launch], profiled: list[str]) -> list[tuple[Launch, int]]:
    """The launches that are the profile's at the same place, each with that place; none where the counts differ.

    A library that times its algorithms may choose others in another process: those have no partner. What it launches to
    make its memory ready comes and goes with them, and is left out of the counting of places.
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
    """The launches in order, as CSV: what is kept of ncu's log."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kernel", *METRICS])
    writer.writerows([launch.name, *(launch.counted[metric] for metric in METRICS)] for launch in found)
    return text.getvalue()


def words(name: str) -> set[str]:
    """The long words of a kernel's whole name: what it computes and how, however its template is written."""
    found = re.findall(r"\w+", NOBODYS.sub("", name))
    return {word for word in found if len(word) >= LONG_WORD and not word.endswith("_t")}


def plain(name: str) -> str:
    """A kernel's function alone: without its return type, namespaces, template arguments and parameters."""
    head = re.split(r"[<(]", NOBODYS.sub("", name), maxsplit=1)[0]
    return head.split("::")[-1].split(" ")[-1]


def profiled_call(trace: Path, calls: int) -> list[str]:
    """The names of one call's kernels in a stage's trace, in order; nothing where the calls aren't alike.

    Raises:
        CountersError: the trace can't be read.
    """
    try:
        events = complete(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    except (EOFError, ValueError, KeyError, gzip.BadGzipFile) as error:
        raise CountersError(f"the stage's trace can't be read ({type(error).__name__})") from error
    names = [event.name for event in of(events, "kernel")]
    each = len(names) // calls
    return names[:each] if each and names == names[:each] * calls else []


def version(said: str) -> str:
    """Such as "ncu 2025.3.1" of what `ncu --version` says."""
    found = VERSION.search(said)
    return f"ncu {found[1]}" if found else "ncu"

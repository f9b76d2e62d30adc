"""Reads a Chrome trace of torch's profiler: who launched what, and what lies within what."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]  # a complete event ("ph": "X") with its times in µs

LAYER, CALL = "layer:", "call"  # annotations: a layer's begins with the first, a whole call's is the second
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
DEEPEST = 16  # so many annotations may lie within one another
DRIVER = {"cuda_runtime", "cuda_driver"}  # the latter is how Triton launches


def complete(events: Iterable[Event]) -> list[Event]:
    """The events that have a beginning and an end."""
    return [event for event in events if event.get("ph") == "X"]


def of(events: Iterable[Event], *categories: str) -> list[Event]:
    """The events of some categories, by their beginnings; of those that begin together the longest first."""
    return sorted(
        (event for event in events if event.get("cat") in categories), key=lambda event: (event["ts"], -event["dur"])
    )


def end(event: Event) -> float:
    """When it ended, in µs."""
    return float(event["ts"]) + float(event["dur"])


def length(events: Iterable[Event]) -> float:
    """The length of the union of the events' intervals in seconds: what overlaps counts once."""
    total = reach = 0.0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        total += max(0.0, end(event) - max(float(event["ts"]), reach))
        reach = max(reach, end(event))
    return total / 1e6


def launches(events: Iterable[Event]) -> dict[int, Event]:
    """Correlation number to the driver's call that started the work."""
    return {
        int(event["args"]["correlation"]): event
        for event in events
        if event.get("cat") in DRIVER and "correlation" in event.get("args", {})
    }


def correlation(event: Event) -> int:
    """The number that a kernel shares with its launch; -1 without one."""
    return int(event.get("args", {}).get("correlation", -1))


class Annotations:
    """The annotations of a trace, to be asked which of them is the innermost around a moment of a thread."""

    def __init__(self, events: Iterable[Event], prefix: str) -> None:
        self.prefix = prefix
        self.threads: dict[Any, list[Event]] = defaultdict(list)
        for event in of(events, "user_annotation"):
            if event["name"].startswith(prefix):
                self.threads[event["tid"]].append(event)
        self.starts = {thread: [event["ts"] for event in found] for thread, found in self.threads.items()}

    def around(self, event: Event) -> str | None:
        """The rest of the innermost annotation's name; None where there is none around the event's beginning."""
        found, starts = self.threads.get(event["tid"], []), self.starts.get(event["tid"], [])
        last = bisect_right(starts, event["ts"]) - 1
        for index in range(last, max(-1, last - DEEPEST), -1):
            if end(found[index]) > event["ts"]:
                return str(found[index]["name"][len(self.prefix) :])
        return None

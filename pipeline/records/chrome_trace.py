"""Chrome traces of torch's profiler: events, launches and nesting."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LAYER, CALL = "layer:", "call"  # annotations: a layer's begins with the first, a whole call's is the second
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
DEEPEST = 16  # nested annotations
DRIVER = {"cuda_runtime", "cuda_driver"}  # Triton launches by the latter
UNRELATED = -1  # correlation of an event without one
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TraceEvent:
    """An event with a start and an end."""

    index: int  # position in the trace, its identity
    category: str  # "kernel", "cpu_op", "user_annotation", …
    name: str
    start_us: float
    duration_us: float
    thread: int | str
    correlation: int = UNRELATED  # number that a kernel shares with its launch
    input_shapes: Shapes = ()  # of an operator's inputs, if recorded; () for an input that is no tensor
    input_strides: Shapes = ()

    @property
    def end_us(self) -> float:
        """End of the event."""
        return self.start_us + self.duration_us


def complete(events: Iterable[Mapping[str, Any]]) -> list[TraceEvent]:
    """Return the events of a trace's JSON that have a start and an end ("ph": "X")."""
    found = []
    for index, event in enumerate(events):
        if event.get("ph") == "X":
            names, given = (str(event.get("cat", "")), str(event["name"])), event.get("args") or {}
            shapes = (_shapes(given.get(key)) for key in ("Input Dims", "Input Strides"))
            times, launch = (float(event["ts"]), float(event["dur"])), int(given.get("correlation", UNRELATED))
            found.append(TraceEvent(index, *names, *times, event["tid"], launch, *shapes))
    return found


def _shapes(given: Any) -> Shapes:
    """Return the shapes of an operator's inputs; () for a list of tensors."""
    return tuple(tuple(part) if all(isinstance(length, int) for length in part) else () for part in given or [])


def of(events: Iterable[TraceEvent], *categories: str) -> list[TraceEvent]:
    """Return the events of these categories by start; the longest first at equal starts."""
    chosen = (event for event in events if event.category in categories)
    return sorted(chosen, key=lambda event: (event.start_us, -event.duration_us))


@dataclass
class Nested:
    """An operator of a CPU among those of its thread."""

    event: TraceEvent
    outermost: bool  # no other calls it
    own_us: float  # without the operators that it calls
    innermost: bool = True  # it calls no other


def nested(events: Iterable[TraceEvent]) -> list[Nested]:
    """Return the operators of the CPU by start."""
    found: list[Nested] = []
    running: dict[int | str, list[Nested]] = defaultdict(list)
    for event in of(events, "cpu_op"):
        around = running[event.thread]
        while around and around[-1].event.end_us <= event.start_us:
            around.pop()
        if around:
            around[-1].own_us -= event.duration_us
            around[-1].innermost = False
        found.append(Nested(event, outermost=not around, own_us=event.duration_us))
        around.append(found[-1])
    return found


def length(events: Iterable[TraceEvent]) -> float:
    """Return the length of the union of the events' intervals in seconds."""
    total = reach = 0.0
    for event in sorted(events, key=lambda event: event.start_us):
        total += max(0.0, event.end_us - max(event.start_us, reach))
        reach = max(reach, event.end_us)
    return total / 1e6


def launches(events: Iterable[TraceEvent]) -> dict[int, TraceEvent]:
    """Map correlation numbers to the driver calls that started the work."""
    return {event.correlation: event for event in events if event.category in DRIVER and event.correlation != UNRELATED}


class Annotations:
    """The layers' annotations of a trace by thread, to find the innermost one around an event."""

    def __init__(self, events: Iterable[TraceEvent]) -> None:
        self.threads: dict[int | str, list[TraceEvent]] = defaultdict(list)
        for event in of(events, "user_annotation"):
            if event.name.startswith(LAYER):
                self.threads[event.thread].append(event)
        self.starts = {thread: [event.start_us for event in inside] for thread, inside in self.threads.items()}

    def around(self, event: TraceEvent) -> str | None:
        """Return the layer of the innermost annotation around the event's start; None without one."""
        inside, starts = self.threads.get(event.thread, []), self.starts.get(event.thread, [])
        last = bisect_right(starts, event.start_us) - 1
        for index in range(last, max(-1, last - DEEPEST), -1):
            if inside[index].end_us > event.start_us:
                return inside[index].name.removeprefix(LAYER)
        return None

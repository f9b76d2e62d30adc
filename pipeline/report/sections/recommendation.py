"""Recommendations in sentences: one entry of `TEXTS` for each.

A field such as {idle:share} is the figure `idle` of the recommendation, shown by the entry `share` of `FORMATS`. A
clause with a figure that isn't known is left out.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.analysis.recommendations import Code, Recommendation, recommendations
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.diagnostics import LayerWork
from pipeline.report.formatting import clean, listed, remedy, seconds, share, significant, two, way_to_resolve

NAMED_LAYERS = 3


@dataclass(frozen=True)
class Text:
    """The words of a recommendation."""

    title: str  # the action
    evidence: tuple[str, ...]  # clauses, one after the other; the first one is always there
    action: tuple[str, ...] = ()  # clauses in place of a command


@dataclass(frozen=True)
class RecommendationText:
    """A recommendation in words."""

    text: str
    evidence: str
    action: str

    @property
    def line(self) -> str:
        """The action and its reason, as a sentence."""
        return f"{self.text}: {self.evidence.rstrip('.')}."


def _named(layers: Sequence[LayerWork]) -> str:
    """Return the first layers with their channels, and how many more there are."""
    named = [f"{clean(layer.name)} ({layer.in_channels} → {layer.out_channels})" for layer in layers]
    more = [f"{len(layers) - NAMED_LAYERS} more"] if len(layers) > NAMED_LAYERS else []
    return listed([*named[:NAMED_LAYERS], *more])


def _names(layers: Sequence[LayerWork]) -> str:
    rest = " and the rest" if len(layers) > NAMED_LAYERS else ""
    return listed([clean(layer.name) for layer in layers[:NAMED_LAYERS]]) + rest


FORMATS: dict[str, Callable[[Any], str]] = {
    "": clean,
    "share": share,
    "seconds": seconds,
    "number": significant,
    "two": two,
    "fixed": lambda value: f"{value:.2f}",
    "GB/s": lambda value: significant(value / 1e9),
    "times": lambda count: plural(count, "time"),
    "count": lambda names: f"{plural(len(names), 'layer')} {'keeps' if len(names) == 1 else 'keep'}",
    "breaks": lambda count: plural(count, "graph break"),
    "listed": lambda places: listed([clean(place) for place in places]),
    "layers": _named,
    "names": _names,
    "remedy": remedy,
    "way": way_to_resolve,
}
COPIES = (
    "copies take {copies:seconds} of the {latency:seconds} from pinned host memory and back",
    "; pinned memory copies {pinned:GB/s} GB/s on this machine, pageable memory {pageable:GB/s}",
)
TEXTS: dict[Code, Text] = {
    "measure longer": Text("{why:way} before choosing {winner}", ("{why:remedy}",)),
    "quiet the machine": Text(
        "End other programs and run again",
        ("the baseline against itself differs by up to {effect:share}; smaller differences are not claimed",),
    ),
    "take the quicker build": Text(
        "Where start-up time counts, take {quick}",
        ("it ties and builds in {quick_seconds:seconds}, ", "{winner} in {winner_seconds:seconds}"),
    ),
    "capture a graph": Text(
        "Replace the launches by one CUDA graph",
        ("no kernel runs for {idle:share} of {winner}'s profiled time, with {launches:number} launches per call",),
    ),
    "compile for all shapes": Text("Compile one program for all shapes", ("{stage} was recompiled {times:times}",)),
    "mend graph breaks": Text(
        "Make the network one graph", ("{stage} has {breaks:breaks}; this command stops at the first and names it",)
    ),
    "larger batch": Text(
        "Try a larger batch, which may fill the device",
        (
            "{winner} reaches {reached:number} TFLOP/s, {share:share} of the measured {precision} peak",
            "; twice the {samples} take {growth:fixed} times as long",
        ),
    ),
    "halve the bytes": Text(
        "Halve the bytes with half precision",
        ("{winner} spends {share:share} of its kernels' time near the bandwidth, with elements of 4 bytes",),
    ),
    "fuse": Text(
        "Fuse operators, so that fewer results pass through memory",
        (
            "{winner} spends {share:share} of its kernels' time near the bandwidth; ",
            "every layer's output is written and read again",
        ),
    ),
    "fp8": Text(
        "Compute in fp8",
        (
            "{winner} reaches {share:share} of the {precision} peak here; ",
            "that of fp8 is {higher:two} times as high on this device",
        ),
    ),
    "larger budget": Text(
        "Try a larger budget for {winner}",
        (
            "{winner} changes {changed:share} of the {points} (limit {limit:share}), ",
            "and {kept:count} more bits, to hold a budget of {budget:share}; ",
            "what a larger one changes is judged as before",
        ),
    ),
    "smaller budget": Text(
        "Try a smaller budget for {stage}",
        (
            "{stage} changes {changed:share} of the {points}, more than the limit of {limit:share}, ",
            "though it kept to a budget of {budget:share}",
            " on {apart} {samples}",
        ),
    ),
    "keep one layout": Text(
        "Keep one layout through the network",
        (
            "layout changes take {spent:seconds} per call, {share:share} of {winner}'s profile, ",
            "in {launches:number} launches",
            ", at {places:listed}",
        ),
    ),
    "first layer": Text(
        "Give the first layer a kernel for few channels",
        ("{layer} reads {channels} channels and takes {seconds:seconds}, {above:seconds} of it above its roofline",),
    ),
    "tune longer": Text(
        "Let the compiler search for faster kernels, which takes minutes",
        ("{winner} won in mode default, built in {build_seconds:seconds}",),
    ),
    "shrink the copies": Text(
        "Send {samples} as uint8 from a pinned buffer that is kept, get classes instead of logits, and copy while "
        "another batch computes",
        COPIES,
    ),
    "shrink the answers": Text(
        "Get classes instead of logits, keep a pinned buffer for the {samples}, and copy while another batch computes",
        COPIES,
    ),
    "even channels": Text(
        "Give the network channel counts that suit the tensor cores",
        (
            "{layers:layers}: channel counts that are no multiple of {multiple}",
            "; they take {seconds:seconds} of {winner}'s {total:seconds}",
            "; they do {share:share} of the arithmetic ({winner} doesn't show its layers' time)",
        ),
        (
            "multiples of {multiple} in the network's code for the channels of {layers:names}",
            ", and weights {trained} anew",
        ),
    ),
    "even base": Text(
        "Give the network channel counts that suit the tensor cores",
        ("the network begins with {base} channels; tensor cores take them in multiples of {multiple}",),
    ),
}


class _Filled(string.Formatter):
    """Formatter of fields by `FORMATS`."""

    def format_field(self, value: object, format_spec: str) -> str:
        """Return one figure as text."""
        return FORMATS[format_spec](value)


def filled(clauses: Sequence[str], figures: Mapping[str, object]) -> str:
    """Return the clauses, without those that have an unknown figure."""
    words = _Filled()
    known = [
        clause
        for clause in clauses
        if all(figures.get(name) is not None for _, name, _, _ in words.parse(clause) if name)
    ]
    return "".join(words.vformat(clause, (), figures) for clause in known)


def worded(found: Recommendation, words: Words = IMAGES) -> RecommendationText:
    """Return a recommendation in words."""
    text, figures = TEXTS[found.code], {**found.figures, **words.named}
    action = clean(found.command) or filled(text.action, figures)
    return RecommendationText(filled([text.title], figures), filled(text.evidence, figures), action)


def recommendation_texts(summary: RunSummary) -> list[RecommendationText]:
    """Return the run's recommendations in words, the most important first."""
    return [worded(found, summary.run.words) for found in recommendations(summary)]

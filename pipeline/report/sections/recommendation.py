"""Recommendations in sentences: one entry of recommendations.yaml for each."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.analysis.recommendations import Code, Recommendation, recommendations
from pipeline.analysis.summary import RunSummary
from pipeline.errors import plural
from pipeline.records.data_words import IMAGES, Words
from pipeline.records.diagnostics import LayerWork
from pipeline.report.formatting import clean, listed, method, remedy, seconds, share, significant, two, way_to_resolve

NAMED_LAYERS = 3


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


FORMATS: dict[str, Callable[[Any], str]] = {
    "": clean, "method": method, "share": share, "seconds": seconds, "number": significant, "two": two,
    "layers": _named, "remedy": remedy, "way": way_to_resolve,
    "fixed": lambda value: f"{value:.2f}",
    "GB/s": lambda value: significant(value / 1e9),
    "times": lambda count: plural(count, "time"),
    "count": lambda names: f"{plural(len(names), 'layer')} {'keeps' if len(names) == 1 else 'keep'}",
    "breaks": lambda count: plural(count, "graph break"),
    "listed": lambda places: listed([clean(place) for place in places]),
    "names": lambda layers: (
        listed([clean(layer.name) for layer in layers[:NAMED_LAYERS]]) + " and the rest" * (len(layers) > NAMED_LAYERS)
    ),
}  # fmt: skip
WORDS = Path(__file__).parents[1] / "recommendations.yaml"
TEXTS: dict[Code, dict[str, Any]] = yaml.safe_load(WORDS.read_text("utf-8"))


def filled(clauses: Sequence[str], figures: Mapping[str, object]) -> str:
    """Return the clauses, without those that have an unknown figure; `FORMATS` shows each."""
    said = []
    for clause in clauses:
        fields = [(text, name, form or "") for text, name, form, _ in string.Formatter().parse(clause)]
        if all(figures.get(name) is not None for _, name, _ in fields if name):
            said += [f"{text}{FORMATS[form](figures[name]) if name else ''}" for text, name, form in fields]
    return "".join(said)


def worded(found: Recommendation, words: Words = IMAGES) -> RecommendationText:
    """Return a recommendation in words."""
    text, figures = TEXTS[found.code], {**found.figures, **words.named}
    action = clean(found.command) or filled(text.get("action", ()), figures)
    return RecommendationText(filled([text["title"]], figures), filled(text["evidence"], figures), action)


def recommendation_texts(summary: RunSummary) -> list[RecommendationText]:
    """Return the run's recommendations in words, the most important first."""
    return [worded(found, summary.run.words) for found in recommendations(summary)]

"""What to try where layers have channels that don't suit the tensor cores."""

from dataclasses import dataclass

from pipeline.analysis.recommendations.bound_rules import LAYER_SHARE
from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.recommendations.recommendation import Figure, Recommendation
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import LayerWork

# Channels that fill 16 bytes, the unit of tensor cores (NVIDIA, Deep Learning Performance: Convolutional Layers).
MULTIPLE = {"fp8": 16, "fp16": 8, "bf16": 8}
MULTIPLE_UNKNOWN = MULTIPLE["fp16"]  # for a record that doesn't hold its layers' channels
OWN_NET = "models.unet.UNet"  # all of its layers' channels are multiples of its base, but for the first and the last


@dataclass(frozen=True)
class Spent:
    """What some layers take of the winner: seconds where it shows its layers, else their share of the FLOPs."""

    share: float
    seconds: float | None
    total: float | None
    by_layer: dict[str, float]


def even_the_channels(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Channels that leave a part of every tensor core idle, by layer; by the net's base where no layer's are known."""
    reference, precision = summary.run.reference, winner.stage.precision or ""
    if not summary.on_gpu:
        return None
    layers = reference.layers if reference else []
    if not any(layer.in_channels for layer in layers):
        return _by_base(summary)
    odd = uneven(layers, MULTIPLE[precision]) if precision in MULTIPLE else []
    spent = _spent(summary, winner, odd)
    if not odd or spent.share < LAYER_SHARE:
        return None
    if spent.by_layer:
        odd = [layer for layer in odd if layer.name in spent.by_layer]
    longest = sorted(odd, key=lambda layer: -(spent.by_layer[layer.name] if spent.by_layer else layer.flops))
    base = _own_base(summary, MULTIPLE[precision])
    figures: dict[str, Figure] = {
        "winner": winner.name, "layers": longest, "multiple": MULTIPLE[precision], "seconds": spent.seconds,
        "total": spent.total, "share": None if spent.by_layer else spent.share,
        "trained": "trained" if summary.run.config.model.is_trained else None,
    }  # fmt: skip
    command = retyped(summary.run.command, f"model.options.base={base}") if base else ""
    return Recommendation("even channels", figures, command)


def uneven(layers: list[LayerWork], multiple: int) -> list[LayerWork]:
    """Layers with channels that aren't a multiple; what the image and the classes prescribe doesn't count.

    Grouped convolutions are left out: a tensor core works on the channels of one group.
    """
    return [layer for layer in layers if layer.groups == 1 and any(part % multiple for part in _free(layers, layer))]


def _free(layers: list[LayerWork], layer: LayerWork) -> list[int]:
    """The channels of one layer that may be chosen: not the first layer's input, and not the last one's output."""
    sized = [each for each in layers if each.in_channels]
    if layer not in sized:
        return []
    into = [layer.in_channels] if layer is not sized[0] else []
    return [*into, *([layer.out_channels] if layer is not sized[-1] else [])]


def _spent(summary: RunSummary, winner: StageSummary, odd: list[LayerWork]) -> Spent:
    names = {layer.name for layer in odd}
    whole = sum(layer.seconds for layer in winner.layers)
    if whole > 0:
        own = [layer for layer in winner.layers if names & set(layer.layers)]
        total = sum(layer.seconds for layer in own)
        return Spent(total / whole, total, whole, {name: layer.seconds for layer in own for name in layer.layers})
    flops = sum(layer.flops for layer in summary.run.reference.layers) if summary.run.reference else 0
    return Spent(sum(layer.flops for layer in odd) / flops if flops else 0.0, None, None, {})


def _own_base(summary: RunSummary, multiple: int) -> int | None:
    """The base that the project's own untrained net should have; None for another net, and where its base is even."""
    model = summary.run.config.model
    base = model.options.get("base")
    ours = model.target == OWN_NET and not model.is_trained
    return _up(base, multiple) if ours and isinstance(base, int) and base > 0 and base % multiple else None


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _by_base(summary: RunSummary) -> Recommendation | None:
    """What a record tells that holds no layer's channels: the width that the net begins with."""
    model = summary.run.config.model
    base = model.options.get("base")
    if model.is_trained:  # trained weights fit one width alone
        return None
    if not isinstance(base, int) or base < 1 or base % MULTIPLE_UNKNOWN == 0:
        return None
    command = retyped(summary.run.command, f"model.options.base={_up(base, MULTIPLE_UNKNOWN)}")
    return Recommendation("even base", {"base": base, "multiple": MULTIPLE_UNKNOWN}, command)

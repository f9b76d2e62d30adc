"""What to try where layers have channels that don't suit the tensor cores."""

from pipeline.analysis.layer_figures import parts
from pipeline.analysis.recommendations.bound_rules import LAYER_SHARE
from pipeline.analysis.recommendations.command import Advice, retyped
from pipeline.analysis.roofline import ELEMENT_BYTES, precision_of
from pipeline.analysis.summary import Digest, Row
from pipeline.records.diagnostics import LayerWork
from pipeline.report import formatting as words

# Channels that fill 16 bytes, by which tensor cores take them (NVIDIA, Deep Learning Performance: Convolutional).
EVENLY = {"fp8": 16, "fp16": 8, "bf16": 8}
EVENLY_UNKNOWN = EVENLY["fp16"]  # for a record that doesn't hold its layers' channels
NAMED_LAYERS = 3
TEXT = "Give the net channels that suit the tensor cores"
OWN_NET = "models.unet.UNet"  # all of its layers' channels are multiples of its base, but for the first and the last


def suit_the_tensor_cores(found: Digest, winner: Row) -> Advice | None:
    """Channels that leave a part of every tensor core idle, by layer; by the net's base where no layer's are known."""
    machine, reference = found.run.environment, found.run.reference
    if machine is None or machine.device != "cuda":
        return None
    layers = reference.layers if reference else []
    if not any(layer.in_channels for layer in layers):
        return _by_base(found)
    precision = precision_of(winner.stage.description) or ""
    odd = uneven(layers, EVENLY[precision]) if precision in EVENLY else []
    spent, share, seconds = _spent(found, winner, odd, ELEMENT_BYTES.get(precision, 4))
    if not odd or share < LAYER_SHARE:
        return None
    odd = [layer for layer in odd if layer.name in seconds] if seconds else odd
    longest = sorted(odd, key=lambda layer: -(seconds[layer.name] if seconds else layer.flops))
    named = [f"{words.clean(layer.name)} ({layer.in_channels} → {layer.out_channels})" for layer in longest]
    more = [f"{len(odd) - NAMED_LAYERS} more"] if len(odd) > NAMED_LAYERS else []
    evidence = f"{words.listed([*named[:NAMED_LAYERS], *more])}: channels that are no multiple of {EVENLY[precision]}"
    return Advice(TEXT, f"{evidence}; {spent}", _attempt(found, longest, EVENLY[precision]))


def uneven(layers: list[LayerWork], evenly: int) -> list[LayerWork]:
    """Those with channels that aren't a multiple of `evenly`; what the image and the classes prescribe is let pass.

    Grouped convolutions are left out: what a tensor core is given of one is a group's channels.
    """
    return [layer for layer in layers if layer.groups == 1 and any(part % evenly for part in _free(layers, layer))]


def _free(layers: list[LayerWork], layer: LayerWork) -> list[int]:
    """The channels of one layer that may be chosen: not the first layer's input, and not the last one's output."""
    sized = [each for each in layers if each.in_channels]
    if layer not in sized:
        return []
    into = [layer.in_channels] if layer is not sized[0] else []
    return [*into, *([layer.out_channels] if layer is not sized[-1] else [])]


def _spent(found: Digest, winner: Row, odd: list[LayerWork], element_bytes: int) -> tuple[str, float, dict[str, float]]:
    """What these layers take of the winner's time, in words and as a share, and each layer's seconds.

    Their share of the FLOPs where the winner doesn't show its layers.
    """
    names = {layer.name for layer in odd}
    timed = parts(found.run, winner.stage, element_bytes)
    whole = sum(part.seconds for part in timed)
    own = [part for part in timed if names & set(part.layers)]
    who = words.clean(winner.name)
    if whole > 0:
        total = sum(part.seconds for part in own)
        seconds = {name: part.seconds for part in own for name in part.layers}
        return f"they take {words.seconds(total)} of {who}'s {words.seconds(whole)}", total / whole, seconds
    flops = sum(layer.flops for layer in found.run.reference.layers) if found.run.reference else 0
    share = sum(layer.flops for layer in odd) / flops if flops else 0.0
    return f"they do {words.share(share)} of the arithmetic ({who} doesn't show its layers' time)", share, {}


def _attempt(found: Digest, odd: list[LayerWork], evenly: int) -> str:
    """A command for the project's own untrained net, and else what to change in the net."""
    model = found.run.config.get("model") or {}
    base = (model.get("options") or {}).get("base")
    ours = model.get("target") == OWN_NET and not model.get("checkpoint")
    if ours and isinstance(base, int) and base > 0 and base % evenly:
        return retyped(found.run.command, f"model.options.base={_up(base, evenly)}")
    names = words.listed([words.clean(layer.name) for layer in odd[:NAMED_LAYERS]])
    rest = " and the rest" if len(odd) > NAMED_LAYERS else ""
    again = ", and weights trained anew" if model.get("checkpoint") else ""
    return f"multiples of {evenly} in the net's code for the channels of {names}{rest}{again}"


def _up(count: int, evenly: int) -> int:
    return -(-count // evenly) * evenly


def _by_base(found: Digest) -> Advice | None:
    """What a record tells that holds no layer's channels: the width that the net begins with."""
    model = found.run.config.get("model") or {}
    base = (model.get("options") or {}).get("base")
    if model.get("checkpoint"):  # trained weights fit one width alone
        return None
    if not isinstance(base, int) or base < 1 or base % EVENLY_UNKNOWN == 0:
        return None
    evidence = f"the net begins with {base} channels; tensor cores take them by {EVENLY_UNKNOWN}"
    attempt = retyped(found.run.command, f"model.options.base={_up(base, EVENLY_UNKNOWN)}")
    return Advice(TEXT, evidence, attempt)

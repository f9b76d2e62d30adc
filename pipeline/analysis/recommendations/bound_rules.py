"""What to try against the bound that a run found: bytes for memory, a smaller type for arithmetic, the first layer."""

from pipeline.analysis.bottleneck import FAR_BELOW, of_stage, shares
from pipeline.analysis.layer_figures import Part, parts, to_be_won
from pipeline.analysis.recommendations.command import Advice, retyped
from pipeline.analysis.roofline import Roofs, roofs
from pipeline.analysis.summary import Digest, Row
from pipeline.report import formatting as words

FUSED_ALREADY = ("compile", "compile_max", "fused", "fp8")
OWN_KERNELS = ("fused", "fp8")
NEAR_FULL = 0.6  # of the ceiling: what is that near to it gains more from a faster type than from better kernels
FEW_CHANNELS = 4  # of an image; tensor cores take eight at a time
LAYER_SHARE = 0.03  # of the layers' time, from which a layer is worth advice of its own


def lower_the_bytes(found: Digest, winner: Row) -> Advice | None:
    """A stage that waits for memory."""
    regime, bounds = of_stage(found.run, winner), roofs(found.run, winner.stage)
    if regime.word != "memory-bound" or isinstance(bounds, str):
        return None
    evidence = f"{winner.name} is memory-bound: {words.share(regime.evidence.memory)} of the bandwidth measured here"
    if bounds.element_bytes > 2:
        attempt = retyped(found.run.command, "stage=half")
        return Advice("Halve the bytes with half precision", f"{evidence}, with elements of 4 bytes", attempt)
    if winner.name in FUSED_ALREADY:
        return None
    attempt = retyped(found.run.command, "stage=compile")
    return Advice(
        "Fuse what passes through memory", f"{evidence}, with every layer's output written and read again", attempt
    )


def try_fp8(found: Digest, winner: Row) -> Advice | None:
    """A stage near its ceiling on a device that has a higher one."""
    regime, bounds, rates = of_stage(found.run, winner), roofs(found.run, winner.stage), found.run.measured_peaks
    if regime.word != "compute-bound" or isinstance(bounds, str) or rates is None or "fp8" not in rates.tflops:
        return None
    compute, higher = regime.evidence.compute, rates.tflops["fp8"] * 1e12 / bounds.flops_per_s
    if bounds.precision == "fp8" or found.row("fp8") is not None or compute is None or compute < NEAR_FULL:
        return None
    evidence = f"{winner.name} reaches {words.share(compute)} of the {bounds.precision} ceiling"
    evidence += f"; the one of fp8 is {words.significant(higher, 2)} times as high here"
    return Advice("Compute in fp8", evidence, retyped(found.run.command, "stage=fp8"))


def mind_the_first_layer(found: Digest, winner: Row) -> Advice | None:
    """A first convolution of an image's few channels, which leaves most of a tensor core idle."""
    bounds, channels = roofs(found.run, winner.stage), first_channels(found)
    if isinstance(bounds, str) or channels is None or channels > FEW_CHANNELS or winner.name in OWN_KERNELS:
        return None
    timed = parts(found.run, winner.stage, bounds.element_bytes)
    first = timed[0] if timed and found.run.reference and timed[0].name == found.run.reference.layers[0].name else None
    if first is None or not _worth_it(first, timed, bounds):
        return None
    evidence = f"{first.name} reads {channels} channels and takes {words.seconds(first.seconds)}, "
    evidence += f"{words.seconds(to_be_won(first, bounds))} of it above its roof"
    attempt = retyped(found.run.command, "stage=fused")
    return Advice("Give the first layer a kernel for few channels", evidence, attempt)


def _worth_it(first: Part, timed: list[Part], bounds: Roofs) -> bool:
    whole = sum(part.seconds for part in timed)
    return first.seconds >= LAYER_SHARE * whole and max(shares(first, bounds)) < 2 * FAR_BELOW


def first_channels(found: Digest) -> int | None:
    """Channels that the first layer reads; None where it is no convolution.

    A record without them tells them by what the layer reads, if all images have one size.
    """
    machine, reference = found.run.environment, found.run.reference
    size = (found.run.config.get("data") or {}).get("size")
    if machine is None or machine.device != "cuda" or reference is None or not reference.layers:
        return None
    first = reference.layers[0]
    if first.kind == "Conv2d" and first.in_channels:
        return first.in_channels
    if first.kind != "Conv2d" or not isinstance(size, int) or size < 1 or first.read_elements % size**2:
        return None
    return first.read_elements // size**2

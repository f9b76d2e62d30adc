"""What to try against the bottleneck that a run found: fewer bytes, a smaller type, a kernel for the first layer."""

from pipeline.analysis.bottleneck import FAR_BELOW
from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.recommendations.recommendation import Figure, Recommendation
from pipeline.analysis.roofline import LayerFigures
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.config.data_request import TENSORS, VOLUME

NEAR_FULL = 0.6  # of the peak: from there a faster type gains more than better kernels
WORTH_FUSING = 0.3  # of the time near the bandwidth, from which fewer bytes are worth a try
FEW_CHANNELS = 4  # of an image; tensor cores take eight at a time
LAYER_SHARE = 0.03  # of the layers' time, from which a layer is worth a recommendation of its own


def lower_the_bytes(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A stage that waits for memory for much of its time: smaller elements, or fewer passes over them."""
    bottleneck, roofline, execution = winner.bottleneck, winner.roofline, winner.stage.execution
    shares = bottleneck.evidence.shares
    if bottleneck.kind not in ("memory-bound", "mixed") or shares is None or shares.memory < WORTH_FUSING:
        return None
    if roofline is None:
        return None
    figures: dict[str, Figure] = {"winner": winner.name, "share": shares.memory}
    if roofline.element_bytes > 2:
        return Recommendation("halve the bytes", figures, retyped(summary.run.command, "stage=half"))
    if execution and execution.fuses:
        return None
    return Recommendation("fuse", figures, retyped(summary.run.command, "stage=compile"))


def try_fp8(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A stage near its peak on a device that has a higher one, where that was not tried."""
    roofline, peaks, compute = winner.roofline, summary.run.measured_peaks, winner.bottleneck.evidence.compute
    if winner.bottleneck.kind != "compute-bound" or roofline is None or peaks is None or "fp8" not in peaks.tflops:
        return None
    if summary.run.config.data.name in (TENSORS, VOLUME):
        return None  # whose kernels are for images
    if roofline.precision == "fp8" or summary.stage("fp8") is not None or compute is None or compute < NEAR_FULL:
        return None
    higher = peaks.tflops["fp8"] * 1e12 / roofline.flops_per_s
    figures: dict[str, Figure] = {
        "winner": winner.name,
        "share": compute,
        "precision": roofline.precision,
        "higher": higher,
    }
    return Recommendation("fp8", figures, retyped(summary.run.command, "stage=fp8"))


def mind_the_first_layer(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A first convolution of an image's few channels, which leaves most of a tensor core idle."""
    roofline, channels, layers = winner.roofline, first_channels(summary), winner.layers
    own_kernels = winner.stage.execution.own_kernels if winner.stage.execution else 0
    if roofline is None or channels is None or channels > FEW_CHANNELS or own_kernels or not layers:
        return None
    first, reference = layers[0], summary.run.reference
    if reference is None or first.name != reference.layers[0].name or not _worth_it(first, layers):
        return None
    figures: dict[str, Figure] = {"layer": first.name, "channels": channels, "seconds": first.seconds}
    return Recommendation(
        "first layer", {**figures, "above": first.seconds_above}, retyped(summary.run.command, "stage=fused")
    )


def _worth_it(first: LayerFigures, layers: list[LayerFigures]) -> bool:
    whole = sum(layer.seconds for layer in layers)
    return first.seconds >= LAYER_SHARE * whole and max(first.shares) < 2 * FAR_BELOW


def first_channels(summary: RunSummary) -> int | None:
    """Channels that the first layer reads; None where it is no convolution, or the run used no GPU.

    A record without channels gives them by what the layer reads, if all images have one size.
    """
    reference, size = summary.run.reference, summary.run.config.data.size
    if not summary.on_gpu or reference is None or not reference.layers or reference.layers[0].kind != "Conv2d":
        return None
    first = reference.layers[0]
    if first.in_channels:
        return first.in_channels
    return first.read_elements // size**2 if size and size > 0 and not first.read_elements % size**2 else None

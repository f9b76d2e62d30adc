"""Recommendations: a short ordered list, each with the figures that speak for it and the command that tries it.

A rule is a function of a run's summary and its winner; it returns a recommendation, or None without cause. Rules ask
for what a stage does (`StageRecord.execution`), never for its name, so that they hold for a user's own stages.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pipeline.analysis.attribution import by_class, seen_share
from pipeline.analysis.bottleneck import FAR_BELOW, SEEN_SHARE, moves, slope_of
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary, retyped
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.records.data_words import VOLUMES
from pipeline.records.diagnostics import LayerWork
from pipeline.records.run_record import INDUCTOR, StageRecord
from pipeline.stats.outcomes import Unresolved

MOST = 5  # more is a manual
NOISY_EFFECT = 0.05
SLOW_BUILD_SECONDS, QUICKER = 1.0, 2.0  # a tie that builds this many times sooner is worth naming
IDLE_SHARE = 0.2  # of the time without any kernel, from which launches are worth taking out
FULL_SLOPE = 0.9  # of the time with the batch: a device that is full takes twice as long for twice the images
FULL_SHARE = 0.4  # of the measured peak, below which a larger batch may fill the device
LAYOUT_SHARE = 0.05  # of the kernels' time
NAMED_PLACES = 3  # at which the layout changes
COPY_SHARE = 0.2  # of the latency from host memory and back
BYTES = 255  # the largest value of one: images of bytes are a quarter of those of fp32
NEAR_FULL = 0.6  # of the peak: from there a faster type gains more than better kernels
WORTH_FUSING = 0.3  # of the time near the bandwidth, from which fewer bytes are worth a try
FEW_CHANNELS = 4  # of an image; tensor cores take eight at a time
LAYER_SHARE = 0.03  # of the layers' time, from which a layer is worth a recommendation of its own
# Of the limit on changed pixels. The judged images differ from those that fp8's layers are chosen on. With a budget of
# 0.07 % the networks in docs/h200 change 0.023 to 0.081 % of the judged pixels; one of the two with 0.081 % has 0.09 %.
NEARLY_ALL, WITH_ROOM = 0.9, 0.8
WORTH_IT = 1.05  # times the budget: one that is hardly larger lets no layer go
# Channels that fill 16 bytes, the unit of tensor cores (NVIDIA, Deep Learning Performance: Convolutional Layers).
MULTIPLE = {"fp8": 16, "fp16": 8, "bf16": 8}
OWN_NET = "models.unet.UNet"  # all of its layers' channels are multiples of its base, but for the first and the last

Code = Literal[  # of pipeline/report/recommendations.yaml
    "measure longer", "quiet the machine", "take the quicker build", "capture a graph", "compile for all shapes",
    "mend graph breaks", "larger batch", "halve the bytes", "fuse", "fp8", "larger budget", "smaller budget",
    "keep one layout", "first layer", "tune longer", "shrink the copies", "shrink the answers", "even channels",
]  # fmt: skip
Figure = float | str | list[str] | list[LayerWork] | Unresolved | None
Figures = dict[str, Figure]


@dataclass(frozen=True)
class Recommendation:
    """One thing to try."""

    code: Code  # its kind
    figures: Figures = field(default_factory=dict)  # that speak for it, by name; None for one that isn't known
    command: str = ""  # to type, or a line of code; empty where the network itself must change


def advice(code: Code, summary: RunSummary, *overrides: str, **figures: Figure) -> Recommendation:
    """Return a recommendation of the user's command with these overrides, and the figures that speak for it."""
    winner: Figures = {"winner": summary.ranking.winner}
    return Recommendation(code, winner | figures, retyped(summary.run.command, *overrides))


def recommendations(summary: RunSummary) -> list[Recommendation]:
    """Return at most five, the most important first; without a winner only how to get one."""
    winner, why = summary.winner, summary.ranking.unresolved
    if winner:
        return [found for rule in RULES if (found := rule(summary, winner))][:MOST]
    if why is None:
        return []
    fastest = next(name for name in summary.ranking.order if name != summary.baseline)
    return [Recommendation("measure longer", {"winner": fastest, "why": why}, summary.measure_again)]


def quiet_the_machine(summary: RunSummary, _: StageSummary) -> Recommendation | None:
    """Recommend an idle machine where the A/A control pairs lie far apart."""
    effect = summary.ranking.noise.least
    if effect <= NOISY_EFFECT or not summary.run.aa_pairs:
        return None
    return advice("quiet the machine", summary, effect=effect)


def take_the_quicker_build(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend a tie that is ready far sooner."""
    setups = {stage.name: stage.setup_seconds for stage in summary.stages if stage.name in summary.ranking.ties}
    known = {name: seconds for name, seconds in setups.items() if seconds is not None}
    quick = min(known, key=lambda name: known[name], default=None)
    own = winner.setup_seconds
    if quick is None or own is None or own < SLOW_BUILD_SECONDS or known[quick] * QUICKER > own:
        return None
    figures: Figures = {"quick": quick, "quick_seconds": known[quick], "winner_seconds": own}
    return advice("take the quicker build", summary, f"stage={quick}", **figures)


def capture_a_graph(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend a CUDA graph where the GPU waits for its next kernel."""
    profile, execution, evidence = winner.stage.profile, winner.stage.execution, winner.bottleneck.evidence
    failed = [stage for stage in summary.stages if stage.name == "compile" and stage.stage.status != "ok"]
    if profile is None or execution is None or execution.captured is not False:
        return None
    if failed or summary.stage("compile_graph") or (evidence.idle_at_least or 0.0) < IDLE_SHARE:
        return None
    figures: Figures = {"idle": evidence.idle, "launches": profile.launches_per_call}
    return advice("capture a graph", summary, "stage=compile_graph", **figures)


def compile_for_all_shapes(summary: RunSummary, _: StageSummary) -> Recommendation | None:
    """Recommend dynamic shapes where a program is compiled again and again."""
    compiled = ((stage.name, stage.stage.compile_facts) for stage in summary.stages)
    again = [(name, facts.recompiles) for name, facts in compiled if facts and facts.recompiles]
    overrides = "stage=compile", "stage.dynamic=true"
    return (
        advice("compile for all shapes", summary, *overrides, stage=again[0][0], times=again[0][1]) if again else None
    )


def mend_graph_breaks(summary: RunSummary, _: StageSummary) -> Recommendation | None:
    """Recommend to mend a network that compiles in pieces."""
    compiled = ((stage.name, stage.stage.compile_facts) for stage in summary.stages)
    broken = [(name, facts.breaks) for name, facts in compiled if facts and facts.breaks]
    overrides = "stage=compile", "stage.fullgraph=true"
    return advice("mend graph breaks", summary, *overrides, stage=broken[0][0], breaks=broken[0][1]) if broken else None


def budget_of(summary: RunSummary, found: StageSummary) -> float | None:
    """Return the share of pixels that a stage's choice of layers was asked to keep to; None without such a choice."""
    stage, asked = found.stage, found.stage.spec.options.get("budget")
    chose = stage.calibration is not None and stage.calibration.choice is not None
    if not chose or found.unjudged or summary.run.config.accuracy.asked:
        return None
    return asked if isinstance(asked, float) and asked > 0 else None


def lower_the_budget(summary: RunSummary, _: StageSummary) -> Recommendation | None:
    """Recommend a smaller budget for a stage refused because more pixels changed than on the images of its choice."""
    for found in summary.stages:
        stage, budget, accuracy = found.stage, budget_of(summary, found), found.stage.accuracy
        if stage.status != "inaccurate" or budget is None or accuracy is None:
            continue
        changed, limit = accuracy.flipped_share or 0.0, stage.spec.tolerance.flipped_share
        near = accuracy.relative_l2 <= stage.spec.tolerance.relative_l2
        if changed > limit and near and not accuracy.nan_share and not accuracy.one_class:
            apart = stage.calibration is not None and stage.calibration.apart
            figures: Figures = {"stage": stage.name, "changed": changed, "limit": limit, "budget": budget}
            figures["apart"] = "other" if apart else None
            smaller = _with_budget(summary, stage, WITH_ROOM * budget * limit / changed)
            return advice("smaller budget", summary, smaller, **figures)
    return None


def spend_the_budget(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend a larger budget where layers keep more bits than the limit on changed pixels asks for."""
    stage, budget, accuracy = winner.stage, budget_of(summary, winner), winner.stage.accuracy
    kept = stage.calibration.kept if stage.calibration else None
    if budget is None or not kept or accuracy is None or accuracy.flipped_share is None:
        return None
    limit, share = stage.spec.tolerance.flipped_share, accuracy.flipped_share / budget
    larger = NEARLY_ALL * limit
    allowed = stage.spec.options.get("error_budget")  # of the logits' distance, which may take more of its own budget
    values_bind = isinstance(allowed, float | int) and accuracy.relative_l2 > share * allowed
    if larger < WORTH_IT * budget or share > 1 or values_bind:
        return None
    figures: Figures = {"kept": kept, "limit": limit, "budget": budget, "changed": accuracy.flipped_share}
    return advice("larger budget", summary, _with_budget(summary, stage, larger), **figures)


def _with_budget(summary: RunSummary, stage: StageRecord, budget: float) -> str:
    """Return the override of the budget, in a ladder of that rung's."""
    rung = f"rungs.{stage.name}." if summary.run.config.ladder else ""
    return f"stage.{rung}budget={budget:.2g}"


def enlarge_the_batch(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend a larger batch where most of the device's arithmetic is idle."""
    run, precision, growth = summary.run, winner.stage.precision, winner.stage.explained.growth
    slope = slope_of(growth.images, growth.seconds) if growth else None
    peak = run.measured_peaks.tflops.get(precision) if run.measured_peaks and precision else None
    if not peak or run.reference is None or winner.images_per_second is None or not summary.on_gpu:
        return None
    reached = run.reference.flops_per_image * winner.images_per_second / 1e12
    if reached >= FULL_SHARE * peak or (slope is not None and slope >= FULL_SLOPE):
        return None
    figures: Figures = {"reached": reached, "share": reached / peak, "precision": precision}
    figures["growth"] = None if slope is None else 2**slope
    return advice("larger batch", summary, f"data.batch_size={2 * run.batch_size}", **figures)


def lower_the_bytes(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend smaller elements, or fewer passes over them, where memory limits much of the time."""
    roofline, execution, shares = winner.roofline, winner.stage.execution, winner.bottleneck.evidence.shares
    limited = winner.bottleneck.kind in ("memory-bound", "mixed")
    if not limited or roofline is None or shares is None or shares.memory < WORTH_FUSING:
        return None
    if roofline.element_bytes > 2:
        found = advice("halve the bytes", summary, "stage=half", share=shares.memory)
        return found if summary.stage("half") is None else None
    fuses = execution is not None and execution.fuses
    found = advice("fuse", summary, "stage=compile", share=shares.memory)
    return found if summary.stage("compile") is None and not fuses else None


def try_fp8(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend fp8 for a stage near its peak on a device that has a higher one, where that was not tried."""
    roofline, peaks, compute = winner.roofline, summary.run.measured_peaks, winner.bottleneck.evidence.compute
    if winner.bottleneck.kind != "compute-bound" or roofline is None or peaks is None or "fp8" not in peaks.tflops:
        return None
    for_images = summary.run.config.data.name not in (TENSORS, VOLUME)  # as its kernels are
    if not for_images or roofline.precision == "fp8" or summary.stage("fp8") or (compute or 0.0) < NEAR_FULL:
        return None
    higher = peaks.tflops["fp8"] * 1e12 / roofline.flops_per_s
    return advice("fp8", summary, "stage=fp8", share=compute, precision=roofline.precision, higher=higher)


def keep_one_layout(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend one layout where time goes into converting NCHW to NHWC and back."""
    profile, seen, overrides = winner.stage.profile, seen_share(winner), _other_layout(summary, winner)
    if profile is None or seen is None or seen < SEEN_SHARE or not overrides:
        return None
    spent, total = by_class(profile).get("layout change", 0.0), sum(by_class(profile).values())
    if spent < LAYOUT_SHARE * total:
        return None
    changes = winner.stage.explained.layout
    places = [place for place in dict.fromkeys(change.where for change in changes) if place is not None]
    launches = by_class(profile, "launches_per_call").get("layout change", 0.0)
    figures: Figures = {"spent": spent, "share": spent / total, "launches": launches}
    return advice("keep one layout", summary, *overrides, places=places[:NAMED_PLACES] or None, **figures)


def _other_layout(summary: RunSummary, winner: StageSummary) -> list[str]:
    """Return the overrides that run the winner, or the rung nearest to it, in NHWC; none where that gains nothing."""
    ran = winner.stage.execution
    if ran is None or ran.layout in ("NHWC", None) or winner.stage.net_layout == "NCHW":
        return []  # it is there, or the network doesn't take it
    if winner.stage.spec.options.get("nhwc") is False:
        return [f"stage={winner.name}", "stage.nhwc=true"]
    return [] if ran.fuses or summary.stage("channels_last") else ["stage=channels_last"]


def mind_the_first_layer(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend an own kernel for a first convolution of few channels, which leaves most of a tensor core idle."""
    layers, own = winner.layers, winner.stage.execution.own_kernels if winner.stage.execution else 0
    works = summary.run.reference.layers if summary.run.reference else []
    if not (summary.on_gpu and layers and works and layers[0].name == works[0].name) or own or summary.stage("fused"):
        return None
    first, whole, channels = layers[0], sum(layer.seconds for layer in layers), works[0].in_channels
    if works[0].kind != "Conv2d" or channels > FEW_CHANNELS:
        return None
    if first.seconds < LAYER_SHARE * whole or max(first.shares) >= 2 * FAR_BELOW:
        return None
    figures: Figures = {"layer": first.name, "channels": channels, "seconds": first.seconds}
    return advice("first layer", summary, "stage=fused", above=first.seconds_above, **figures)


def tune_longer(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend a search by a compiler that was not asked to; another stage's `mode` may mean anything."""
    ran, mode = winner.stage.execution, winner.stage.spec.options.get("mode")
    if ran is None or ran.provider != INDUCTOR or mode != "default":
        return None
    if not summary.on_gpu or summary.stage("compile_max"):
        return None
    return advice("tune longer", summary, "stage=compile_max", build_seconds=winner.stage.build_seconds)


def shrink_the_copies(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend smaller copies to a service whose callers wait for them."""
    inside, outside, peaks = winner.latency, winner.host_latency, summary.run.measured_peaks
    config = summary.run.config
    in_bytes = config.task.has_masks and config.data.name != TENSORS  # they stand for images and classes alone
    if inside is None or outside is None or not summary.on_gpu or not in_bytes:
        return None
    copies = outside.p50 - inside.p50
    if copies < COPY_SHARE * outside.p50:
        return None
    figures: Figures = {"copies": copies, "latency": outside.p50}
    if peaks and peaks.pinned_copy_bytes_per_s and peaks.pageable_copy_bytes_per_s:
        figures |= {"pinned": peaks.pinned_copy_bytes_per_s, "pageable": peaks.pageable_copy_bytes_per_s}
    masks = f"masks = net({summary.run.words.samples}).argmax(1).byte()"
    images = from_bytes(config.data.contract)
    no_faster = any(move.name == "uint8 in" and (move.bought or 2.0) <= 1 for move in moves(winner.stage))
    if summary.run.words == VOLUMES or images is None or no_faster:
        return Recommendation("shrink the answers", figures, masks)
    return Recommendation("shrink the copies", figures, f"images = {images}; {masks}")


def from_bytes(contract: InputContract) -> str | None:
    """Return the line that makes the network's input of bytes on the device; None where no single line does."""
    if contract.scale not in (None, BYTES) or contract.low or not contract.mean:
        return None
    share, one = f'uint8_batch.to("cuda", non_blocking=True) / {BYTES}', len(contract.mean) == len(contract.std) == 1
    if (contract.mean, contract.std) == NAMED["unit"]:
        return share
    mean, std = (f"{contract.mean[0]:g}", f"{contract.std[0]:g}") if one else ("mean", "std")
    return f"({share} - {mean}) / {std}"


def even_the_channels(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Recommend other channels where a part of every tensor core is idle."""
    reference, precision = summary.run.reference, winner.stage.precision or ""
    if not summary.on_gpu:
        return None
    layers = reference.layers if reference else []
    odd = uneven(layers, MULTIPLE[precision]) if precision in MULTIPLE else []
    names = {layer.name for layer in odd}
    spent = {name: layer.seconds for layer in winner.layers for name in layer.layers if names & set(layer.layers)}
    whole = sum(layer.seconds for layer in winner.layers)
    taken = sum(layer.seconds for layer in winner.layers if names & set(layer.layers))
    flops = sum(layer.flops for layer in layers)
    share = taken / whole if whole > 0 else sum(layer.flops for layer in odd) / flops if flops else 0.0
    if not odd or share < LAYER_SHARE:
        return None
    longest = sorted(odd, key=lambda layer: -(spent.get(layer.name, 0.0) if spent else layer.flops))
    figures: Figures = {
        "winner": winner.name, "layers": [layer for layer in longest if not spent or layer.name in spent],
        "multiple": MULTIPLE[precision], "seconds": taken if whole > 0 else None, "total": whole or None,
        "share": None if spent else share, "trained": "trained" if summary.run.config.model.is_trained else None,
    }  # fmt: skip
    base = _wider_base(summary, MULTIPLE[precision]) if summary.run.config.model.target == OWN_NET else None
    command = retyped(summary.run.command, f"model.options.base={base}") if base else ""
    return Recommendation("even channels", figures, command)


def _wider_base(summary: RunSummary, multiple: int) -> int | None:
    """Return the next multiple of channels to begin with; None where trained weights fit the present width alone."""
    model = summary.run.config.model
    base = model.options.get("base")
    if model.is_trained or not isinstance(base, int) or base < 1 or base % multiple == 0:
        return None
    return -(-base // multiple) * multiple


def uneven(layers: list[LayerWork], multiple: int) -> list[LayerWork]:
    """Return layers with channels that are no multiple, but for those that image and classes prescribe, and groups."""
    sized = [layer for layer in layers if layer.in_channels]
    found = []
    for layer in sized:
        free = [layer.in_channels] if layer is not sized[0] else []
        free += [layer.out_channels] if layer is not sized[-1] else []
        if layer.groups == 1 and any(channels % multiple for channels in free):
            found.append(layer)
    return found


RULES: tuple[Callable[[RunSummary, StageSummary], Recommendation | None], ...] = (
    quiet_the_machine, take_the_quicker_build, capture_a_graph, compile_for_all_shapes, mend_graph_breaks,
    lower_the_budget, spend_the_budget, enlarge_the_batch, lower_the_bytes, try_fp8, keep_one_layout,
    mind_the_first_layer, tune_longer, shrink_the_copies, even_the_channels,
)  # fmt: skip

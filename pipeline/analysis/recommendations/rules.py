"""What to try next: a short ordered list drawn from the figures.

A rule is a function of a run's summary and its winner; it returns a recommendation, or None without cause. Rules ask
for what a stage does (`StageRecord.execution`), never for its name, so that they hold for a user's own stages.
"""

from collections.abc import Callable

from pipeline.analysis.attribution import by_class, launches_by_class, seen_share
from pipeline.analysis.bottleneck import SEEN_SHARE, growth_slope
from pipeline.analysis.path_shares import moves
from pipeline.analysis.recommendations.bound_rules import lower_the_bytes, mind_the_first_layer, try_fp8
from pipeline.analysis.recommendations.budget_rules import lower_the_budget, spend_the_budget
from pipeline.analysis.recommendations.channel_rules import even_the_channels
from pipeline.analysis.recommendations.command import retyped
from pipeline.analysis.recommendations.recommendation import Figure, Recommendation
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.config.data_request import TENSORS
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.records.data_words import VOLUMES
from pipeline.records.run_record import INDUCTOR

MOST = 5  # more is a manual
IDLE_SHARE = 0.2  # of the time without any kernel, from which launches are worth taking out
FULL_SLOPE = 0.9  # of the time with the batch: a device that is full takes twice as long for twice the images
FULL_SHARE = 0.4  # of the measured peak, below which a larger batch may fill the device
LAYOUT_SHARE = 0.05  # of the kernels' time
NAMED_PLACES = 3  # at which the layout changes
COPY_SHARE = 0.2  # of the latency from host memory and back
NOISY_EFFECT = 0.05
SLOW_BUILD_SECONDS, QUICKER = 1.0, 2.0  # a tie that is built so many times sooner is worth naming
BYTES = 255  # the largest value of one: images of bytes are a quarter of those of fp32


def recommendations(summary: RunSummary) -> list[Recommendation]:
    """At most five, what matters most first; without a winner only how to come by one."""
    winner = summary.winner
    if winner is None:
        return [found for found in [measure_longer(summary)] if found]
    rules: tuple[Callable[[RunSummary, StageSummary], Recommendation | None], ...] = (
        quiet_the_machine, take_the_quicker_build, capture_a_graph, compile_for_all_shapes,
        mend_graph_breaks, lower_the_budget, spend_the_budget, enlarge_the_batch, lower_the_bytes, try_fp8,
        keep_one_layout, mind_the_first_layer, tune_longer, shrink_the_copies, even_the_channels,
    )  # fmt: skip
    return [found for rule in rules if (found := rule(summary, winner))][:MOST]


def measure_longer(summary: RunSummary) -> Recommendation | None:
    """No stage is shown to be faster than the baseline, and one may be."""
    why = summary.ranking.unresolved
    if why is None:
        return None
    fastest = next(name for name in summary.ranking.order if name != summary.run.baseline)
    return Recommendation("measure longer", {"winner": fastest, "why": why}, summary.measure_again)


def quiet_the_machine(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """The A/A control pairs lie far apart."""
    effect = summary.ranking.noise.least
    if effect <= NOISY_EFFECT or not summary.run.aa_pairs:
        return None
    return Recommendation("quiet the machine", {"effect": effect}, retyped(summary.run.command))


def take_the_quicker_build(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A tie that is ready far sooner."""
    ties = {
        stage.name: stage.setup_seconds
        for stage in summary.stages
        if stage.name in summary.ranking.ties and stage.setup_seconds is not None
    }
    quick = min(ties, key=lambda name: ties[name], default=None)
    own = winner.setup_seconds
    if quick is None or own is None or own < SLOW_BUILD_SECONDS or ties[quick] * QUICKER > own:
        return None
    figures: dict[str, Figure] = {
        "quick": quick,
        "quick_seconds": ties[quick],
        "winner": winner.name,
        "winner_seconds": own,
    }
    return Recommendation("take the quicker build", figures, retyped(summary.run.command, f"stage={quick}"))


def capture_a_graph(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A GPU that waits for its next kernel, although a CUDA graph could launch them all at once."""
    profile, execution, evidence = winner.stage.profile, winner.stage.execution, winner.bottleneck.evidence
    if profile is None or execution is None or execution.captured is not False:
        return None
    if evidence.idle_at_least is None or evidence.idle_at_least < IDLE_SHARE:
        return None
    figures: dict[str, Figure] = {"idle": evidence.idle, "winner": winner.name, "launches": profile.launches_per_call}
    command = retyped(summary.run.command, "stage=compile", "stage.mode=reduce-overhead")
    return Recommendation("capture a graph", figures, command)


def compile_for_all_shapes(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A program that is compiled again and again."""
    for stage in summary.stages:
        facts = stage.stage.compile_facts
        if facts and facts.recompiles:
            command = retyped(summary.run.command, "stage=compile", "stage.dynamic=true")
            return Recommendation("compile for all shapes", {"stage": stage.name, "times": facts.recompiles}, command)
    return None


def mend_graph_breaks(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A net that compiles in pieces."""
    for stage in summary.stages:
        facts = stage.stage.compile_facts
        if facts and facts.breaks:
            command = retyped(summary.run.command, "stage=compile", "stage.fullgraph=true")
            return Recommendation("mend graph breaks", {"stage": stage.name, "breaks": facts.breaks}, command)
    return None


def enlarge_the_batch(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A batch that leaves most of the device's arithmetic idle."""
    run, diagnostics, precision = summary.run, winner.stage.diagnostics, winner.stage.precision
    slope = growth_slope(diagnostics.growth if diagnostics else None)
    peak = run.measured_peaks.tflops.get(precision) if run.measured_peaks and precision else None
    if not peak or run.reference is None or winner.images_per_second is None or not summary.on_gpu:
        return None
    reached = run.reference.flops_per_image * winner.images_per_second / 1e12
    if reached >= FULL_SHARE * peak or (slope is not None and slope >= FULL_SLOPE):
        return None
    figures: dict[str, Figure] = {
        "winner": winner.name,
        "reached": reached,
        "share": reached / peak,
        "precision": precision,
    }
    command = retyped(run.command, f"data.batch_size={2 * run.batch_size}")
    return Recommendation("larger batch", {**figures, "growth": None if slope is None else 2**slope}, command)


def keep_one_layout(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """Time that goes into converting NCHW to NHWC and back."""
    profile, seen, overrides = winner.stage.profile, seen_share(winner), _other_layout(winner)
    if profile is None or seen is None or seen < SEEN_SHARE or not overrides:
        return None
    spent, total = by_class(profile).get("layout change", 0.0), sum(by_class(profile).values())
    if spent < LAYOUT_SHARE * total:
        return None
    changes = winner.stage.diagnostics.layout if winner.stage.diagnostics else []
    places = [place for place in dict.fromkeys(change.where for change in changes) if place is not None]
    launches = launches_by_class(profile).get("layout change", 0.0)
    figures: dict[str, Figure] = {"winner": winner.name, "spent": spent, "share": spent / total, "launches": launches}
    command = retyped(summary.run.command, *overrides)
    return Recommendation("keep one layout", {**figures, "places": places[:NAMED_PLACES] or None}, command)


def _other_layout(winner: StageSummary) -> list[str]:
    """The overrides that run the winner, or the rung nearest to it, in NHWC; none where that gains nothing."""
    ran = winner.stage.execution
    if ran is None or ran.layout in ("NHWC", None) or winner.stage.net_layout == "NCHW":
        return []  # it is there, or the net doesn't take it
    if winner.stage.spec.options.get("nhwc") is False:
        return [f"stage={winner.name}", "stage.nhwc=true"]
    return [] if ran.fuses else ["stage=channels_last"]


def tune_longer(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A compiler that was not asked to search; another stage's option of the same name may mean anything."""
    ran = winner.stage.execution
    if (
        ran is None
        or ran.provider != INDUCTOR
        or winner.stage.spec.options.get("mode") != "default"
        or not summary.on_gpu
    ):
        return None
    figures: dict[str, Figure] = {"winner": winner.name, "build_seconds": winner.stage.build_seconds}
    return Recommendation(
        "tune longer", figures, retyped(summary.run.command, "stage=compile", "stage.mode=max-autotune")
    )


def shrink_the_copies(summary: RunSummary, winner: StageSummary) -> Recommendation | None:
    """A service whose callers wait for copies."""
    inside, outside, peaks = winner.latency, winner.host_latency, summary.run.measured_peaks
    config = summary.run.config
    if inside is None or outside is None or not summary.on_gpu:
        return None
    if not config.task.has_masks or config.data.name == TENSORS:
        return None  # bytes stand for no values but those of images and classes
    copies = outside.p50 - inside.p50
    if copies < COPY_SHARE * outside.p50:
        return None
    pinned = peaks.pinned_copy_bytes_per_s if peaks and peaks.pageable_copy_bytes_per_s else None
    pageable = peaks.pageable_copy_bytes_per_s if peaks and peaks.pinned_copy_bytes_per_s else None
    figures: dict[str, Figure] = {"copies": copies, "latency": outside.p50, "pinned": pinned, "pageable": pageable}
    masks = f"masks = net({summary.run.words.samples}).argmax(1).byte()"
    images = from_bytes(config.data.contract)
    if summary.run.words == VOLUMES or images is None or _costs("uint8 in", winner):
        return Recommendation("shrink the answers", figures, masks)
    return Recommendation("shrink the copies", figures, f"images = {images}; {masks}")


def _costs(move: str, stage: StageSummary) -> bool:
    """Whether the run measured this move around the net, and found the path no faster with it."""
    return any(each.name == move and each.bought is not None and each.bought <= 1 for each in moves(stage.stage))


def from_bytes(contract: InputContract) -> str | None:
    """The line that makes the net's input of bytes on the device, as the run made it on the host.

    None where the values aren't bytes, or need more than a factor and a term for each channel.
    """
    if contract.scale not in (None, BYTES) or contract.low or not contract.mean:
        return None
    share, one = f'uint8_batch.to("cuda", non_blocking=True) / {BYTES}', len(contract.mean) == len(contract.std) == 1
    if (contract.mean, contract.std) == NAMED["unit"]:
        return share
    mean, std = (f"{contract.mean[0]:g}", f"{contract.std[0]:g}") if one else ("mean", "std")
    return f"({share} - {mean}) / {std}"

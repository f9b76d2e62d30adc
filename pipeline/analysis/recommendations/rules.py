"""What to try next: a short ordered list drawn from the figures, each line with its evidence and what to type."""

from collections.abc import Callable

from pipeline.analysis.attribution import SEEN_SHARE, by_class, launches_by_class, seen_share
from pipeline.analysis.bottleneck import growth_slope, idle_share
from pipeline.analysis.recommendations.bound_rules import lower_the_bytes, mind_the_first_layer, try_fp8
from pipeline.analysis.recommendations.channel_rules import suit_the_tensor_cores
from pipeline.analysis.recommendations.command import Advice, retyped
from pipeline.analysis.roofline import precision_of
from pipeline.analysis.summary import Digest, Row
from pipeline.report import formatting as words

MOST = 5  # lines; more is a manual
IDLE_SHARE = 0.2  # of the time without any kernel, from which launches are worth taking out
CAPTURED = ("cuda_graph", "fused", "fp8")  # one graph already
FULL_SLOPE = 0.9  # of the time with the batch: a device that is full takes twice as long for twice the images
FULL_SHARE = 0.4  # of the measured ceiling, below which a larger batch may fill the device
LAYOUT_SHARE = 0.05  # of the kernels' time
NAMED_PLACES = 3  # at which the layout changes
COPY_SHARE = 0.2  # of the latency from host memory and back
NOISY_FLOOR = 0.05
SLOW_BUILD_SECONDS, QUICKER = 1.0, 2.0  # a tie that is built so many times sooner is worth naming
THOROUGH_SECONDS = 60.0  # of turns, as conf/measure/thorough.yaml has it


def advice(found: Digest) -> list[Advice]:
    """At most five, what matters most first; none without a winner."""
    winner = found.winner
    if winner is None:
        return []
    rules: tuple[Callable[[Digest, Row], Advice | None], ...] = (
        resolve, quieten, prefer_the_quicker_build, remove_launches, recompile_less, mend_breaks, fill_the_device,
        lower_the_bytes, try_fp8, change_layout_less, mind_the_first_layer, tune_longer, pin_the_copies,
        suit_the_tensor_cores,
    )  # fmt: skip
    return [line for rule in rules if (line := rule(found, winner))][:MOST]


def resolve(found: Digest, winner: Row) -> Advice | None:
    """An answer that isn't one yet."""
    if not winner.unresolved:
        return None
    longer = (found.run.config.get("measure") or {}).get("sampling_seconds", 0) < THOROUGH_SECONDS
    attempt = retyped(found.run.command, "measure=thorough" if longer else "measure.trials=3")
    return Advice(f"Measure longer before choosing {winner.name}", winner.unresolved, attempt)


def quieten(found: Digest, winner: Row) -> Advice | None:
    """A machine on which equal things lie far apart."""
    if winner.unresolved or found.ranking.floor <= NOISY_FLOOR or not found.run.aa_pairs:
        return None
    evidence = f"equal stages lay up to {words.share(found.ranking.floor)} apart; less than that is not claimed"
    return Advice("End other programs and run again", evidence, retyped(found.run.command))


def prefer_the_quicker_build(found: Digest, winner: Row) -> Advice | None:
    """A tie that is ready far sooner."""
    ties = [row for row in found.rows if row.name in found.ranking.ties and row.setup_seconds is not None]
    quick = min(ties, key=lambda row: row.setup_seconds or 0.0, default=None)
    own = winner.setup_seconds
    if quick is None or own is None or quick.setup_seconds is None or own < SLOW_BUILD_SECONDS:
        return None
    if quick.setup_seconds * QUICKER > own:
        return None
    evidence = f"it isn't shown to be slower, and is set up in {words.seconds(quick.setup_seconds)}"
    text = f"Where starts count, take {quick.name}"
    return Advice(
        text, f"{evidence}, {winner.name} in {words.seconds(own)}", retyped(found.run.command, f"stage={quick.name}")
    )


def remove_launches(found: Digest, winner: Row) -> Advice | None:
    """A GPU that waits for its next kernel."""
    profile, idle = winner.stage.profile, idle_share(winner)
    if profile is None or profile.busy_share is None or idle is None or idle < IDLE_SHARE:
        return None
    if winner.stage.options.get("mode") == "reduce-overhead" or winner.name in CAPTURED:
        return None
    evidence = f"no kernel runs for {words.share(idle)} of {winner.name}'s time"
    return Advice(
        "Take the launches out with a CUDA graph",
        f"{evidence}, which has {words.significant(profile.launches_per_call)} launches a call",
        retyped(found.run.command, "stage=compile", "stage.mode=reduce-overhead"),
    )


def recompile_less(found: Digest, winner: Row) -> Advice | None:
    """A program that is compiled again and again."""
    for row in found.rows:
        times = row.stage.details.get("recompiles")
        if isinstance(times, int) and times > 0:
            attempt = retyped(found.run.command, "stage=compile", "stage.dynamic=true")
            evidence = f"{row.name} was compiled again {words.plural(times, 'time')}"
            return Advice("Compile one program for all shapes", evidence, attempt)
    return None


def mend_breaks(found: Digest, winner: Row) -> Advice | None:
    """A net that compiles in pieces."""
    for row in found.rows:
        breaks = row.stage.details.get("graph_breaks")
        if isinstance(breaks, int) and breaks > 0:
            attempt = retyped(found.run.command, "stage=compile", "stage.fullgraph=true")
            evidence = f"{row.name} has {words.plural(breaks, 'graph break')}; this stops at the first and names it"
            return Advice("Make the net one graph", evidence, attempt)
    return None


def fill_the_device(found: Digest, winner: Row) -> Advice | None:
    """A batch that leaves most of the device's arithmetic idle."""
    run, slope = found.run, growth_slope(winner.stage.diagnostics.growth if winner.stage.diagnostics else None)
    precision = precision_of(winner.stage.description)
    ceiling = run.measured_peaks.tflops.get(precision) if run.measured_peaks and precision else None
    if not ceiling or run.reference is None or winner.images_per_second is None or not _on_gpu(found):
        return None
    reached = run.reference.flops_per_image * winner.images_per_second / 1e12
    if reached >= FULL_SHARE * ceiling or (slope is not None and slope >= FULL_SLOPE):
        return None
    share = words.share(reached / ceiling)
    evidence = f"{winner.name} reaches {words.significant(reached)} TFLOP/s, {share} of the {precision} ceiling here"
    evidence += "" if slope is None else f"; twice the images take {2**slope:.2f} times as long"
    attempt = retyped(run.command, f"data.batch_size={2 * run.batch_size}")
    return Advice("See whether a larger batch fills the device", evidence, attempt)


def change_layout_less(found: Digest, winner: Row) -> Advice | None:
    """Time that goes into turning NCHW into NHWC and back."""
    profile, seen = winner.stage.profile, seen_share(winner)
    if profile is None or seen is None or seen < SEEN_SHARE:
        return None
    spent, total = by_class(profile).get("layout change", 0.0), sum(by_class(profile).values())
    overrides = _other_layout(winner)
    if not overrides or spent < LAYOUT_SHARE * total:
        return None
    launches = words.significant(launches_by_class(profile).get("layout change", 0.0))
    evidence = f"layout changes take {words.seconds(spent)} a call, {words.share(spent / total)} of {winner.name}'s"
    places = [change.where for change in winner.stage.diagnostics.layout] if winner.stage.diagnostics else []
    known = [words.clean(place) for place in dict.fromkeys(places) if place != "unknown"][:NAMED_PLACES]
    where = f", at {words.listed(known)}" if known else ""
    attempt = retyped(found.run.command, *overrides)
    return Advice("Keep one layout through the net", f"{evidence} profile, in {launches} launches{where}", attempt)


def _other_layout(winner: Row) -> list[str]:
    if winner.name == "onnxruntime":
        return ["stage=onnxruntime", "stage.nhwc=true"] if winner.stage.options.get("nhwc") is False else []
    return ["stage=channels_last"] if winner.name in ("eager", "tf32") else []


def tune_longer(found: Digest, winner: Row) -> Advice | None:
    """A compiler that was not asked to search."""
    if winner.stage.options.get("mode") != "default" or not _on_gpu(found):
        return None
    evidence = f"{winner.name} won in mode default, built in {words.seconds(winner.stage.build_seconds)}"
    attempt = retyped(found.run.command, "stage=compile", "stage.mode=max-autotune")
    return Advice("Let the compiler try its kernels, for minutes", evidence, attempt)


def pin_the_copies(found: Digest, winner: Row) -> Advice | None:
    """A service whose callers wait for copies."""
    inside, outside = winner.latency, winner.host_latency
    if inside is None or outside is None or not _on_gpu(found):
        return None
    copies = outside.p50 - inside.p50
    if copies < COPY_SHARE * outside.p50:
        return None
    evidence = (
        f"copies take {words.seconds(copies)} of the {words.seconds(outside.p50)} from pinned host memory and back"
    )
    rates = found.run.measured_peaks
    if rates and rates.pinned_copy_bytes_per_s and rates.pageable_copy_bytes_per_s:
        pinned, pageable = rates.pinned_copy_bytes_per_s / 1e9, rates.pageable_copy_bytes_per_s / 1e9
        evidence += (
            f"; pinned memory copies {words.significant(pinned)} GB/s here, pageable {words.significant(pageable)}"
        )
    return Advice(
        "Copy from pinned memory, and while the last batch computes",
        evidence,
        'batch.pin_memory().to("cuda", non_blocking=True)',
    )


def _on_gpu(found: Digest) -> bool:
    return found.run.environment is not None and found.run.environment.device == "cuda"

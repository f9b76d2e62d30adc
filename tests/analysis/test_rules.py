"""The bottleneck of nets built to have each, at every border; layers whose channels leave tensor cores idle."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.analysis import recommendations as rules
from pipeline.analysis.bottleneck import (
    FAR_BELOW,
    FLAT_SLOPE,
    IDLE_MOST,
    MOST_OF_THE_TIME,
    Evidence,
    TimeShares,
    decide,
    of_layer,
)
from pipeline.analysis.recommendations import (
    Recommendation,
    even_the_channels,
    lower_the_budget,
    recommendations,
    spend_the_budget,
)
from pipeline.analysis.roofline import LayerFigures
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.records.diagnostics import BatchGrowth, CountedBytes, Fusion, ImageGrowth, LayerTime, LayerWork
from pipeline.records.goals import AccuracyLimits, Tolerance
from pipeline.records.run_record import INDUCTOR, Execution, Precision, RunRecord
from pipeline.records.samples import Calibration, HostPath, ImageSet
from pipeline.report.sections.bottleneck import in_short, sentence
from pipeline.report.sections.recommendation import RecommendationText, worded
from tests.analysis.made_up_nets import BATCH, PEAKS, ROOFLINE, net, summarized
from tests.analysis.test_recommendations import COPYING, IDLING, bytes_bound, half_wins, layout_bound, run_with, said_by
from tests.made_up_request import changed as adjusted
from tests.report import made_up_run as made_up

EVEN = made_up.CHANNELS  # in and out of the made-up net's convolutions, of base 64
NARROWER = {64: 50, 128: 100}
ODD = {name: (NARROWER.get(first, first), NARROWER.get(last, last)) for name, (first, last) in EVEN.items()}
TIMES = {name: share for name, *_, share in made_up.LAYERS}
UNTRAINED: dict[str, Any] = {"name": "custom", "target": "my.Net", "checkpoint": None, "options": {}}
UNET = {"name": "unet", "target": "models.unet.UNet", "checkpoint": None, "options": {"base": 50}}


def run_of(
    channels: dict[str, tuple[int, int]], model: dict[str, Any] | None = None, groups: int = 1, **fields: Any
) -> RunRecord:
    """Eager and half, which wins, with these channels on record; `fields` are half's."""
    whole = made_up.run()
    layers = [
        replace(layer, in_channels=channels[layer.name][0], out_channels=channels[layer.name][1], groups=groups)
        if layer.name in channels
        else layer
        for layer in whole.reference.layers
    ]
    stages = [whole.stages[0], replace(whole.stages[4], **fields)]
    whole = replace(whole, reference=replace(whole.reference, layers=layers), stages=stages)
    return made_up.with_settings(whole, model=model or UNTRAINED)


def recommended(run: RunRecord) -> RecommendationText | None:
    line = said_by(even_the_channels, run)
    return worded(line) if line else None


SILENT = {
    "even": run_of(EVEN),
    "fp32": run_of(ODD, execution=made_up.execution("eager")),
    "grouped": run_of(ODD, groups=2),
    "a processor": replace(run_of(ODD, UNET), environment=replace(made_up.environment(), device="cpu")),
}


@pytest.mark.parametrize("run", SILENT.values(), ids=SILENT)
def test_there_is_no_cause(run: RunRecord) -> None:
    assert recommended(run) is None


def test_odd_layers_are_named_with_their_time() -> None:
    line = recommended(run_of(ODD))
    assert line.evidence.startswith("decoder.0.0 (100 → 50), bottleneck.0 (50 → 100), upsample.0 (100 → 50) and 2 more")
    assert "no multiple of 8" in line.evidence
    seconds = made_up.BASELINE_SECONDS / 7.1
    spent = sum(TIMES[name] for name in ODD) * seconds
    assert f"they take {1e3 * spent:.2f} ms of half precision's {1e3 * seconds:.1f} ms" in line.evidence
    assert line.action.startswith("multiples of 8 in the network's code for the channels of decoder.0.0, bottleneck.0")
    assert line.action.endswith("and the rest")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"encoder.0.0": (5, 64), "head": (64, 5)}, ""),
        ({"encoder.0.0": (3, 60)}, "encoder.0.0"),
        ({"head": (60, 5)}, "head"),
    ],
)
def test_only_the_image_and_the_classes_are_excused(changed: dict[str, tuple[int, int]], named: str) -> None:
    line = recommended(run_of(EVEN | changed))
    assert (line.evidence.split(" (")[0] if line else "") == named


@pytest.mark.parametrize(("precision", "evenly"), [("fp16", None), ("bf16", None), ("fp8", 16), ("tf32", None)])
def test_fp8_takes_channels_by_sixteens(precision: Precision, evenly: int | None) -> None:
    """24 channels suit the halves and not fp8."""
    line = recommended(
        run_of(EVEN | {"upsample.0": (128, 24)}, execution=replace(made_up.execution("half"), precision=precision))
    )
    assert (line is None) == (evenly is None)
    assert line is None or f"no multiple of {evenly}" in line.evidence


def test_the_projects_own_net_has_a_command() -> None:
    line, trained = recommended(run_of(ODD, UNET)), recommended(run_of(ODD, {**UNET, "checkpoint": "w.safetensors"}))
    assert line.action == "python -m pipeline data.batch_size=8 model.options.base=56"
    assert "model.options" not in trained.action
    assert trained.action.endswith("and weights trained anew")
    eights = recommended(
        run_of(ODD, {**UNET, "options": {"base": 24}}, execution=replace(made_up.execution("fp8"), precision="fp8"))
    )
    assert eights.action.endswith("model.options.base=32")
    another = recommended(run_of(ODD, {"name": "custom", "target": "my.Net", "options": {"base": 50}}))
    assert "model.options" not in another.action


def test_a_winner_that_hides_its_layers_is_told_by_the_arithmetic() -> None:
    """The FLOPs of the odd layers: 0.62 of the net's and 0.05."""
    line = recommended(run_of(EVEN | {"upsample.0": (128, 60), "decoder.0.0": (60, 64)}, diagnostics=None))
    assert "they do 67 % of the arithmetic (half precision doesn't show its layers' time)" in line.evidence
    assert line.evidence.startswith("decoder.0.0")


def test_little_time_is_no_cause_and_layers_that_run_as_one_share_theirs() -> None:
    """A layer under 3 % of the time."""
    whole = run_of(EVEN | {"head": (60, 2)})
    diagnostics = whole.stages[1].diagnostics
    short = [replace(time, seconds_per_call=1e-6) if time.name == "head" else time for time in diagnostics.layers]
    assert recommended(run_of(EVEN | {"head": (60, 2)}, diagnostics=replace(diagnostics, layers=short))) is None
    whole = run_of(EVEN | {"head": (60, 2)})
    diagnostics = whole.stages[1].diagnostics
    joined = [time for time in diagnostics.layers if time.name not in ("head", "")]
    line = recommended(run_of(EVEN | {"head": (60, 2)}, diagnostics=replace(diagnostics, layers=joined)))
    assert f"they take {1e3 * TIMES['decoder.0.0'] * made_up.BASELINE_SECONDS / 7.1:.2f} ms" in line.evidence


UINT8 = 'uint8_batch.to("cuda", non_blocking=True) / 255'


def advised(*path: HostPath) -> Recommendation:
    """With copies that take four of nine milliseconds, and this path measured around the net."""
    told: Recommendation = said_by(rules.shrink_the_copies, run_with({**COPYING, "host_path": list(path)}))
    return told


@pytest.mark.parametrize(("seconds", "sent"), [(0.008, True), (0.0095, False)])
def test_bytes_are_advised_where_they_were_measured_to_pay(seconds: float, sent: bool) -> None:
    """At batch 1 on an H200 the path took 1.07 times as long with them."""
    as_it_is = HostPath("as it is", [0.009], 3 * 2**20, 2**20)
    told = advised(as_it_is, HostPath("uint8 in", [seconds], 2**20, 2**20))
    assert (told.code == "shrink the copies", "uint8" in told.command) == (sent, sent)
    assert told.command.endswith("masks = net(images).argmax(1).byte()")


@pytest.mark.parametrize(
    ("contract", "line"),
    [
        (InputContract(), f"({UINT8} - 0.5) / 0.25"),
        (InputContract(3, "unit", *NAMED["unit"]), UINT8),
        (InputContract(3, "imagenet", *NAMED["imagenet"]), f"({UINT8} - mean) / std"),
        (InputContract(scale=255.0), f"({UINT8} - 0.5) / 0.25"),
        (InputContract(scale=4095.0), None),
        (InputContract(3, "zscore", (), ()), None),
        (InputContract(1, "ct", (0.1,), (0.2,), low=(0.0,), high=(1.0,)), None),
    ],
)
def test_the_line_makes_the_input_of_the_run(contract: InputContract, line: str | None) -> None:
    """Its own normalisation on the device; nothing where bytes can't hold the values, or the image decides."""
    assert rules.from_bytes(contract) == line


def users_stage(captured: bool | None) -> RunRecord:
    """A stage of a user's, called as no stage of the project is, whose GPU idles for nearly half of the time."""
    mine = made_up.stage(
        "mine", 10.8, 0.1, 10**9, "", **IDLING,
        execution=Execution("fp16", layout="NHWC", provider="my runtime", captured=captured),
    )  # fmt: skip
    return made_up.run(stages=[made_up.run().stages[0], mine])


@pytest.mark.parametrize(("captured", "told"), [(True, False), (False, True), (None, False)])
def test_a_users_stage_is_told_to_capture_a_graph_only_if_it_captures_none(captured: bool | None, told: bool) -> None:
    summary = made_up.summary(users_stage(captured))
    assert summary.winner.name == "mine"
    assert ("capture a graph" in [each.code for each in recommendations(summary)]) == told


def called_mine(run: RunRecord, **ran: Any) -> tuple[RunSummary, StageSummary]:
    """The run with its last stage, which wins, called as no stage of the project is, and run like this."""
    *others, last = run.stages
    assert last.execution is not None
    options = ran.pop("options", last.spec.options)
    mine = adjusted(last, name="mine", options=options, execution=replace(last.execution, **ran))
    found = made_up.summary(replace(run, stages=[*others, mine], baseline="mine" if not others else run.baseline))
    assert found.winner is not None
    assert found.winner.name == "mine"
    return found, found.winner


MODE: dict[str, Any] = {"options": {"mode": "default"}}


@pytest.mark.parametrize(("rule", "run", "ran", "told"), [
    (rules.lower_the_bytes, bytes_bound("fp16"), {"fuses": True}, False),
    (rules.lower_the_bytes, bytes_bound("fp16"), {"fuses": False}, True),
    (rules.keep_one_layout, layout_bound(), {"fuses": True}, False),
    (rules.keep_one_layout, layout_bound(), {"fuses": False}, True),
    (rules.mind_the_first_layer, half_wins(), {"own_kernels": 3}, False),
    (rules.mind_the_first_layer, half_wins(), {"own_kernels": 0}, True),
    (rules.tune_longer, half_wins(), {"provider": "my compiler", **MODE}, False),
    (rules.tune_longer, half_wins(), {"provider": None, **MODE}, False),
    (rules.tune_longer, half_wins(), {"provider": INDUCTOR, **MODE}, True),
])  # fmt: skip
def test_a_users_stage_is_advised_by_what_it_does(rule: Any, run: RunRecord, ran: dict[str, Any], told: bool) -> None:
    assert (rule(*called_mine(run, **ran)) is not None) == told


CHOSEN = Calibration(ImageSet(32, []), ImageSet(24, []), choice_apart=True, apart=True, kept=["encoder.0", "head"])
CONF, NO_LIMITS = Path(__file__).resolve().parents[2] / "conf", AccuracyLimits()
OPTIONS: dict[str, object] = {"budget": 7e-4, "error_budget": 5e-2}


def budgeted_run(
    changed: float | None,
    options: dict[str, object] = OPTIONS,
    calibration: Calibration | None = CHOSEN,
    off: float = 6e-3,
    asked: AccuracyLimits = NO_LIMITS,
    trained: bool = True,
    **fields: Any,
) -> RunSummary:
    """A run that compile wins, where its answers change so many pixels, are so far off, and were chosen so."""
    run = made_up.run()

    def made(stage: Any) -> Any:
        if stage.name != "compile":
            return stage
        accuracy = replace(stage.accuracy, flipped_share=changed, relative_l2=off)
        given = {"tolerance": Tolerance(6e-2, 1e-3, ""), "options": options, "calibration": calibration}
        return adjusted(stage, accuracy=accuracy, **given, **fields)

    model = replace(run.config.model, trained=trained)
    settings = replace(run.config, accuracy=asked, model=model)
    return made_up.summary(replace(run, config=settings, stages=[made(stage) for stage in run.stages]))


def test_room_under_the_limit_is_offered() -> None:
    found = budgeted_run(4.8e-4)
    assert found.winner is not None
    (told,) = (each for each in recommendations(found) if each.code == "larger budget")
    assert told.command == "python -m pipeline data.batch_size=8 stage.budget=0.0009"
    assert worded(told).evidence == (
        "torch.compile changes 0.048 % of the pixels (limit 0.10 %), and 2 layers keep more bits, to "
        "hold a budget of 0.070 %; what a larger one changes is judged as before"
    )


NO_ROOM = {
    "as much": budgeted_run(7.2e-4),  # 0.093 % is what nine tenths would come to
    "spent": budgeted_run(4.8e-4, {"budget": 9e-4, "error_budget": 5e-2}),
    "logits": budgeted_run(4.8e-4, {"budget": 7e-4, "error_budget": 7e-3}),  # the logits' distance leaves no room
    "no budget": budgeted_run(4.8e-4, {}),
    "no masks": budgeted_run(None),
    "uncalibrated": budgeted_run(4.8e-4, calibration=None),
    "none kept": budgeted_run(4.8e-4, calibration=replace(CHOSEN, kept=[])),
    "older": budgeted_run(4.8e-4, calibration=replace(CHOSEN, kept=None)),
    "named": budgeted_run(4.8e-4, calibration=replace(CHOSEN, choice=None)),
    "random": budgeted_run(4.8e-4, trained=False),
    "own limit": budgeted_run(4.8e-4, asked=AccuracyLimits(min_agreement=0.9995)),
}


@pytest.mark.parametrize("found", NO_ROOM.values(), ids=NO_ROOM)
def test_without_room_or_layers_nothing_is_offered(found: RunSummary) -> None:
    assert found.winner is not None
    assert spend_the_budget(found, found.winner) is None


@pytest.mark.parametrize(("apart", "where"), [(True, " on other images"), (False, "")])
def test_a_stage_beyond_the_limit_is_offered_less(apart: bool, where: str) -> None:
    found = budgeted_run(1.4e-3, calibration=replace(CHOSEN, apart=apart), status="inaccurate", failure="wrong answer")
    assert found.winner.name != "compile"
    (told,) = (each for each in recommendations(found) if each.code == "smaller budget")
    assert told.command.endswith("stage.budget=0.0004")
    assert worded(told).evidence == (
        "torch.compile changes 0.14 % of the pixels, more than the limit of 0.10 %, "
        "though it kept to a budget of 0.070 %" + where
    )


@pytest.mark.parametrize(
    "found",
    [
        budgeted_run(4.8e-4),
        budgeted_run(9e-4, status="inaccurate"),
        budgeted_run(1.4e-3, off=0.3, status="inaccurate"),
        budgeted_run(1.4e-3, {}, status="inaccurate"),
        budgeted_run(1.4e-3, trained=False, status="inaccurate"),
    ],
    ids=["right", "another fault", "values too", "no budget", "random"],
)
def test_another_fault_is_no_budgets(found: RunSummary) -> None:
    assert found.winner is not None
    assert lower_the_budget(found, found.winner) is None


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("stage=fp8 stage.error_budget=1e-2 data=stain", "stage"),
        ("stage=compilers stage.rungs.fp8.error_budget=1e-2 data=stain", "stage.rungs.fp8"),
    ],
)
def test_the_command_is_the_users_own_but_for_the_budget(typed: str, key: str) -> None:
    run = budgeted_run(4.8e-4).run
    with initialize_config_dir(str(CONF), version_base=None):
        config = replace(run.config, ladder="rungs" in compose("config", overrides=typed.split()).stage)
        stages = [adjusted(stage, name="fp8") if stage.name == "compile" else stage for stage in run.stages]
        asked_so: dict[str, Any] = {"command": f"python -m pipeline {typed}", "config": config}
        found = made_up.summary(replace(run, stages=stages, **asked_so))
        assert found.winner is not None
        told = spend_the_budget(found, found.winner)
        composed = OmegaConf.select(compose("config", overrides=told.command.split()[3:]), key)
    assert (composed.budget, composed.error_budget) == (9e-4, 1e-2)


def many_tiny_layers() -> RunRecord:
    """Three hundred layers of 3 µs that the host starts every 10 µs."""
    layers = [LayerWork(f"tiny.{n}", "Conv2d", "tiny", 10**6, 1000, 1000, 100) for n in range(300)]
    times = [LayerTime(layer.name, 3e-6, 1.0) for layer in layers]
    return net(layers, times, seconds=3e-3, slope=0.05)


def wide_pointwise_chain() -> RunRecord:
    """Ten ReLUs over 100 million elements, at 90 % of the bandwidth, after a small convolution."""
    elements = 10**8
    chain = [LayerWork(f"relu.{n}", "ReLU", "chain", 0, elements, elements, 0) for n in range(10)]
    first = LayerWork("conv", "Conv2d", "conv", 10**8, elements // 100, elements // 100, 100)
    at_the_roof = 2 * 2 * BATCH * elements / ROOFLINE.bytes_per_s
    times = [LayerTime("conv", 1e-4, 1.0), *(LayerTime(layer.name, at_the_roof / 0.9, 1.0) for layer in chain)]
    return net([first, *chain], times, seconds=sum(time.seconds_per_call for time in times) * 1.01)


def large_channel_counts() -> RunRecord:
    """Four convolutions of 1024 channels at 70 % of the matrix peak."""
    layers = [LayerWork(f"conv.{n}", "Conv2d", "convs", 10**11, 4 * 10**6, 4 * 10**6, 9 * 10**6) for n in range(4)]
    each = BATCH * 1e11 / ROOFLINE.flops_per_s / 0.7
    return net(layers, [LayerTime(layer.name, each, 1.0) for layer in layers], seconds=4 * each * 1.02)


@pytest.mark.parametrize(
    ("built", "kind", "figure"),
    [
        (many_tiny_layers(), "overhead-bound", "GPU idle for 70 %"),
        (wide_pointwise_chain(), "memory-bound", "of the bandwidth"),
        (large_channel_counts(), "compute-bound", "over the whole call 69 % of the fp16 peak (800 TFLOP/s)"),
        (large_channel_counts(), "compute-bound", "time grows with the batch (slope 1.00)"),
    ],
)
def test_a_net_built_for_a_bottleneck_has_it(built: RunRecord, kind: str, figure: str) -> None:
    found = summarized(built)
    assert found.bottleneck.kind == kind
    assert sentence(found).startswith(f"{kind}: ")
    assert figure in sentence(found)


JUST = 1e-6


def near(compute: float, memory: float, **fields: Any) -> Evidence:
    """A stage whose kernels spend such shares of their time near the two roofs, and the rest far below both."""
    return Evidence(
        **{"compute": 0.4, "memory": 0.4, "idle": 0.0, "slope": 1.0, **fields},
        shares=TimeShares(compute, memory, 1 - compute - memory, 0.5, 0.8, 0.8),
    )


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        (near(0.9, 0.1, idle=IDLE_MOST + JUST), "overhead-bound"),
        (near(0.9, 0.1, idle=IDLE_MOST), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=IDLE_MOST), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=0.0), "compute-bound"),
        (near(0.9, 0.1, idle=0.9, unfilled=IDLE_MOST + JUST), "overhead-bound"),
        (near(0.9, 0.1, slope=FLAT_SLOPE - JUST), "overhead-bound"),
        (near(0.9, 0.1, slope=FLAT_SLOPE), "compute-bound"),
        (near(MOST_OF_THE_TIME, 1 - MOST_OF_THE_TIME), "compute-bound"),
        (near(1 - MOST_OF_THE_TIME, MOST_OF_THE_TIME), "memory-bound"),
        (near(MOST_OF_THE_TIME - JUST, 1 - MOST_OF_THE_TIME), "mixed"),
        (near(1 - MOST_OF_THE_TIME, MOST_OF_THE_TIME - JUST), "mixed"),
        (near(0.2, 0.2), "below both roofs"),
        (near(0.2, 0.2 + JUST), "mixed"),
        (near(0.2, 0.2, image_slope=FLAT_SLOPE - JUST), "overhead-bound"),
        (near(0.2, 0.2, image_slope=FLAT_SLOPE), "below both roofs"),
        (near(0.7, 0.2, image_slope=0.0), "compute-bound"),
        (Evidence(MOST_OF_THE_TIME, None, None, None), "compute-bound"),
        (Evidence(MOST_OF_THE_TIME - JUST, 0.9, None, None), "unknown"),
        (Evidence(FAR_BELOW - JUST, FAR_BELOW - JUST, None, None), "below both roofs"),
        (Evidence(FAR_BELOW - JUST, FAR_BELOW, None, None), "unknown"),
        (Evidence(0.01, 0.1, None, 2.0, FLAT_SLOPE - JUST), "overhead-bound"),
        (Evidence(0.01, None, None, None), "unknown"),
        (Evidence(None, None, None, None), "unknown"),
        (Evidence(None, None, 0.8, None), "overhead-bound"),
    ],
)
def test_the_borders_of_the_rules(evidence: Evidence, kind: str) -> None:
    assert decide(evidence)[0] == kind


def test_more_images_that_cost_more_each_are_said() -> None:
    """The steepest step, not the last one alone: 1, 4 and 8 images in 13.8, 99.7 and 165 ms."""
    growth = BatchGrowth([1, 4, 8], [0.0138, 0.0997, 0.165])
    diagnostics = large_channel_counts().stages[0].diagnostics
    said = sentence(summarized(large_channel_counts(), diagnostics=replace(diagnostics, growth=growth)))
    assert "time grows with the batch (slope 0.73, 1.43 between smaller ones)" in said


def part(seconds: float, flops: float, moved: float, launches: float = 1.0) -> LayerFigures:
    compute, memory = flops / ROOFLINE.flops_per_s, moved / ROOFLINE.bytes_per_s
    return LayerFigures("a", "Conv2d", "level", seconds, launches, flops, moved, compute, memory)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (part(1e-3, 0.5 * 800e9, 1e6), "compute-bound"),
        (part(1e-3, 1e6, 0.5 * 4e9), "memory-bound"),
        (part(1e-3, 0.1 * 800e9, 0.1 * 4e9), "below both roofs"),
        (part(5e-6, 1e6, 1e4), "overhead-bound"),
        (part(6e-6, 1e6, 1e4), "below both roofs"),
        (part(60e-6, 1e6, 1e4, launches=20.0), "overhead-bound"),
        (part(5e-6, 0.5 * 4e9, 1e4), "compute-bound"),
        (part(1e-3, 0.0, 0.0), "unknown"),
        (part(5e-6, 0.0, 0.0), "overhead-bound"),
        (part(0.0, 1e6, 1e4, launches=0.0), "unknown"),
    ],
)
def test_a_layer_s_bottleneck(layer: LayerFigures, kind: str) -> None:
    """The roof over it, or neither; kernels under three launches of 2 µs are mostly start and end."""
    assert of_layer(layer, ROOFLINE) == kind


UNSEEN = Execution(unknown="its operators don't pass torch's dispatcher")


@pytest.mark.parametrize(
    ("changed", "of_stage", "said"),
    [
        ({"measured_peaks": None}, {}, "this run measured no peaks"),
        ({"measured_peaks": replace(PEAKS, tflops={"fp32": 60.0})}, {}, "no fp16 peak"),
        ({"reference": None}, {}, "no FLOPs on record"),
        ({}, {"execution": UNSEEN}, UNSEEN.unknown),
        ({}, {"pairs": []}, ""),
    ],
)
def test_a_gap_makes_it_unknown_and_is_named(changed: dict[str, Any], of_stage: dict[str, Any], said: str) -> None:
    found = summarized(replace(large_channel_counts(), **changed), **of_stage)
    assert found.bottleneck.kind == "unknown"
    assert said in sentence(found)
    assert (found.bottleneck.reason == "not measured") == (sentence(found) == "") == ("pairs" in of_stage)


@pytest.mark.parametrize(
    ("seconds", "kind", "said"),
    [
        ([0.000370, 0.000516], "overhead-bound", "hardly grows with the images' pixels (slope 0.24)"),
        ([0.000825, 0.004708], "below both roofs", "grows with the images' pixels (slope 1.26)"),
    ],
)
def test_on_a_processor_growth_with_the_pixels_shows_overhead(seconds: list[float], kind: str, said: str) -> None:
    """As measured at 16 and at 64 pixels a side, where one more image takes four and one and a half times as long."""
    whole = net([LayerWork("tiny", "Conv2d", "tiny", 10, 10, 10, 1)], [LayerTime("tiny", 1e-3, 1.0)], 1e-3, 2.1)
    run = made_up.on_a_processor(whole)
    diagnostics = run.stages[0].diagnostics
    found = summarized(run, diagnostics=replace(diagnostics, image_growth=ImageGrowth([64, 256], seconds)))
    assert (found.bottleneck.kind, found.bottleneck.evidence.idle) == (kind, None)
    assert said in sentence(found)
    assert "no GPU to idle" in sentence(found)
    assert f"{100 * seconds[0] / seconds[1]:.0f} % of the time for a quarter of each image" in in_short(found)
    without = summarized(run)
    assert without.bottleneck.kind == "below both roofs"
    assert "pixels" not in sentence(without)


def test_bytes_are_counted_ones_before_the_layers_and_those_before_a_guess() -> None:
    run = large_channel_counts()
    diagnostics = run.stages[0].diagnostics
    counted = replace(diagnostics, fusion=Fusion(10.0, 4 * 10**9, "operators"))
    hardly = replace(diagnostics, fusion=Fusion(10.0, None, None, "no counter"))
    found, uncounted, bare = (summarized(run, diagnostics=each) for each in (counted, hardly, None))
    assert found.bottleneck.evidence.memory == pytest.approx(4e9 / found.seconds.value / PEAKS.bandwidth_bytes_per_s)
    assert "the inputs and outputs of torch's operators" in sentence(found)
    assert "each layer's input and output once" in sentence(uncounted)
    assert "the rest fused" in sentence(bare)
    assert "timed at one batch only" in sentence(bare)


def two_in_series(matrix: float = 0.44, reach: float = 0.82, passes: float = 0.4) -> RunRecord:
    """Return a run of convolutions, so much of the 10 ms, and of passes over memory, each so near its roof."""
    seconds = 1e-2
    flops = round(matrix * seconds * reach * ROOFLINE.flops_per_s / BATCH)
    conv, relu = LayerWork("conv", "Conv2d", "a", flops, 0, 0, 0), LayerWork("relu", "ReLU", "a", 0, 10, 10, 0)
    times = [LayerTime("conv", matrix * seconds, 1.0), LayerTime("relu", (1 - matrix) * seconds, 1.0)]
    run = net([conv, relu], times, seconds)
    moved = round((1 - matrix) * seconds * passes * ROOFLINE.bytes_per_s)
    diagnostics = run.stages[0].diagnostics
    told = replace(diagnostics, fusion=Fusion(75.0, moved, "operators"))
    return replace(run, stages=[replace(run.stages[0], diagnostics=told)])


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (two_in_series(), "mixed"),
        (two_in_series(0.7), "compute-bound"),
        (two_in_series(0.3), "memory-bound"),
        (two_in_series(0.95, reach=0.38), "below both roofs"),
        (two_in_series(0.1, passes=0.2), "below both roofs"),
    ],
)
def test_the_time_near_each_roof_names_the_bottleneck(run: RunRecord, kind: str) -> None:
    """Two bottlenecks in series are mixed; slow convolutions, as by FFT, are near no roof, nor are slow passes."""
    assert summarized(run).bottleneck.kind == kind


@pytest.mark.parametrize("matrix", [0.1, 0.3, 0.44, 0.7, 0.95])
@pytest.mark.parametrize("more", [0.1, 8.0])
def test_the_bottleneck_does_not_depend_on_who_counted_the_bytes(matrix: float, more: float) -> None:
    """The same record with counters that saw more, or fewer, bytes than the operators have; both figures are shown."""
    run = two_in_series(matrix)
    diagnostics = run.stages[0].diagnostics
    seen = round(more * (diagnostics.fusion.bytes_per_call or 0))
    counted = replace(diagnostics, counted=CountedBytes(seen, 0, 5 * seen, 75, 75, "ncu", {}))
    by_operators, by_counters = summarized(run), summarized(run, diagnostics=counted)
    assert by_operators.bottleneck.kind == by_counters.bottleneck.kind
    assert by_operators.bottleneck.evidence.shares == by_counters.bottleneck.evidence.shares
    assert "(hardware counters)" in sentence(by_counters)
    assert "at least " in sentence(by_operators)

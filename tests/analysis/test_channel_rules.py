"""Layers whose channels leave a part of every tensor core idle: which, how much time they take, and what to type."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.analysis.recommendations import even_the_channels, first_channels
from pipeline.records.run_record import Precision, RunRecord
from pipeline.report.sections.recommendation import RecommendationText, worded
from tests.report import made_up_run as made_up

# in and out of the made-up net's convolutions, of base 64
EVEN = {
    "encoder.0.0": (3, 64), "bottleneck.0": (64, 128), "upsample.0": (128, 64), "decoder.0.0": (128, 64),
    "head": (64, 2),
}  # fmt: skip
ODD = {
    "encoder.0.0": (3, 50), "bottleneck.0": (50, 100), "upsample.0": (100, 50), "decoder.0.0": (100, 50),
    "head": (50, 2),
}  # fmt: skip
TIMES = {name: share for name, *_, share in made_up.LAYERS}
UNTRAINED: dict[str, Any] = {"name": "custom", "target": "my.Net", "checkpoint": None, "options": {}}
UNET = {"name": "unet", "target": "models.unet.UNet", "checkpoint": None, "options": {"base": 50}}


def run_of(
    channels: dict[str, tuple[int, int]], model: dict[str, Any] | None = None, groups: int = 1, **fields: Any
) -> RunRecord:
    """Eager and half, which wins, with these channels on record; `fields` are half's."""
    whole = made_up.run()
    assert whole.reference is not None
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
    """What is said of the winner's channels."""
    found = made_up.summary(run)
    assert found.winner is not None
    line = even_the_channels(found, found.winner)
    return worded(line) if line else None


def test_even_channels_are_no_cause() -> None:
    assert recommended(run_of(EVEN)) is None


def test_odd_layers_are_named_with_their_time() -> None:
    line = recommended(run_of(ODD))
    assert line is not None
    assert line.evidence.startswith("decoder.0.0 (100 → 50), bottleneck.0 (50 → 100), upsample.0 (100 → 50) and 2 more")
    assert "no multiple of 8" in line.evidence
    seconds = made_up.BASELINE_SECONDS / 7.1
    spent = sum(TIMES[name] for name in ODD) * seconds
    assert f"they take {1e3 * spent:.2f} ms of half's {1e3 * seconds:.1f} ms" in line.evidence
    assert line.action.startswith("multiples of 8 in the network's code for the channels of decoder.0.0, bottleneck.0")
    assert line.action.endswith("and the rest")


def test_one_odd_layer_is_the_only_one_named() -> None:
    line = recommended(run_of(EVEN | {"upsample.0": (128, 60)}))
    assert line is not None
    assert line.evidence.startswith("upsample.0 (128 → 60): channel counts")
    assert line.action == "multiples of 8 in the network's code for the channels of upsample.0"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"encoder.0.0": (5, 64)}, ""),
        ({"encoder.0.0": (3, 60)}, "encoder.0.0"),
        ({"head": (64, 5)}, ""),
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


def test_fp32_has_no_such_recommendation() -> None:
    """The rule is that of the halves and of fp8."""
    assert recommended(run_of(ODD, execution=made_up.execution("eager"))) is None


def test_the_projects_own_net_has_a_command() -> None:
    line, trained = recommended(run_of(ODD, UNET)), recommended(run_of(ODD, {**UNET, "checkpoint": "w.safetensors"}))
    assert line is not None
    assert line.action == "python -m pipeline data.batch_size=8 model.options.base=56"
    assert trained is not None
    assert "model.options" not in trained.action
    assert trained.action.endswith("and weights trained anew")
    eights = recommended(
        run_of(ODD, {**UNET, "options": {"base": 24}}, execution=replace(made_up.execution("fp8"), precision="fp8"))
    )
    assert eights is not None
    assert eights.action.endswith("model.options.base=32")


def test_another_nets_base_is_not_ours() -> None:
    line = recommended(run_of(ODD, {"name": "custom", "target": "my.Net", "options": {"base": 50}}))
    assert line is not None
    assert "model.options" not in line.action


def test_a_winner_that_hides_its_layers_is_told_by_the_arithmetic() -> None:
    """The FLOPs of the odd layers: 0.62 of the net's and 0.05."""
    line = recommended(run_of(EVEN | {"upsample.0": (128, 60), "decoder.0.0": (60, 64)}, diagnostics=None))
    assert line is not None
    assert "they do 67 % of the arithmetic (half doesn't show its layers' time)" in line.evidence
    assert line.evidence.startswith("decoder.0.0")


def test_little_time_is_no_cause() -> None:
    """A layer under 3 % of the time."""
    whole = run_of(EVEN | {"head": (60, 2)})
    diagnostics = whole.stages[1].diagnostics
    assert diagnostics is not None
    short = [replace(time, seconds_per_call=1e-6) if time.name == "head" else time for time in diagnostics.layers]
    assert recommended(run_of(EVEN | {"head": (60, 2)}, diagnostics=replace(diagnostics, layers=short))) is None


def test_grouped_convolutions_are_let_pass() -> None:
    assert recommended(run_of(ODD, groups=2)) is None


def test_a_processor_has_no_tensor_cores() -> None:
    cpu = replace(made_up.environment(), device="cpu")
    assert recommended(replace(run_of(ODD, UNET), environment=cpu)) is None


def test_the_first_layers_channels_need_no_size() -> None:
    folder = {"name": "folder", "size": None}
    assert first_channels(made_up.summary(run_of(EVEN | {"encoder.0.0": (4, 64)}))) == 4
    known = run_of(EVEN)
    assert first_channels(made_up.summary(made_up.with_settings(known, data=folder))) == 3
    unknown = made_up.run()
    assert first_channels(made_up.summary(unknown)) == 3
    assert first_channels(made_up.summary(made_up.with_settings(unknown, data=folder))) is None


def test_two_layers_that_run_as_one_have_their_time_together() -> None:
    whole = run_of(EVEN | {"head": (60, 2)})
    diagnostics = whole.stages[1].diagnostics
    assert diagnostics is not None
    joined = [time for time in diagnostics.layers if time.name not in ("head", "")]
    line = recommended(run_of(EVEN | {"head": (60, 2)}, diagnostics=replace(diagnostics, layers=joined)))
    assert line is not None
    assert f"they take {1e3 * TIMES['decoder.0.0'] * made_up.BASELINE_SECONDS / 7.1:.2f} ms" in line.evidence

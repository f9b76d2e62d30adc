"""Figures of a record that contradict each other, as a pencil leaves them, are refused by name; no run's own are."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.measure.accuracy import compare
from pipeline.records import codec
from pipeline.records.cross_checks import contradiction
from pipeline.records.run_record import RunRecord, RunWarning
from tests.report import made_up_run as made_up

RUN = made_up.run()
MODEL = {"target": "", "options": {}, "checkpoint": "unet.safetensors"}
DATA = {"mean": [0.5], "std": 0.25, "channels": 3, "normalize": "centred"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "net": ({"settings.model.target": "my.Net"}, "settings.model.target is 'my.Net', and by its config"),
    "options": ({"settings.model.options": {"base": 8}}, "settings.model.options is {'base': 8}, and by its config"),
    "weights": ({"settings.model.checkpoint": None}, "settings.model.checkpoint is None, and by its config"),
    "batch": ({"settings.data.batch_size": 4}, "settings.data.batch_size is 4, and by its config 8"),
    "mean": ({"settings.data.contract.mean": [0.4]}, "settings.data.contract.mean is (0.4,), and by its config (0.5,)"),
    "config": ({"config.data.std": 0.2}, "settings.data.contract.std is (0.25,), and by its config (0.2,)"),
    "channels": ({"settings.data.contract.channels": 1}, "settings.data.contract.channels is 1, and by its config 3"),
    "share": ({"stages.1.accuracy.nan_share": -0.1}, "tf32.accuracy: a share, Dice or IoU isn't within 0 and 1"),
    "IoU": ({"stages.1.accuracy.iou": [0.5, 0.5]}, "tf32.accuracy: IoU isn't Dice / (2 − Dice)"),
    "no IoU": ({"stages.1.accuracy.iou": None}, "tf32.accuracy: IoU isn't Dice / (2 − Dice)"),
    "exact": ({"stages.1.accuracy.relative_l2": 0.0}, "tf32.accuracy: relative_l2 is 0 and largest_error isn't"),
    "error": (
        {"stages.1.accuracy.largest_error": 1e-9},
        "relative_l2 times reference_spread is more than largest_error",
    ),
    "margin": ({"stages.1.accuracy.flipped_margin": 1.0}, "flipped_margin is more than twice largest_error"),
    "no margin": ({"stages.1.accuracy.flipped_margin": None}, "flipped_margin goes with a flipped_share above 0 alone"),
    "flips": ({"stages.1.accuracy.flipped_share": 0.0}, "flipped_margin goes with a flipped_share above 0 alone"),
    "one class": (
        {f"stages.1.accuracy.{name}": value for name, value in (("flipped_share", 0.0), ("flipped_margin", None))}
        | {"stages.1.accuracy.one_class": True},
        "one_class without a pixel that changes its class",
    ),
    "Dice": (
        {f"stages.1.accuracy.{name}": value for name, value in (("flipped_share", 0.0), ("flipped_margin", None))}
        | {"stages.1.accuracy.dice": [0.5, 0.94], "stages.1.accuracy.iou": [0.5 / 1.5, 0.94 / 1.06]},
        "flipped_share is 0, and dice isn't reference_dice",
    ),
    "status": ({"stages.1.accuracy.flipped_share": 0.5}, "tf32 is ok, and by its figures 50"),
    "tolerance": ({"stages.1.tolerance.relative_l2": 1e-9}, "tf32 is ok, and by its figures logits differ by"),
    "reference": (
        {"stages.1.accuracy.reference_spread": 2.0},
        "tf32.accuracy: the reference's figures are others than eager's, of one answer",
    ),
    "another's pairs": ({"stages.1.pairs.0.stage": "half"}, "tf32.pairs: of half against eager, and the baseline is"),
    "batch and config": (
        {"settings.data.batch_size": 4, "config.data.batch_size": 4, "command": "python -m pipeline"}
        | {"stages.0.diagnostics.growth": {"images": [1, 4, 8], "seconds": [0.1, 0.2, 0.3]}},
        "eager was timed on 8 images at once, and settings.data.batch_size is 4",
    ),
    "size and config": (
        {"settings.data.image_size": 48, "config.data.size": 48, "command": "python -m pipeline"}
        | {"stages.1.diagnostics.image_growth": {"pixels": [256, 1024], "seconds": [0.1, 0.2]}},
        "tf32 was timed on images of 1024 pixels, and settings.data.image_size is 48",
    ),
    "another baseline": ({"baseline": "amp"}, "eager.pairs: of eager against eager, and the baseline is amp"),
}


@pytest.mark.parametrize(
    "config",
    [
        {"data.batch_size": "${data.batches}"},
        {"data.mean": ["${data.half}"], "data.std": "${data.quarter}"},
        {"data.normalize": "${norm}", "data.mean": None, "data.std": None},
        {"model.options": {"base": "${width}"}},
        {"model.checkpoint": "${oc.env:WEIGHTS}"},
    ],
)
def test_what_the_config_refers_to_is_known_to_the_settings_alone(config: dict[str, Any], tmp_path: Path) -> None:
    """A run keeps the reference as it was typed, and what it came to."""
    codec.load(written(tmp_path, {f"config.{place}": value for place, value in config.items()}))


def written(folder: Path, changes: Mapping[str, Any], run: RunRecord = RUN) -> Path:
    """The run's record, with values in place of its own by their places, such as stages.1.accuracy.dice."""
    config = {**run.config, "model": {**run.config["model"], **MODEL}, "data": {**run.config["data"], **DATA}}
    codec.save(replace(run, config=config), folder)
    record = json.loads((folder / codec.FILE).read_text(encoding="utf-8"))
    for place, value in changes.items():
        *parts, last = place.split(".")
        inner = record
        for part in parts:
            inner = inner[int(part) if part.isdigit() else part]
        inner[last] = value
    (folder / codec.FILE).write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_a_record_as_it_was_written_is_read(tmp_path: Path) -> None:
    assert [stage.name for stage in codec.load(written(tmp_path, {})).stages] == [stage.name for stage in RUN.stages]


@pytest.mark.parametrize("name", REFUSED)
def test_a_figure_that_another_contradicts_is_refused(name: str, tmp_path: Path) -> None:
    """In `report`, `compare` and whatever else reads a record, in one line."""
    changes, said = REFUSED[name]
    with pytest.raises(codec.RecordError, match=re.escape(said)) as refused:
        codec.load(written(tmp_path, changes))
    assert "\n" not in str(refused.value)


COMMAND = "python -m pipeline model.checkpoint=unet.safetensors +data.std=0.250 data.batch_size=8 stage=compile"
EDITED: dict[str, tuple[dict[str, Any], str]] = {
    "weights": ({"model.checkpoint": "mine.safetensors"}, "config.model.checkpoint is 'mine.safetensors', and by its"),
    "batch": ({"data.batch_size": 4}, "config.data.batch_size is 4, and by its command 8"),
    "null": ({"data.std": None}, "config.data.std is None, and by its command 0.250"),
}


@pytest.mark.parametrize("name", EDITED)
def test_settings_and_config_that_were_edited_alike_are_not_what_was_typed(name: str, tmp_path: Path) -> None:
    """The command, of which the config was made, contradicts them."""
    changes, said = EDITED[name]
    both = {f"{place}.{key}": value for key, value in changes.items() for place in ("config", "settings")}
    both = {key: value for key, value in both.items() if key != "settings.data.std"}
    with pytest.raises(codec.RecordError, match=re.escape(said)):
        codec.load(written(tmp_path, {"command": COMMAND, **both}))


@pytest.mark.parametrize(
    "command",
    [
        COMMAND,
        "python -m pipeline -m data.batch_size=4,16 data.std=0.5",
        "python -m pipeline data.batch_size=8.0 data.channels=03 model.checkpoint=unet.safetensors",
        "python -m pipeline data.batch_size='${data.batches}' ~data.std hydra.run.dir=here measure.looks=3",
        "python -m pipeline 'data.batch_size=4",
    ],
)
def test_what_the_command_leaves_open_contradicts_nothing(command: str, tmp_path: Path) -> None:
    """A sweep's, what refers to something else, what older versions called otherwise, and what no shell could read."""
    codec.load(written(tmp_path, {"command": command}))


def test_a_run_that_took_over_stages_of_another_may_hold_other_figures(tmp_path: Path) -> None:
    """Told to resume despite another tolerance, data or baseline, it says so; a single answer's figures still hold."""
    resumed = replace(RUN, warnings=[*RUN.warnings, RunWarning("resumed", "all of it", "")])
    for name in ("status", "tolerance", "reference", "another's pairs"):
        codec.load(written(tmp_path, REFUSED[name][0], resumed))
    with pytest.raises(codec.RecordError):
        codec.load(written(tmp_path, REFUSED["IoU"][0], resumed))


def test_what_the_config_leaves_to_the_environment_or_the_images_contradicts_nothing(tmp_path: Path) -> None:
    codec.load(written(tmp_path, {"config.data.mean": "${oc.env:MEAN}", "config.data.std": None}))
    codec.load(written(tmp_path, {"config.data": {"normalize": "ct", "mean": None}}))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(1, 4),
    off=st.sampled_from([0.0, 1e-7, 1e-3, 0.3, 10.0]),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    lies_at=st.sampled_from([0.0, 50.0]),
    broken=st.booleans(),
)
def test_no_answer_contradicts_itself(
    seed: int, channels: int, off: float, spread: float, lies_at: float, broken: bool
) -> None:
    """Whatever a net and a stage answer: of one class, with NaN, alike, far off."""
    draw = torch.Generator().manual_seed(seed)
    reference = lies_at + spread * torch.randn(2, channels, 4, 4, generator=draw)
    output = reference + off * torch.randn(2, channels, 4, 4, generator=draw)
    if broken:
        output[0, 0, 0, 0] = torch.nan
    labels = torch.from_numpy(np.random.default_rng(seed).integers(0, max(2, channels), (2, 4, 4)).astype(np.uint8))
    assert contradiction(compare([output], [reference], labels)) == ""

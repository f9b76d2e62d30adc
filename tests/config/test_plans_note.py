"""A request that normalises or cuts otherwise than the plans of the nnU-Net that it measures is told so."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.plans_note import check_regions, plans_note
from pipeline.config.request_error import RequestError
from tests.config.test_load import asked, composed

FIGURES = {"mean": 70.0, "std": 40.0, "percentile_00_5": -20.0, "percentile_99_5": 200.0}
CT = "data.normalize=ct data.low=-20 data.high=200 data.mean=70 data.std=40"


def plans_in(folder: Path, **fields: Any) -> Path:
    found = {"patch_size": [16, 48, 48], "normalization_schemes": ["CTNormalization"], **fields}
    known = {"3d_fullres": {"inherits_from": "base"}, "base": found}
    properties = {"foreground_intensity_properties_per_channel": {"0": FIGURES}}
    (folder / "plans.json").write_text(json.dumps({"configurations": known, **properties}))
    return folder


def note(folder: Path, *words: str) -> str:
    plans = [f"model.options.plans={folder}", "model.options.configuration=3d_fullres"]
    images = ["data=volume", f"data.path={folder}", "data.batch_size=1"]
    return plans_note(asked(composed("preset=smoke", "stage=eager", "model=nnunet", *plans, *images, *words)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.size=48", "data.depth=16"], f" says {CT}; this run has data.normalize=zscore"),
        ([*CT.split(), "data.size=48"], " says data.size=48 data.depth=16; this run has data.size=48 data.depth=48"),
        ([*CT.split(), "data.size=null"], " says data.size=48 data.depth=16; this run has volumes of their own size"),
    ],
)
def test_the_options_that_the_plans_call_for_are_given(words: list[str], said: str, tmp_path: Path) -> None:
    plans_in(tmp_path)
    assert note(tmp_path, *words) == f"note: {tmp_path / 'plans.json'}{said}"


def test_where_all_is_as_planned_nothing_is_said(tmp_path: Path) -> None:
    """Nor of no plans, and of what is no plan."""
    assert note(plans_in(tmp_path), *CT.split(), "data.size=48", "data.depth=16") == ""
    plans_in(tmp_path, normalization_schemes=["ZScoreNormalization"], patch_size=[16, 40, 48])
    assert note(tmp_path, "data.size=null") == ""
    plans_in(tmp_path, patch_size=7)
    assert note(tmp_path, "data.size=32") == ""
    assert plans_note(asked(composed("preset=smoke", "stage=eager", "model=unet_small"))) == ""


def test_pictures_of_colours_are_planned_as_shares_of_255(tmp_path: Path) -> None:
    """And are called images where the run has them at their own size."""
    found = {"patch_size": [48, 48], "normalization_schemes": ["RGBTo01Normalization"] * 3}
    (tmp_path / "plans.json").write_text(json.dumps({"configurations": {"2d": found}}))
    words = [f"model.options.plans={tmp_path}", "data=folder", f"data.path={tmp_path}", "data.size=null"]
    request = asked(composed("preset=smoke", "stage=eager", "model=nnunet", *words))
    asked_for = " says data.normalize=unit data.size=48; this run has data.normalize=centred"
    assert plans_note(request) == f"note: {tmp_path / 'plans.json'}{asked_for}"
    words.append("data.normalize=unit")
    said = plans_note(asked(composed("preset=smoke", "stage=eager", "model=nnunet", *words)))
    assert said.endswith(" says data.size=48; this run has images of their own size")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"normalization_schemes": ["CTNormalization", "NoNormalization"]},
            " names NoNormalization, which this program",
        ),
        ({"patch_size": [16, 40, 48]}, " has patches of 16×40×48, and data.size gives squares: data=tensors takes"),
        ({"use_mask_for_norm": [True]}, " takes mean and std of the voxels that are not 0 (use_mask_for_norm)"),
    ],
)
def test_what_the_plans_do_and_nothing_here_does_is_told(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    plans_in(tmp_path, **fields)
    assert said in note(tmp_path, *CT.split(), "data.size=48", "data.depth=16")


def test_labels_that_are_regions_are_refused_for_masks(tmp_path: Path) -> None:
    """Their logits overlap, and the largest of them is no class."""
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "whole": [1, 2], "core": [2]}}))
    words = ["model=nnunet", f"model.options.plans={tmp_path}", "preset=smoke", "stage=eager"]
    with pytest.raises(RequestError, match="its label whole is a region of several classes"):
        check_regions(asked(composed(*words)))
    check_regions(asked(composed(*words, "task=regression")))
    for text in ('{"labels": {"background": 0, "liver": 1}}', "{", "[]"):
        (tmp_path / "dataset.json").write_text(text)
        check_regions(asked(composed(*words)))

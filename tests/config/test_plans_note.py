"""A request that normalises or cuts otherwise than the plans of the nnU-Net that it measures is told so."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.plans_note import plans_note
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
    """Nor of a scheme that isn't known, of patches that aren't square, of no plans, and of what is no plan."""
    assert note(plans_in(tmp_path), *CT.split(), "data.size=48", "data.depth=16") == ""
    plans_in(tmp_path, normalization_schemes=["RGBTo01Normalization"], patch_size=[16, 40, 48])
    assert note(tmp_path, "data.size=32") == ""
    plans_in(tmp_path, patch_size=7)
    assert note(tmp_path, "data.size=32") == ""
    assert plans_note(asked(composed("preset=smoke", "stage=eager", "model=unet_small"))) == ""

"""The plans that can be asked for by name."""

import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import yaml

from pipeline.analysis.plans_note import NO_ENSEMBLE, check_regions, plans_note, training_notes
from pipeline.config.conversion import converted
from pipeline.config.request_error import RequestError
from pipeline.records.plan import Phase, Plan
from tests.config.test_load import asked, composed

FOLDER = Path(__file__).parents[2] / "conf" / "measure"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_gives_exactly_the_knobs_of_a_plan(path: Path) -> None:
    """A knob that is missing from a composed file, or that no Plan has, is an error."""
    knobs = composed("stage=eager", f"measure={path.stem}")["measure"]
    assert knobs.keys() == {knob.name for knob in fields(Plan)}
    assert converted(knobs, Plan, "measure").phase_limits.keys() == set(Phase)


def test_thorough_is_the_default() -> None:
    knobs = yaml.safe_load((FOLDER / "thorough.yaml").read_text())
    assert list(knobs) == [knob.name for knob in fields(Plan)]
    assert converted(knobs, Plan, "measure") == Plan()


def test_on_a_gpu_its_own_numbers_stand() -> None:
    """Fewer blocks of longer samples, at full load; a CPU's plan is as it was."""
    plan = Plan()
    assert plan.on("cpu") == plan
    assert plan.on("cuda").for_aa_pairs().interim_analyses == plan.on("cuda").interim_analyses[:1]
    assert (plan.sustained("cuda"), plan.sustained("cpu")) == (True, False)
    assert plan.rested_run_in_seconds("cuda") > plan.run_in_seconds("cuda") > 0
    assert plan.run_in_seconds("cpu") == plan.rested_run_in_seconds("cpu") == 0


@pytest.mark.parametrize(("knob", "seconds"), [("gpu_sample_seconds", 0.5), ("gpu_run_in_seconds", 0.2)])
def test_shorter_samples_or_run_ins_are_not_called_full_load(knob: str, seconds: float) -> None:
    assert not converted({knob: seconds}, Plan, "measure").sustained("cuda")


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "smoke"], ids=lambda path: path.stem)
def test_a_gpus_plans_have_an_interval_at_full_load(path: Path) -> None:
    """Six blocks are the least that bound a ratio; a block is four samples with their run-ins, in quick short ones."""
    plan = converted(composed("stage=eager", f"measure={path.stem}")["measure"], Plan, "measure").on("cuda")
    block = 4 * (plan.gpu_sample_seconds + plan.gpu_run_in_seconds)
    assert plan.sustained("cuda") == (path.stem != "quick")
    assert plan.interim_analyses[0] >= 6
    assert plan.aa_blocks >= 6
    assert plan.interim_analyses[-1] * block <= plan.sampling_seconds
    switches = 3  # from one side to the other in a block, the one between blocks counted in
    rested = block + switches * (plan.gpu_rested_run_in_seconds - plan.gpu_run_in_seconds)
    assert 5 * rested <= plan.sampling_seconds  # by then the sixth has begun


@pytest.mark.parametrize(
    ("knob", "value", "said"),
    [
        ("interim_analyses", [5, 5], "measure: interim_analyses=[5, 5]: expected rising block counts"),
        ("min_calls", 10**18, "measure.min_calls=1000000000000000000: expected int <= 1000000"),
        ("counters_limit_seconds", 1e308, "expected float <= 10000000.0"),
        ("limits", {"build": 0.5}, "measure.limits: expected float >= 1.0"),
        ("limits", {"bild": 9.0}, "measure.limits: invalid enum value 'bild'"),
    ],
)
def test_a_plan_that_no_machine_carries_out_is_refused(knob: str, value: object, said: str) -> None:
    """No list has as many calls, and no process starts in less than a second."""
    knobs = composed("stage=eager")["measure"]
    with pytest.raises(RequestError, match=re.escape(said)):
        converted({**knobs, knob: value}, Plan, "measure")


FIGURES = {"mean": 70.0, "std": 40.0, "percentile_00_5": -20.0, "percentile_99_5": 200.0}
CT = "data.normalize=ct data.low=-20 data.high=200 data.mean=70 data.std=40"


def plans_in(folder: Path, transpose_forward: Sequence[int] = (0, 1, 2), **fields: Any) -> Path:
    found = {"patch_size": [16, 48, 48], "normalization_schemes": ["CTNormalization"], **fields}
    known = {"3d_fullres": {"inherits_from": "base"}, "base": found}
    figures = {"0": FIGURES, "1": FIGURES}
    properties = {"foreground_intensity_properties_per_channel": figures, "transpose_forward": [*transpose_forward]}
    (folder / "plans.json").write_text(json.dumps({"configurations": known, **properties}))
    return folder


def note(folder: Path, *words: str, volumes: Sequence[Path] = ()) -> str:
    plans = [f"model.options.plans={folder}", "model.options.configuration=3d_fullres"]
    images = ["data=volume", f"data.path={folder}", "data.batch_size=1"]
    [found] = training_notes(
        asked(composed("preset=smoke", "stage=eager", "model=nnunet", *plans, *images, *words)), volumes=volumes
    ) or [""]
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.size=48", "data.depth=16"], f" says {CT}; this run has data.normalize=zscore"),
        ([*CT.split(), "data.size=48"], " says data.depth=16; this run has data.depth=48"),
        ([*CT.split(), "data.size=null"], " says data.size=48 data.depth=16; this run has volumes of their own size"),
    ],
)
def test_the_options_that_the_plans_call_for_are_given(words: list[str], said: str, tmp_path: Path) -> None:
    plans_in(tmp_path)
    assert note(tmp_path, *words) == f"{tmp_path / 'plans.json'}{said}; it {NO_ENSEMBLE}"


def test_where_all_is_as_planned_the_predictor_alone_is_another(tmp_path: Path) -> None:
    alone = f"{tmp_path / 'plans.json'} {NO_ENSEMBLE}"
    assert note(plans_in(tmp_path), *CT.split(), "data.size=48", "data.depth=16") == alone
    plans_in(tmp_path, normalization_schemes=["ZScoreNormalization"], patch_size=[16, 40, 48])
    assert note(tmp_path, "data.size=[16,40,48]") == alone
    plans_in(tmp_path, transpose_forward=[2, 1, 0])
    assert note(tmp_path, *CT.split(), "data.size=48", "data.depth=16", "data.axes=xyz") == alone
    plans_in(tmp_path, patch_size=7)
    assert note(tmp_path, "data.size=32") == ""
    assert plans_note(asked(composed("preset=smoke", "stage=eager", "model=unet_small"))) == ""


def test_pictures_of_colours_are_planned_as_shares_of_255(tmp_path: Path) -> None:
    found = {"patch_size": [48, 48], "normalization_schemes": ["RGBTo01Normalization"] * 3}
    (tmp_path / "plans.json").write_text(json.dumps({"configurations": {"2d": found}}))
    words = [f"model.options.plans={tmp_path}", "data=folder", f"data.path={tmp_path}", "data.size=null"]
    request = asked(composed("preset=smoke", "stage=eager", "model=nnunet", *words))
    asked_for = " says data.normalize=unit data.size=48; this run has data.normalize=centred"
    assert plans_note(request) == f"{tmp_path / 'plans.json'}{asked_for}; it {NO_ENSEMBLE}"
    words.append("data.normalize=unit")
    said = plans_note(asked(composed("preset=smoke", "stage=eager", "model=nnunet", *words)))
    assert " says data.size=48; this run has images of their own size; it " in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"normalization_schemes": ["CTNormalization", "NoNormalization"]}, " names NoNormalization, which this"),
        ({"patch_size": [16, 40, 48]}, " says data.size=[16,40,48]; this run has data.size=48"),
        (
            {"normalization_schemes": ["ZScoreNormalization", "CTNormalization"]},
            " normalises channels by ZScoreNormalization, CTNormalization; this run has one rule for all",
        ),
        ({"transpose_forward": [2, 0, 1]}, " turns the axes (transpose_forward [2, 0, 1]); this run leaves them"),
        ({"transpose_forward": [2, 1, 0]}, " says data.axes=xyz; this run has data.axes=zyx"),
        ({"use_mask_for_norm": [True]}, " takes mean and std of the voxels that are not 0 (use_mask_for_norm)"),
    ],
)
def test_what_the_plans_do_and_nothing_here_does_is_told(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    plans_in(tmp_path, **fields)
    assert said in note(tmp_path, *CT.split(), "data.size=48", "data.depth=16")


@pytest.mark.parametrize(
    ("order", "planned", "said"),
    [
        ([0, 1, 2], [3.0, 0.8, 0.7], ""),
        ([0, 1, 2], [3.0, 0.8, 0.8], "is for a spacing of 3×0.8×0.8; resample 1 volume of another, such as a.nii of"),
        ([2, 0, 1], [0.7, 3.0, 0.8], ""),
        ([2, 0, 1], [3.0, 0.8, 0.7], "is for a spacing of 0.8×0.7×3; resample 1 volume"),
    ],
)
def test_volumes_of_another_spacing_are_told(order: list[int], planned: list[float], said: str, tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.diag([0.7, 0.8, 3.0, 1.0])), tmp_path / "a.nii")
    plans_in(tmp_path, transpose_forward=order, spacing=planned)
    found = note(tmp_path, *CT.split(), "data.size=48", "data.depth=16", volumes=[tmp_path / "a.nii"])
    assert said in found
    assert ("spacing" in found) == bool(said)


def test_monai_s_order_of_axes_is_told_for_nifti_alone(tmp_path: Path) -> None:
    words = ["preset=smoke", "stage=eager", "model=monai", "data=volume", f"data.path={tmp_path}", "data.batch_size=1"]
    given = [tmp_path / "a.nii.gz"]
    [said] = training_notes(asked(composed(*words)), given)
    assert "data.axes=xyz is MONAI's order" in said
    assert training_notes(asked(composed(*words, "data.axes=xyz")), given) == []
    assert training_notes(asked(composed(*words)), [tmp_path / "a.npy"]) == []


def test_labels_that_are_regions_are_refused_for_masks(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "whole": [1, 2], "core": [2]}}))
    words = ["model=nnunet", f"model.options.plans={tmp_path}", "preset=smoke", "stage=eager"]
    with pytest.raises(RequestError, match="its label whole is a region of several classes"):
        check_regions(asked(composed(*words)))
    check_regions(asked(composed(*words, "task=regression")))
    for text in ('{"labels": {"background": 0, "liver": 1}}', "{", "[]"):
        (tmp_path / "dataset.json").write_text(text)
        check_regions(asked(composed(*words)))

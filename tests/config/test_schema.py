"""The question as the user asked it: every wrong value is one line that names the key and the nearest choice."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.config.request_error import RequestError, nearest
from pipeline.config.schema import RunConfig, read

CONF = Path(__file__).resolve().parents[2] / "conf"


def composed(*overrides: str) -> dict[str, Any]:
    """The config as Hydra composes it, resolved."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        value = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    assert isinstance(value, dict)
    return value


def question(config: dict[str, Any], device: str = "cpu") -> RunConfig:
    eager = OmegaConf.to_container(OmegaConf.load(CONF / "stage" / "eager.yaml"))
    return read(config, device, eager)


def stage_files() -> list[str]:
    return sorted(path.stem for path in (CONF / "stage").glob("*.yaml"))


@pytest.mark.parametrize("name", stage_files())
def test_every_stage_file_composes_into_a_question(name: str) -> None:
    """Each file of conf/stage gives at least one stage, each with a reason for its tolerance."""
    stages = question(composed(f"stage={name}")).stages
    assert stages
    assert all(len(stage.tolerance.reason) > 20 for stage in stages)


@pytest.mark.parametrize("group", ["model", "data", "measure", "preset"])
def test_every_other_file_composes(group: str, tmp_path: Path) -> None:
    """Each file of the other groups gives a question, with what it needs filled in."""
    for path in sorted((CONF / group).glob("*.yaml")):
        needed = {"custom": ["model.target=my.Net"], "folder": [f"data.path={tmp_path}"]}.get(path.stem, [])
        assert question(composed(f"{group}={path.stem}", *needed)).stages


def test_the_ladder_lists_every_stage_file_in_order() -> None:
    """The ladder is one list: it begins at the baseline, and each rung says what it adds."""
    stages = question(composed("stage=ladder")).stages
    assert stages[0].name == "eager"
    assert {stage.name for stage in stages} == set(stage_files()) - {"ladder"}
    assert all(stage.adds for stage in stages)


def test_what_the_user_types_wins_over_the_preset() -> None:
    """preset=cpu takes the small net, unless another is named."""
    assert question(composed("preset=cpu")).model.name == "unet_small"
    assert question(composed("preset=cpu", "model=unet", "data.size=96")).data.size == 96
    assert question(composed("preset=cpu", "model=unet")).model.name == "unet"


WRONG = [
    ("data", "batch_size", 0, "data.batch_size=0"),
    ("data", "batch_size", "eight", "data.batch_size=eight"),
    ("data", "size", -1, "data.size=-1"),
    ("data", "path", "no_such_folder", "data.path=no_such_folder: no such folder"),
    ("data", "labels", "no_such_folder", "data.labels=no_such_folder"),
    ("measure", "half_width", -0.1, "measure.half_width=-0.1"),
    ("measure", "counters", "maybe", "measure.counters=maybe: true or false is wanted"),
    ("measure", "measured_peaks", 1, "measure.measured_peaks=1: true or false is wanted"),
    ("measure", "aa_pairs", True, "measure.aa_pairs=True: a number"),
    ("measure", "half_widht", 0.1, "did you mean 'half_width'?"),
    ("stage", "name", "../up", "a stage's name is a folder's"),
    ("stage", "tolerance", None, "has no 'tolerance'"),
]


@pytest.mark.parametrize(("group", "key", "value", "said"), WRONG)
def test_a_wrong_value_is_named(group: str, key: str, value: Any, said: str) -> None:
    """One line, with the key as the user types it."""
    config = copy.deepcopy(composed("stage=compile"))
    config[group][key] = value
    with pytest.raises(RequestError) as caught:
        question(config)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_outside_its_choices_names_the_nearest() -> None:
    """stage.mode=max-autotun is refused before anything runs."""
    with pytest.raises(RequestError, match=r"stage\.mode=max-autotun: did you mean 'max-autotune'"):
        question(composed("stage=compile", "stage.mode=max-autotun"))


def test_two_rungs_of_one_name_are_refused() -> None:
    """Their folders would be one."""
    config = composed("stage=ladder")
    config["stage"]["rungs"]["half"]["name"] = "eager"
    with pytest.raises(RequestError, match="two rungs are called 'eager'"):
        question(config)


def test_nearest_lists_all_where_none_is_alike() -> None:
    """A word from nowhere gets the whole list."""
    assert nearest("compil", ["eager", "compile"]) == "did you mean 'compile'?"
    assert nearest("xyz", ["eager", "compile"]) == "choose one of: eager, compile"

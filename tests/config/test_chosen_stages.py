"""Several stages of one run by a list: the words that Hydra takes in its place."""

from pathlib import Path

import pytest

from pipeline.cli.app import CONF
from pipeline.config.chosen_stages import stage_words, with_chosen_stages
from tests.config.test_load import asked, composed

OF_A_LIST = "stage=[half,openvino,'eager',half]"


def test_a_list_of_stages_is_a_ladder_of_them() -> None:
    """Each once, whatever else is asked for beside it; stages that the ladder hasn't come last."""
    words = with_chosen_stages(["data.batch_size=2", OF_A_LIST], CONF)
    assert words[:2] == ["data.batch_size=2", "stage=ladder"]
    assert [stage.name for stage in asked(composed(*words)).stages] == ["eager", "half", "openvino"]


def test_no_name_is_the_whole_ladder() -> None:
    assert stage_words([], CONF) == ["stage=ladder"]


@pytest.mark.parametrize(
    "word", ["stage=half", "stage=[]", "stage=[{a:1}]", "stage=[1]", "stage=[half", "stage=half,tf32"]
)
def test_what_is_no_list_of_names_stays(word: str) -> None:
    """What is wrong with it is said where all words are looked at."""
    assert with_chosen_stages([word], Path("none")) == [word]

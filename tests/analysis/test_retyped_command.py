"""The command that a recommendation gives, made of what the user typed."""

import pytest

from pipeline.analysis.summary import retyped


@pytest.mark.parametrize(
    ("command", "overrides", "expected"),
    [
        ("python -m pipeline", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline hydra.run.dir=here b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        (
            "python -m pipeline resume=r 'resume_despite=[code]' 'stage=[a,b]'",
            ["c=1"],
            "python -m pipeline 'stage=[a,b]' c=1",
        ),
        ("python -m pipeline a=2 b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        ("python -m pipeline stage=compile stage.mode=default", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b data.size=1,2", ["stage=c"], "python -m pipeline -m data.size=1,2 stage=c"),
        ("python -m pipeline 'unclosed", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline 'x=$(rm -rf ~)'", ["a=1"], "python -m pipeline 'x=$(rm -rf ~)' a=1"),
    ],
)
def test_retyped_keeps_what_the_user_typed(command: str, overrides: list[str], expected: str) -> None:
    assert retyped(command, *overrides) == expected


def test_a_list_makes_no_sweep_of_one_run() -> None:
    """The -m of `python -m pipeline` asks for none."""
    command = "python -m pipeline 'model.options.strides=[2,2]' stage=half"
    assert retyped(command, "measure=thorough") == f"{command} measure=thorough"


ADDED = "python -m pipeline +stage@stage.rungs.xla=xla '~stage.rungs.fp8' data.batch_size=8 stage=compilers"


def test_rungs_that_were_added_or_taken_out_go_with_their_ladder_alone() -> None:
    assert retyped(ADDED, "stage=xla") == "python -m pipeline data.batch_size=8 stage=xla"
    assert retyped(ADDED, "measure=thorough") == f"{ADDED} measure=thorough"


@pytest.mark.parametrize("flag", ["--config-dir conf/mine", "--config-dir=conf/mine", "-cd conf/mine", "-cp 'my conf'"])
@pytest.mark.parametrize("behind", [False, True])
def test_the_folder_of_the_users_configuration_stays(flag: str, behind: bool) -> None:
    words = ["stage=mix", flag] if behind else [flag, "stage=mix"]
    command = " ".join(["python -m pipeline", *words, "hydra.run.dir=x"])
    assert retyped(command, "measure=thorough") == f"python -m pipeline {flag} stage=mix measure=thorough"

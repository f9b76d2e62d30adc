"""The command that a recommendation gives, made of what the user typed."""

import pytest

from pipeline.analysis.recommendations.command import retyped


@pytest.mark.parametrize(
    ("command", "overrides", "expected"),
    [
        ("python -m pipeline", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline hydra.run.dir=here b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        ("python -m pipeline a=2 b=3", ["a=1"], "python -m pipeline b=3 a=1"),
        ("python -m pipeline stage=compile stage.mode=default", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b", ["stage=amp"], "python -m pipeline stage=amp"),
        ("python -m pipeline -m stage=a,b data.size=1,2", ["stage=c"], "python -m pipeline -m data.size=1,2 stage=c"),
        ("python -m pipeline 'unclosed", ["a=1"], "python -m pipeline a=1"),
        ("python -m pipeline 'x=$(rm -rf ~)'", ["a=1"], "python -m pipeline 'x=$(rm -rf ~)' a=1"),
    ],
)
def test_retyped_keeps_what_the_user_typed(command: str, overrides: list[str], expected: str) -> None:
    """Only the override at hand changes, and what a shell would run stays quoted."""
    assert retyped(command, *overrides) == expected


def test_a_list_makes_no_sweep_of_one_run() -> None:
    """The -m of `python -m pipeline` asks for none."""
    command = "python -m pipeline 'model.options.strides=[2,2]' stage=half"
    assert retyped(command, "measure=thorough") == f"{command} measure=thorough"

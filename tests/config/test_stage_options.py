"""The options of a stage, read from its module's source: every way of writing an annotation, and none imported."""

from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.config.request_error import RequestError
from pipeline.config.stage_options import check_options, lacks_build, signature_of

README = """
from pipeline.stages import Runner


def build(workload, *, gain: float = 1.0):
    return Runner(run=workload.model, description="what really runs, in a line")
"""

WAYS = """
import typing
from pathlib import Path
from typing import Literal, Optional, Union

from .beside import Near
from kinds import Dtype as Precision

Own = Literal["a", "b"]
Circle = Circle


def build(
    workload, gain: float, *, plain: bool = True, own: Own = "a", own_or_none: Own | None = None,
    imported: Precision = "fp16", union: Precision | Literal["fp32"] = "fp32", optional: Optional[str] = None,
    old: Union[int, str] = 1, lists: list[int] | list[str] = [], names: list[str] = [],
    dotted: typing.Literal[1, 2] = 1, near: Near = -1,
    strange: Path = None, bare=None, circle: Circle = None, **more,
): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python finds modules, none of which survives being imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    bomb = "raise SystemExit('imported')\n"
    (tmp_path / "mine" / "__init__.py").write_text(bomb)
    (tmp_path / "mine" / "beside.py").write_text(bomb + "from typing import Literal\nNear = Literal[-1, 0]\n")
    (tmp_path / "kinds.py").write_text(bomb + "from typing import Literal\nDtype = Literal['fp16', 'bf16']\n")
    (tmp_path / "mine" / "stage.py").write_text(bomb + WAYS)
    return tmp_path


def check(module: str, **options: object) -> None:
    check_options(options, signature_of(module), "stage", module)


def test_every_way_of_writing_an_annotation_is_read(folder: Path) -> None:
    signature = signature_of("mine.stage")
    dtype, own, near = Literal["fp16", "bf16"], Literal["a", "b"], Literal[-1, 0]
    assert signature.options == {
        "gain": float, "plain": bool, "own": own, "own_or_none": own | None, "imported": dtype,
        "union": dtype | Literal["fp32"], "optional": str | None, "old": int | str, "lists": list[int] | list[str],
        "names": list[str], "dotted": Literal[1, 2], "near": near, "strange": Any, "bare": Any, "circle": Any,
    }  # fmt: skip
    assert signature.required == ["gain"]
    check("mine.stage", gain=1, lists=["a"])
    assert signature.takes_any


def test_a_build_that_another_module_defines_is_found(folder: Path) -> None:
    (folder / "again.py").write_text("try:\n    from mine.stage import build\nexcept ImportError:\n    raise\n")
    assert signature_of("again") == signature_of("mine.stage")


@pytest.mark.parametrize(
    "source", [None, "def build(:\n", "x = 1\n", "build = lambda workload: None\n", "from nowhere import build\n"]
)
def test_what_no_source_shows_is_left_to_the_stage(folder: Path, source: str | None) -> None:
    """No such module, no Python, no `build`, or none that is a function: the worker will say what is wrong."""
    if source is not None:
        (folder / "odd.py").write_text(source)
    assert signature_of("odd") is None
    check("odd", anything=object)


def test_a_user_s_stage_is_checked_as_the_project_s_are(folder: Path) -> None:
    (folder / "my_stage.py").write_text(README)
    check("my_stage", gain=2)
    with pytest.raises(RequestError, match=r"^stage\.gain=loud: expected float, got str$"):
        check("my_stage", gain="loud")
    with pytest.raises(RequestError, match=r"^stage\.gian: no option of my_stage; did you mean 'gain'\?$"):
        check("my_stage", gian=2.0)
    with pytest.raises(RequestError, match=r"^stage\.x: no option of pipeline\.stages\.eager; it takes none$"):
        check("pipeline.stages.eager", x=1)


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        ("def train(workload): ...", True),
        ("from os import path", True),
        ("from beside import *", False),
        ("def __getattr__(name): ...", False),
        ("build = print", False),
    ],
)
def test_a_module_without_build_is_told_before_anything_runs(source: str, lacking: bool, folder: Path) -> None:
    (folder / "plain.py").write_text(source, encoding="utf-8")
    assert lacks_build("plain") is lacking

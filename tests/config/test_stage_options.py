"""The options of a stage, read from its module's source: every way of writing an annotation, and none imported."""

import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from pipeline.config.checks import checked
from pipeline.config.load import checked_options
from pipeline.config.request_error import RequestError
from pipeline.config.stage_options import lacks, signature_of

README = """
from pipeline.stages import Runner


def build(workload, *, gain: float = 1.0):
    return Runner(run=workload.model, description="what really runs, in a line")
"""

WAYS = """
import typing
import typing as t
from typing import Annotated, Literal, Optional, TypeAlias, Union

import kinds
import kinds as other
from . import beside
from .beside import Near
from kinds import Dtype as Precision

Own = Literal["a", "b"]
Typed: TypeAlias = "Own | None"
Circle = "Circle"


def build(
    workload, gain: float, *, plain: bool = True, quoted: "int | None" = None, own: Own = "a", typed: Typed = None,
    imported: Precision = "fp16", union: Precision | Literal["fp32"] = "fp32", module: kinds.Dtype = "fp16",
    renamed: other.Dtype = "fp16", optional: Optional[str] = None, old: Union[int, str] = 1, names: list[str] = [],
    dotted: typing.Literal[1, 2] = 1, noted: Annotated[int, "a note"] = 1, near: Near = -1, package: beside.Near = 0,
    strange: Path = None, bare=None, circle: Circle = None, attribute: t.Any = None, **more,
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


def test_every_way_of_writing_an_annotation_is_read(folder: Path) -> None:
    """Aliases, imports, unions, quotes; what is beyond that is typed Any."""
    signature = signature_of("mine.stage")
    assert signature is not None
    dtype, own, near = Literal["fp16", "bf16"], Literal["a", "b"], Literal[-1, 0]
    assert signature.options == {
        "gain": float,
        "plain": bool,
        "quoted": int | None,
        "own": own,
        "typed": own | None,
        "imported": dtype,
        "union": dtype | Literal["fp32"],
        "module": dtype,
        "renamed": dtype,
        "optional": str | None,
        "old": int | str,
        "names": list[str],
        "dotted": Literal[1, 2],
        "noted": int,
        "near": near,
        "package": near,
        "strange": Any,
        "bare": Any,
        "circle": Any,
        "attribute": Any,
    }
    assert signature.required == ["gain"]
    assert signature.takes_any


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement came with Python 3.12")
def test_the_type_statement_is_read(folder: Path) -> None:
    """Python 3.12's `type Alias = ...`."""
    (folder / "new.py").write_text("type Near = int | None\ndef build(workload, *, near: Near): ...\n")
    signature = signature_of("new")
    assert signature is not None
    assert signature.options == {"near": int | None}


def test_a_build_that_another_module_defines_is_found(folder: Path) -> None:
    """`from mine.stage import build` is as good."""
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
    assert checked_options({"anything": object}, "odd", "stage") == {"anything": object}


def test_a_user_s_stage_is_checked_as_the_project_s_are(folder: Path) -> None:
    """The README's example: its option by name and by type."""
    (folder / "my_stage.py").write_text(README)
    assert checked_options({"gain": 2}, "my_stage", "stage") == {"gain": 2}
    with pytest.raises(RequestError, match=r"^stage\.gain=loud: expected a number$"):
        checked_options({"gain": "loud"}, "my_stage", "stage")
    with pytest.raises(RequestError, match=r"^stage\.gian: no option of my_stage; did you mean 'gain'\?$"):
        checked_options({"gian": 2.0}, "my_stage", "stage")


def test_a_stage_without_options_says_so() -> None:
    """There is no nearest one to name."""
    with pytest.raises(RequestError, match=r"^stage\.x: no option of pipeline\.stages\.eager; it takes none$"):
        checked_options({"x": 1}, "pipeline.stages.eager", "stage")


FITS: list[tuple[Any, Any]] = [
    (1, int),
    (1, float),
    (None, int | None),
    ("a", Literal["a", "b"]),
    (["x"], str | list[str]),
    ({"a": 1}, dict[str, Any]),
    (object, Any),
    ([1.5, 2], list[float]),
]


@pytest.mark.parametrize(("value", "annotation"), FITS)
def test_a_value_that_is_admitted_comes_back(value: Any, annotation: Any) -> None:
    """As it was."""
    assert checked("key", value, annotation) == value


def test_a_value_comes_back_as_the_annotation_wants_it() -> None:
    """A list from YAML becomes the tuple of a frozen dataclass, a number the text that was meant."""
    assert checked("key", [1, 2], tuple[int, ...]) == (1, 2)
    assert checked("key", 2026, str | None) == "2026"


UNFIT: list[tuple[Any, Any, str]] = [
    (True, int, "expected an integer"),
    (1, bool, "expected true or false"),
    (1.5, int | None, "expected an integer, or null"),
    (float("nan"), float, "expected a number"),
    (True, Literal[1, 2], "choose one of: 1, 2"),
    (True, str, "expected text"),
    ("fp61", Literal["fp16", "bf16"] | None, "did you mean 'fp16'?"),
    ("x", Literal["auto"] | int, "expected auto or an integer"),
    (["x", 1], list[str], "expected a list, each text"),
    (3, dict, "expected key: value pairs"),
    (3, list, "expected a list"),
]


@pytest.mark.parametrize(("value", "annotation", "said"), UNFIT)
def test_a_value_that_is_not_admitted_is_one_line(value: Any, annotation: Any, said: str) -> None:
    """It says what is, or names the nearest choice."""
    with pytest.raises(RequestError) as caught:
        checked("key", value, annotation)
    assert str(caught.value).partition(": ")[2] == said


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        ("def train(workload): ...", True),
        ("import models.build", True),
        ("from beside import *", False),
        ("def __getattr__(name): ...", False),
        ("for name in 'x': build = print", False),
        ("build = print", False),
    ],
)
def test_a_module_that_surely_has_no_build_is_told_before_anything_runs(
    source: str, lacking: bool, folder: Path
) -> None:
    (folder / "plain.py").write_text(source, encoding="utf-8")
    assert lacks("plain", "build") is lacking

"""The figures of the source are counted by their rules, on small sources made up here."""

import textwrap
from pathlib import Path

import pytest

from tests.house import code_figures
from tests.house.code_figures import FIGURES, PROGRAM, ROOT, TESTS, broken_limits, listing, main, share, spread, table
from tests.house.source import Function, Source, gives_shape, read, read_folders

SHAPELESS = '''
from torch import Tensor

def scale(x: Tensor) -> Tensor:
    """x times two."""
    return 2 * x
'''


def source(text: str, path: str = "pipeline/room/made_up.py") -> Source:
    return read(Path(path), textwrap.dedent(text))


def function(text: str, path: str = "pipeline/room/made_up.py") -> Function:
    """The last function of a source."""
    return source(text, path).functions[-1]


def figure(title: str, *sources: Source) -> str:
    return next(count(sources) for name, _, count in FIGURES if name.startswith(title))


@pytest.mark.parametrize(
    "text",
    [
        "x [batch, channels, height, width] in fp32.",
        "Args:\n    x: [N, 2 H, 2 W, C], NHWC.",
        "beta: [out] fp32.",
        "`[N · H, W, in]` as one line",
        "2×2 maxima as [out, pixels / 4].",
        "pooled: [N, H // 2, W // 2, out].",
        "image: [1, 3, 512, 512].",
        "x: [N, ...], of which the first counts.",
        "the loss, a scalar.",
        "x: of any shape, fp16.",
        "out: of x's shape.",
        "two tensors of the same shape.",
    ],
)
def test_a_shape_in_brackets_or_words_is_a_shape(text: str) -> None:
    assert gives_shape(text)


@pytest.mark.parametrize(
    "text",
    [
        "x times two.",
        "probabilities in [0, 1].",
        "from [0, inf].",
        "a list[int] of channels.",
        "act(acc · alpha[o] + beta[o]).",
        "as [the manual](https://example.org) says.",
        "checks x's shape and dtype.",
        "says [see the manual, page 3].",
        "ValueError: the shape is wrong.",
    ],
)
def test_other_brackets_and_words_are_no_shape(text: str) -> None:
    assert not gives_shape(text)


@pytest.mark.parametrize(
    "annotation",
    [
        "Tensor",
        "torch.Tensor",
        "'Tensor'",
        "Tensor | None",
        "Optional[Tensor]",
        "list[Tensor]",
        "tuple[Tensor, ...]",
        "Sequence[tuple[int, Tensor]]",
        "Iterable[torch.Tensor] | None",
    ],
)
def test_these_parameters_are_tensors(annotation: str) -> None:
    assert function(f"def run(x: {annotation}) -> None: ...").asked_for_shape


@pytest.mark.parametrize(
    "annotation",
    ["int", "Callable[[Tensor], Tensor]", "dict[str, Tensor]", "type[Tensor]", "TensorFacts", "'list[int]'"],
)
def test_these_parameters_are_no_tensors(annotation: str) -> None:
    assert not function(f"def run(x: {annotation}) -> None: ...").asked_for_shape


def test_a_public_function_of_a_tensor_is_listed_until_it_gives_a_shape() -> None:
    shaped = SHAPELESS.replace("x times two", "x [N, C] times two")
    assert listing([source(SHAPELESS)], "shapes") == ["pipeline/room/made_up.py:4 scale"]
    assert listing([source(shaped)], "shapes") == []
    assert figure("public functions that take a tensor", source(SHAPELESS), source(shaped)) == "50 % (1 of 2)"


@pytest.mark.parametrize(
    ("decorator", "asked"), [("@dataclass(frozen=True)", False), ("@dataclasses.dataclass", False), ("", True)]
)
def test_a_dataclass_may_give_the_shape_for_its_methods_and_another_class_may_not(decorator: str, asked: bool) -> None:
    text = f'''{decorator}
class Batch:
    """Images.

    Attributes:
        pixels: [N, C, H, W].
    """

    def add(self, x: Tensor) -> None:
        """Add x to the pixels."""
'''
    assert bool(listing([source(text)], "shapes")) == asked


def test_a_class_gives_the_shape_for_its_dunders() -> None:
    text = '''class Net:
    """A net for x [N, C, H, W]."""

    def __call__(self, x: Tensor) -> Tensor: ...
'''
    assert listing([source(text)], "shapes") == []
    assert listing([source(text.replace("[N, C, H, W]", "of images"))], "shapes") == [
        "pipeline/room/made_up.py:4 Net.__call__"
    ]


@pytest.mark.parametrize(
    ("text", "public", "private"),
    [
        ("def run(): ...", True, False),
        ("def _run(): ...", False, True),
        ("class Job:\n    def run(self): ...", True, False),
        ("class Job:\n    def _run(self): ...", False, True),
        ("class _Job:\n    def run(self): ...", False, False),
        ("class Job:\n    def __len__(self): ...", False, False),
        ("def run():\n    def _inner(): ...", False, False),
        ("if True:\n    async def run(): ...", True, False),
    ],
)
def test_names_and_surroundings_make_a_function_public_or_private(text: str, public: bool, private: bool) -> None:
    found = function(text)
    assert (found.public, found.private) == (public, private)


def test_private_functions_without_a_docstring_are_listed() -> None:
    text = 'def _said():\n    """Said."""\n\n\ndef _silent(): ...\n\n\ndef public(): ...\n'
    assert listing([source(text)], "private") == ["pipeline/room/made_up.py:5 _silent"]
    assert figure("private functions with a docstring", source(text)) == "50 % (1 of 2)"
    assert figure("public functions with a docstring", source(text)) == "0 % (0 of 1)"


@pytest.mark.parametrize(
    ("path", "lines", "kept"),
    [
        ("pipeline/room/a.py", 40, True),
        ("pipeline/room/a.py", 41, False),
        ("pipeline/kernels/conv/a.py", 80, True),
        ("pipeline/kernels/conv/a.py", 81, False),
        ("pipeline/lessons/kernels/a.py", 41, False),
        ("models/kernels/a.py", 41, False),
    ],
)
def test_a_function_over_its_limit_is_listed(path: str, lines: int, kept: bool) -> None:
    text = "@decorated\ndef run():\n" + "    pass\n" * (lines - 1)
    limit = 80 if path.startswith("pipeline/kernels/") else 40
    expected = [] if kept else [f"{path}:2 run: {lines} lines, at most {limit}"]
    assert listing([source(text, path)], "long") == expected


def test_a_file_over_its_limit_is_listed() -> None:
    assert listing([source("x = 1\n" * 300)], "long") == []
    assert listing([source("x = 1\n" * 301)], "long") == ["pipeline/room/made_up.py: 301 lines, at most 300"]


def test_a_module_name_may_occur_once() -> None:
    paths = ["pipeline/memory.py", "pipeline/report/memory.py", "models/memory.py", "pipeline/a/__init__.py"]
    paths += [
        "pipeline/b/__init__.py",
        "pipeline/a/__main__.py",
        "pipeline/b/__main__.py",
        "models/x.py",
        "pipeline/x.py",
    ]
    sources = [source("", path) for path in paths]
    names = "pipeline/memory.py, pipeline/report/memory.py, models/memory.py"
    assert listing(sources, "duplicates") == [f"memory: {names}", "x: models/x.py, pipeline/x.py"]
    assert listing(sources[3:-1], "duplicates") == []


def test_any_and_silenced_checks_are_counted_where_they_are_code() -> None:
    text = '''
    from typing import Any  # noqa: F401
    import typing

    def run(x: Any, y: dict[str, typing.Any], z: dict[str, int]) -> list[Any]:
        """Any dict[str, Any] and noqa in words count for nothing."""
        return {"Any": x}  # type: ignore[dict-item]
    '''
    assert figure("`Any`", source(text)) == "3 / 1 / 1 / 1"
    assert figure("`Any`", source("x = 1\n")) == "0 / 0 / 0 / 0"


def test_more_any_than_the_house_has_breaks_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all files of the program together; those of the tests are free."""
    monkeypatch.setattr(code_figures, "MOST_ANY", 3)
    one, two, three = (source("x: Any\n" * count, f"models/of_{count}.py") for count in (1, 2, 3))
    assert broken_limits([one, two], [three]) == []
    assert broken_limits([one, three], []) == ["too many Any: 4, at most 3"]


def test_types_are_counted_without_self_and_with_or_without_compiled_kernels() -> None:
    text = """
    @triton.jit
    def _kernel(x, N: tl.constexpr): ...

    class A:
        def run(self, a: int, *b, c: int = 1, **d: int): ...
    """
    assert figure("parameters with a type, without", source(text)) == "75 % (3 of 4)"
    assert figure("parameters with a type, with `", source(text)) == "66 % (4 of 6)"
    assert figure("most parameters", source(text)) == "4 (`A.run`)"


def test_lines_are_long_from_111_characters() -> None:
    text = "#" * 110 + "\n" + "#" * 111 + "\n"
    assert figure("lines of more than", source(text)) == "1"


def test_quantiles_and_shares() -> None:
    assert spread(range(1, 101), (0.5, 0.9, 0.99)) == "51 / 91 / 100 / 100"
    assert spread([], (0.5,)) == "–"
    assert share(1_999, 2_000) == "99 % (1,999 of 2,000)"
    assert share(0, 0) == "–"


def made_repository(root: Path) -> Path:
    """A repository with one of each broken limit, and a test of whose tensors nobody asks the shapes."""
    for path, text in {
        "pipeline/one/same.py": SHAPELESS,
        "pipeline/two/same.py": "def run():\n" + "    pass\n" * 40,
        "models/net.py": "x = 1\n" * 301,
        "tests/test_net.py": SHAPELESS,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_the_check_names_what_breaks_a_limit_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(made_repository(tmp_path)), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "too long: pipeline/two/same.py:1 run: 41 lines, at most 40",
        "too long: models/net.py: 301 lines, at most 300",
        "one name, two modules: same: pipeline/one/same.py, pipeline/two/same.py",
        "no shape in the docstring: pipeline/one/same.py:4 scale",
    ]


def test_the_check_of_a_house_in_order_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "net.py").write_text(SHAPELESS.replace("x times", "x [N, C] times"))
    assert main(["--root", str(tmp_path), "--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_list_and_the_table_exit_with_0_whatever_they_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = made_repository(tmp_path)
    assert main(["--root", str(root), "--list", "shapes"]) == 0
    assert capsys.readouterr().out == "pipeline/one/same.py:4 scale\n"
    assert main(["--root", str(root)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == table(read_folders(root, ["pipeline", "models"]), read_folders(root, ["tests"]))
    assert printed[2:4] == ["| files | 3 | 1 |  |", "| lines | 348 | 6 |  |"]


def test_the_house_keeps_its_limits() -> None:
    assert broken_limits(read_folders(ROOT, PROGRAM), read_folders(ROOT, TESTS)) == []

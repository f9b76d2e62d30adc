"""What the source is made of, read with `ast` and `tokenize`: the rules by which `code_figures` counts.

- A **line** is a line of the file, blank and comment lines included. A function spans its `def` to its last line.
- A function is **inside kernels** where its file lies under pipeline/kernels/; it may have 80 lines, any other 40.
- A function is **public** where neither its name nor that of a class around it begins with `_`, and no function is
  around it. It is **private** where its own name begins with `_` and no function is around it. Dunders are neither.
- A function **takes a tensor** where a parameter's annotation names `Tensor`: alone, in a union, or in a list, tuple,
  set, sequence, collection, iterable or iterator. A `Callable[[Tensor], ...]` is no tensor. Nor is a mapping: each of
  its values has a shape of its own. Public functions and the dunders of public classes are asked for shapes.
- A docstring **gives a shape** in one of two ways. It holds a bracketed list of dimensions, such as `[out]`,
  `[batch, channels, height, width]`, `[N, 2 H, 2 W, C]` or `[pixels / 4, out]`, which follows no word (`list[int]`),
  precedes no parenthesis (a link) and is not two bare numbers (an interval). Or it says "a scalar", "of any shape",
  "of one shape", "of the same shape", "of equal shape", "of x's shape", "of the shape of" or "shaped like".
  The docstring of the class counts too for its dunders, and for every method of a dataclass.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FUNCTION_LIMIT, KERNEL_LIMIT = 40, 80  # lines
CONTAINERS = {"list", "List", "tuple", "Tuple", "set", "frozenset", "Sequence", "Iterable", "Iterator", "Collection"}
WRAPPERS = {"Optional", "Union", "Annotated"}

_FACTOR = r"(?:\d+|[A-Za-z_][\w.]*'?|…|\.\.\.|\*)"
_PRODUCT = rf"(?:\d+ )?{_FACTOR}(?: ?(?://|[-·*/×+]) ?(?:\d+ )?{_FACTOR})*"
BRACKETED = re.compile(rf"(?<![\w)\]])\[(?P<inside>{_PRODUCT}(?:, ?{_PRODUCT})*)?\](?!\()")
INTERVAL = re.compile(r"[-\d. ]+, ?(?:[-\d. ]+|inf)")
IN_WORDS = re.compile(
    r"\bscalars?\b|\bof (?:any|one|the same|equal) shapes?\b|\bof \w+'s shape\b|\bof the shape of\b|\bshaped like\b"
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Around = tuple[Definition | ast.ClassDef, ...]


@dataclass(frozen=True)
class Function:
    """One function of the source, as the figures need it."""

    path: Path
    line: int
    name: str  # with its classes, such as Program.run
    lines: int
    public: bool
    private: bool
    documented: bool
    compiled: bool  # by triton.jit or gluon.jit, whose parameters have no types
    in_kernels: bool
    parameters: int  # self and cls left out
    typed: int
    asked_for_shape: bool
    gives_shape: bool

    @property
    def limit(self) -> int:
        """The most lines that it may have."""
        return KERNEL_LIMIT if self.in_kernels else FUNCTION_LIMIT

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


@dataclass(frozen=True)
class Source:
    """One file of the source."""

    path: Path  # from the repository's root
    lines: tuple[str, ...]
    functions: tuple[Function, ...]
    words: Counter[str]  # how often Any, dict[str, Any], type: ignore and noqa occur


def gives_shape(text: str) -> bool:
    """Whether a docstring gives the shape of a tensor, by the rule above."""
    brackets = (found["inside"] or "" for found in BRACKETED.finditer(text))
    return any(not INTERVAL.fullmatch(inside) for inside in brackets) or bool(IN_WORDS.search(text))


def names_tensor(annotation: ast.expr | None) -> bool:
    """Whether a parameter so annotated is a tensor or holds tensors in a row."""
    match annotation:
        case ast.Constant(value=str(text)):
            return names_tensor(ast.parse(text, mode="eval").body)
        case ast.Name() | ast.Attribute():
            return _last_name(annotation) == "Tensor"
        case ast.BinOp(left=left, right=right):
            return names_tensor(left) or names_tensor(right)
        case ast.Subscript(value=holder, slice=inside):
            return _last_name(holder) in CONTAINERS | WRAPPERS and names_tensor(inside)
        case ast.Tuple(elts=parts):
            return any(names_tensor(part) for part in parts)
    return False


def read(path: Path, text: str) -> Source:
    """The figures of one file.

    Args:
        path: from the repository's root.
        text: what the file holds.
    """
    tree = ast.parse(text)
    functions = tuple(_functions(path, tree, ()))
    return Source(path, tuple(text.splitlines()), functions, _words_in_code(tree, text) + _words_in_comments(text))


def _words_in_code(tree: ast.Module, text: str) -> Counter[str]:
    if "Any" not in text:  # most files; a walk takes longer than all else
        return Counter()
    nodes = list(ast.walk(tree))
    anys, dicts = (sum(map(counts, nodes)) for counts in (_is_any, _is_dict_of_any))
    return Counter({"Any": anys, "dict[str, Any]": dicts})


def _words_in_comments(text: str) -> Counter[str]:
    words = [word for word in ("type: ignore", "noqa") if word in text]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline) if words else ()
    return Counter(word for token in tokens if token.type == tokenize.COMMENT for word in words if word in token.string)


def _last_name(node: ast.AST) -> str:
    """Of a name or a dotted name; nothing for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_any(node: ast.AST) -> bool:
    return _last_name(node) == "Any"


def _is_dict_of_any(node: ast.AST) -> bool:
    """Whether it is dict[str, Any]."""
    match node:
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[ast.Name(id="str"), held])):
            return _is_any(held)
    return False


def _functions(path: Path, node: ast.AST, around: Around) -> Iterator[Function]:
    """The functions below a node, each before those inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield _function(path, child, around)
        if not isinstance(child, ast.expr):  # holds no definition
            inner = (*around, child) if isinstance(child, Definition | ast.ClassDef) else around
            yield from _functions(path, child, inner)


def _function(path: Path, node: Definition, around: Around) -> Function:
    nested = any(not isinstance(part, ast.ClassDef) for part in around)
    reachable = not nested and not any(part.name.startswith("_") for part in around)
    dunder = node.name.startswith("__") and node.name.endswith("__")
    hidden = node.name.startswith("_") and not dunder
    parameters = [part for part in _parameters(node.args) if part.arg not in {"self", "cls"}]
    return Function(
        path=path,
        line=node.lineno,
        name=".".join(part.name for part in (*around, node)),
        lines=(node.end_lineno or node.lineno) - node.lineno + 1,
        public=reachable and not hidden and not dunder,
        private=not nested and hidden,
        documented=ast.get_docstring(node) is not None,
        compiled=_decorated(node, "jit"),
        in_kernels=path.parts[:2] == ("pipeline", "kernels"),
        parameters=len(parameters),
        typed=sum(part.annotation is not None for part in parameters),
        asked_for_shape=reachable and not hidden and any(names_tensor(part.annotation) for part in parameters),
        gives_shape=gives_shape(_said(node, around, dunder=dunder)),
    )


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    stars = [part for part in (arguments.vararg, arguments.kwarg) if part is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars]


def _decorated(node: Definition | ast.ClassDef, name: str) -> bool:
    """Whether one of the decorators has this last name, called or not."""
    called = (part.func if isinstance(part, ast.Call) else part for part in node.decorator_list)
    return any(ast.unparse(part).rpartition(".")[2] == name for part in called)


def _said(node: Definition, around: Around, *, dunder: bool) -> str:
    """The docstrings in which the shapes of a function's tensors may stand."""
    said = ast.get_docstring(node) or ""
    if around and isinstance(around[-1], ast.ClassDef) and (dunder or _decorated(around[-1], "dataclass")):
        said += "\n" + (ast.get_docstring(around[-1]) or "")
    return said


def read_folders(root: Path, folders: Sequence[str]) -> list[Source]:
    """Every Python file below the folders of a repository."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [read(path.relative_to(root), path.read_text(encoding="utf-8")) for path in paths]

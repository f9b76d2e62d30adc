"""The options that a stage's `build` or a net's class takes, read from the source: to import it would load torch.

What the source doesn't say plainly is typed Any, and so left to the stage.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Union

PLAIN = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict}
BUILD = "build"  # what a stage's module has
MOST_ALIASES = 20  # that lead from one to another; more is a cycle

Defined = ast.expr | ast.FunctionDef | ast.ClassDef
Bound = Defined | str  # what stands behind a name; text is the dotted name of an import


@dataclass(frozen=True)
class Signature:
    """What `build` takes besides the workload, or a net's class.

    Attributes:
        options: the annotation of each, Any where there is none or it can't be read.
        required: those without a default.
        takes_any: it has `**options`, so that other names are welcome, too.
    """

    options: dict[str, object]
    required: list[str]
    takes_any: bool


def signature_of(target: str) -> Signature | None:
    """The signature of `build` in the module `target`; None where no source shows it."""
    found = definition(f"{target}.{BUILD}")
    return _signature(*found) if found else None


def lacks(module: str, name: str) -> bool:
    """Whether the module's source surely binds no such name: nothing in it, such as a star or a loop, could hide it."""
    source, path = read_source(module), locate(module)
    if source is None or path is None or name in source.bound or "__getattr__" in source.bound:
        return False
    plain = (
        ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom | ast.Expr | ast.If
        | ast.Try
    )  # fmt: skip
    tree = ast.parse(path.read_bytes())
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    return all(isinstance(part, plain) for part in tree.body) and not {"*", name} & {*source.bound, *names}


def signature_of_net(target: str) -> Signature | None:
    """The signature of the net's class, of the class whose `__init__` it inherits, or of a function that makes it.

    None where none is plain: an `__init__` with a decorator isn't, nor a class or function with one, as what they
    take is the decorator's affair. An option whose default is None takes None, whatever its annotation says.
    """
    for _ in range(MOST_ALIASES):
        found = definition(target)
        source, cls = found or (None, None)
        if source is not None and isinstance(cls, ast.FunctionDef):
            return None if cls.decorator_list else _signature(source, cls, given=0)
        if source is None or not isinstance(cls, ast.ClassDef) or cls.decorator_list:
            return None
        made_by = [part for part in cls.body if getattr(part, "name", "") in ("__init__", "__new__")]
        if made_by:
            first = made_by[0]
            plain = len(made_by) == 1 and isinstance(first, ast.FunctionDef) and not first.decorator_list
            return _signature(source, first) if plain else None
        bases = [source.bound.get(ast.unparse(base)) for base in cls.bases]
        if len(bases) != 1 or cls.keywords:
            return None
        base = bases[0]
        target = base if isinstance(base, str) else f"{source.name}.{ast.unparse(cls.bases[0])}"
    return None


def _signature(source: "Source", function: ast.AST, given: int = 1) -> Signature | None:
    """What a function takes besides the first arguments, which are given to it; None of what is no function."""
    if not isinstance(function, ast.FunctionDef):
        return None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    taken = list(zip([*positional, *arguments.kwonlyargs], defaults, strict=True))[given:]
    return Signature(
        options={part.arg: _with_default(annotation_of(part.annotation, source), default) for part, default in taken},
        required=[part.arg for part, default in taken if default is None],
        takes_any=arguments.kwarg is not None,
    )


def _with_default(annotation: object, default: ast.expr | None) -> object:
    """The annotation, which admits None where that is the default."""
    if annotation is not Any and isinstance(default, ast.Constant) and default.value is None:
        return _subscriptable(Union)[annotation, None]
    return annotation


@dataclass(frozen=True)
class Source:
    """A module that was read, not imported.

    Attributes:
        name: the module's.
        package: what its relative imports start from.
        bound: what stands behind each name of its top level: a function, an expression, or an import's dotted name.
    """

    name: str
    package: str
    bound: dict[str, Bound]


def definition(dotted: str) -> tuple[Source, Defined] | None:
    """Where a name such as "package.module.Alias" is defined, through imports; None where it can't be found."""
    for _ in range(MOST_ALIASES):
        module, _, name = dotted.rpartition(".")
        source = read_source(module) if module else None
        found = source.bound.get(name) if source else None
        if source is None or found is None:
            return None
        if not isinstance(found, str):
            return source, found
        dotted = found
    return None


def read_source(module: str) -> Source | None:
    """The module's source; None where there is none, or it is no Python."""
    path = locate(module)
    try:
        tree = ast.parse(path.read_bytes()) if path else None
    except (OSError, SyntaxError, ValueError):
        return None
    if tree is None or path is None:
        return None
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return Source(module, package, dict(bindings(tree.body, package)))


def locate(module: str) -> Path | None:
    """The module's file, found without importing its packages; also in the folder where the workers will run."""
    top, *rest = module.split(".")
    try:
        spec: ModuleSpec | None = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
        for at, _ in enumerate(rest, 1):
            places = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(".".join([top, *rest[:at]]), list(places)) if places else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def bindings(body: list[ast.stmt], package: str) -> Iterator[tuple[str, Bound]]:
    """Each name that the statements bind, with what stands behind it."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, statement
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Import() | ast.ImportFrom():
                yield from _imports(statement, package)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from bindings([*inner, *other], package)
            case _ if type(statement).__name__ == "TypeAlias":  # Python 3.12's `type Alias = ...`
                named: Any = statement
                yield named.name.id, named.value


def _imports(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, with what it stands for; `import a.b` binds a."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        return
    above = package.rsplit(".", statement.level - 1)[0] if statement.level else ""
    for alias in statement.names:
        yield alias.asname or alias.name, ".".join(filter(None, [above, statement.module, alias.name]))


def annotation_of(node: ast.AST | None, source: Source, depth: int = 0) -> object:
    """The annotation as Python's type: bool, int, float, str, None, Literal, list and unions of these; else Any."""
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str() as quoted):
            return annotation_of(_parsed(quoted), source, depth + 1)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[annotation_of(left, source, depth), annotation_of(right, source, depth)]  # noqa: UP007
        case ast.Subscript(value=head, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return _subscripted(ast.unparse(head).rpartition(".")[2], parts, source, depth + 1)
        case ast.Name() | ast.Attribute():
            return _named(ast.unparse(node), source, depth + 1)
    return Any


def _named(dotted: str, source: Source, depth: int) -> object:
    """The type behind a name such as int, Alias or module.Alias."""
    first, _, rest = dotted.partition(".")
    bound = source.bound.get(first)
    if depth > MOST_ALIASES:
        return Any
    if bound is None:
        return PLAIN.get(dotted, Any)
    if isinstance(bound, str):
        found = definition(f"{bound}.{rest}" if rest else bound)
        return annotation_of(found[1], found[0], depth) if found else Any
    return Any if rest else annotation_of(bound, source, depth)


def _subscripted(head: str, parts: list[ast.expr], source: Source, depth: int) -> object:
    """The type that `head[parts]` stands for, such as Literal["a", "b"]."""
    literal, union, kind_of_list = _subscriptable(Literal), _subscriptable(Union), _subscriptable(list)
    if head == "Literal":
        try:
            return literal[tuple(ast.literal_eval(part) for part in parts)]
        except ValueError:
            return Any
    inner = [annotation_of(part, source, depth) for part in parts]
    if head in ("Union", "Optional"):
        return union[(*inner, *([None] if head == "Optional" else []))]
    if head in ("list", "List"):
        return kind_of_list[inner[0]]
    return inner[0] if head == "Annotated" else Any


def _subscriptable(form: object) -> Any:
    """The form for values that are known only now, which no type checker follows."""
    return form


def _parsed(text: str) -> ast.AST | None:
    """The expression of a quoted annotation; None where it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None

"""The options of a stage's `build` or a network's class, read from its source: importing it would import torch.

An annotation that is not plain is Any, and the stage itself checks the value.
"""

import ast
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Optional, Union

from pipeline.config.conversion import converted
from pipeline.config.request_error import RequestError
from pipeline.errors import nearest
from pipeline.targets import imported_as, words_that_set

BUILD = "build"
MOST_STEPS = 20  # from one alias, import or base class to the next; more is a cycle
# Names that an annotation may hold, besides aliases in its module.
KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (bool, int, float, str, list, dict)}
KNOWN |= {"typing": typing, "Literal": Literal, "Optional": Optional, "Union": Union, "List": list, "Dict": dict}

Definition = ast.expr | ast.FunctionDef | ast.ClassDef
Names = dict[str, Definition | str]  # of a module's top level; a text is the dotted name of an import


@dataclass(frozen=True)
class Signature:
    """The options that a function takes."""

    options: dict[str, Any]  # the annotation of each
    required: list[str]  # those without a default
    takes_any: bool  # whether it has `**options`
    documentation: str  # of the class and the function


class Scope(dict[str, Any]):
    """The values of names in a module's annotations: of `KNOWN`, and of aliases in its source."""

    def __init__(self, module: str, steps: int = MOST_STEPS) -> None:
        super().__init__(KNOWN)
        self.module, self.steps = module, steps

    def __missing__(self, name: str) -> Any:
        """Return the value of an alias; raise KeyError of every other name, and in a cycle."""
        home, alias = definition(f"{self.module}.{name}")
        if not self.steps or not isinstance(alias, ast.expr):
            raise KeyError(name)
        return evaluated(alias, Scope(home, self.steps - 1))


def check_options(options: Mapping[str, object], signature: Signature | None, key: str, target: str) -> None:
    """Raise RequestError if an option is unknown, has a wrong value, or is needed and not set."""
    if signature is None:
        return
    for name, value in options.items():
        if name not in signature.options and not signature.takes_any:
            remedy = nearest(name, signature.options) if signature.options else "it takes none"
            raise RequestError(f"{key}.{name}: no option of {target}; {remedy}")
        with suppress(TypeError):  # msgspec does not take every union, such as one of two lists
            converted(value, signature.options.get(name, Any), f"{key}.{name}")
    if missing := [name for name in signature.required if name not in options]:
        words, explained = words_that_set(missing, key, signature.documentation)
        raise RequestError(f"{key}.{missing[0]}: {target} needs it, and nothing sets it; add {words}{explained}")


def signature_of(module: str) -> Signature | None:
    """Return the signature of `build` in a stage's module; None if no source shows it."""
    place, function = definition(f"{module}.{BUILD}")
    return _signature(function, place, skipped=1)


def lacks_build(module: str) -> bool:
    """Return whether the module's source is there and binds no `build`, not even by a star import."""
    names = names_in(module)
    return bool(names) and not {BUILD, "*", "__getattr__"} & names.keys()


def signature_of_net(target: str) -> Signature | None:
    """Return the signature of a function, or of the `__init__` that a class has or inherits; None if none is plain."""
    for _ in range(MOST_STEPS):
        module, found = definition(target)
        if not isinstance(found, ast.ClassDef) or found.decorator_list or found.keywords:
            return _signature(found, module, skipped=0)
        makers = [part for part in found.body if getattr(part, "name", "") in ("__init__", "__new__")]
        if makers:
            return _signature(makers[0], module, 1, ast.get_docstring(found)) if len(makers) == 1 else None
        if len(found.bases) != 1:
            return None
        target = f"{module}.{ast.unparse(found.bases[0])}"
    return None


def _signature(function: ast.AST | None, module: str, skipped: int, above: str | None = None) -> Signature | None:
    """Return what a function takes after its first `skipped` parameters; None of a decorated one, or of no function."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    taken = list(zip([*positional, *arguments.kwonlyargs], defaults, strict=True))[skipped:]
    options = {}
    for parameter, default in taken:
        kind: Any = Any
        with suppress(Exception):  # an expression of a user's may fail by any
            kind = evaluated(parameter.annotation, Scope(module))
        kind = Any if isinstance(kind, str) else kind
        none_by_default = isinstance(default, ast.Constant) and default.value is None
        options[parameter.arg] = Union[kind, None] if none_by_default and kind is not Any else kind  # noqa: UP007
    required = [parameter.arg for parameter, default in taken if default is None]
    documentation = f"{above or ''}\n{ast.get_docstring(function) or ''}"
    return Signature(options, required, arguments.kwarg is not None, documentation)


def definition(dotted: str) -> tuple[str, Definition | None]:
    """Return the module and the node that define a name such as "package.module.Alias", found through imports."""
    for _ in range(MOST_STEPS):
        module, _, name = dotted.rpartition(".")
        found = names_in(module).get(name) if module else None
        if not isinstance(found, str):
            return module, found
        dotted = found
    return "", None


def names_in(module: str) -> Names:
    """Return what the top level of a module's source binds; an empty dict if there is no source."""
    path = locate(module)
    try:
        tree = ast.parse(path.read_bytes()) if path else None
    except (OSError, SyntaxError, ValueError):
        return {}
    if tree is None or path is None:
        return {}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return dict(_bindings(tree.body, package))


def locate(module: str) -> Path | None:
    """Return a module's file, also in the current folder, without importing the packages around it."""
    top, *rest = imported_as(module).split(".")
    try:
        spec: ModuleSpec | None = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
        for part in rest:  # by its last name alone: a folder without __init__.py would look for its parent's module
            places = spec.submodule_search_locations if spec else None
            spec = PathFinder.find_spec(part, list(places)) if places else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _bindings(body: list[ast.stmt], package: str) -> Iterator[tuple[str, Definition | str]]:
    """Yield each name that the statements bind, with its definition or the dotted name that it is imported from."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, statement
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.ImportFrom(module=source, names=aliases, level=level):
                above = package.rsplit(".", level - 1)[0] if level else ""
                for alias in aliases:
                    yield alias.asname or alias.name, ".".join(filter(None, [above, source, alias.name]))
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _bindings([*inner, *other], package)


def evaluated(node: ast.AST | None, names: Scope) -> Any:
    """Return the value of an expression in which these names alone are known."""
    code = compile(ast.Expression(node), "annotation", "eval")  # type: ignore[arg-type]
    return eval(code, {"__builtins__": {}}, names)  # noqa: S307 - a configuration is code, as docs/inputs.md says

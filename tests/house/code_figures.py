"""`python -m tests.house.code_figures [--check] [--list KIND]`: the figures of the source, and the limits it keeps.

Prints a table of pipeline/ and models/ together, and of tests/. `tests.house.source` says by which rules it counts.
Exit codes: 0, or 1 with `--check` where a limit is broken: anywhere by a function of more than 40 lines (80 in
pipeline/kernels/) or a file of more than 300; in pipeline/ and models/ by a module name that two files have (`__init__`
and `__main__` left out), a public function that takes a tensor and whose docstring gives no shape, or more `Any` than
`MOST_ANY`.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.house.source import FUNCTION_LIMIT, KERNEL_LIMIT, Function, Source, read_folders

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, TESTS = ("pipeline", "models"), ("tests",)
FILE_LIMIT, LINE_LIMIT = 300, 110  # lines, characters
NAMED_AT_WILL = {"__init__", "__main__"}
# Of the names in pipeline/ and models/, imports left out. What is left is what torch, JSON or a user's function gives
# and is used unchecked; elsewhere `object`, a Protocol or a TypedDict says more. Lower it where some go.
MOST_ANY = 160
KINDS = ("shapes", "long", "duplicates", "private")


def duplicates(sources: Sequence[Source]) -> dict[str, list[Path]]:
    """The module names of pipeline/ and models/ that occur more than once, each with its files."""
    found = defaultdict(list)
    for source in sources:
        if source.path.parts[0] in PROGRAM and source.path.stem not in NAMED_AT_WILL:
            found[source.path.stem].append(source.path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def functions(sources: Sequence[Source]) -> list[Function]:
    """The functions of all the files."""
    return [part for source in sources for part in source.functions]


def listing(sources: Sequence[Source], kind: str) -> list[str]:
    """One line for each place that a kind of figure is about.

    Args:
        sources: the files to look at.
        kind: "shapes": functions that take a tensor and give no shape; "long": functions and files over their limit;
            "duplicates": module names that occur twice; "private": private functions without a docstring.
    """
    if kind == "duplicates":
        return [f"{name}: {', '.join(map(str, paths))}" for name, paths in duplicates(sources).items()]
    every = functions(sources)
    if kind == "shapes":
        return [f"{part}" for part in every if part.asked_for_shape and not part.gives_shape]
    if kind == "private":
        return [f"{part}" for part in every if part.private and not part.documented]
    long = [f"{part}: {part.lines} lines, at most {part.limit}" for part in every if part.lines > part.limit]
    return long + [
        f"{s.path}: {len(s.lines)} lines, at most {FILE_LIMIT}" for s in sources if len(s.lines) > FILE_LIMIT
    ]


def broken_limits(program: Sequence[Source], tests: Sequence[Source]) -> list[str]:
    """One line for each place that breaks a limit of the house; none where all are kept."""
    return [
        *(f"too long: {line}" for line in listing([*program, *tests], "long")),
        *(f"one name, two modules: {line}" for line in listing(program, "duplicates")),
        *(f"no shape in the docstring: {line}" for line in listing(program, "shapes")),
        *([f"too many Any: {found}, at most {MOST_ANY}"] if (found := anys(program)) > MOST_ANY else []),
    ]


def anys(sources: Sequence[Source]) -> int:
    """How often the name Any occurs."""
    return sum(source.words["Any"] for source in sources)


def share(part: int, whole: int) -> str:
    """Such as 24 % (35 of 145), rounded down, so that 100 % is all of them."""
    return f"{100 * part // whole} % ({part:,} of {whole:,})" if whole else "–"


def spread(values: Sequence[int], quantiles: Sequence[float]) -> str:
    """The quantiles and the largest of the values, such as 89 / 200 / 298."""
    ordered = sorted(values)
    if not ordered:
        return "–"
    picked = [ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in quantiles]
    return " / ".join(f"{value:,}" for value in (*picked, ordered[-1]))


def lengths(sources: Sequence[Source], *, kernels: bool) -> str:
    """The lengths of the functions in the kernel room, or of all others."""
    return spread([part.lines for part in functions(sources) if part.in_kernels == kernels], (0.5, 0.9, 0.99))


def typed(sources: Sequence[Source], *, compiled: bool) -> str:
    """The share of parameters with a type, with or without the functions that a GPU compiler reads."""
    chosen = [part for part in functions(sources) if compiled or not part.compiled]
    return share(sum(part.typed for part in chosen), sum(part.parameters for part in chosen))


def long_lists(sources: Sequence[Source]) -> str:
    """The longest parameter list outside compiled functions, and whose it is."""
    chosen = [part for part in functions(sources) if not part.compiled]
    longest = max(chosen, key=lambda part: part.parameters, default=None)
    return "–" if longest is None else f"{longest.parameters} (`{longest.name}`)"


def words(sources: Sequence[Source]) -> str:
    """How often Any, dict[str, Any], type: ignore and noqa occur."""
    names = ("Any", "dict[str, Any]", "type: ignore", "noqa")
    return " / ".join(str(sum(source.words[name] for source in sources)) for name in names)


def portion(sources: Sequence[Source], chosen: Callable[[Function], bool], has: Callable[[Function], bool]) -> str:
    """The share of the chosen functions that have something."""
    every = [part for part in functions(sources) if chosen(part)]
    return share(sum(has(part) for part in every), len(every))


Figure = Callable[[Sequence[Source]], str]
FIGURES: tuple[tuple[str, str, Figure], ...] = (  # title, limit, figure
    ("files", "", lambda s: f"{len(s):,}"),
    ("lines", "", lambda s: f"{sum(len(part.lines) for part in s):,}"),
    (
        "lines of a file: median / p90 / longest",
        f"≤ {FILE_LIMIT}",
        lambda s: spread([len(part.lines) for part in s], (0.5, 0.9)),
    ),
    ("functions", "", lambda s: f"{len(functions(s)):,}"),
    (
        "lines of a function outside kernels/: p50 / p90 / p99 / longest",
        f"≤ {FUNCTION_LIMIT}",
        lambda s: lengths(s, kernels=False),
    ),
    (
        "lines of a function inside kernels/: p50 / p90 / p99 / longest",
        f"≤ {KERNEL_LIMIT}",
        lambda s: lengths(s, kernels=True),
    ),
    ("functions over their limit", "0", lambda s: str(sum(part.lines > part.limit for part in functions(s)))),
    (
        "functions of more than 40 lines, kernels/ included",
        "",
        lambda s: str(sum(part.lines > FUNCTION_LIMIT for part in functions(s))),
    ),
    ("parameters with a type, without `@jit`", "100 %", lambda s: typed(s, compiled=False)),
    ("parameters with a type, with `@jit`", "", lambda s: typed(s, compiled=True)),
    ("most parameters, without `@jit`", "≤ 8, `predict` as many as its command has options", long_lists),
    ("`Any` / `dict[str, Any]` / `type: ignore` / `noqa`", f"≤ {MOST_ANY} `Any`", words),
    ("public functions with a docstring", "100 %", lambda s: portion(s, lambda f: f.public, lambda f: f.documented)),
    ("private functions with a docstring", "", lambda s: portion(s, lambda f: f.private, lambda f: f.documented)),
    (
        "public functions that take a tensor, whose docstring gives a shape",
        "100 %",
        lambda s: portion(s, lambda f: f.asked_for_shape, lambda f: f.gives_shape),
    ),
    ("module names that occur twice", "0", lambda s: str(len(duplicates(s)))),
    (
        f"lines of more than {LINE_LIMIT} characters",
        "",
        lambda s: f"{sum(len(x) > LINE_LIMIT for part in s for x in part.lines):,}",
    ),
)


def table(program: Sequence[Source], tests: Sequence[Source]) -> list[str]:
    """The figures as lines of Markdown."""
    rows = [f"| {title} | {figure(program)} | {figure(tests)} | {limit} |" for title, limit, figure in FIGURES]
    return ["| | pipeline/ and models/ | tests/ | limit |", "| --- | --- | --- | --- |", *rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, one kind of place, or what breaks a limit; 1 for the last where there is any, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.house.code_figures", description="The figures of the source."
    )
    parser.add_argument(
        "--list", choices=KINDS, help="print the places of pipeline/ and models/ instead: path:line name"
    )
    parser.add_argument(
        "--check", action="store_true", help="print what breaks a limit, and exit with 1 if anything does"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="of another checkout")
    asked = parser.parse_args(arguments)
    program = read_folders(asked.root, PROGRAM)
    if asked.check:
        lines = broken_limits(program, read_folders(asked.root, TESTS))
    elif asked.list:
        lines = listing(program, asked.list)
    else:
        lines = table(program, read_folders(asked.root, TESTS))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if asked.check and lines else 0


if __name__ == "__main__":
    sys.exit(main())

"""With each guard taken away, its test must fail: `python -m tests.house.guards_needed [PART OF A GUARD'S NAME]`.

Each is tried on a copy of the tree, so that nothing here is changed. Exit code 1 where a guard could go unnoticed.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.house.guard import Guard
from tests.house.guards import GUARDS

ROOT = Path(__file__).resolve().parents[2]
OWN = ("pipeline", "models", "conf", "tests")
COPIED = (
    "pipeline",
    "models",
    "conf",
    "tests",
    "docs",
    "constraints",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
)
TEST_FAILED = 1  # pytest's exit code; any other than this and 0 means that no test ran


def without(guard: Guard, root: Path) -> str:
    """The text of the guard's file with the guard taken away.

    Raises:
        ValueError: its code doesn't stand there exactly once.
    """
    text = (root / guard.file).read_text(encoding="utf-8")
    if (times := text.count(guard.code)) != 1:
        raise ValueError(f"{guard.what}: its code stands in {guard.file} {times} times, of 1")
    return text.replace(guard.code, guard.instead)


def outcome(guard: Guard, root: Path) -> str:
    """What comes of the guard's test in `root` without the guard; its file is then as it was."""
    path = root / guard.file
    whole, changed = path.read_text(encoding="utf-8"), without(guard, root)
    path.write_text(changed, encoding="utf-8")
    try:
        code = exit_code(guard.test, root)
    finally:
        path.write_text(whole, encoding="utf-8")
    return {0: "NOT NOTICED", TEST_FAILED: "noticed"}.get(code, f"no test ran (exit code {code})")


def exit_code(test: str, root: Path) -> int:
    """Of pytest's, for one test of the tree `root`, in a fork of this process: what it has imported needs no second."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70  # where not even pytest starts
    try:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        os.chdir(root)
        for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
            del sys.modules[name]
        sys.path[:] = [str(root), *(place for place in sys.path if Path(place or ".").resolve() != ROOT)]
        sys.dont_write_bytecode = True
        os.environ["PYTHONPATH"] = str(root)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # to look for plugins takes 4 s
        plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout"]
        code = int(pytest.main(["-x", "-q", *plugins, f"--rootdir={root}", test]))
    finally:
        os._exit(code)


def tried(guards: Iterable[Guard], root: Path) -> Iterator[tuple[Guard, str]]:
    """Each guard with what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            source, target = root / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "h200"))
            elif source.exists():
                shutil.copy(source, target)
        for guard in guards:
            yield guard, outcome(guard, Path(folder))


def main(words: list[str], root: Path = ROOT) -> int:
    """Try the guards whose names hold one of the words, or all; a table in Markdown."""
    import_module("torch")  # once, for all forks
    asked = [guard for guard in GUARDS if not words or any(word in guard.what for word in words)]
    sys.stdout.write("| guard against | in | without it |\n| --- | --- | --- |\n")
    unnoticed = 0
    for guard, came in tried(asked, root):
        sys.stdout.write(f"| {guard.what} | {guard.file} | {came} |\n")
        sys.stdout.flush()
        unnoticed += came != "noticed"
    sys.stdout.write(f"\n{len(asked) - unnoticed} of {len(asked)} guards are noticed when they are gone.\n")
    return 1 if unnoticed or not asked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

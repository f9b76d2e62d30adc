"""What a forked process does in the place of a fresh interpreter: the module or the program of its command line."""

import os
import runpy
import sys
import traceback
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
GIVEN = {str(ROOT), "", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
INSTALLED = [place for place in sys.path if place not in GIVEN]  # where every interpreter looks


def run(words: list[str]) -> int:
    """Run what follows `python` on a command line; the exit status."""
    sys.argv = words[1:]
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            run_program(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 - whatever ends a process is told on stderr
        traceback.print_exc()
        return 1
    return 0


def run_program(words: list[str]) -> None:
    """Run a script, or the text after `-c`, in this process, which knows nothing of the tests afterwards.

    Args:
        words: options of `-I` and `-B`, then a script or `-c` and its text, then the program's own.

    Raises:
        ValueError: another option, which only an interpreter of its own heeds.
    """
    at = next(at for at, word in enumerate(words) if word == "-c" or not word.startswith("-"))
    options, program = words[:at], words[at:]
    if strange := set(options) - {"-I", "-B"}:
        raise ValueError(f"{', '.join(sorted(strange))}: no option of a forked program")
    first = "" if program[0] == "-c" else str(Path(program[0]).parent)
    named = os.environ.get("PYTHONPATH", "")
    sys.path[:] = INSTALLED if "-I" in options else [first, *filter(None, named.split(os.pathsep)), *INSTALLED]
    sys.dont_write_bytecode = "-B" in options or bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    if program[0] != "-c":
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")
        return
    sys.argv = ["-c", *program[2:]]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program[1], "<string>", "exec"), vars(sys.modules["__main__"]))

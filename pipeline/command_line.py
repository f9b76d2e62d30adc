"""What every program here shares: its parser, its streams, and one line for an unexpected error."""

import argparse
import json
import os
import re
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import pairwise, takewhile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from pipeline.errors import InputError, OneLineError, shortened, typed_line

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
FILES_TOO = (OneLineError, OSError)  # refusals of a program that reads and writes the files that it is given
ENDING = (signal.SIGTERM, signal.SIGHUP)
LOG = "traceback.txt"
VALUE = "VALUE"  # if the user gave none
ALIKE = 0.8  # of difflib's ratio: one letter of six differs or is missing
PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[A-Za-z/][A-Za-z0-9_./-]*", re.IGNORECASE)  # of Hydra's grammar
BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")  # where alone a backslash is one that escapes
OPEN = "model.options"  # has the names of the network's arguments, which are in no file


def guarded(program: Callable[[], int | None], *, refuses: tuple[type[Exception], ...] = (OneLineError,)) -> int:
    """Run a program and return its exit code, whatever it raises."""
    prepare_streams()
    try:
        check_here()
        with leaving_by_signals():
            code = program() or 0
    except KeyboardInterrupt:
        leave_unread()
        tell("error: interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        code = 0  # the reader of the output has closed it
    except refuses as error:
        said = "".join(sign if sign.isprintable() else " " for sign in told(error))
        tell(f"error: {' '.join(said.split())}")
        code = REFUSED
    except Exception as error:  # noqa: BLE001 - the last resort
        tell(f"error: {unforeseen(error)}")
        code = FAILED
    finally:
        settle_streams()
    return code


@contextmanager
def importing() -> Iterator[None]:
    """End the process in one line at a Ctrl-C in the block, which imports the program.

    It takes effect at the block's end: amid an import Python may keep a lock, drop the signal, or crash.
    """
    try:
        with unbroken():
            yield
    except KeyboardInterrupt:
        tell("error: interrupted")
        sys.exit(INTERRUPTED)


def check_here() -> None:
    """Raise OneLineError if the current folder was removed: MKL would end the process, and name a library."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise OneLineError(told(error)) from None


@contextmanager
def leaving_by_signals() -> Iterator[None]:
    """Leave the block by SystemExit at TERM and HUP, so that what it made for a while is removed."""

    def leave(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)  # a second one ends the process at once
        raise SystemExit(128 + number)

    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    with suppress(ValueError):  # not the main thread
        for number in numbers:
            signal.signal(number, leave)
    try:
        yield
    finally:
        with suppress(ValueError):
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def unbroken() -> Iterator[None]:
    """Have Ctrl-C, TERM and HUP take effect at the end of the block, or at the second signal."""
    numbers = (signal.SIGINT, *ENDING) if threading.current_thread() is threading.main_thread() else ()
    held: dict[int, Callable[[int, FrameType | None], object]] = {}
    came: list[tuple[int, FrameType | None]] = []
    over = False

    def hold(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if over or len(came) > 1:  # also where another signal left this one in place
            held[number](number, frame)

    try:
        for each in numbers:
            if callable(handler := signal.getsignal(each)):
                held[each] = handler
                signal.signal(each, hold)
        yield
    finally:
        over = True
        for number, taken in held.items():
            signal.signal(number, taken)
        for number, frame in came[:1]:
            held[number](number, frame)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with the nearest flag."""

    keys: Collection[str] = ()  # names that the program reads as key=value beside its flags

    def __init__(self, **named: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **named)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but report an unknown flag before a missing argument."""
        self._check(sys.argv[1:] if args is None else args)
        return super().parse_args(args, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as `parse_args`, with arguments and flags in any order."""
        self._check(sys.argv[1:] if args is None else args)
        return super().parse_intermixed_args(args, namespace)

    def _check(self, words: Sequence[str]) -> None:
        """Exit with 2 on an unknown flag, or on one given twice: argparse would take the last."""
        known = {name: action for action in self._actions for name in action.option_strings}
        flags = list(takewhile(lambda word: word != "--", map(str, words)))
        given: set[argparse.Action] = set()
        if clause := mistaken_flag(flags, known, self.keys) or given_twice(flags):
            self.error(clause)
        for flag in (word.partition("=")[0] for word in flags if word.startswith("--")):
            if flag not in known:
                near = [name for name in known if name.startswith(flag)] or get_close_matches(flag, known, n=1)
                self.error(f"{flag}: no such flag" + (f"; did you mean {near[0]}?" if near else ""))
            if known[flag] in given and isinstance(known[flag], argparse._StoreAction):
                self.error(f"{flag}: given twice; leave one out")
            given.add(known[flag])

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        end = "" if message.endswith("?") else ";"
        tell(f"error: {message.removeprefix('argument ')}{end} {self.prog} --help lists all")
        raise SystemExit(REFUSED)


def value_parser(make: Callable[[str], Any], holds: Callable[[Any], object], expected: str) -> Callable[[str], Any]:
    """Return a parser of a flag's value, which refuses one that can't be made or doesn't hold."""

    def parsed(text: str) -> object:
        with suppress(ValueError, ZeroDivisionError):
            if holds(value := make(text)):
                return value
        raise argparse.ArgumentTypeError(f"{shortened(text)}: {expected}")

    return parsed


seed_of = value_parser(int, lambda seed: 0 <= seed < 2**63, "expected an integer from 0 to 2^63 - 1")


def path_of(text: str) -> Path:
    """Parse a path; an empty one, as of a variable that isn't set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path")
    return Path(text)


def check_writable(folder: Path, flag: str) -> None:
    """Make a folder, and refuse one that nothing can be written to, before the work whose answer goes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{flag}: can't be written ({error.strerror})") from None


def unforeseen(error: BaseException, folder: Path | None = None) -> str:
    """Return an unexpected error as one line, and write its traceback into the folder, or into a temporary one."""
    text = "".join(traceback.format_exception(error))
    for place in (folder, None):
        with suppress(OSError):
            log = place / LOG if place else Path(tempfile.mkdtemp(prefix="unet-ladder-"), LOG)
            with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return f"{told(error)}; the traceback is in {log}"
    return f"{told(error)}; no disk takes its traceback"


def told(error: BaseException) -> str:
    """Return the error's text in one line."""
    if isinstance(error, OneLineError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = error.filename2 or error.filename
        if not place and isinstance(error, FileNotFoundError):  # of getcwd
            return "the current folder was removed; change into another one"
        return f"{shortened(str(place))}: {error.strerror}" if place else error.strerror
    return typed_line(error)


def tell(line: str) -> None:
    """Write a line to stderr, if it is still open."""
    if sys.stderr is None:  # as of a service without a console
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def show(text: str) -> None:
    """Write to stdout; on a full disk the text is dropped, as the work is done."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except (OSError, ValueError):
        leave_unwritten(sys.stdout)


def prepare_streams() -> None:
    """Open closed streams to os.devnull, and have them escape characters that their encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the program began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the whole program
        elif hasattr(stream, "reconfigure"):
            with suppress(OSError):  # reconfigure flushes
                stream.reconfigure(errors="backslashreplace")


def leave_unread() -> None:
    """Redirect streams whose pipe is full to os.devnull, so that an interrupted program ends."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if not select.select([], [stream.fileno()], [], 0)[1]:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def settle_streams() -> None:
    """Flush the streams; redirect closed ones to os.devnull, so that the interpreter doesn't complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            leave_unwritten(stream)


def leave_unwritten(stream: TextIO) -> None:
    """Redirect a stream to os.devnull."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_key(flag: str, following: str, keys: Collection[str]) -> str:
    """Return the word that a flag was meant as, such as "preset=smoke" for --prest; empty if no key is similar.

    Args:
        flag: as it was typed, with its value where "=" joins them.
        following: the word behind it, or an empty text.
        keys: such as "data.batch_size", which is also found by its last part if no other key ends in it.
    """
    name, _, value = flag.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    last = [key for key in keys if f".{key}".endswith(f".{name}")]
    alike = get_close_matches(tail(name), {tail(key) for key in keys}, n=len(keys) or 1, cutoff=ALIKE)
    near = get_close_matches(name, [key for key in keys if tail(key) in alike], n=1, cutoff=ALIKE)
    within = next((key for key in keys if "." in key and name.startswith(f"{key}.")), "")
    inner = f"+{name}" if within == OPEN else name if within else ""
    guesses = [name] if name in keys else last if len(last) == 1 else [inner] if within == OPEN else [*near, inner]
    key = guesses[0]
    behind = "" if following.startswith("-") or "=" in following else following
    given = value or behind
    return f"{key}={given if given.isprintable() and given else VALUE}" if key else ""


def opened(words: Iterable[str]) -> list[str]:
    """Return overrides with ++ before the options of a user's own class, which no file lists."""
    typed = list(words)
    own = "model=custom" in typed
    return [f"++{word}" if own and word.startswith(f"{OPEN}.") else word for word in typed]


def tail(key: str) -> str:
    """Return the last part of a key."""
    return key.rpartition(".")[2]


def mistaken_flag(words: Sequence[str], flags: Iterable[str], keys: Collection[str]) -> str:
    """Return a clause about the first flag of a command line that is meant as a key; or an empty text."""
    known = tuple(flags)
    for word, following in pairwise([*words, ""]):
        flag = word.partition("=")[0]
        unknown = flag.startswith("--") and not any(name.startswith(flag) for name in known)
        if unknown and (meant := as_key(word, following, keys)):
            return f"{flag}: no such flag; write {meant}"
    return ""


def given_twice(words: Iterable[str]) -> str:
    """Return a clause about the first key that a command line gives two values; or an empty text."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("+")
        if not equals or word.startswith(("-", "~")) or os.sep in key:  # a path, such as a job's folder
            continue
        if found.setdefault(key, value) != value:
            return f"{key}: given twice, {found[key]!r} and {value!r}; leave one out"
    return ""


def worded(value: object) -> str:
    """Return a value in Hydra's grammar, with text and paths in quotes where they could be read otherwise."""
    if isinstance(value, str | Path):
        if PLAIN.fullmatch(str(value)):
            return str(value)
        escaped = BEFORE_A_QUOTE.sub(lambda found: 2 * found[1] + ("\\'" if found[2] else ""), str(value))
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{worded(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(worded, value)) + "]"
    return json.dumps(value)

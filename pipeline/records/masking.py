"""Keep secrets, and the machine's folders, out of what a run writes."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_|$)", re.IGNORECASE)
REFERRED = re.compile(r"\$\{\s*oc\.env\s*:\s*(\w+)")  # by an interpolation of a configuration
LEAST_LETTERS = 8  # of a value that is a secret by its variable's name; a shorter one may be a common word
LEAST_REFERRED = 4  # of a value that a configuration refers to
Value = TypeVar("Value", str, list[str], object)


def values_to_hide(referred: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What must not be shown, and what is shown in its place; the longest first.

    Args:
        referred: variables that a configuration names.
        environment: variables and their values.
    """
    names = set(referred)
    found = {
        value: f"${{oc.env:{name}}}"
        for name, value in environment.items()
        if re.fullmatch(r"\w+", name)
        and len(value) >= (LEAST_REFERRED if name in names else LEAST_LETTERS)
        and (name in names or SECRET.search(name))
    }
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def masked(value: Value, hidden: Mapping[str, str]) -> Value:
    """Text, or plain JSON values with all text in them, without the hidden values."""
    if not hidden:
        return value
    if isinstance(value, str):
        for secret, instead in hidden.items():
            value = value.replace(secret, instead)
        return value
    if isinstance(value, dict):
        return {masked(key, hidden): masked(part, hidden) for key, part in value.items()}
    return [masked(part, hidden) for part in value] if isinstance(value, list) else value


def referred_to(config: object) -> set[str]:
    """The variables that a configuration's interpolations name, wherever they stand."""
    if isinstance(config, str):
        return set(REFERRED.findall(config))
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    return {name for part in parts for name in referred_to(part)}


class MaskedBytes:
    """A stream of bytes without the hidden values, also where a piece ends within one."""

    def __init__(self, hidden: Mapping[str, str]) -> None:
        self._hidden = {secret.encode(): instead.encode() for secret, instead in hidden.items()}
        self._kept = max(map(len, self._hidden), default=0)
        self._waiting = b""

    def add(self, piece: bytes) -> bytes:
        """What can be written after one more piece."""
        whole = self._waiting + piece
        for secret, instead in self._hidden.items():
            whole = whole.replace(secret, instead)
        cut = max(0, len(whole) - self._kept)
        self._waiting = whole[cut:]
        return whole[:cut]

    def rest(self) -> bytes:
        """What is left at the end."""
        return self._waiting


BEFORE_A_PATH = r"(?<![\w./-])"  # after these a path has begun already


def without_places(text: str, roots: Iterable[str] | None = None) -> str:
    """The text with the folders cut off its paths, such as `torch/jit/__init__.py`.

    Args:
        text: as a library says it.
        roots: the folders; those that Python imports from, and the current one, by default.
    """
    known = set[str]()
    for root in (*sys.path, "") if roots is None else roots:
        with suppress(OSError):  # a relative one, where the current folder was removed
            known.add(str(Path(root).absolute()))
    for root in sorted(known - {os.sep}, key=len, reverse=True):  # the deepest first: one may lie within another
        text = re.sub(f"{BEFORE_A_PATH}{re.escape(root + os.sep)}", "", text)
    return text

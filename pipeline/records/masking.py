"""Removal of secrets from the files of a run."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_|$)", re.IGNORECASE)
REFERRED = re.compile(r"\$\{\s*oc\.env\s*:\s*(\w+)")  # in an interpolation
OF_SECRETS = re.compile(r"(^|[._])(token|secret|password|passwd|(api|access)_?key|credentials?)$", re.IGNORECASE)
PLAIN_WORD = re.compile(r"[a-z_.]+")  # as an option of a network may be
PASSWORD_IN_ADDRESS = re.compile(r"://[^/\s:@]*:(?!\$\{)[^/\s@]+@")
LEAST_LETTERS = 8  # of a value whose variable has a secret's name; a shorter one may be a common word
LEAST_REFERRED = 4  # letters of a value that the request refers to
Value = TypeVar("Value", str, list[str], object)


def values_to_hide(referred: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the values to hide, longest first, each with the reference `${oc.env:NAME}` that replaces it."""
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
    """Return text, or plain JSON values, without the hidden values."""
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
    """Return the variables that the interpolations of a configuration name."""
    if isinstance(config, str):
        return set(REFERRED.findall(config))
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, list) else ()
    return {name for part in parts for name in referred_to(part)}


def is_typed_secret(key: str, value: object) -> bool:
    """Return whether a request holds a secret itself, by its key, such as `model.options.token`, or in an address."""
    if not isinstance(value, str):
        return False
    named = len(value) >= LEAST_LETTERS and OF_SECRETS.search(key) and "${" not in value
    return bool(named and not PLAIN_WORD.fullmatch(value)) or bool(PASSWORD_IN_ADDRESS.search(value))


class MaskedBytes:
    """A filter for a stream of bytes, also for values that are split between pieces."""

    def __init__(self, hidden: Mapping[str, str]) -> None:
        self._hidden = {secret.encode(): instead.encode() for secret, instead in hidden.items()}
        self._kept = max(map(len, self._hidden), default=0)
        self._waiting = b""

    def add(self, piece: bytes) -> bytes:
        """Add a piece; return the bytes that can be written."""
        whole = self._waiting + piece
        for secret, instead in self._hidden.items():
            whole = whole.replace(secret, instead)
        cut = max(0, len(whole) - self._kept)
        self._waiting = whole[cut:]
        return whole[:cut]

    def rest(self) -> bytes:
        """Return the rest at the end of the stream."""
        return self._waiting

"""Spoils what is well-formed, as files are torn and people are hostile; in the same way for the same seed."""

import random
import string
from typing import Any

NASTY_TEXTS = ["", "\x00", "\x1b[31m", "\u202e", "../../etc/passwd", "${oc.env:HOME}", "nan", "é" * 300, "\ud800"]
NASTY_NUMBERS = [0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e-320, 1e308, float("inf"), float("nan")]
NASTY_VALUES: list[Any] = [None, True, [], {}, [[]], {"": None}, *NASTY_TEXTS, *NASTY_NUMBERS]
SIGNS = [*"=+~,.:{}[]()'\"$@\\ \t", *string.digits, "${", *NASTY_TEXTS]  # that a grammar of overrides cares for
NASTY_BYTES = [b"", b"\x00" * 8, b"\xff" * 8, b"PK\x03\x04", b"\x80\x02", b"{", b"[" * 2000, b"\x7f" * 4, b"1e999"]


def spoilt_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bytes that are cut, doubled, flipped, or have others in them, once or a few times."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, length = draw.randrange(len(data) + 1), draw.choice([1, 2, 8, 100])
        kind = draw.randrange(5)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + data[at + length :]
        elif kind == 2:
            data = data[:at] + draw.choice(NASTY_BYTES) + data[at:]
        elif kind == 3:
            data = data[:at] + data[at : at + length] * 2 + data[at + length :]
        else:
            data = data[:at] + draw.randbytes(min(length, len(data) - at)) + data[at + length :]
    return data


def spoilt_json(value: Any, draw: random.Random) -> Any:
    """Plain JSON values with one of them replaced, taken away or put where none was."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(NASTY_VALUES)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], *([spoilt_json(value[at], draw)] if draw.random() < 0.9 else []), *value[at + 1 :]]
    key = draw.choice(list(value))
    kind = draw.random()
    if kind < 0.1:
        return {name: part for name, part in value.items() if name != key}
    if kind < 0.2:
        return {**value, draw.choice(NASTY_TEXTS): draw.choice(NASTY_VALUES)}
    return {**value, key: spoilt_json(value[key], draw)}


def spoilt_text(text: str, draw: random.Random) -> str:
    signs = list(text)
    for _ in range(draw.choice([1, 2, 4])):
        at = draw.randrange(len(signs) + 1)
        signs[at : at + draw.randrange(3)] = draw.choice(SIGNS)
    return "".join(signs).replace("\x00", "")

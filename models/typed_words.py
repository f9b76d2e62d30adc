"""Words of a command line that can't be meant: `--key value` where `key=value` is read, and one key with two values."""

import os
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

VALUE = "VALUE"  # where the user gave none
ALIKE = 0.8  # of difflib's ratio: one letter of six is another, or lacks
OPEN = "model.options"  # takes what the net's arguments are called, which stands in no file


def as_key(flag: str, following: str, keys: Collection[str]) -> str:
    """What a flag was meant as, such as "preset=smoke" of --preset or --prest; empty where its word is like no key.

    Args:
        flag: as it was typed, with its value where "=" joins them.
        following: the word behind it; empty where there is none.
        keys: such as "data.batch_size", which is also found by its last part where no other key ends in it.
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


def tail(key: str) -> str:
    """The last part of a key."""
    return key.rpartition(".")[2]


def mistaken_flag(words: Sequence[str], flags: Iterable[str], keys: Collection[str]) -> str:
    """A clause on the first flag of a command line whose word is a key; empty where none is.

    Args:
        words: the command line.
        flags: that the program knows, whose beginnings it takes for them.
        keys: that it reads as key=value.
    """
    known = tuple(flags)
    for word, following in pairwise([*words, ""]):
        flag = word.partition("=")[0]
        unknown = flag.startswith("--") and not any(name.startswith(flag) for name in known)
        if unknown and (meant := as_key(word, following, keys)):
            return f"{flag}: no such flag; write {meant}"
    return ""


def given_twice(words: Iterable[str]) -> str:
    """A clause on the first key of key=value that a command line gives two values; empty where none has two."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.lstrip("+")
        if not equals or word.startswith(("-", "~")) or os.sep in key:  # a path, such as a job's folder
            continue
        if found.setdefault(key, value) != value:
            return f"{key}: given twice, {found[key]!r} and {value!r}; leave one out"
    return ""

"""Turns what Hydra and OmegaConf say of a bad request, over several lines, into one that names the nearest choice."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.checks import shown
from pipeline.config.request_error import RequestError, nearest
from pipeline.errors import InputError
from pipeline.records.error_line import first_line, shortened


def one_line(error: Exception, conf: Path) -> str:
    """The one line for `error`; `conf` is the folder of the config files, for the names that would have been right."""
    text = str(error)
    if isinstance(error, RequestError | InputError):
        return shortened(" ".join(text.splitlines()), MOST_OF_OWN)  # it has several where a value that it quotes has
    if isinstance(error, yaml.YAMLError):
        return _unreadable_yaml(error)
    if isinstance(error, OverrideParseException):
        return _unreadable_word(conf, str(error.override))
    for pattern, line in LINES:
        if found := re.search(pattern, text, re.DOTALL):
            return line(found, conf, error)
    key = getattr(error, "full_key", None) if isinstance(error, OmegaConfBaseException) else None
    return f"{key}: {first_line(error)}" if key and isinstance(key, str) else first_line(error)


def _not_taken(found: re.Match[str], _: Path, error: Exception) -> str:
    """The line for a value of another kind than Hydra's key takes."""
    why = f": {first_line(error.__cause__)}" if error.__cause__ else ""
    return f"{shown(' '.join(found[1].split()))}: not what this key takes{why}"


def _unreadable_word(conf: Path, override: str) -> str:
    """The line for a word that is no override, as its key has a letter that looks like another, or for any reason."""
    key, _, value = override.partition("=")
    key = key.lstrip("+~")
    if sign := _strange_sign(key):
        return shortened(f"{shown(key)}: no such key, as it has a {sign}; {nearest(key, known_keys(conf))}")
    why = (
        _unreadable_value(key, value) or "an override is written key=value, such as stage=compile or data.batch_size=8"
    )
    return f"{shown(override)}: {why}"


def _unreadable_value(key: str, value: str) -> str:
    """What is wrong with a value that Hydra's grammar doesn't read, and what to write; empty where nobody knows."""
    home = Path(value).expanduser() if value.startswith("~/") else value.replace("~", "/home/", 1)
    unclosed = value[:1] in QUOTES and value.count(value[:1]) % 2
    known = {
        f"a comma with no value before or after it; a sweep is -m {key}=ONE,OTHER": "," in value
        and not all(part.strip() for part in value.split(",")),
        f"one = too many; write {shown(key + value)}": value.startswith("="),
        f"a reference is written '{key}=${{KEY}}' or '{key}=${{oc.env:NAME}}', in quotes": "${" in value,
        f"its quote {value[:1]} isn't closed; the shell takes the outermost quotes away": unclosed,
        f"no shell puts a home folder in the place of this ~; write {shown(f'{key}={home}')}": value.startswith("~"),
    }
    return next((text for text, holds in known.items() if holds), "") or _unquoted(key, value)


def _unquoted(key: str, value: str) -> str:
    """The same of a sign that is read within quotes alone."""
    sign = next((sign for sign in value if sign in UNQUOTED), "")
    parts = [part.strip() for part in value.strip("[]").split(",")]
    quoted = ",".join(f'"{part}"' for part in parts)
    quoted = f"[{quoted}]" if value.startswith("[") or key == "subject_to" else quoted
    return f"{sign!r} is read within quotes alone; write '{shown(f'{key}={quoted}')}'" if sign else ""


MOST_OF_OWN = 1000  # characters of a line of ours, whose end says what to do; it quotes no text without a bound
QUOTES = {"'", '"'}
CLOSE_OPTION = 0.9  # how alike an option's whole key must be to be offered; "model.options." alone makes some 0.7
PRESET = "preset"  # the group whose files set keys of others
UNQUOTED = "<>|&;!^"  # signs that Hydra's grammar has in no value without quotes, and bounds and shells have


def _strange_sign(word: str) -> str:
    """The name of the first letter or sign that isn't ASCII, and so may look like one that is; empty where all are."""
    strange = next((sign for sign in word if not sign.isascii()), "")
    return unicodedata.name(strange, f"U+{ord(strange):04X}") if strange else ""


def _unknown_file(conf: Path, group: str, name: str) -> str:
    """The line for a group that has no file of that name."""
    if group.startswith("hydra/"):
        return f"{group}={name}: Hydra finds none of that name; a plugin that brings one must be installed"
    names = sorted(path.stem for path in (conf / group).glob("*.yaml"))
    why = f", as it has a {sign}" if (sign := _strange_sign(name)) else ""
    return f"{group}={name}: no such file in conf/{group}{why}; {nearest(name, names)}"


def _unknown_key(conf: Path, key: str) -> str:
    """Return the line for a key that no file of conf/ sets."""
    group = key.rpartition(".")[0]
    known = known_keys(conf)
    if group == "stage" and key in known:
        of_one = f"stage.rungs.NAME.{key.removeprefix('stage.')}"
        return f"{key}: no such key of what is asked for; in a list each stage has its own keys, such as {of_one}"
    siblings = [other for other in known if other.rpartition(".")[0] == group]
    if group == "model.options":
        near = get_close_matches(key, siblings, n=1, cutoff=CLOSE_OPTION)
        meant = f"did you mean {near[0]!r}? " if near else ""
        return f"{key}: no file sets it; {meant}'+{key}=...' adds it, where the net takes it"
    homes = [] if group else [other for other in known if other.rpartition(".")[2] == key]
    return f"{key}: no such key; {nearest(key, homes or siblings or known)}"


def _unreadable_yaml(error: yaml.YAMLError) -> str:
    """The line for a file of the user's that is no YAML, with its place."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"{mark.name}, line {mark.line + 1}: " if mark else ""
    return f"{where}no YAML that can be read: {problem or first_line(error)}"


def known_keys(conf: Path) -> list[str]:
    """Every key that a user can type, from the files of conf/ alone."""
    whole = OmegaConf.to_container(OmegaConf.load(conf / "config.yaml"), resolve=False)
    assert isinstance(whole, dict)
    keys = set(_places({str(key): part for key, part in whole.items() if key not in ("defaults", "hydra")}))
    for path in conf.glob("*/*.yaml"):
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if isinstance(loaded, dict):
            own = {str(key): part for key, part in loaded.items() if key != "defaults"}
            keys |= {path.parent.name, *_places(own, "" if path.parent.name == PRESET else f"{path.parent.name}.")}
    return sorted(keys)


def _places(values: Mapping[str, object], before: str = "") -> Iterator[str]:
    """The place of each value, and of those within it, such as stage.tolerance.relative_l2."""
    for key, value in values.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from _places(value, f"{before}{key}.")


# What Hydra and OmegaConf say, and the line for it.
LINES: tuple[tuple[str, Callable[[re.Match[str], Path, Exception], str]], ...] = (
    (r"Could not find '([\w/]+)/([^'/]*)'", lambda found, conf, _: _unknown_file(conf, *found.groups())),
    (r"Could not override '([^']+)'", lambda found, conf, _: _unknown_key(conf, found[1])),
    (r"Key '[^']+' is not in struct\s+full_key: (\S+)", lambda found, conf, _: _unknown_key(conf, found[1])),
    (r"Could not delete from config\. '([^']+)' does not exist", lambda found, conf, _: _unknown_key(conf, found[1])),
    (
        r"Could not append to config. An item is already at '([^']+)'",
        lambda found, *_: f"+{found[1]}: there is such a key already; write it without the plus: {found[1]}=...",
    ),
    (
        r"Ambiguous value for argument '([^']+)'",
        lambda found, *_: f"{shown(found[1])}: several values are a sweep; put -m before it",
    ),
    (r"Error merging override (.*)", _not_taken),
    (
        r"Cannot find primary config '([^']+)'",
        lambda found, *_: f"{found[1]}: no such file of a whole configuration; --config-dir adds a folder of your own",
    ),
)


def why_it_cannot_begin(error: Exception) -> str:
    """The line for an error before a run has its folder: what is wrong, and with which file."""
    if not isinstance(error, OSError):
        return first_line(error)
    try:
        here = Path.cwd()
    except OSError:
        return "the folder that this was started in is gone; change into one that is there"
    what = shown(error.filename) if error.filename else f"a file of the run, started in {here}"
    return f"{what}: {error.strerror or first_line(error)}"

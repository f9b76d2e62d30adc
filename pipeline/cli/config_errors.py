"""Turns what Hydra and OmegaConf say of a bad request, over several lines, into one that names the nearest choice."""

import re
from pathlib import Path

from hydra.errors import OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.checks import shown
from pipeline.config.request_error import nearest
from pipeline.records.error_line import first_line
from pipeline.records.migrations import MEASURE_KNOBS


def one_line(error: Exception, conf: Path) -> str:
    """The one line for `error`; `conf` is the folder of the config files, for the names that would have been right."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"{shown(error.override)}: an override is written key=value, such as stage=compile or data.batch_size=8"
    if found := re.search(r"Could not find '([\w/]+)/([^'/]*)'", text):
        return _unknown_file(conf, *found.groups())
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(conf, found[1])
    if found := re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text):
        return _unknown_key(conf, found[2])
    if found := re.search(r"Ambiguous value for argument '([^']+)'", text):
        return f"{shown(found[1])}: several values are a sweep; put -m before it"
    key = getattr(error, "full_key", None) if isinstance(error, OmegaConfBaseException) else None
    return f"{key}: {first_line(error)}" if key and isinstance(key, str) else first_line(error)


def _unknown_file(conf: Path, group: str, name: str) -> str:
    """The line for a group that has no file of that name."""
    if group.startswith("hydra/"):
        return f"{group}={name}: Hydra finds none of that name; a plugin that brings one must be installed"
    names = sorted(path.stem for path in (conf / group).glob("*.yaml"))
    return f"{group}={name}: no such file in conf/{group}; {nearest(name, names)}"


def _unknown_key(conf: Path, key: str) -> str:
    """The line for a key that no file of conf/ sets; one of an older version is told by its name of today."""
    group, _, name = key.rpartition(".")
    if group == "measure" and name in MEASURE_KNOBS:
        return f"{key}: no such key; it is called {f'{group}.{MEASURE_KNOBS[name]}'!r} now"
    if group == "model.options":
        return f"{key}: no file sets it; '+{key}=...' adds it, where the net takes it"
    known = known_keys(conf)
    siblings = [other for other in known if other.rpartition(".")[0] == group]
    return f"{key}: no such key; {nearest(key, siblings or known)}"


def known_keys(conf: Path) -> list[str]:
    """Every key that a user can type, from the files of conf/ alone."""
    whole = OmegaConf.to_container(OmegaConf.load(conf / "config.yaml"), resolve=False)
    assert isinstance(whole, dict)
    own = {str(key): part for key, part in whole.items() if key not in ("defaults", "hydra")}
    keys = {*own, *(f"{key}.{inner!s}" for key, part in own.items() if isinstance(part, dict) for inner in part)}
    for path in conf.glob("*/*.yaml"):
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if isinstance(loaded, dict):
            keys |= {path.parent.name} | {f"{path.parent.name}.{key!s}" for key in loaded if key != "defaults"}
    return sorted(keys)

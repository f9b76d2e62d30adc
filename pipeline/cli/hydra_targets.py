"""What Hydra itself would import and call, by its callbacks, launchers and sweepers, looked at before it does."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.preset import overrides_in
from pipeline.config.checks import shown
from pipeline.config.request_error import RequestError
from pipeline.inputs.targets import refusal

TARGET, SEARCH_PATH = "_target_", "hydra.searchpath"
HYDRAS_OWN = ("hydra_plugins.", "hydra._internal.core_plugins.", "hydra.experimental.callbacks.")
OWN_CALLBACK = "pipeline.cli.sweep_callback.SweepReport"  # of conf/config.yaml
ELSEWHERE = f"{SEARCH_PATH}: name a folder of yours by --config-dir, which is looked through first"


def check_targets(arguments: Iterable[str], folders: Iterable[Path]) -> None:
    """That nothing typed, and no file of the user's folders, has Hydra call what a net or stage may not be.

    Raises:
        RequestError: it has; or folders are added by a knob, whose files nobody would look at.
    """
    for override in overrides_in(arguments):
        key, value = str(override.key_or_group), override.value()
        if key == SEARCH_PATH:
            raise RequestError(ELSEWHERE)
        found = [value] if key.rpartition(".")[2] == TARGET else [*under(value, TARGET)]
        for target in found:
            _check(target, key)
    for path in (path for folder in folders for path in yaml_files(folder)):
        given = loaded(path)
        if any(under(given, "searchpath")):
            raise RequestError(f"{path}: {ELSEWHERE}")
        for target in under(given, TARGET):
            _check(target, str(path))


def yaml_files(folder: Path) -> Iterator[Path]:
    """Every YAML file in a folder and below it, wherever a link leads, each folder once."""
    seen: set[str] = set()
    for place, below, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            below.clear()
            continue
        seen.add(real)
        yield from (Path(place, name) for name in sorted(files) if name.endswith((".yaml", ".yml")))


def loaded(path: Path) -> object:
    """What a YAML file holds, as Hydra reads it; None of one that Hydra can't read either, which it will say."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=False) if path.is_file() else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException):
        return None


def under(value: object, name: str) -> Iterator[object]:
    """What stands under a key of that name, however deep."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from [part] if str(key) == name else under(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from under(part, name)


def _check(target: object, where: str) -> None:
    name = str(getattr(target, "text", target))
    if name.startswith(HYDRAS_OWN) or name == OWN_CALLBACK:
        return
    if why := refusal(name):
        raise RequestError(f"{where}: {TARGET}={shown(name)}: {why}; name a plugin of Hydra's, or a module of yours")

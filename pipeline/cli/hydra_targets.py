"""What Hydra itself would import and call, by its callbacks, launchers and sweepers, looked at before it does."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from models.targets import refusal
from pipeline.cli.preset import overrides_in
from pipeline.config.checks import shown
from pipeline.config.request_error import RequestError

TARGET, SEARCH_PATH = "_target_", "hydra.searchpath"
HYDRAS_OWN = ("hydra_plugins.", "hydra._internal.core_plugins.", "hydra.experimental.callbacks.")


def check_targets(arguments: Iterable[str], folders: Iterable[Path]) -> None:
    """That nothing typed, and no file of the user's folders, has Hydra call what a net or stage may not be.

    Raises:
        RequestError: it has; or folders are added by a knob, whose files nobody would look at.
    """
    for override in overrides_in(arguments):
        key, value = str(override.key_or_group), override.value()
        if key == SEARCH_PATH:
            raise RequestError(f"{SEARCH_PATH}: name a folder of yours by --config-dir, which is looked through first")
        found = [value] if key.rpartition(".")[2] == TARGET else [*targets_in(value)]
        for target in found:
            _check(target, key)
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")) if folder.is_dir() else ():
            for target in targets_of(path):
                _check(target, str(path))


def targets_of(path: Path) -> list[object]:
    """What a YAML file names as a target; of none that can be read Hydra will say so."""
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return [*targets_in(yaml.safe_load(text))] if TARGET in text else []
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return []


def targets_in(value: Any) -> Iterator[object]:
    """What stands under `_target_`, however deep."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from [part] if str(key) == TARGET else targets_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from targets_in(part)


def _check(target: object, where: str) -> None:
    name = str(getattr(target, "text", target))
    if name.startswith(HYDRAS_OWN):
        return
    if why := refusal(name):
        raise RequestError(f"{where}: {TARGET}={shown(name)}: {why}; name a plugin of Hydra's, or a module of yours")

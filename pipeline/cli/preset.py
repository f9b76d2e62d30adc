"""Which preset is taken where the user names none."""

from argparse import _VersionAction
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig

from pipeline.command_line import given_twice, mistaken_flag
from pipeline.config.checks import shown
from pipeline.config.request_error import RequestError, nearest
from pipeline.devices.kinds import is_cuda
from pipeline.records.error_line import first_line

# Hydra's flags that are followed by a word, and what may follow --info (hydra 1.3).
TAKES_A_WORD = frozenset(
    {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"}
    | {"--experimental-rerun"}
)
LONGEST_WORD, LONGEST_KEY = 10_000, 200  # characters
INFOS = frozenset({"all", "config", "defaults", "defaults-tree", "plugins", "searchpath"})


def preset_for(arguments: list[str], devices: list[str]) -> list[str]:
    """The override `preset=cpu` where the run goes to the CPU and the user names no preset; else none.

    A sweep has one preset for all of its jobs, so that they can be compared: the CPU's where no job goes to a GPU.

    Args:
        arguments: what the user typed after the program's name.
        devices: the GPUs that CUDA may use.
    """
    overrides = overrides_in(arguments)
    if any(override.key_or_group == "preset" for override in overrides):
        return []
    named = [set(values(override)) for override in overrides if override.key_or_group == "device"]
    asked = named[-1] if named else {"auto"}
    on_cpu = asked == {"cpu"} if devices else not all(map(is_cuda, asked))  # without a GPU, device=cuda is refused
    return ["preset=cpu"] if on_cpu else []


def overrides_first(arguments: list[str]) -> list[str]:
    """The same words with the overrides before the flags: argparse takes only one row of them, wherever it begins."""
    overrides: list[str] = []
    flags: list[str] = []
    before = ""
    for word in arguments:
        of_the_flag = before in TAKES_A_WORD or (before in ("--info", "-i") and word in INFOS)
        (flags if of_the_flag or word.startswith("-") else overrides).append(word)
        before = "" if of_the_flag else word
    return [*overrides, *flags]


def check_typed(arguments: Sequence[str], keys: Callable[[], Collection[str]]) -> None:
    """That no flag is meant as a key, and that no key has two values, of which Hydra takes the last in silence.

    Args:
        arguments: what the user typed after the program's name, in that order.
        keys: gives what can be set; reading it takes a tenth of a second.

    Raises:
        RequestError: one is, or has; the line says what to write.
    """
    flags = hydras_flags()
    unknown = any(word.startswith("--") and not word.startswith(tuple(flags)) for word in arguments)
    if clause := (unknown and mistaken_flag(arguments, flags, keys())) or given_twice(arguments):
        raise RequestError(clause)


def hydras_flags() -> list[str]:
    """Every flag that Hydra knows, in every spelling."""
    return [flag for action in get_args_parser()._actions for flag in action.option_strings]


def check_flags(arguments: list[str]) -> None:
    """That Hydra knows every flag, in the order of `overrides_first`; it would print how it is used over many lines.

    Raises:
        RequestError: it doesn't, or a flag lacks its word.
    """
    parser, flags = get_args_parser(), hydras_flags()

    def refuse(text: str) -> NoReturn:
        unknown = text.removeprefix("unrecognized arguments: ").split()
        if text.startswith("unrecognized") and unknown:
            raise RequestError(f"{shown(unknown[0])}: no such flag; {nearest(unknown[0].partition('=')[0], flags)}")
        raise RequestError(f"{first_line(ValueError(text)).removeprefix('argument ')}; python -m pipeline --help")

    parser.error = refuse  # type: ignore[assignment, method-assign]
    for action in parser._actions:
        if isinstance(action, _VersionAction):  # Hydra's tells its own
            action.version = versions()
    if parser.parse_args(arguments).experimental_rerun:
        raise RequestError("--experimental-rerun: it runs what a pickle holds; resume=RUN goes on with a run")


def versions() -> str:
    """This program's, torch's and Hydra's, on one line."""
    found = []
    for shown_as, package in (("unet-ladder", "unet-ladder"), ("torch", "torch"), ("Hydra", "hydra-core")):
        try:
            found.append(f"{shown_as} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{shown_as}, which isn't installed")
    return ", ".join(found)


def config_folders(arguments: list[str]) -> list[Path]:
    """The folders of config files that the user adds to the program's own, or puts in their place.

    Args:
        arguments: in the order of `overrides_first`, with flags that Hydra knows, in any of its spellings.
    """
    given = get_args_parser().parse_args(arguments)
    return [Path(folder) for folder in (given.config_dir, given.config_path) if folder]


def with_quoted_paths(arguments: Iterable[str]) -> list[str]:
    """The same words, with quotes around a value that Hydra reads in quotes alone: a path with letters beyond ASCII.

    So is any path that is there, such as `images (1)/`; what Hydra reads as it is, stays.
    """
    parser = OverridesParser.create()

    def quoted(word: str) -> str:
        key, equals, value = word.partition("=")
        if word.startswith("-") or not equals or not (is_there(value) or (not value.isascii() and "," not in value)):
            return word
        try:
            parser.parse_override(word)
        except (HydraException, ValueError, RecursionError):
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"{key}='{escaped}'"
        return word

    return [quoted(word) if len(word) <= LONGEST_WORD else word for word in arguments]


def is_there(path: str) -> bool:
    """Whether there is such a file or folder; a name that no system takes names none."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False


def overrides_in(arguments: Iterable[str]) -> list[Override]:
    """What among the arguments is an override; Hydra itself refuses what is neither that nor a flag of its own.

    Raises:
        RequestError: a word is longer, or nested deeper, than can be read.
    """
    parser, found = OverridesParser.create(), []
    for argument in arguments:
        if len(argument) > LONGEST_WORD:
            raise RequestError(f"{shown(argument)}: at most {LONGEST_WORD:,} are read")
        try:
            found += [] if argument.startswith("-") else [parser.parse_override(argument)]
        except HydraException:
            continue
        except (ValueError, RecursionError):
            raise RequestError(f"{shown(argument)}: a number or a nesting beyond what is read") from None
    return found


def check_groups(arguments: Iterable[str], conf: Path) -> None:
    """That every folder of config files that is named gives one of them.

    Raises:
        RequestError: a line such as stage=null or data={size: 8} gives none, stage=[a,b] a mixture of two, or one has
            no key.
    """
    for override in overrides_in(arguments):
        key, value = override.key_or_group, override.value()
        if not key or len(key) > LONGEST_KEY:
            raise RequestError(f"{shown(override.input_line)}: no such key; an override is written key=value")
        group = conf / key
        if group.is_dir() and not isinstance(value, str | QuotedString | Sweep):
            names = ", ".join(sorted(path.stem for path in group.glob("*.yaml")))
            said = "null" if value is None else override.get_value_element_as_str()
            raise RequestError(f"{key}={shown(said)}: a run needs one of conf/{key}: {names}")


def check_preset_file(config: DictConfig, hydra: Any) -> None:
    """That the file of the preset says its name, which the record keeps, and says it at the top level.

    Args:
        config: as composed.
        hydra: what Hydra says of it: its choices, and where it looked for files.

    Raises:
        RequestError: it doesn't; the line names the file, what lacks and what to write.
    """
    name, found = hydra.runtime.choices.get("preset"), config.get("preset")
    if name is None or not (found is None or isinstance(found, DictConfig)):
        return
    folders = [Path(source.path) for source in hydra.runtime.config_sources if source.schema == "file"]
    file = next((path for folder in folders if (path := folder / "preset" / f"{name}.yaml").is_file()), f"{name}.yaml")
    if found is None:
        raise RequestError(f"preset={name}: {file} has no key preset; write the line 'preset: {name}' into it")
    line = "# @package _global_"
    raise RequestError(
        f"preset={name}: {file} has no line '{line}'; write it above all keys, one of them preset: {name}"
    )


def values(override: Override) -> list[str]:
    """The value of an override, or each of those that a sweep goes through, without quotes."""
    value = override.value()
    parts = value.list if isinstance(value, ChoiceSweep) else [value]
    return [str(getattr(part, "text", part)) for part in parts]

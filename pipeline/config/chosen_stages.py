"""The words that ask Hydra for several stages in one run, which it has no value for: `stage=[half,compile]`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

LADDER = "ladder"
ONE_OF_MANY = "stage=["


def stage_words(names: Sequence[str], conf: Path) -> list[str]:
    """The ladder without its other rungs, and with those of these stages that it hasn't; all of it where none is named.

    Args:
        names: of files of conf/stage, or of a folder of the user's.
        conf: the program's own.
    """
    rungs = list(map(str, yaml.safe_load((conf / "stage" / f"{LADDER}.yaml").read_text(encoding="utf-8"))["rungs"]))
    without = [f"~stage.rungs.{name}" for name in rungs if names and name not in names]
    return [f"stage={LADDER}", *without, *(f"+stage@stage.rungs.{name}={name}" for name in names if name not in rungs)]


def with_chosen_stages(words: Iterable[str], conf: Path) -> list[str]:
    """The same words, with those of `stage_words` in place of a list of stages; what is no list of names stays."""
    found: list[str] = []
    for word in words:
        names = _listed(word) if word.startswith(ONE_OF_MANY) else []
        found += stage_words(names, conf) if names else [word]
    return found


def _listed(word: str) -> list[str]:
    """The names in a word such as stage=[half,compile], each once; none where it holds anything else."""
    try:
        value = OverridesParser.create().parse_override(word).value()
    except (HydraException, ValueError, RecursionError):
        return []
    names = [part.text if isinstance(part, QuotedString) else part for part in value] if isinstance(value, list) else []
    return list(dict.fromkeys(map(str, names))) if all(isinstance(name, str) and name for name in names) else []

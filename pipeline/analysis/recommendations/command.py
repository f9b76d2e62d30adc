"""The user's command with other overrides."""

import shlex

OWN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
CONFIG_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp")  # of Hydra's, each with a word behind it or a "="


def retyped(command: str, *overrides: str) -> str:
    """The user's command with these overrides in place of those of the same key.

    The folder of that run is left out, as it is taken; that of the user's own configuration stays. A new stage replaces
    the old one with its options; the other lists of a sweep stay lists.
    """
    try:
        typed = shlex.split(command)
    except ValueError:
        typed = []
    keys = [_key(override) for override in overrides]
    found = _of_config(typed[3:])
    kept = [word for word in typed[3:] if _is_override(word) and not _replaced(_key(word), keys)]
    kept = [word for word in kept if word not in found]
    sweep = ["-m"] if any("," in word for word in kept) and {"-m", "--multirun"} & set(typed[3:]) else []
    return shlex.join(["python", "-m", "pipeline", *sweep, *found, *kept, *overrides])


def _of_config(words: list[str]) -> list[str]:
    """The flags that name the user's own files of configuration, without which their names mean nothing."""
    behind = [word in CONFIG_FLAGS for word in words]
    return [
        word
        for word, is_flag, is_its_word in zip(words, behind, [False, *behind], strict=False)
        if is_flag or is_its_word or word.partition("=")[0] in CONFIG_FLAGS
    ]


def _is_override(word: str) -> bool:
    """Whether a word of the command changes the configuration: `key=value`, or `~key`, which takes one out."""
    return "=" in word or word.startswith("~")


def _key(override: str) -> str:
    """What an override sets, adds or takes out; of `+stage@stage.rungs.xla=xla` the place, `stage.rungs.xla`."""
    return override.split("=", 1)[0].lstrip("+~").rpartition("@")[2]


def _replaced(key: str, keys: list[str]) -> bool:
    return key in keys or key in OWN_FOLDERS or ("stage" in keys and key.startswith("stage."))

"""The user's command with other overrides."""

import shlex

OWN_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")


def retyped(command: str, *overrides: str) -> str:
    """The user's command with these overrides in place of those of the same key.

    The folder of that run is left out, as it is taken. A new stage replaces the old one with its options; the other
    lists of a sweep stay lists.
    """
    try:
        typed = shlex.split(command)
    except ValueError:
        typed = []
    keys = [override.split("=", 1)[0] for override in overrides]
    kept = [word for word in typed[3:] if "=" in word and not _replaced(word.split("=", 1)[0], keys)]
    sweep = ["-m"] if any("," in word for word in kept) and {"-m", "--multirun"} & set(typed[3:]) else []
    return shlex.join(["python", "-m", "pipeline", *sweep, *kept, *overrides])


def _replaced(key: str, keys: list[str]) -> bool:
    return key in keys or key in OWN_FOLDERS or ("stage" in keys and key.startswith("stage."))

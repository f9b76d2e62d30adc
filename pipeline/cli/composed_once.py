"""Hydra composes every request twice, the first time to read hydra.mode; here it does so where something can set it."""

import sys
from collections.abc import Callable
from functools import wraps

from hydra._internal.hydra import Hydra

from pipeline.cli.preset import config_folders


def composed_once(answer: Callable[[], object]) -> Callable[[], None]:
    """`answer`, a program of Hydra's, which composes the request of `sys.argv` once: a tenth of a second less.

    It is one of a sweep where -m says so. Where a word may set hydra.mode, or a folder of config files is the user's,
    Hydra looks for itself. The words are in the order of `pipeline.cli.preset.overrides_first`, with flags that Hydra
    knows.
    """

    @wraps(answer)
    def answered() -> None:
        words = sys.argv[1:]
        if config_folders(words) or any("hydra" in word and "mode" in word for word in words):
            answer()
            return
        asks, Hydra.get_mode = Hydra.get_mode, lambda *_, **__: None  # type: ignore[method-assign]
        try:
            answer()
        finally:
            Hydra.get_mode = asks  # type: ignore[method-assign]

    return answered

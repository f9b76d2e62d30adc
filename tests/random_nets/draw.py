"""The choices that make a random net: each has a path, so that one can be made the plain one and all others stay."""

import random
from typing import TypeVar

Option = TypeVar("Option")


class Draw:
    """Choices from a seed, under names; the same seed gives the same net.

    Attributes:
        seed: of all choices.
        oddness: how often a choice isn't the first option without further ado.
        plain: the paths of choices at which the first option is taken, whatever the seed says.
        chosen: what was chosen so far, by path, where it wasn't the first option; shared by all parts of one net.
    """

    def __init__(self, seed: int, plain: frozenset[str] = frozenset()) -> None:
        self.seed, self.plain = seed, plain
        self.oddness = random.Random(seed).choice([0.2, 0.4, 0.7, 1.0])
        self.chosen: dict[str, object] = {}
        self.path = ""

    def at(self, part: str) -> "Draw":
        inner = Draw(self.seed, self.plain)
        inner.chosen, inner.path = self.chosen, f"{self.path}{part}."
        return inner

    def pick(self, name: str, *options: Option) -> Option:
        path = f"{self.path}{name}"
        drawn = random.Random(f"{self.seed} {path}")
        calm = drawn.random() > self.oddness or path in self.plain
        place = 0 if calm else drawn.randrange(len(options))
        if options[place] != options[0]:
            self.chosen[path] = options[place]
        return options[place]

    def one_in(self, times: int, name: str) -> bool:
        return self.pick(name, *[False] * (times - 1), True)

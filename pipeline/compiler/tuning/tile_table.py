"""Tiles that were fastest for measured shapes, shipped as data: of the nearest shapes' tiles alone are timed.

`tiles.json` has the text of each tile, and for each kind of call, which is its tuner's name without its numbers, the
sizes of its maps with the numbers of their fastest tiles (`python -m tests.benchmarks.tile_table`).
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

TABLE = Path(__file__).with_name("tiles.json")
NEAREST = 2  # shapes whose tiles are tried; of two nets left out they cost at most 1 % of the layers' time (H100)
FAR = 2.0  # doublings from which a shape says nothing of another
NUMBER = re.compile(r"\b\d+\b")  # not of a type, such as float16
MAP = re.compile(r"\[([^\]]*)\] \[[^\]]*\]")  # a shape, and its strides
Option = TypeVar("Option")


@cache
def table() -> dict[str, Any]:
    """Return the shipped table; an empty one where its file isn't carried along."""
    known: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"calls": {}}
    return known


def sizes(name: str) -> list[int]:
    """Return pixels and channels of each map in a tuner's name, one after the other."""
    shapes = [[int(part) for part in NUMBER.findall(shape)] for shape in MAP.findall(name)]
    return [size for shape in shapes for size in (math.prod(shape[:-1]), shape[-1])]


def doublings(one: Sequence[int], other: Sequence[int]) -> float:
    """Return how far shapes are apart: the doublings of pixels, and twice those of all channels, which decide more."""
    apart = [abs(math.log2((left + 1) / (right + 1))) for left, right in zip(one, other, strict=True)]
    return max(apart[::2]) + 2 * sum(apart[1::2])


def likely(name: str, options: Iterable[Option]) -> list[Option]:
    """Return the options that were fastest for the shapes nearest to a call's; all of them where none is near."""
    given, own = list(options), sizes(name)
    known = table()["calls"].get(NUMBER.sub("#", name), []) if own else []
    near = sorted((doublings(own, other), tiles) for other, tiles in known)[:NEAREST]
    wanted = {table()["tiles"][tile] for apart, tiles in near if apart < FAR for tile in tiles}
    return [option for option in given if repr(option) in wanted] or given

"""Make the table of tiles that builds begin with, of the tuner's files of a GPU.

python -m tests.benchmarks.tile_table ~/.cache/unet-ladder/NVIDIA_H100*.json
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.compiler.tuning.tile_table import NUMBER, TABLE, sizes

KEPT, WITHIN = 2, 1.03  # tiles of a call, and how much of the fastest one's time they may take


def table_of(files: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the fastest tiles of each call that had several."""
    tiles: dict[str, int] = {}
    calls: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for choices in files:
        for name, entry in choices.items():
            tried = {tile: took for tile, took in entry.get("tried_ms", {}).items() if "Tile(" in tile}
            if len(tried) > 1 and sizes(name):
                fast = [
                    tile for tile in sorted(tried, key=tried.__getitem__) if tried[tile] <= WITHIN * min(tried.values())
                ]
                numbers = [tiles.setdefault(tile, len(tiles)) for tile in fast[:KEPT]]
                calls.setdefault(NUMBER.sub("#", name), {})[tuple(sizes(name))] = numbers
    return {"tiles": list(tiles), "calls": {kind: [*map(list, shapes.items())] for kind, shapes in calls.items()}}


if __name__ == "__main__":
    made = table_of(json.loads(Path(file).read_text(encoding="utf-8")) for file in sys.argv[1:])
    TABLE.write_text(json.dumps(made, separators=(",", ":")).replace('],"', '],\n"') + "\n", encoding="utf-8")
    sys.stdout.write(f"{TABLE.name}: {sum(map(len, made['calls'].values()))} shapes of {len(made['calls'])} kinds\n")

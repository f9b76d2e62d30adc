"""The project's kernels; each layer goes to the first that accepts it. To add a kernel, add it to `KERNELS`."""

import json
from dataclasses import asdict

from pipeline.kernels import (
    conv1x1,
    conv3x3,
    conv3x3_grouped,
    conv_by_slice,
    conv_first,
    conv_head,
    depthwise,
    few_channels,
    norm_pass,
    polyphase,
    upconv2x2,
    upsample2x,
)
from pipeline.kernels.common.kernel_op import KernelOp, Tile

ANNOTATION = "layer:"  # begins the name of a layer's range in a profile
KERNELS: tuple[KernelOp, ...] = (
    conv3x3.OP, conv3x3.VALID_OP, conv3x3.DILATED_OP, conv3x3_grouped.OP, conv3x3.VOLUME_OP, conv_by_slice.OP,
    conv3x3.WIDE_VOLUME_OP, conv_by_slice.FIRST_OP, conv_by_slice.STRIDED_OP, conv_by_slice.TRANSPOSED_OP,
    conv_first.OP, conv_first.STRIDED_OP, conv_first.VOLUME_OP, few_channels.OP, depthwise.OP, depthwise.DILATED_OP,
    depthwise.STRIDED_OP, upconv2x2.OP, upconv2x2.VOLUME_OP, polyphase.STRIDED, polyphase.STRIDED_4X4,
    conv3x3_grouped.STRIDED_OP, polyphase.STRIDED_VOLUMES, polyphase.STRIDED_IN_SLICES, polyphase.TRANSPOSED_3X3,
    few_channels.TRANSPOSED_OP, polyphase.TRANSPOSED_4X4, polyphase.UPSAMPLED, conv1x1.OP, conv1x1.GATED_OP,
    conv1x1.STRIDED_OP, upsample2x.OP, upsample2x.ALIGNED_OP, conv_head.OP,
)  # fmt: skip
BY_NAME = {op.name: op for op in KERNELS}
TILES: dict[str, type[Tile]] = {tile.kernel: tile for op in KERNELS for tile in op.tile_types}
TILES["norm_pass"] = norm_pass.Tile


def tile_text(tile: Tile) -> str:
    """Return a tile as the text that a graph carries: its kernel's name and its fields, as JSON."""
    return json.dumps({"kernel": tile.kernel, **asdict(tile)})


def tile_of(text: str) -> Tile:
    """Return the tile that `tile_text` gave a text for; raise ValueError if no kernel has such a tile."""
    try:
        fields = json.loads(text)
        kind = TILES[fields.pop("kernel")]
        # An earlier version's tile may have more fields, which never changed the answer.
        return kind(**{name: value for name, value in fields.items() if name in kind.__dataclass_fields__})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{text}: no tile of this version's kernels") from None

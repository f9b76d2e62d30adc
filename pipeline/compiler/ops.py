"""The project's kernels; each layer goes to the first that accepts it. To add a kernel, add its line."""

import json
from dataclasses import asdict

from pipeline.kernels import (
    conv1x1,
    conv1x1_strided,
    conv3x3,
    conv3x3_few,
    conv3x3x3,
    conv_by_slice,
    conv_first,
    conv_first_volumes,
    conv_head,
    depthwise,
    norm_pass,
    transposed3x3_few,
    upconv2x2,
    upconv2x2x2,
    upsample2x,
)
from pipeline.kernels.common.kernel_op import KernelOp, Tile
from pipeline.kernels.conv3x3 import conv3x3_dilated, conv3x3_grouped
from pipeline.kernels.polyphase import grouped_strided, polyphase_layers

ANNOTATION = "layer:"  # begins the name of a layer's range in a profile
KERNELS: tuple[KernelOp, ...] = (
    conv3x3.OP,
    conv3x3_dilated.OP,
    conv3x3_grouped.OP,
    conv3x3x3.OP,
    conv_by_slice.OP,
    conv_by_slice.FIRST_OP,
    conv_by_slice.STRIDED_OP,
    conv_by_slice.TRANSPOSED_OP,
    conv_first.OP,
    conv_first.STRIDED_OP,
    conv_first_volumes.OP,
    conv3x3_few.OP,
    depthwise.OP,
    depthwise.DILATED_OP,
    depthwise.STRIDED_OP,
    upconv2x2.OP,
    upconv2x2x2.OP,
    polyphase_layers.STRIDED,
    polyphase_layers.STRIDED_4X4,
    grouped_strided.OP,
    polyphase_layers.STRIDED_VOLUMES,
    polyphase_layers.STRIDED_IN_SLICES,
    polyphase_layers.TRANSPOSED_3X3,
    transposed3x3_few.OP,
    polyphase_layers.TRANSPOSED_4X4,
    polyphase_layers.UPSAMPLED,
    conv1x1.OP,
    conv1x1.GATED_OP,
    conv1x1_strided.OP,
    upsample2x.OP,
    upsample2x.ALIGNED_OP,
    conv_head.OP,
)
BY_NAME = {op.name: op for op in KERNELS}
TILES = {tile.__module__.rpartition(".")[2]: tile for op in KERNELS for tile in op.tile_types}
TILES["norm_pass"] = norm_pass.Tile


class UnknownTileError(ValueError):
    """A text that names no tile of this version's kernels."""


def tile_text(tile: Tile) -> str:
    """Return a tile as the text that a graph carries: its kernel's module and its fields, as JSON."""
    return json.dumps({"kernel": type(tile).__module__.rpartition(".")[2], **asdict(tile)})


def tile_of(text: str) -> Tile:
    """Return the tile that `tile_text` gave a text for; raise UnknownTileError if no kernel has such a tile."""
    try:
        fields = json.loads(text)
        return TILES[fields.pop("kernel")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnknownTileError(f"{text}: no tile of this version's kernels") from None

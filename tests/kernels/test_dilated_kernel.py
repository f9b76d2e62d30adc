"""The 3×3 convolution whose taps lie apart, in the interpreter and against torch's own."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import conv3x3
from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from pipeline.kernels.conv3x3 import conv3x3_dilated, conv3x3_triton
from tests.kernels.examples import FP8, HALF, Layer, example, values


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("dilation", [2, 3, 7, 40])
def test_every_tap_reads_its_own_pixel(dilation: int, dtype: torch.dtype) -> None:
    """Of two images, near the border and far beyond it, with all that a layer may have after it."""
    layer = Layer(2, (9, 18), 32, 48, residual=dtype, statistics=True, dilation=dilation)
    made = example(conv3x3_dilated.OP, dtype, layer)
    made.poison()
    made.run(conv3x3_triton.Tile(8, 16, 32, 32, warps=4))
    made.check()


@pytest.mark.parametrize("dilation", [2, 5])
def test_it_is_torch_s_convolution(dilation: int) -> None:
    x, weight = values(2, 16, 9, 7, dtype=torch.float32), values(24, 16, 3, 3, dtype=torch.float32)
    added = values(2, 24, 9, 7, dtype=torch.float32)
    wanted = (functional.conv2d(x, weight, padding=dilation, dilation=dilation) + added).relu()
    ends = Ends(RELU, residual=added, dilation=dilation)
    found = conv3x3_dilated.OP.library(x, LibraryParameters(weight, torch.zeros(24)), ends)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    out = torch.empty(2, 9, 7, 24)
    residual = added.permute(0, 2, 3, 1)
    epilogue = Epilogue(bias=torch.zeros(24), activation=RELU, residual=residual, dilation=dilation)
    conv3x3_dilated.OP.reference(x.permute(0, 2, 3, 1), conv3x3.pack(weight), epilogue, Outputs(out))
    torch.testing.assert_close(out.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)


def test_kernels_whose_taps_share_a_box_refuse_it() -> None:
    made = example(conv3x3.OP, HALF, Layer(1, (8, 16), 32, 48, dilation=2))
    with pytest.raises(ValueError, match=r"^dilation must not be asked of this kernel$"):
        made.run()
    near, far = (example(conv3x3_dilated.OP, HALF, Layer(dilation=apart)) for apart in (1, 2))
    assert near.epilogue.key != far.epilogue.key
    assert {type(tile) for tile in far.candidates()} == {conv3x3_triton.Tile}
    assert replace(far.epilogue, dilation=1).parts == near.epilogue.parts


# Shared memory of compute capabilities 9.0, 8.0 and 12.0, in KiB.
@pytest.mark.parametrize(("room", "hopper"), [(227, True), (163, False), (99, False)])
def test_tiles_have_as_many_stages_as_fit(room: int, hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 channels in fp16, where a stage of the likeliest tile takes 72 KiB and its output 64; none is left out."""
    monkeypatch.setattr(conv3x3_triton, "shared_bytes", lambda _: room * 1024)
    monkeypatch.setattr(conv3x3_triton, "gluon_barred", lambda: None if hopper else "no Hopper")
    tiles = example(conv3x3_dilated.OP, HALF, Layer(1, (8, 16), 64, 64, dilation=2)).candidates()
    assert [(tile.rows, tile.cols) for tile in tiles] == [(16, 32), (16, 16), (8, 16)]
    assert tiles[0].stages == 2
    assert tiles[-1].stages == 3  # 24 KiB a stage
    wide = example(conv3x3_dilated.OP, HALF, Layer(1, (8, 16), 64, 128, statistics=True, dilation=2)).candidates()
    assert len(wide) == 3
    assert {tile.stages for tile in wide} <= {2, 3}

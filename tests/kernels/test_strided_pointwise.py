"""The 1×1 convolution of stride 2 reads every second pixel where it lies."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import conv1x1, conv1x1_strided
from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters
from tests.compiler.nets import image
from tests.compiler.rewriting import distance, layers, lowered, rewritten, rewritten_from
from tests.kernels.examples import FP8, HALF, Layer, example, values


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("size", [(4, 34), (6, 5)], ids=["a row of more than a tile", "an odd width"])
def test_every_tile_stores_every_second_pixel(size: tuple[int, int], dtype: torch.dtype) -> None:
    made = example(conv1x1_strided.OP, dtype, Layer(2, size, 32, 48))
    for tile in made.candidates():
        made.poison()
        made.run(replace(tile, pixels=16, out=16, depth=32))
        made.check()


def test_it_is_torch_s_convolution() -> None:
    x, weight = values(2, 32, 6, 7, dtype=torch.float32), values(16, 32, 1, 1, dtype=torch.float32)
    wanted = functional.conv2d(x, weight, stride=2).relu()
    found = conv1x1_strided.OP.library(x, LibraryParameters(weight, torch.zeros(16)), Ends(RELU))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    out = torch.empty(2, 3, 4, 16)
    epilogue = Epilogue(bias=torch.zeros(16), activation=RELU)
    conv1x1_strided.reference(x.permute(0, 2, 3, 1), conv1x1.pack(weight), epilogue, Outputs(out))
    torch.testing.assert_close(out.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [2, 30, 64, 1000])
def test_no_tile_is_wider_than_a_row_needs(width: int) -> None:
    x, weight = torch.empty(1, 2, 2 * width, 64, device="meta", dtype=HALF), torch.empty(128, 64, device="meta")
    widths = [tile.pixels for tile in conv1x1_strided.candidates(x, weight, Epilogue())]
    assert all(16 <= pixels <= max(16, 2 * width - 1) for pixels in widths)
    assert max(widths) == (16 if width < 16 else 32 if width < 32 else 64 if width == 64 else 128)


def test_rows_that_do_not_follow_each_other_are_refused() -> None:
    made = example(conv1x1_strided.OP, HALF, Layer(2, (5, 8), 32, 48))
    with pytest.raises(ValueError, match=r"^x's pixels must follow each other at one step"):
        made.run()
    residual = replace(made.epilogue, residual=torch.zeros(2, 3, 4, 48).half())
    with pytest.raises(ValueError, match=r"^residual must not be asked"):
        replace(made, epilogue=residual).run()


def test_a_shortcut_is_a_layer_whose_answer_the_block_adds() -> None:
    made = rewritten("strided shortcut")
    found, net, batch = made.net, made.module, made.batch
    assert {layer.name: layer.op.name for layer in layers(found).values()}["short"] == "conv1x1_strided"
    assert found.matched["fold_residual"] == ["last"]
    with torch.no_grad():
        assert distance(lowered(found), batch, net(batch)) < 1e-3
    odd = rewritten_from(net, image(2, 3, 15, 12))
    assert "short" not in [layer.name for layer in layers(odd).values()]

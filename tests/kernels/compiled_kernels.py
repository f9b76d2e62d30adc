"""What `tests.kernels.compiled` launches: of each kernel the forms whose programs differ, on memory of a CPU."""

from dataclasses import replace

import torch

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv1x1, conv3x3, conv_first, conv_head, norm_pass
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv_first.conv_first_gluon import RowsTile
from pipeline.kernels.conv_first.conv_first_gluon import Tile as GatherTile
from pipeline.kernels.norm_pass import Excitation, Norm, excitation
from pipeline.kernels.polyphase import candidates, polyphase, polyphase_triton
from pipeline.kernels.polyphase.polyphase_operands import Operands
from tests.kernels import examples as phases
from tests.kernels.examples import FP8, HALF, Example, Layer, example
from tests.kernels.kinds import KINDS, WIDE, Kind, made_of

# Of the plain kernels those that nothing below compiles, each by its likeliest tile.
PLAIN = ("conv_first", "conv_head", "conv3x3_few", "transposed3x3_few", "upsample2x", "upconv2x2", "conv1x1_strided",
         "conv3x3_dilated", "conv3x3_grouped", "conv3x3_grouped_strided", "depthwise_dilated")  # fmt: skip
SMALL = Layer(size=(32, 32), inner=32, outer=32)
# In fp8, as GPUs have it from 8.9 on: what is read and stored in it, or in one of both alone, and a residual.
IN_FP8 = [
    Kind("conv3x3", "fp8", "fp8", frozenset({"result", "fp8-residual"})),
    Kind("conv3x3_dilated", "fp8", "fp16", frozenset({"result", "statistics"})),
    Kind("conv3x3_grouped", "fp16", "fp8", frozenset({"result", "fp16-residual"})),
    Kind("conv1x1", "fp8", "fp8", frozenset({"result", "fp16-residual"})),
    Kind("upconv2x2", "fp8", "fp16", frozenset({"result"})),
    Kind("conv3x3_strided", "fp8", "fp8", frozenset({"result"})),
    Kind("upsampled_conv3x3", "fp8", "fp16", frozenset({"result", "second", "border"})),
    Kind("transposed3x3_few", "fp8", "fp16", frozenset({"result"})),
    Kind("conv_first", "fp32", "fp8", frozenset({"result"})),
    Kind("depthwise", "fp16", "fp8", frozenset({"result"})),
    Kind("upsample2x", "fp8", "fp8", frozenset({"result"})),
]
# Types of which one is narrower than another: what a tile takes is told by the one that is stored.
MIXED = [
    Kind("conv3x3", "fp8", "fp16", frozenset({"result", "fp8-residual"})),
    Kind("conv3x3", "fp16", "fp8", frozenset({"result", "pooled", "fp8-residual"})),
    Kind("conv3x3", "fp16", "fp32", frozenset({"logits", "fp8-residual"})),
]


def gluon_kernels() -> None:
    """One tile of each kernel whose views reach past a plane, in both types, and one with all parts of an epilogue."""
    leaky, prelu = Activation("leaky_relu", 0.1), Activation("prelu")
    plain = Layer(size=(32, 32), inner=64, outer=64, activation=leaky)
    whole = replace(plain, activation=prelu, pool=True, residual=HALF, statistics=True)
    for name, dtype, layer in (("conv3x3", HALF, plain), ("conv3x3", FP8, whole), ("upconv2x2", FP8, plain)):
        made = example(BY_NAME[name], dtype, layer)
        made = replace(made, epilogue=replace(made.epilogue, early=layer is whole))
        made.run([tile for tile in made.candidates() if "gluon" in tile.kernel][-1])
    compile_volumes()
    compile_polyphase()


def likeliest(kind: Kind, layer: Layer = SMALL) -> Example:
    made = made_of(kind, layer)
    made.run(made.candidates()[0])
    return made


def compile_volumes() -> None:
    """3×3×3 by two slices at a time, which is all that one takes and more; growing, with a stride, and the first."""
    layer = Layer(size=(16, 16), inner=32, outer=32, slices=2, statistics=True)
    made = example(BY_NAME["conv3x3x3"], HALF, layer)
    both = replace(made, weight=conv3x3.stacked(made.weight))
    both.run(both.candidates()[-1])
    grown = example(BY_NAME["upconv2x2x2"], HALF, replace(layer, statistics=False))
    grown.run([tile for tile in grown.candidates() if "gluon" in tile.kernel][-1])
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 32, counts=True, slices=3, step=1), FP8)
    polyphase(strided, [*candidates(strided)][-1])
    first = example(BY_NAME["conv_first_volumes"], HALF, replace(layer, inner=1))
    first.run([tile for tile in first.candidates() if "gluon" in tile.kernel][-1])


def kernels_in_fp8() -> None:
    """The plain kernels' products of fp8, and what stores it; a norm's pass that rounds to it."""
    for kind in IN_FP8:
        likeliest(kind)
    norm_small(torch.zeros(1, 16, 16, 32).half(), FP8)


def plain_kernels() -> None:
    for name in PLAIN:
        likeliest(next(kind for kind in KINDS if kind.op == name))
    for name, slices in (("conv3x3", 1), ("conv3x3x3", 2)):
        made = example(BY_NAME[name], HALF, Layer(size=(32, 32), inner=16, outer=64, slices=slices))
        made.run(made.candidates()[-1])
    small, full = (torch.zeros(1, size, size, 32).half() for size in (16, 32))
    epilogue, taps = Epilogue(bias=torch.zeros(32)), torch.zeros(16, 32, 32).half()
    grown = Operands(epilogue, Outputs(torch.zeros_like(full)), small, taps, full, taps[:9], torch.zeros(3, 3, 32))
    strided, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 32, slices=2))
    halved, _ = phases.operands(phases.Phases(1, (16, 16), 0, 64, 64, counts=True, window=4))
    for operands in (grown, strided, halved):
        polyphase(operands, next(candidates(operands)))
    squeezed = example(BY_NAME["depthwise_strided"], HALF, Layer(size=(32, 32), inner=40, outer=40, statistics=True))
    squeezed.run()
    layers = Excitation(taps[0, :4], torch.zeros(4), taps[1, :4], torch.zeros(32), Activation("silu"), "sigmoid")
    excitation(torch.zeros(1, blocks_of(16, 16), 2, 32), (16, 16), 1, layers)
    gate = SecondSource(torch.zeros(1, 1, 1, 32).half())
    conv1x1.gated_conv1x1(small, taps[0], epilogue, Outputs(torch.zeros_like(small)), gate)
    norm_small(small)
    norm_and_head()
    norm_groups()


def products_of_boxes() -> None:
    """The plain kernels that Hopper has beside the Gluon ones, or alone, in whose products boxes of pixels are."""
    for name in ("conv3x3_dilated", "conv3x3_grouped", "upconv2x2", "gated_conv1x1"):
        made = made_of(next(kind for kind in KINDS if kind.op == name), replace(WIDE, inner=80, outer=208))
        made.run([tile for tile in made.candidates() if "gluon" not in tile.kernel][-1])
    masked, _ = phases.operands(phases.Phases(1, (16, 16), 0, 80, 80), FP8)
    polyphase(masked, next(polyphase_triton.candidates(masked)))


def norm_small(x: torch.Tensor, stored: torch.dtype = HALF) -> None:
    scale = 0.5 if stored == FP8 else 1.0
    how = norm_pass.NormPass(Norm(torch.zeros(32), torch.zeros(32), 1e-5), Activation("leaky_relu", 0.1), scale)
    norm_pass.norm_pass(x, torch.zeros(1, blocks_of(16, 16), 2, 32), how, torch.zeros_like(x, dtype=stored))


def norm_and_head() -> None:
    """A pass that makes the logits of three classes of 32 channels, and merges its statistics."""
    how = norm_pass.NormPass(Norm(eps=1e-5), head=Head(torch.zeros(3, 32), torch.zeros(3)))
    x, counted = torch.zeros(1, 16, 16, 32).half(), torch.zeros(1, blocks_of(16, 16), 2, 32)
    norm_pass.norm_pass(x, counted, how, torch.zeros(1, 3, 16, 16))


def norm_groups() -> None:
    """A pass that merges groups' statistics, and one before which they are merged: in bands, of the widest groups."""
    for size, group_width, tile in ((16, 8, norm_pass.Tile(4096, 4, True)), (384, 64, norm_pass.Tile(4096, 4, False))):
        x, norm = torch.zeros(1, size, size, 64).half(), Norm(eps=1e-5, group_width=group_width)
        how = norm_pass.NormPass(norm, Activation("silu"))
        norm_pass.norm_pass(x, torch.zeros(1, blocks_of(size, size), 2, 64), how, torch.zeros_like(x), tile)


def compile_polyphase() -> None:
    """Up-sampling with a skip, corrections at the border and sums, in fp8; and plainly, a stride of 2."""
    bias, half = torch.zeros(32), torch.float16
    epilogue = Epilogue(scale=bias, bias=bias, activation=Activation("silu"))
    sums = replace(epilogue, statistics=True, phases=2)
    small, full, out = (torch.zeros(1, size, size, 32).to(torch.float8_e4m3fn) for size in (16, 32, 32))
    taps = torch.zeros(16, 32, 32).to(torch.float8_e4m3fn)
    counted = Outputs(out, statistics=torch.zeros(1, blocks_of(32, 32, 2), 2, 32))
    up = Operands(sums, counted, small, taps, full, taps[:9], torch.zeros(3, 3, 32))
    strided = Operands(epilogue, Outputs(small.to(half)), full=full.to(half), full_weight=taps[:9].to(half))
    for operands in (up._replace(epilogue=replace(sums, early=True)), strided):
        tiles = [*candidates(operands)]
        polyphase(operands, tiles[0])
        polyphase(operands, tiles[-1])


def from_registers() -> None:
    """The kernels that feed their products from registers; rows come by shared memory where Triton builds that."""
    by_slots = conv3x3_narrow.Tile(16, 4, 2, slots=4 if reaching_views_barred() is None else 0)
    for inner, outer, dtype, tile in ((24, 16, HALF, by_slots), (32, 32, FP8, conv3x3_narrow.Tile(16))):
        x, weight = torch.zeros(1, 32, 32, inner).to(dtype), torch.zeros(9, outer, inner).to(dtype)
        epilogue, out = Epilogue(bias=torch.zeros(outer)), Outputs(torch.zeros(1, 32, 32, outer).to(dtype))
        conv3x3.conv3x3(x, weight, epilogue, out, tile)
    x, weight = torch.zeros(1, 32, 32, 16).half(), torch.zeros(9, 3, 16).half()
    conv_head.conv_head(x, weight, Epilogue(bias=torch.zeros(3)), Outputs(logits=torch.zeros(1, 3, 32, 32)))
    counts = Epilogue(bias=torch.zeros(32), statistics=True)
    image, weight = torch.zeros(1, 3, 32, 32), conv_first.pack(torch.zeros(32, 3, 7, 7))
    small = Outputs(torch.zeros(1, 16, 16, 32).half(), statistics=torch.zeros(1, blocks_of(16, 16), 2, 32))
    conv_first.conv_first(image, weight, counts, small, GatherTile(8))
    weight, whole = conv_first.pack(torch.zeros(32, 3, 3, 3)), Outputs(torch.zeros(1, 32, 32, 32).half())
    conv_first.conv_first(image, weight, Epilogue(bias=torch.zeros(32)), whole, RowsTile(16, 4, 1))
    x, weight = torch.zeros(1, 32, 32, 32).half(), torch.zeros(9, 32, 32).half()
    beside = Outputs(torch.zeros(1, 32, 32, 32).half(), statistics=torch.zeros(1, blocks_of(32, 32), 2, 32))
    conv3x3.conv3x3(x, weight, replace(counts, residual=x), beside, conv3x3_narrow.Tile(16, 4, 2, 3))
    how, counted = norm_pass.NormPass(Norm(eps=1e-5), Activation("relu")), beside.statistics
    operands = conv3x3_triton.Operands(x, weight, replace(counts, residual=x), beside)
    assert counted is not None
    conv3x3.normed_conv3x3(operands, counted, how, by_slots)
    norm_small(x[:, :16, :16].contiguous())
    norm_and_head()
    norm_groups()

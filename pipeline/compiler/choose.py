"""Chooses for each operation the fastest of its kernel's tiles and the library, measured on real values."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from pipeline.compiler.autotune import NothingRunsError, Tuner
from pipeline.compiler.kernel_layer import Backend, Choice, KernelLayer
from pipeline.compiler.lowering import Program
from pipeline.compiler.steps import KernelStep, Values
from pipeline.kernels.common.epilogue import Outputs

# How far from its reference a layer's answer may be (relative L2). Right ones are at most 2e-3 off on an H200, where
# another order of sums rounds to another fp8 value; a tile that is wrong misplaces whole boxes.
RIGHT = 2e-2


def choose(program: Program, image: Tensor, tuner: Tuner) -> dict[str, Choice]:
    """The choice for every kernel's operation, by its name; the program is left as it was.

    Args:
        program: walked through once, each operation on the values that the one before it gave; made without choices.
        image: a batch [batch, channels, height, width] as the user gives it.
        tuner: measures, and remembers on disk.

    Raises:
        NothingRunsError: an operation has no candidate that runs and is right.
    """
    values: Values = {program.graph.input: image}
    chosen: dict[str, Choice] = {}
    for step in program.steps:
        if not isinstance(step, KernelStep):
            step(values)
            continue
        x = step.read(values)
        outputs = program.memory.outputs(values, step.node)
        chosen[step.node.name] = select(step.layer, key(step.layer, x, outputs), x, outputs, tuner)
    return chosen


def select(layer: KernelLayer, name: str, x: Tensor, outputs: Outputs, tuner: Tuner) -> Choice:
    """The fastest candidate that is right for x [N, channels, H, W]; its answer is left in `outputs`.

    Raises:
        NothingRunsError: there is none.
    """
    options = list(layer.candidates(x, outputs))
    signed = with_random_signs(x)
    while options:
        choice = tuner.best(name, options, partial(layer.run, x, outputs))
        layer.run(signed, outputs, choice)
        if is_right(layer, signed, outputs):
            layer.run(x, outputs, choice)
            return choice
        options.remove(choice)
    raise NothingRunsError(f"{name}: no candidate gives the reference's answer")


def with_random_signs(x: Tensor) -> Tensor:
    """Values of the size and layout of x, of any shape and of either sign: what a tile is checked on.

    After a ReLU all values have one sign, and an fp8 product on Hopper, which keeps some 13 bits of its sums, is then
    off by more than a tile that is right may be.
    """
    signs = torch.randint(0, 2, x.shape, dtype=torch.int8, device=x.device) * 2 - 1
    signed = torch.empty_like(x)
    return signed.copy_(x.float() * signs)


def is_right(layer: KernelLayer, x: Tensor, outputs: Outputs) -> bool:
    """Whether the last image's part of each output is what the reference gives for x [N, channels, H, W]."""
    got = {name: part[-1:] for name, part in outputs.given.items()}
    want = {name: torch.empty_like(part) for name, part in got.items()}
    with untimed_library():
        layer.run(x[-1:], Outputs(**want), Backend.REFERENCE)
    return all(near(part, want[name]) for name, part in got.items())


@contextmanager
def untimed_library() -> Iterator[None]:
    """CuDNN times no algorithms within: for what runs once there is nothing to gain."""
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark


def near(got: Tensor, want: Tensor) -> bool:
    """Whether two tensors of one shape agree where the second is finite, and neither is finite where it isn't."""
    got, want = got.float(), want.float()
    finite = want.isfinite()
    if not torch.equal(finite, got.isfinite()):
        return False
    got, want = got.where(finite, 0.0), want.where(finite, 0.0)
    return bool((got - want).norm() <= RIGHT * want.norm())


def key(layer: KernelLayer, x: Tensor, outputs: Outputs) -> str:
    """What makes two operations the same for the tuner: kernel, x [N, channels, H, W], outputs, epilogue."""
    parts = [f"{name} {_layout(part)}" for name, part in outputs.given.items()]
    return f"{layer.op.name}: x {_layout(x)}; {'; '.join(parts)}; {layer.epilogue.key}"


def _layout(value: Tensor) -> str:
    return f"{list(value.shape)} {list(value.stride())} {str(value.dtype).removeprefix('torch.')}"


def describe(chosen: Mapping[str, Choice]) -> dict[str, str]:
    """The choices in words, for the record."""
    return {name: str(choice) for name, choice in chosen.items()}


def with_choices(program: Program, chosen: Mapping[str, Choice]) -> Program:
    """The same program, its operations run as chosen; weights are packed again."""
    return Program(program.graph, program.precision, program.device, chosen)

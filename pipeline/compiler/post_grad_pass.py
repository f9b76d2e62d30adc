"""The kernels in a plain `torch.compile(net)`: a pass over the graph that Inductor compiles.

    from pipeline.compiler.post_grad_pass import kernels_in_torch_compile
    kernels_in_torch_compile()
    compiled = torch.compile(net.half().to(memory_format=torch.channels_last).eval())

It takes convolutions of images that a kernel takes (`pipeline.compiler.ops`): on an NVIDIA GPU, in fp16 and
channels_last, of shapes that don't vary, channels in multiples of 8 but for the few of an image. That is 3×3, dilated
and in groups, 1×1, those of a stride of 2, depthwise, transposed, and the first one, on the image. With one goes what
its epilogue does and nobody else reads: factors and shifts for each channel, such as a batch norm's in eval mode, a
value that is added, and an activation, also one that torch has taken apart.

All else is Inductor's as before. Where a graph has convolutions and none is taken, a warning says why, once; else the
logger of this module's name says at INFO what was put in and what was left. A graph from torch's cache was told when it
was compiled.

Weights are a graph's inputs, so what is made of them is made at each call: a view where the layout is channels_last,
for few kernels a copy, if it is small beside its layer's work (`post_grad_choice.is_small`), and of each batch norm two
vectors, in one small kernel. Folding batch norms first spares that. The graphs of a training step are rewritten alike,
forwards. AOTInductor's are left alone, as a package must run where nobody knows the operations. A stage does more with
a whole net (`pipeline.stages.fused`): this pass sees it after its operations were taken apart.
"""

import logging
import warnings
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.virtualized import V

import pipeline.kernels
from pipeline.compiler.fx_graph import calls
from pipeline.compiler.post_grad_call import replace_convolution
from pipeline.compiler.post_grad_choice import TAKERS, Choice, can_read, choice_of, why_not_on
from pipeline.compiler.post_grad_ends import ends_of

CONVOLUTION = "aten.convolution.default"
LOGGER = logging.getLogger(__name__)
# What the calls that it writes are made of: the compiler's room, and the kernels, which pack and say what they take.
SOURCES = tuple(
    str(path)
    for folder in (Path(__file__).parent, Path(str(pipeline.kernels.__file__)).parent)
    for path in sorted(folder.rglob("*.py"))
)


def kernels_in_torch_compile(wanted: bool = True, *, leave: Collection[str] = ()) -> None:
    """Have every later compilation use the kernels, or no longer: a switch of Inductor's configuration.

    From torch 2.12 on that is of the thread that sets it. A compiled net is compiled where it is first called.

    Args:
        wanted: whether to use them.
        leave: kernels that are to be left out, by their names in `pipeline.compiler.ops`, such as "conv1x1".

    Raises:
        RuntimeError: another pass has that place already.
        ValueError: it takes no such kernel.
    """
    config: Any = torch._inductor.config
    there = config.post_grad_custom_pre_pass
    if there is not None and not isinstance(there, Convolutions):
        raise RuntimeError(f"Inductor's post_grad_custom_pre_pass is {there} already")
    config.post_grad_custom_pre_pass = Convolutions(leave=leave) if wanted else None


class Convolutions(CustomGraphPass):
    """Puts a kernel's operation in the place of each convolution that one takes.

    Attributes:
        anywhere: whether also on a device without the kernels, where the operations compute by their references.
        leave: the kernels that are left out.
    """

    def __init__(self, *, anywhere: bool = False, leave: Collection[str] = ()) -> None:
        self.anywhere, self.leave = anywhere, frozenset([leave] if isinstance(leave, str) else leave)
        if unknown := sorted(self.leave - {op.name for op in TAKERS}):
            names = ", ".join(op.name for op in TAKERS)
            raise ValueError(f"{', '.join(unknown)}: no kernel that the pass takes; leave any of {names}")

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a functional graph of ATen operations in place."""
        if V.aot_compilation:
            return
        taken: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for conv in calls(graph, CONVOLUTION):
            choice = self._choice(conv)
            if isinstance(choice, Choice):
                replace_convolution(conv, choice, ends_of(conv, choice.op, partial(can_read, choice.op)))
                taken[choice.op.name] += 1
            else:
                left[choice] += 1
        tell(taken, left)

    def _choice(self, conv: fx.Node) -> Choice | str:
        """The kernel for a convolution; where there is none, why."""
        barred = None if self.anywhere else why_not_on(conv.meta["val"].device)
        return barred or choice_of(conv, self.leave)

    def uuid(self) -> bytes:
        """What Inductor's cache knows this pass by: its sources, where it puts the operations, and which it doesn't."""
        return bytes(get_hash_for_files(SOURCES, extra=f"anywhere: {self.anywhere}, leave: {sorted(self.leave)}"))


def tell(taken: Counter[str], left: Counter[str]) -> None:
    """Say how many of a graph's convolutions went to which kernels, and why others didn't; warn where none did."""
    reasons = "; ".join(f"{count} {why}" for why, count in left.most_common())
    if left and not taken:
        text = f"kernels_in_torch_compile(): all {left.total()} convolutions of a graph stay with Inductor: {reasons}"
        warnings.warn(text, stacklevel=2)
    elif taken:
        kinds = ", ".join(f"{count} {name}" for name, count in taken.most_common())
        rest = f"; with Inductor: {reasons}" if left else ""
        LOGGER.info("%d of %d convolutions: %s%s", taken.total(), (taken + left).total(), kinds, rest)

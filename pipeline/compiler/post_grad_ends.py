"""What follows a convolution in the graph that Inductor compiles, as far as its kernel's epilogue can do it.

That is, in this order and nothing read by anybody else: factors and shifts for each channel, of which batch norms in
eval mode consist once they are taken apart; another value that is added; an activation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, fx

from pipeline.compiler.decomposed_activations import SUMMED, activation_of, readers, uncast
from pipeline.compiler.fx_graph import ADDITION, MULTIPLICATION, is_call
from pipeline.compiler.passes.kernel_folding import gains_by_adding
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.kernel_op import KernelOp

SUBTRACTION = "aten.sub.Tensor"


@dataclass(frozen=True)
class Ends:
    """A part of a graph that becomes one operation.

    Attributes:
        value: the last of its values without a cast, perhaps fp32.
        last: the last of its values in fp16, which the operation gives.
        factors: of each channel, in order: the operation, and a vector that broadcasts over images.
        residual: what is added before the activation, as large as the answer.
        activation: the last.
        slopes: of the activation, a vector as the factors.
    """

    value: fx.Node
    last: fx.Node
    factors: tuple[tuple[str, fx.Node], ...] = field(default=())
    residual: fx.Node | None = None
    activation: Activation = NONE
    slopes: fx.Node | None = None


def ends_of(conv: fx.Node, op: KernelOp, can_read: Callable[[Tensor], bool]) -> Ends:
    """All that the epilogue of a convolution's kernel takes over; the longest part that ends in fp16.

    Args:
        conv: the convolution.
        op: its kernel.
        can_read: whether the kernel reads a value [N, out, H, W] as it is laid out.
    """
    kept = ends = Ends(conv, conv)
    weight = conv.all_input_nodes[1].meta["val"].shape
    adds = gains_by_adding(op, weight)
    while True:
        grown = _with_factor(ends) or (_with_residual(ends, can_read) if adds else None) or _with_activation(ends, op)
        if grown is None:
            return kept
        ends, half = grown, _in_half(grown.value)
        if half is not None:
            kept = replace(ends, last=half)


def _in_half(value: fx.Node) -> fx.Node | None:
    """Where a value is in fp16: itself, or the cast that alone reads it."""
    if value.meta["val"].dtype == SUMMED[0]:
        return value
    user = next(iter(value.users), None)
    alone = len(value.users) == 1 and user is not None and uncast(user) is not user
    return user if alone and user is not None and user.meta["val"].dtype == SUMMED[0] else None


def _operand(ends: Ends, *names: str) -> tuple[fx.Node, fx.Node] | None:
    """The one operation that reads a value, where it is one of these, and the other value that it reads."""
    found = readers(ends.value)
    node = next(iter(found), None)
    if len(found) != 1 or not is_call(node, *names) or node is None or node.kwargs or len(node.args) != 2:
        return None
    if ends.activation != NONE or node.meta["val"].dtype not in SUMMED:
        return None
    ours = [isinstance(part, fx.Node) and uncast(part) is ends.value for part in node.args]
    other = node.args[0 if ours[1] else 1]
    backwards = is_call(node, SUBTRACTION) and ours[1]
    return (node, other) if sum(ours) == 1 and isinstance(other, fx.Node) and not backwards else None


def _with_factor(ends: Ends) -> Ends | None:
    """With one more factor or shift of each channel."""
    found = _operand(ends, ADDITION, SUBTRACTION, MULTIPLICATION)
    if found is None or ends.residual is not None or not is_by_channel(found[1], ends.value):
        return None
    node, vector = found
    return replace(ends, value=node, factors=(*ends.factors, (str(node.target), vector)))


def is_by_channel(vector: fx.Node, value: fx.Node) -> bool:
    """Whether a value has one number for each channel of another [N, channels, H, W], and broadcasts to it."""
    given, channels = vector.meta["val"], value.meta["val"].shape[1]
    shape = (1,) * (4 - given.ndim) + tuple(given.shape)
    return _is_readable(vector, value) and shape == (1, channels, 1, 1)


def _is_readable(vector: fx.Node, value: fx.Node) -> bool:
    """Whether a kernel that makes a value reads these numbers; one without axes may lie on the CPU beside it."""
    given = vector.meta["val"]
    return given.dtype in SUMMED and given.device == value.meta["val"].device


def _with_residual(ends: Ends, can_read: Callable[[Tensor], bool]) -> Ends | None:
    """With a value that is added."""
    found = _operand(ends, ADDITION)
    if found is None or ends.residual is not None:
        return None
    node, other = found[0], next((part for part in (found[1], uncast(found[1])) if _is_half(part)), None)
    if other is None or other.meta["val"].shape != ends.value.meta["val"].shape or not can_read(other.meta["val"]):
        return None
    return replace(ends, value=node, residual=other)


def _is_half(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype == SUMMED[0])


def _with_activation(ends: Ends, op: KernelOp) -> Ends | None:
    """With an activation."""
    found = None if ends.activation != NONE else activation_of(ends.value)
    if found is None:
        return None
    if found.slopes is not None and ("slopes" not in op.folds or not _are_slopes(found.slopes, ends.value)):
        return None
    return replace(ends, value=found.answer, activation=found.activation, slopes=found.slopes)


def _are_slopes(vector: fx.Node, value: fx.Node) -> bool:
    """Whether a value has one number for each channel, or one for all."""
    return is_by_channel(vector, value) or (vector.meta["val"].numel() == 1 and _is_readable(vector, value))

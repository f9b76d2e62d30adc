"""What a net's layers are, by which path each is known, and whose an exported graph's node is.

A module may have several paths: nnU-Net's convolutions are `conv` and `all_modules.0`. torch.export tells the one by
which a module was called, `named_modules` the first, and all that is said of a layer uses that.
"""

import re

from torch import fx, nn
from torch.nn.modules.conv import _ConvNd

# One layer each, whatever modules a subclass puts inside: its padding, say.
WHOLE = (_ConvNd, nn.Linear, nn.MultiheadAttention)
MATRIX_OPERATORS = re.compile(
    r"aten\.(conv\d?d?|convolution|conv_transpose\d?d?|linear|mm|addmm|bmm|baddbmm|matmul|einsum)\."
)
STACK = "nn_module_stack"


def layers(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that are work of their own, with their paths; a net that is one itself has the path "".

    Those without modules of their own, and torch's layers, whose insides are none.
    """
    found, inside = [], set[int]()
    for name, part in net.named_modules():
        whole = isinstance(part, WHOLE)
        if id(part) not in inside and (whole or not list(part.children())):
            found.append((name, part))
        inside |= {id(inner) for inner in part.modules() if inner is not part} if whole else set()
    return found


def name_by_first_paths(graph: fx.Graph, net: nn.Module, within: str = "") -> None:
    """Let an exported graph's nodes tell their modules by the first of the paths that each has in the net.

    Args:
        graph: of torch.export.
        net: whose layers they are.
        within: the path of the net in the module that was exported, which is left out.
    """
    first = {id(module): path for path, module in net.named_modules()}
    known = {path: first[id(module)] for path, module in net.named_modules(remove_duplicate=False)}
    for node in graph.nodes:
        if stack := node.meta.get(STACK):
            node.meta[STACK] = {key: (_renamed(path, known, within), kind) for key, (path, kind) in stack.items()}


def _renamed(path: str, known: dict[str, str], within: str) -> str:
    """A path that torch.export tells, such as `net.encoder.all_modules.0@1`, as the net's own."""
    path = path.split("@", maxsplit=1)[0]  # @1: of a module's second call
    if within and f"{path}.".startswith(f"{within}."):
        path = path[len(within) + 1 :]
    return known.get(path, path)


def module_of(node: fx.Node) -> str:
    """The path of the innermost module that an exported node is from; empty of what lies between modules."""
    stack = list((node.meta.get(STACK) or {}).values())
    return str(stack[-1][0]) if stack else ""


def is_matrix_work(node: fx.Node) -> bool:
    """Whether a node is a convolution or a matrix product; attention that is one operation isn't."""
    return node.op == "call_function" and bool(MATRIX_OPERATORS.match(f"{node.target}."))

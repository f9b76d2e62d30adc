"""What Inductor fused, read from the programs that it wrote."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.records.diagnostics import FusedKernel

KERNEL = re.compile(r"^((?:triton|cpp)_\w+) = async_compile\.\w+\(", re.MULTILINE)
GIVEN = re.compile(r"^#\s+%(?P<name>\w+) : .*= PlaceHolder\[")
COMPUTED = re.compile(r"^#\s+%(?P<name>\w+) : .*= call_function\[target=(?P<target>[\w.]+)\]\(args = \((?P<rest>.*)$")
USED = re.compile(r"%(\w+)")
FUSED_NAME = re.compile(r"^cpp_fused_(?P<operators>\w+?)_\d+$")
MENTIONED = re.compile(r"Original ATen: \[(.*)\]")
# Inductor tiles a pointwise kernel in two dimensions where what it reads and what it writes lie in different orders.
TWO_ORDERS = re.compile(r"size_hints=\{'y'.*'x'|transpose_mxn<")
TEMPLATE = "triton_tem_"
# What a template is written for, or a library called.
COMPUTE_OPERATORS = ("convolution", "mm", "addmm", "bmm", "baddbmm")


@dataclass
class Fragment:
    """The part of the graph that Inductor names above a kernel; it may go back to the net's input."""

    given: set[str] = field(default_factory=set)  # what the kernel reads
    computed: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # name to operator and what it needs

    def own(self, template: bool) -> dict[str, list[str]]:
        """The operators that the kernel itself does, with what each needs, in order.

        The kernel can't be what does an operator if it does not read all that the operator needs. A template does one
        convolution or matmul, with what follows it; what came before it lies in memory. Where a library does one, the
        kernel may make its input ready or add its bias.
        """
        done: dict[str, list[str]] = {}
        for name, (operator, needed) in self.computed.items():
            if template and operator in COMPUTE_OPERATORS:
                done = {}
            elif name in self.given or not self.within(operator, needed, done):
                continue
            done[name] = needed
        return done

    def within(self, operator: str, needed: list[str], done: dict[str, list[str]]) -> bool:
        """Whether all that is needed is at hand; of what a library does, the input or the bias is enough."""
        at_hand = [value in self.given or value in done for value in needed]
        return any(at_hand) if operator in COMPUTE_OPERATORS else all(at_hand)

    def called(self, name: str, done: dict[str, list[str]]) -> str:
        """The operator's name, with a word on what of it is done where a library does the rest."""
        operator, needed = self.computed[name]
        missing = [value not in self.given and value not in done for value in needed]
        if operator not in COMPUTE_OPERATORS or not any(missing):
            return operator
        return f"{operator} ({'its bias' if missing[0] else 'its input made ready'})"


def compile_fusion(programs: list[Path], shown: str) -> list[FusedKernel]:
    """The kernels of Inductor's programs, in order.

    Args:
        programs: the files.
        shown: the folder that the record names them in.
    """
    return [kernel for path in programs for kernel in kernels_of(path.read_text("utf-8"), f"{shown}/{path.name}")]


def kernels_of(program: str, source: str) -> list[FusedKernel]:
    """The kernels that one program defines."""
    operators = {name for line in MENTIONED.findall(program) for name in re.findall(r"\w+\.(\w+)", line)}
    found = []
    *pieces, last = re.split(KERNEL, program)
    for comments, name, body in zip(pieces[0::2], pieces[1::2], [*pieces[2::2], last], strict=True):
        kernel = _described(name, fragment(comments), operators, source)
        changes_layout = bool(TWO_ORDERS.search(body.split("''')")[0].split("''', ")[0]))
        launches = len(re.findall(rf"^\s+{name}(?:\.run)?\(", program, re.MULTILINE))
        found.append(replace(kernel, turns_layout=changes_layout, launches_per_call=launches))
    return found


def fragment(text: str) -> Fragment:
    """The graph's part in the comments that stand before a kernel."""
    found = Fragment()
    for line in text.splitlines():
        if given := GIVEN.match(line):
            found.given.add(given["name"])
        elif computed := COMPUTED.match(line):
            needed = USED.findall(computed["rest"].split("kwargs =")[0])
            found.computed[computed["name"]] = (_short(computed["target"]), needed)
    return found


def _described(name: str, found: Fragment, operators: set[str], source: str) -> FusedKernel:
    if not found.computed:
        named = FUSED_NAME.match(name)
        return FusedKernel(name, _split(named["operators"], operators) if named else [], "unknown", source)
    template = name.startswith(TEMPLATE)
    own = found.own(template)
    called = [found.computed[value][0] if template else found.called(value, own) for value in own]
    return FusedKernel(name, called, direction(own), source)


def _split(joined: str, operators: set[str]) -> list[str]:
    """The operators' names in "max_pool2d_with_indices_relu", given those that the program mentions."""
    longest = "|".join(re.escape(name) for name in sorted(operators, key=len, reverse=True))
    return [part for part in re.split(rf"_?({longest})_?", joined) if part] if longest else [joined]


def direction(own: dict[str, list[str]]) -> str:
    """How operators hang together: "vertical", each feeds another; "horizontal", none does; "both"; or "single"."""
    if len(own) < 2:
        return "single"
    links = [(name, value) for name, needed in own.items() for value in needed if value in own]
    groups = {name: name for name in own}
    for name, value in links:
        kept, gone = groups[name], groups[value]
        groups = {each: kept if group == gone else group for each, group in groups.items()}
    if len(set(groups.values())) == 1:
        return "vertical"
    return "both" if links else "horizontal"


def _short(target: str) -> str:
    """The operator's name without its namespace and overload: "relu" of "torch.ops.aten.relu.default"."""
    parts = target.removeprefix("torch.ops.").split(".")
    return parts[1] if len(parts) > 1 else parts[0]

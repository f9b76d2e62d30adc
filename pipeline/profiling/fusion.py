"""The kernels that a stage launches, the bytes that it moves, and what Inductor fused by the programs that it wrote."""

import re
from dataclasses import dataclass, field, replace
from typing import get_args

from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.errors import first_line, shortened
from pipeline.profiling.operators import counted
from pipeline.profiling.profiler import grouped
from pipeline.records.chrome_trace import TraceEvent, nested, of
from pipeline.records.diagnostics import BytesSource, FusedKernel, Fusion, LayoutChange, PlaceKind
from pipeline.stages.api import Runner, Traffic
from pipeline.stages.common.inductor import KEPT, graphs, programs

UNSEEN = "its operators don't pass torch's dispatcher"


def fusion(runner: Runner, batch: Batch | Tensor, events: list[TraceEvent], calls: int, shown: str) -> Fusion:
    """Return the kernels and bytes of one call, and what a compiler fused."""
    work = len(of(events, "kernel")) if batch.is_cuda else sum(operator.innermost for operator in nested(events))
    moved, source, unknown = traffic(runner, batch)
    cache, kept = runner.generated_code, f"{shown}/{KEPT}"
    found = programs(cache) if cache else []
    return Fusion(
        kernels_per_call=work / calls,
        bytes_per_call=moved,
        bytes_source=source,
        bytes_unknown=unknown,
        kernels=[kernel for path in found for kernel in kernels_of(path.read_text("utf-8"), f"{kept}/{path.name}")],
        graphs=[f"{kept}/{path.name}" for path in graphs(cache)] if cache else [],
    )


def traffic(runner: Runner, batch: Batch | Tensor) -> tuple[int | None, BytesSource | None, str]:
    """Return the bytes that one call on a batch [batch, ...] moves and their source, or the reason why not."""
    try:
        found: Traffic | None
        found = runner.traffic(batch) if runner.traffic else (counted(runner.one_by_one, batch), "operators")
    except RuntimeError as error:
        return None, None, f"torch's dispatcher can't count it ({first_line(error)})"
    if not found:
        return None, None, UNSEEN
    if [*map(type, found)] != [int, str] or found[1] not in get_args(BytesSource):
        return None, None, shortened(f"Runner.traffic gave {found!r}; bytes and who counted them are wanted")
    return (*found, "") if found[0] else (None, None, UNSEEN)


def compiled_layout_changes(
    found: Fusion, events: list[TraceEvent], calls: int, spots: dict[int, str]
) -> list[LayoutChange]:
    """Return the kernels of a compiler that read one layout and write the other, with their times."""
    work = of(events, "kernel") or of(events, "cpu_op")  # on a GPU the operator of that name is the launch
    changes = []
    for kernel in [kernel for kernel in found.kernels if kernel.turns_layout]:
        ran = [event for event in work if event.name == kernel.name]
        at = grouped((spots.get(event.index, ""), event.duration_us / 1e6) for event in ran)
        if ran and "" not in at:
            changes += [
                LayoutChange(kernel.name, spot, "generated code", len(times) / calls, sum(times) / calls, "gap")
                for spot, times in at.items()
            ]
            continue
        seconds = sum(sum(times) for times in at.values()) / calls if ran else None
        where, times_per_call = ", ".join(kernel.operators) or None, float(kernel.launches_per_call)
        kind: PlaceKind | None = "operators" if where else None
        changes.append(LayoutChange(kernel.name, where, "generated code", times_per_call, seconds, kind))
    return sorted(changes, key=lambda change: -(change.seconds_per_call or 0.0))


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
    """The part of the graph that Inductor names above a kernel; it may go back to the network's input."""

    given: set[str] = field(default_factory=set)  # what the kernel reads
    computed: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # name to operator and what it needs

    def own(self, template: bool) -> dict[str, list[str]]:
        """Return the operators that the kernel itself does, with what each needs, in order."""
        # A kernel that doesn't read all that an operator needs can't be what does it. A template does one convolution
        # or matmul, with what follows it. Where a library does one, the kernel may make its input ready or add its
        # bias.
        done: dict[str, list[str]] = {}
        for name, (operator, needed) in self.computed.items():
            if template and operator in COMPUTE_OPERATORS:
                done = {}
            elif name in self.given or not self.within(operator, needed, done):
                continue
            done[name] = needed
        return done

    def within(self, operator: str, needed: list[str], done: dict[str, list[str]]) -> bool:
        """Return whether all that is needed is at hand; for a library's operator the input or the bias is enough."""
        at_hand = [value in self.given or value in done for value in needed]
        return any(at_hand) if operator in COMPUTE_OPERATORS else all(at_hand)

    def called(self, name: str, done: dict[str, list[str]]) -> str:
        """Return the operator's name, and which part of it the kernel does if a library does the rest."""
        operator, needed = self.computed[name]
        missing = [value not in self.given and value not in done for value in needed]
        if operator not in COMPUTE_OPERATORS or not any(missing):
            return operator
        return f"{operator} ({'its bias' if missing[0] else 'its input made ready'})"


def kernels_of(program: str, source: str) -> list[FusedKernel]:
    """Return the kernels that one program defines."""
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
    """Return the part of the graph in the comments before a kernel."""
    found = Fragment()
    for line in text.splitlines():
        if given := GIVEN.match(line):
            found.given.add(given["name"])
        elif computed := COMPUTED.match(line):
            needed = USED.findall(computed["rest"].split("kwargs =")[0])
            target = computed["target"].removeprefix("torch.ops.").split(".")  # "torch.ops.aten.relu.default"
            found.computed[computed["name"]] = (target[1] if len(target) > 1 else target[0], needed)
    return found


def _described(name: str, found: Fragment, operators: set[str], source: str) -> FusedKernel:
    if not found.computed:  # a name such as "max_pool2d_with_indices_relu", of operators that the program mentions
        named, called = FUSED_NAME.match(name), list[str]()
        if named:
            longest = "|".join(re.escape(each) for each in sorted(operators, key=len, reverse=True))
            joined = named["operators"]
            called = [part for part in re.split(rf"_?({longest})_?", joined) if part] if longest else [joined]
        return FusedKernel(name, called, "unknown", source)
    template = name.startswith(TEMPLATE)
    own = found.own(template)
    called = [found.computed[value][0] if template else found.called(value, own) for value in own]
    return FusedKernel(name, called, direction(own), source)


def direction(own: dict[str, list[str]]) -> str:
    """Return how operators depend: "vertical" (in a chain), "horizontal" (not at all), "both", or "single"."""
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

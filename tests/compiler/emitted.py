"""What a net's layers ask of the kernels, whatever types its values are kept in: kinds of calls, and activations.

python -m tests.compiler.emitted FIRST LAST   what the random nets of these seeds ask for that no example has
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import fp8_groups
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.ops import BY_NAME
from tests.compiler.rewriting import layers
from tests.kernels.kinds import KINDS, TRIED, Kind, kind_of
from tests.random_nets.layers import Draw
from tests.random_nets.net import random_net
from tests.random_nets.trial import rewritten


class _Calls(fx.Interpreter):
    """Runs a lowered graph but for its layers, of which it keeps what their operations are called with."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: list[tuple[str, Tensor, dict[str, Any]]] = []

    def run_node(self, n: fx.Node) -> Any:
        if "layer" not in n.meta:
            return super().run_node(n)
        (x,), given = self.fetch_args_kwargs_from_env(n)
        self.seen.append((n.meta["layer"].op.name, x, dict(given)))
        return None


def plans(net: ExportedNet) -> Iterator[Plan]:
    """Nothing in fp8, all that may be, and all but for each second and each third layer."""
    names = [layer.name for layer in layers(net).values()]
    keeps = [[], *(names[first::step] for step in (2, 3) for first in range(step))]
    scales = [{value.name: 0.5 for group in fp8_groups(net, keep) for value in group} for keep in keeps]
    for known in {tuple(sorted(known)): known for known in [{}, *scales]}.values():
        yield Plan(known)


@torch.no_grad()
def asked(net: ExportedNet, inputs: tuple[Tensor, ...]) -> Iterator[tuple[Kind, str]]:
    """The kinds of a net's layers with their activations, of inputs [batch, ...] of its; nothing is computed."""
    for plan in plans(net):
        walk = _Calls(lower(net, plan))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            walk.run(*map(mode.from_tensor, inputs))
        yield from ((kind_of(BY_NAME[name], x.dtype, given), given["activation"]) for name, x, given in walk.seen)


def main() -> int:
    """Every net of the seeds asked for; a line for each kind and activation that no example has."""
    torch.set_num_threads(1)
    known: set[object] = set()
    for seed in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
        try:
            net, (inputs, _) = random_net(Draw(seed))
            found = set(asked(rewritten(net, inputs, torch.float16), inputs.tensors))
        except Exception as error:  # noqa: BLE001 - torch exports some nets not, or has no form of them in fp16 for a CPU
            sys.stdout.write(f"{seed} {str(error)[:90]!r}\n")
            continue
        fresh = {kind for kind, _ in found} - set(KINDS) | {(kind.op, name) for kind, name in found} - TRIED
        for one in sorted(map(str, fresh - known)):
            sys.stdout.write(f"{seed} {one}\n")
        known |= fresh
        sys.stdout.flush()
    sys.stdout.write(f"{len(known)} without an example\n")
    return int(bool(known))


if __name__ == "__main__":
    sys.exit(main())

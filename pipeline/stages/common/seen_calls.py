"""What a net's code calls, seen in a call of a copy: for a net that torch.fx can't trace."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pipeline.measure.batch import Batch
from pipeline.measure.function_mode import Function, FunctionMode
from pipeline.measure.trial_call import trial, trial_copy

NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)
VALUES = (Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__float__, Tensor.__int__, Tensor.__bool__)


def run_in_order_alone(
    net: nn.Module, blocks: Collection[nn.Module], kinds: tuple[type[nn.Module], ...], inputs: Batch | None
) -> set[nn.Module]:
    """The layers that run where a Sequential of theirs is called whole, and nowhere else; nothing else reads them.

    A net may also call a Sequential's layers one by one, and keep what one of them answers. What it does is seen in a
    call with the first two samples, as nets may treat a single one otherwise; a net that doesn't take so few, or that
    nobody has inputs for, has no such layers.

    Args:
        net: in eval mode.
        blocks: Sequentials of the net, as torch runs them.
        kinds: of layers.
        inputs: of the net.
    """
    layers = [part for block in blocks for part in block._modules.values() if isinstance(part, kinds)]
    if inputs is None or not layers:
        return set()
    copied, copies = trial_copy(net)
    seen = _Seen([copies[part] for part in {*blocks, *layers}])
    few = inputs.samples(0, min(2, inputs.shape[0]))
    try:
        with trial(few), seen:
            copied(*few.clone())
    except Exception:  # noqa: BLE001 - a net's own code raises whatever it likes, such as at a batch of one
        return set()
    due: Counter[nn.Module | None] = Counter()
    for block in blocks:
        for part in block._modules.values():
            due[part] += seen.calls[copies[block]]
    alone = [part for part in layers if due[part] and seen.calls[copies[part]] == due[part]]
    return {part for part in alone if copies[part] not in seen.read}


class _Seen(FunctionMode):
    """Within, counts how often each of some modules runs, and sees whose tensors are read from outside these.

    Of a convolution's tensors shape, type and device stay what they are: reading counts where it makes another tensor
    or takes values. Of a norm's nothing stays.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.calls: Counter[nn.Module] = Counter()
        self.read: set[nn.Module] = set()
        self._owners: dict[int, list[nn.Module]] = {}
        self._running = 0
        for part in parts:
            part.forward = partial(self._run, part, part.forward)
            for held in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                self._owners.setdefault(id(held), []).append(part)

    def _run(self, part: nn.Module, forward: Callable[..., object], *inputs: object, **named: object) -> object:
        self.calls[part] += 1
        within = bool(part._parameters or part._buffers)  # a Sequential also runs modules that may read others' tensors
        self._running += within
        try:
            return forward(*inputs, **named)
        finally:
            self._running -= within

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, and keep whose tensors it took."""
        found = func(*args, **named)
        if not self._running:
            reads = func in VALUES or any(isinstance(part, Tensor) for part in tree_leaves(found))
            for part in tree_leaves((args, named)):
                owners = self._owners.get(id(part), ())
                self.read.update(owner for owner in owners if reads or isinstance(owner, NORMS))
        return found

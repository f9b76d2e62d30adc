"""What stands between a net's code and torch's functions, as torch's own mode but for what all such say alike."""

from collections.abc import Callable, Mapping, Sequence

from torch.overrides import TorchFunctionMode

Function = Callable[..., object]


class FunctionMode(TorchFunctionMode):
    """Within, `call` is called in the place of each function of torch, and of each method of a tensor."""

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """What `call` gives."""
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """What the code is given, of torch's function and what the code gives that; this mode is away meanwhile."""
        return func(*args, **named)

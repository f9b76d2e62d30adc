"""Refuses a net whose tensors take more memory than there is, before any of it is taken."""

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.errors import ModelError

GIB = 2**30


class AllocationLimit(TorchDispatchMode):
    """Within it no tensor is made of a bare size once those before it and it would exceed the limit, in bytes.

    What was freed counts still, so the limit is the machine's whole memory and not what is free.
    """

    def __init__(self, net: str, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.net = net
        self.limit = limit
        self.bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to bar Dynamo from the method below, for which it would import it: two seconds."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, _: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        """Count what a factory such as empty, zeros or rand is asked for, and let it through.

        Raises:
            ModelError: it is too much; the line gives the figure.
        """
        named = kwargs or {}
        first = func._schema.arguments[0].name if func._schema.arguments else ""
        if first == "size" and args:
            dtype = named.get("dtype") or torch.get_default_dtype()
            self.bytes += math.prod(args[0]) * dtype.itemsize
            if self.bytes > self.limit:
                needed, there = f"at least {self.bytes / GIB:.4g} GiB", f"{self.limit / GIB:.4g}"
                raise ModelError(
                    f"model.options: the weights of {self.net} take {needed}, and this machine has {there}"
                )
        return func(*args, **named)

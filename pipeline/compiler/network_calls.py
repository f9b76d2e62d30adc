"""Calls and exports of a network that leave nothing behind, and torch's switches around them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from traceback import extract_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.modules.module import _global_buffer_registration_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pipeline.compiler.batch import Batch


def trial_copy(net: nn.Module) -> tuple[nn.Module, dict[nn.Module, nn.Module]]:
    """Return a copy that shares the net's parameters and no other state, and of each module of the net its copy."""
    memo: dict[int, object] = {id(part): part for part in net.parameters()}
    copied = copy.deepcopy(net, memo)
    copies = ((part, memo.get(id(part), part)) for part in net.modules())
    return copied, {part: copy_of for part, copy_of in copies if isinstance(copy_of, nn.Module)}


@contextmanager
def trial(inputs: Batch) -> Iterator[None]:
    """Record no gradients within, and put random numbers on the inputs' device back afterwards.

    Not in inference mode: a net's own code may keep what it makes, and change it later.
    """
    with torch.random.fork_rng([inputs.device] if inputs.is_cuda else []), torch.inference_mode(False), torch.no_grad():
        yield


def refuses(net: nn.Module, inputs: Batch, finite: bool = False) -> bool:
    """Return whether a copy fails with the inputs, but for memory, or answers no tensor, or none `finite` if asked."""
    try:
        answer = answer_of(net, inputs)
    except (torch.OutOfMemoryError, MemoryError):
        return False
    return answer is None or (finite and not bool(answer.isfinite().all()))


def answer_of(net: nn.Module, inputs: Batch) -> Tensor | None:
    """Return a copy's answer; None if it fails, but for memory, or answers no tensor."""
    try:
        with trial(inputs), untimed_library():
            answer = trial_copy(net)[0](*inputs.clone())
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # noqa: BLE001 - a net's own code raises whatever it likes
        return None
    return answer if isinstance(answer, Tensor) else None


Function = Callable[..., object]


class FunctionMode(TorchFunctionMode):
    """Within, `call` is called in the place of each function of torch, and of each method of a tensor."""

    def __torch_function__(
        self, func: Function, _: Sequence[type], args: tuple[object, ...] = (),
        named: Mapping[str, object] | None = None,
    ) -> object:  # fmt: skip
        return self.call(func, args, dict(named or {}))

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call a function of torch with the code's arguments; this mode is off meanwhile."""
        return func(*args, **named)


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions in fp32 round their inputs to TF32, or not: a switch of the process."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Compute fp32 in fp32 within; put the switches back afterwards."""
    with _restored_tf32():
        allow_tf32(False)
        yield


def switch_on_the_library() -> None:
    """Let cuDNN time its algorithms and round what is left in fp32 to TF32: switches of the process."""
    allow_tf32(True)
    torch.backends.cudnn.benchmark = True


@contextmanager
def library_switches() -> Iterator[None]:
    """Switch the library on within; put the switches back afterwards."""
    with _restored_tf32(), untimed_library():
        switch_on_the_library()
        yield


@contextmanager
def untimed_library() -> Iterator[None]:
    """Keep cuDNN from timing algorithms within: for what runs once there is nothing to gain."""
    benchmark = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def _restored_tf32() -> Iterator[None]:
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    name = "allow_tf32"
    try:
        before = [switch.allow_tf32 for switch in switches]
    except RuntimeError:  # the network's module has set torch's newer ones, after which the older can't be read
        switches, name = [switches[0], switches[1].conv], "fp32_precision"
        before = [switch.fp32_precision for switch in switches]
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(switch, name, value)


def exported_program(net: nn.Module, inputs: Iterable[Tensor]) -> ExportedProgram:
    """Return the net as one graph for such inputs; NotImplementedError where it decides by values of its inputs."""
    given = tuple(part.clone() for part in inputs)
    with torch.inference_mode(False), torch.no_grad(), exportable():
        try:
            return torch.export.export(net, given)
        except Exception as error:
            looks = own_numbers(net, given)
            if looks.at_inputs and "data-dependent" in str(error):
                text = f"the network decides by values that follow from its input ({looks.at_inputs}), as no graph can"
                raise NotImplementedError(text) from error
            if looks.at_inputs or not looks.numbers:
                raise
        with given_back(net, looks):
            return torch.export.export(net, given)


# What takes numbers from a tensor: a graph that a network decides in by them can't be exported.
VALUES: tuple[Function, ...] = (
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.is_nonzero, Tensor.equal, Tensor.allclose),
    *(Tensor.__float__, Tensor.__int__, Tensor.__bool__, Tensor.__index__),
    *(torch.is_nonzero, torch.equal, torch.allclose),
)


def own_numbers(net: nn.Module, inputs: Sequence[Tensor]) -> "Looking":
    """Return what numbers a net takes from tensors in a call; none where it fails."""
    looks, given = Looking(), [part.clone() for part in inputs]
    for part in given:
        part.of_inputs = True  # type: ignore[attr-defined]
    with suppress(Exception), trial(Batch((given[0],))), looks:
        trial_copy(net)[0](*given)
        return looks
    return Looking()


class Looking(FunctionMode):
    """Within, keeps the numbers that a net takes from tensors, and where the first is that follows from its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[object] = []
        self.at_inputs = ""

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, and mark what it makes of a net's inputs."""
        answer = func(*args, **named)
        follows = any(hasattr(part, "of_inputs") for part in tree_leaves((args, named)))
        if func in VALUES:
            self.numbers += tree_leaves(answer)  # torch.export takes a list's numbers one by one
            if follows and not self.at_inputs:  # the innermost code that is neither torch's nor this module's
                skipped = (str(Path(torch.__file__).parent), __file__)
                frames = [frame for frame in extract_stack() if not frame.filename.startswith(skipped)]
                self.at_inputs = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "its own code"
        elif follows:
            name = getattr(func, "__name__", "")
            written = args[:1] if name.endswith("_") and (name == "__setitem__" or name[:2] != "__") else ()
            for part in tree_leaves((answer, written, named.get("out"))):
                if isinstance(part, Tensor):
                    part.of_inputs = True  # type: ignore[attr-defined]
        return answer


class _GivingBack(FunctionMode):
    """Within, gives back the numbers that an earlier call took from tensors, in their order."""

    def __init__(self, numbers: Sequence[object]) -> None:
        super().__init__()
        self.numbers = iter(numbers)

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, unless it takes numbers."""
        if func == Tensor.tolist and isinstance(args[0], Tensor):
            return self._nested(list(args[0].shape))
        return next(self.numbers) if func in VALUES else func(*args, **named)

    def _nested(self, shape: list[int]) -> object:
        return [self._nested(shape[1:]) for _ in range(shape[0])] if shape else next(self.numbers)


@contextmanager
def given_back(net: nn.Module, looks: Looking) -> Iterator[None]:
    """Let each call of a net within take the numbers that `own_numbers` saw, if none follows from its inputs."""
    if looks.at_inputs or not looks.numbers:
        yield
        return
    forward, own = net.forward, vars(net).get("forward")

    @wraps(forward)
    def decided(*inputs: object) -> object:
        with _GivingBack(looks.numbers):
            return forward(*inputs)

    net.forward = decided
    try:
        yield
    finally:
        del net.forward
        if own is not None:
            net.forward = own


@contextmanager
def exportable(may_set_weights: bool = False) -> Iterator[None]:
    """Let torch.export take networks that read `tensor.data`, or set a parameter's; leave nothing behind."""
    known = dict(_global_buffer_registration_hooks)
    try:
        with DataDetached(may_set_weights):
            yield
    except Exception:
        # torch leaves one of its own there that holds the net (torch 2.12).
        _global_buffer_registration_hooks.clear()
        _global_buffer_registration_hooks.update(known)
        raise


class DataDetached(FunctionMode):
    """A mode in which `tensor.data` is `detach()`, which a graph can hold; only `may_set_weights` lets it be set."""

    def __init__(self, may_set_weights: bool = False) -> None:
        super().__init__()
        self.may_set_weights = may_set_weights

    def call(self, func: Function, args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, or `detach` for reading `data`; raise NotImplementedError where it sets data."""
        sets = func == Tensor.data.__set__  # type: ignore[attr-defined]
        if sets and not (self.may_set_weights and isinstance(args[0], nn.Parameter)):
            raise NotImplementedError("the network's own code sets a tensor's data, which no graph holds")
        called: Callable[..., object] = Tensor.detach if func == Tensor.data.__get__ else func  # type: ignore[attr-defined]
        return called(*args, **named)

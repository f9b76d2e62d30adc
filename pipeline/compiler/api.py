"""The library's one call: `compile` a network, then call it, save it, or ask how it runs."""

import copy
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule

from pipeline.compiler import artifact, driver, fp8_build
from pipeline.compiler.agreement import AGREES, Budget, distance
from pipeline.compiler.batch import Batch, Order, laid_out, net_laid_out
from pipeline.compiler.candidate import INDUCTOR, Properties, Search, captured
from pipeline.compiler.driver import Built, Request, silent
from pipeline.compiler.ends import ByTable, Classes, Ends
from pipeline.compiler.errors import CompileError
from pipeline.compiler.fp8_build import Fp8, KeepFp16, Sensitivity
from pipeline.compiler.inductor import triton_as_inductor_has_it
from pipeline.compiler.input_forms import form_of, said
from pipeline.compiler.network_calls import answer_of, library_switches, without_tf32
from pipeline.compiler.tuning.autotune import Tuner, write_json
from pipeline.kernels.common.capability import is_cuda

MOST_SHAPES = 8  # that are kept compiled; each holds its own weights and a CUDA graph's memory
INDEX, FORMAT = "compiled.json", 1
Shapes = tuple[tuple[int, ...], ...]
Calibration = Tensor | Iterable[Tensor | Sequence[Tensor]]


def compile(  # noqa: A001, PLR0913 - named as torch.compile is; all options are keywords
    network: nn.Module,
    *example: Tensor,
    precision: Literal["fp16", "fp8"] = "fp16",
    calibration: Calibration | None = None,
    budget: float | None = 7e-4,
    error_budget: float = 5e-2,
    keep_fp16: KeepFp16 = "auto",
    keep_fp32: Sequence[str] = (),
    uint8_in: Tensor | nn.Module | None = None,
    classes_out: bool = False,
    dynamic: bool = True,
    reuse_output: bool = False,
    search: Search = "auto",
    cache: str | Path | None = None,
    progress: Callable[[str], None] = silent,
) -> "Compiled":
    """Compile a network for NVIDIA GPUs, in minutes, with this library's kernels and Inductor for what they don't take.

    Args:
        network: in fp32 and eval mode, on a CUDA GPU; it must not change afterwards.
        example: a call's inputs: first images or volumes [batch, channels, (depth,) height, width] in fp32.
        precision: "fp16", or "fp8" (e4m3) wherever the budget allows it.
        calibration: of "fp8" alone: many images, or batches as the example; of several inputs each is a sequence.
        budget: of "fp8", the share of pixels that may change their class against fp16; None for other answers.
        error_budget: of "fp8", the relative L2 by which the answers may differ from fp16's.
        keep_fp16: of "fp8", paths of layers that stay in fp16, "none", or "auto": those that the budgets ask for.
        keep_fp32: paths of modules that compute in fp32 (products in TF32).
        uint8_in: the network's input for each value of a byte, [channels, 256] in fp32, or a module that makes that
            input. The first input, of calibration too, is then images [batch, height, width, channels] in uint8.
        classes_out: return the class of every pixel, [batch, height, width] in uint8: that of the largest logit, of
            one channel whether it is above 0, and 255 where the logits aren't finite; else logits in fp32 or fp16.
        dynamic: compile for inputs of another shape when they come; at most eight stay compiled.
        reuse_output: return memory that the next call overwrites, in place of a copy of it.
        search: let Inductor time its own choices, for minutes: "always", "never", or "auto", where it may win.
        cache: the folder that keeps what was measured; ~/.cache/unet-ladder without.
        progress: is told what is being done, in a few words.

    Raises:
        CompileError: no CUDA GPU is there, or the network, an input or an option isn't as described; one line.
    """
    if precision not in ("fp16", "fp8"):
        raise CompileError(f"precision={precision!r}: choose fp16 or fp8")
    if (calibration is not None) != (precision == "fp8"):
        needs = "needs calibration=images" if precision == "fp8" else "takes no calibration"
        raise CompileError(f"precision={precision}: {needs}")
    inputs = _checked_inputs(network, example, torch.uint8 if uint8_in is not None else torch.float32)
    before = ByTable(uint8_in.to(inputs.device)) if isinstance(uint8_in, Tensor) else uint8_in
    ends, fp8 = Ends(before, Classes() if classes_out else None), None
    if calibration is not None:
        try:
            allowed = Budget(float("inf") if budget is None else budget, error_budget)
        except ValueError as error:
            raise CompileError(str(error)) from None
        fp8 = Fp8(partial(_batches, calibration, inputs, ends), allowed, keep_fp16)
    source = _Source(network, tuple(keep_fp32), fp8, search, cache, progress, ends)
    compiled = Compiled(source, dynamic=dynamic, reuse_output=reuse_output)
    compiled._entry(inputs)
    return compiled


def load(path: str | Path, *, trusted: bool = False) -> "Compiled":
    """Load what `Compiled.save` wrote, compile it by Inductor and capture it, for the shapes that it was saved for.

     A saved network is code: torch runs what the file says, to which `trusted` is your consent. Raises CompileError
    without that, without a CUDA GPU, and where it is no such folder.
    """
    path = Path(path)
    if not trusted:
        raise CompileError(f"{path}: a saved network is code; pass trusted=True if you trust who wrote it")
    _check_gpu()
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
        folders, kept, reuse_output = list(index["networks"]), index["format"], bool(index["reuse_output"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CompileError(f"{path}: no compiled network ({error})") from None
    if kept != FORMAT:
        raise CompileError(f"{path}: format {kept}, this version reads {FORMAT}")
    compiled = Compiled(None, dynamic=False, reuse_output=reuse_output)
    for folder in folders:
        compiled._load(path / str(folder))
    return compiled


@dataclass
class _Source:
    """A network that further shapes are compiled from, with its options, and what tells that it has changed."""

    network: nn.Module
    keep_fp32: tuple[str, ...]
    fp8: Fp8 | None
    search: Search
    cache: str | Path | None
    progress: Callable[[str], None]
    ends: Ends
    sensitivity: Sensitivity | None = None

    def __post_init__(self) -> None:
        for own in map(vars, self.network.modules()):  # torch copies no weight that a hook computed with gradients
            own.update({name: x.detach() for name, x in own.items() if isinstance(x, Tensor) and not x.is_leaf})
        held = (*self.network.parameters(), *self.network.buffers())
        self.tensors = [(part, not part.is_inference()) for part in held]
        self.state = self._state()

    def _state(self) -> list[tuple[int, int]]:
        return [(part.data_ptr(), part._version if counted else 0) for part, counted in self.tensors]

    def check(self) -> None:
        """Raise CompileError where the network is no longer what was compiled."""
        if self.network.training:
            raise CompileError("the network is in training mode; call network.eval()")
        if self._state() != self.state:
            raise CompileError("the network's weights have changed since it was compiled; compile it again")

    def build(self, given: Batch) -> Built:
        """Compile for inputs of these shapes."""
        tuner, inputs = Tuner(self.cache), self.ends.inputs(given)
        request = Request(
            self.network, inputs, tuner, self.search, self.keep_fp32, _order_for(self.network, inputs), self.progress
        )
        with torch.cuda.device_of(inputs.first), library_switches():
            if self.fp8 is None:
                built = driver.build(request)
            else:
                built, chosen_by = fp8_build.build(request, self.fp8, self.sensitivity)
                self.sensitivity = self.sensitivity or chosen_by
            return driver.with_ends(built, self.ends, given)


def _order_for(network: nn.Module, inputs: Batch) -> Order:
    """Return NHWC if a network answers in it as in NCHW, where memory allows to tell; CompileError if it fails."""
    try:
        with without_tf32():  # some networks multiply its roundings until the answers differ
            answer = answer_of(network, inputs)
            turned = answer_of(net_laid_out(copy.deepcopy(network)), inputs.mapped(laid_out))
        if answer is None:
            raise CompileError("the network fails with such inputs, or its answer isn't one tensor")
        same = turned is not None and turned.shape == answer.shape and distance(turned, answer) <= AGREES["fp16"]
    except (torch.OutOfMemoryError, MemoryError):
        return "NHWC"
    return "NHWC" if same else "NCHW"


class _Entry(NamedTuple):
    built: Built
    inputs: Batch


class Compiled:
    """A compiled network: call it with inputs as those of the example, on the current stream. It gives no gradients."""

    def __init__(self, source: _Source | None, *, dynamic: bool, reuse_output: bool) -> None:
        self._source, self._dynamic, self._reuse_output = source, dynamic, reuse_output
        self._entries: OrderedDict[Shapes, _Entry] = OrderedDict()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the network's answer; a new shape is compiled first. CompileError for other inputs or weights."""
        if self._source is not None:
            self._source.check()
        shapes = tuple(tuple(part.shape) for part in inputs)
        entry = self._entries.get(shapes)
        if entry is None:
            known = next(iter(self._entries.values())).inputs
            kinds, wanted = ([(part.dtype, part.device, part.dim()) for part in each] for each in (inputs, known))
            if not self._dynamic or kinds != wanted:
                self._refuse(inputs)
            entry = self._entry(_batch(inputs))
        elif any(form_of(part) != form_of(known) for part, known in zip(inputs, entry.inputs, strict=True)):
            self._refuse(inputs)
        self._entries.move_to_end(shapes)
        answer = entry.built.run(*inputs)
        return answer if self._reuse_output else answer.clone()

    def save(self, path: str | Path) -> None:
        """Write the network for each shape that is compiled, for `load`; CompileError where Inductor alone runs it."""
        folder, names = Path(path), []
        for number, entry in enumerate(self._entries.values()):
            graph = entry.built.plain if entry.built.lowered is None else entry.built.lowered
            if graph is None:
                raise CompileError(f"nothing to save: {entry.built.description}; save the network itself")
            artifact.save(graph, entry.inputs, folder / str(number))
            names.append(str(number))
        write_json({"format": FORMAT, "networks": names, "reuse_output": self._reuse_output}, folder / INDEX)

    def explain(self) -> str:
        """Return how the network runs for each shape: precision, kernels, what was compared and what was refused."""
        return "\n\n".join(map(_explained, self._entries.values()))

    @property
    def properties(self) -> Properties:
        """The properties of the network for the shape that was compiled or called last."""
        return next(reversed(self._entries.values())).built.properties

    def _refuse(self, inputs: Sequence[Tensor]) -> None:
        taken = "; or ".join(_said(each.inputs) for each in self._entries.values())
        raise CompileError(f"the inputs are {_said(inputs) or 'no input'}, and the network was compiled for {taken}")

    def _entry(self, inputs: Batch) -> _Entry:
        """Compile for inputs, and forget the shape that was not called for longest where there are too many."""
        assert self._source is not None
        built = self._source.build(inputs)
        if built.properties.instead:
            warnings.warn(f"compile(): {built.properties.instead}", stacklevel=3)
        return self._keep(_Entry(built, inputs))

    def _keep(self, entry: _Entry) -> _Entry:
        self._entries[tuple(tuple(part.shape) for part in entry.inputs)] = entry
        while len(self._entries) > MOST_SHAPES:
            self._entries.popitem(last=False)
        return entry

    def _load(self, folder: Path) -> None:
        try:
            graph, inputs = artifact.load(folder), artifact.example_of(folder)
        except artifact.ArtefactError as error:
            raise CompileError(str(error)) from None
        device = _current_gpu()
        inputs = inputs.mapped(lambda part: part.to(device))
        triton_as_inductor_has_it(device)
        with library_switches():
            loaded = captured(INDUCTOR, graph, Properties("fp16"), *inputs)
        built = Built(loaded.captured, f"loaded from {folder}", loaded.properties, {}, loaded.call, loaded.moved_bytes)
        self._keep(_Entry(built, inputs))


def _current_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _said(inputs: Iterable[Tensor]) -> str:
    return ", ".join(said(form_of(part)) for part in inputs)


def _batch(inputs: Sequence[Tensor]) -> Batch:
    try:
        return Batch.numbered(inputs)
    except ValueError as error:
        raise CompileError(str(error)) from None


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise CompileError("no CUDA GPU is here, and the kernels need one")


def _checked_inputs(network: nn.Module, example: Sequence[Tensor], first: torch.dtype) -> Batch:
    """Return the example as a batch; raise CompileError where the network or an input isn't as `compile` takes it."""
    if not isinstance(network, nn.Module):
        raise CompileError(f"the network is a {type(network).__name__}, not a torch.nn.Module")
    _check_parts(network)
    _check_gpu()
    if not example or not all(isinstance(part, Tensor) for part in example):
        raise CompileError("give an example of the network's inputs as tensors: compile(network, image)")
    if not is_cuda(example[0].device):
        raise CompileError(f"the example is on {example[0].device}, not on a CUDA GPU; move it there")
    if any(part.training for part in network.modules()):
        raise CompileError("the network is in training mode; call network.eval()")
    held = [*network.parameters(), *network.buffers()]
    for name, part in [("the network", each) for each in held] + [("an input", each) for each in example]:
        if part.device != example[0].device:
            raise CompileError(f"{name} is on {part.device}, and the first input on {example[0].device}")
        if part.is_floating_point() and part.dtype != torch.float32:
            raise CompileError(f"{name} is in {str(part.dtype).removeprefix('torch.')}; compile() takes fp32")
    if example[0].dtype != first:
        wanted = "fp32" if first.is_floating_point else "uint8, channels last, as uint8_in says"
        raise CompileError(f"the first input holds {example[0].dtype}; it is to be images or volumes in {wanted}")
    return _batch(example)


def _check_parts(network: nn.Module) -> None:
    for name, part in network.named_modules():
        if isinstance(part, torch.jit.ScriptModule | OptimizedModule):
            how = "compiled" if isinstance(part, OptimizedModule) else "scripted"
            raise CompileError(f"{name or 'the network'} is {how} already; give the module that it was made of")


def _batches(calibration: Calibration, inputs: Batch, ends: Ends) -> list[Batch]:
    """Return the network's inputs of calibration batches, each as the example; raise CompileError where one isn't."""
    if isinstance(calibration, Tensor):
        parts = calibration.split(len(inputs.first))
        batches = [_batch([part]) for part in parts if len(part) == len(inputs.first)]
    else:
        batches = [_batch([given] if isinstance(given, Tensor) else given) for given in calibration]
    batches = [batch.mapped(lambda part: part.to(inputs.device)) for batch in batches]
    if not batches:
        raise CompileError(f"calibration: no batch of {len(inputs.first)} images, as many as the example has")
    for batch in batches:
        if list(map(form_of, batch)) != list(map(form_of, inputs)):
            raise CompileError(f"calibration: a batch is {_said(batch)}, and the example {_said(inputs)}")
    return list(map(ends.inputs, batches))


def _explained(entry: _Entry) -> str:
    built, details = entry.built, entry.built.details
    lines = [f"{_said(entry.inputs)}: {built.description}"]
    lines += [f"  {took:.3f} ms  {name}" for name, took in details.get("candidates_ms", {}).items() if took]
    if least := details.get("library_ms"):
        lines.append(f"  {least:.3f} ms  the library's convolutions alone, so that Inductor wasn't built")
    if built.properties.instead:
        lines.append(f"  instead of what was asked: {built.properties.instead}")
    if found := details.get(fp8_build.LAYERS):
        lines.append(f"  can be in fp8: {', '.join(found['in_fp8']) or 'no layer'}")
        for name, alone in found["refused"].items():
            share = "" if alone is None else f", which alone takes {alone:.3g} × the {found['limit']}"
            lines.append(f"  stays in fp16: {name}{share}")
        lines += [f"  stays in fp16, which is faster: {name}" for name in found.get("faster_in_fp16", [])]
    lines += [f"  {name}: {len(layers)}" for name, layers in details.get("passes", {}).items() if layers]
    return "\n".join(lines)

"""TorchScript: traced or scripted, frozen, saved, loaded again, optimised for inference and run. Legacy.

If torch's optimisation for inference breaks a network, it runs without it, and the stage says so.
torch deprecates torch.jit since 2.15; its warnings are filtered here alone.

A trace keeps the numbers that a network reads of one batch, to decide or compute by: `while features.mean() > 0.1`,
`image / image.max().item()` and what numpy makes of a tensor are such; sizes are not. Such a network is refused.
"""

import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pipeline.compiler.batch import IN_WORDS, Batch
from pipeline.compiler.half import SHORT, Half
from pipeline.compiler.network_calls import DataDetached, FunctionMode, allow_tf32, exported_program
from pipeline.errors import first_line
from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.network_forms import Dtype, checked_form, extremes, half_dtype, half_net, taken_by

Method = Literal["trace", "script"]


def build(workload: Workload, *, method: Method = "trace", dtype: Dtype | Literal["fp32"] = "auto") -> Runner:
    """Freeze the program, save it, and run it from its file."""
    fp32 = dtype == "fp32" or (dtype == "auto" and workload.device.type == "cpu")
    precision = torch.float32 if fp32 else half_dtype(dtype, workload.device)
    allow_tf32(workload.device.type == "cuda")
    path = workload.folder / "model.pt"
    half = half_net(workload, precision)
    with deprecations_filtered():
        write(half, method, workload, path)
        run, unoptimised = optimised(path, half, workload)

    def save(folder: Path) -> list[Path]:
        if folder != path.parent:
            copyfile(path, folder / path.name)
        return [folder / path.name]

    way = {"trace": "traced", "script": "scripted"}[method]
    kind: Precision = "tf32" if fp32 and workload.device.type == "cuda" else SHORT[precision]
    execution = Execution(kind, layout=half.layout, provider="TorchScript", captured=False, instead=unoptimised)
    ran = f"{way}, frozen, {SHORT[precision]}, {IN_WORDS[half.layout]}, loaded from its file{half.and_casts}"
    return Runner(run, f"{ran}; it is {unoptimised}" if unoptimised else ran, execution, save=save)


def optimised(path: Path, net: nn.Module, workload: Workload) -> tuple[Callable[..., Tensor], str]:
    """Optimise the frozen program of a file for inference; if that breaks it, return it as it is, and why."""
    # Optimised after loading: on a CPU it packs the weights for oneDNN, and a file that holds those can't be read. What
    # oneDNN has not shows when it is called alone, such as GELU by tanh (torch 2.12).

    def checked(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
        with torch.inference_mode():
            program(*workload.inputs[0])
        return checked_form(program, workload, "TorchScript", net)

    try:
        return checked(torch.jit.optimize_for_inference(torch.jit.load(path, map_location=workload.device))), ""
    except (RuntimeError, StageError) as error:
        traceback.print_exc()
        why = f"the frozen program without torch.jit.optimize_for_inference, with which it fails: {first_line(error)}"
        return checked(torch.jit.load(path, map_location=workload.device)), why


class OfOneInput(nn.Module):
    """A network of one input in half precision, for a script, which knows no variable number of arguments."""

    def __init__(self, half: Half) -> None:
        super().__init__()
        self.net, self.dtype, self.nhwc = half.net, half.dtype, half.layout == "NHWC"

    def forward(self, batch: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width], as `Half` does."""
        if self.nhwc and batch.dim() == 4:
            logits: Tensor = self.net(batch.to(dtype=self.dtype, memory_format=torch.channels_last))
            return logits
        return self.net(batch.to(self.dtype))  # type: ignore[no-any-return]


def traced(net: nn.Module, *inputs: Tensor) -> torch.jit.ScriptModule:
    """Trace what the network does with these inputs, each [batch, ...]."""
    with torch.inference_mode(), DataDetached():
        return torch.jit.trace(net, inputs, check_trace=False)  # type: ignore[no-any-return]


def write(model: Half, method: Method, workload: Workload, path: Path) -> None:
    """Trace or script the network, freeze it, and write it to a file."""
    several, place = bool(workload.others), reads_its_data(model, workload.inputs[:2])
    if method == "trace" and place:
        one = "takes networks of one input alone" if several else "may take it"
        raise StageError(
            f"the network decides or computes by numbers that it reads of its images (in {place}), and a trace "
            f"keeps those of one batch; stage.method=script {one}",
            "unsupported",
        )
    cure = "; stage.method=trace takes it" if method == "script" and not place else ""
    if method == "script" and several:
        raise StageError(f"stage.method=script takes networks of one input{cure}", "unsupported")
    path.parent.mkdir(parents=True, exist_ok=True)
    inputs = workload.inputs[0]
    with taken_by("TorchScript", cure):
        if method == "script":
            torch.jit.save(torch.jit.freeze(torch.jit.script(OfOneInput(model).eval())), path)
            return
        try:
            torch.jit.save(torch.jit.freeze(traced(model, *inputs)), path)
        except RuntimeError:  # an autograd Function in Python, or a checkpoint: torch.export looks into them
            traceback.print_exc()
            exported = exported_program(model, inputs).module()
            torch.jit.save(torch.jit.freeze(traced(exported, *inputs).eval()), path)


@contextmanager
def deprecations_filtered() -> Iterator[None]:
    """Ignore torch.jit's own warnings that it is deprecated, within."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", message=r".*torch\.jit.*", category=category)
        warnings.filterwarnings("ignore", category=torch.jit._trace.TracerWarning)
        yield


READ = torch.ops.aten._local_scalar_dense.default  # behind item(), bool(), float() and int() of a tensor
READ_WHOLE = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)  # behind which there is no operator

CHECK_RANGES: tuple[Callable[..., object], ...] = (functional.one_hot,)  # they read numbers to check them alone


class Reads(TorchDispatchMode):
    """A mode that keeps a hash of each number read from a tensor, and the line of the network's code that reads it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[int] = []
        self.places: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as `pipeline.profiling.operators.Dispatched` does: nothing is compiled within."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator; if it reads a number from a tensor, note that tensor."""
        found = func(*args, **(kwargs or {}))
        if func is READ:
            self.keep(args[0])
        return found

    def keep(self, read: Tensor) -> None:
        """Keep the hash of a tensor that is read, of any shape, and the place."""
        values = (read.detach() + 0).cpu().flatten().contiguous()  # 0 added: -0.0 equals 0.0, as NaN does NaN by bytes
        self.values.append(hash(values.view(torch.uint8).numpy().tobytes()))
        self.places.append(_place())


class WholeReads(FunctionMode):
    """A mode in which `keep` gets each tensor that is read as a whole, such as by numpy()."""

    def __init__(self, keep: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.keep = keep

    def call(self, func: Callable[..., object], args: tuple[object, ...], named: dict[str, object]) -> object:
        """Call the function, and show what it reads."""
        if func in CHECK_RANGES and named.get("num_classes", [*args, -1, -1][1]) != -1:
            with _disable_current_modes():
                return func(*args, **named)
        found = func(*args, **named)
        if func in READ_WHOLE:
            assert isinstance(args[0], Tensor)
            self.keep(args[0])
        return found


def reads_its_data(model: nn.Module, batches: Sequence[Batch]) -> str:
    """Return where a network reads numbers that differ between batches, as "Net.forward, nets.py:60"; else empty."""
    first, *others = batches
    known = _reads(model, first)
    for batch in (*others, *extremes(first).values()) if known.values else ():
        with suppress(Exception):  # a network may refuse such images
            found = _reads(model, batch)
            if found.values != known.values:
                same = zip(found.values, known.values, strict=False)
                at = next((number for number, (one, other) in enumerate(same) if one != other), -1)
                return known.places[at]
    return ""


def _reads(model: nn.Module, batch: Batch) -> Reads:
    reads = Reads()
    # no_grad, as inference mode keeps what is made of other operators from a mode
    with torch.no_grad(), reads, WholeReads(reads.keep):
        model(*batch)
    return reads


def _place() -> str:
    """Return the innermost call of a module's method that isn't torch's own."""
    step, torchs = sys._getframe(2), str(Path(torch.__file__).parent)
    while step.f_back is not None:
        owner, code = step.f_locals.get("self"), step.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.startswith(torchs):
            return f"{type(owner).__name__}.{code.co_name}, {Path(code.co_filename).name}:{step.f_lineno}"
        step = step.f_back
    return "its code"

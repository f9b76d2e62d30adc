"""The workload as a request to the compiler, and its answer as a stage: for `fused` and `fp8`."""

from pathlib import Path

from pipeline.compiler.artifact import save
from pipeline.compiler.candidate import Search
from pipeline.compiler.driver import Built, Request, with_ends
from pipeline.compiler.ends import Ends
from pipeline.compiler.tuning.autotune import Tuner
from pipeline.records.run_record import CompileFacts, Execution
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common.network_forms import KeepFp32, named_modules


def request_of(workload: Workload, tuning_folder: str | None, search: Search, keep_fp32: KeepFp32) -> Request:
    """Return what the compiler is asked for; arguments as of the stages' `build`."""
    tuner, kept, layout = Tuner(tuning_folder), named_modules(keep_fp32), workload.layout_choice.take()
    return Request(workload.model, workload.inputs[0], tuner, search, kept, layout, progress=workload.progress)


def runner_of(built: Built, workload: Workload, ends: Ends) -> Runner:
    """Return a compiled network between its ends as a stage; CompileError where they can't be compiled."""
    given, measured = workload.called_with(ends).inputs[0], built.candidates_measured
    built = with_ends(built, ends, given)
    moved = built.moved_bytes

    def keep(folder: Path) -> list[Path]:
        assert built.lowered is not None
        return save(built.lowered, given, folder / "net")

    return Runner(
        built.run,
        built.description,
        Execution(**vars(built.properties)),
        built.details,
        compile_facts=None if measured is None else lambda: CompileFacts(candidates_measured=measured),
        save=None if built.lowered is None else keep,
        uncaptured=built.call,
        traffic=None if moved is None else lambda *_: (moved, "Inductor"),
        ends=ends,
    )

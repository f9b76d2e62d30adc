"""What `fused` and `fp8` say of what runs: none of the project's kernels, say, or some modules in fp32."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from pipeline.compiler.half import layers_within
from pipeline.records.run_record import Precision
from pipeline.stages.api import Runner
from pipeline.stages.common.inductor_search import MODES


def owned_up(runner: Runner, promised: Precision) -> Runner:
    """The stage, saying what runs where none of the project's kernels does, or none in the promised precision."""
    how, details = runner.execution, runner.details
    assert how is not None
    if how.own_kernels and promised in (how.precision, "fp16"):
        return runner
    ran = f"{how.own_kernels} layers by own kernels" if how.own_kernels else f"all of it by {how.provider}"
    refused = "; ".join(f"{name} was refused: {why}" for name, why in details.get("refused", {}).items())
    tried = details.get("candidates_ms", {}).keys() - MODES.keys()
    fastest_of_all = "the fastest of what was tried" if tried else "no layer of the net suits the project's kernels"
    why = details.get("not_rewritten") or details.get("kernels_barred") or refused or fastest_of_all
    return replace(runner, execution=replace(how, instead=f"{ran}, in {how.precision}: {why}"))


def with_kept(runner: Runner, net: nn.Module, kept: Sequence[str]) -> Runner:
    """The stage, naming the modules of the net that it keeps in fp32, by their paths, in its details also if none."""
    runner = replace(runner, details=runner.details | {"kept_in_fp32": [*kept]})
    if not kept:
        return runner
    how, said = runner.execution, f"{runner.description}; {', '.join(kept)} in fp32, products in TF32"
    assert how is not None
    how = replace(how, layer_precision=how.layer_precision | dict.fromkeys(layers_within(net, kept), "tf32"))
    return replace(runner, description=said, execution=how)

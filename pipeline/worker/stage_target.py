"""From a stage's target, a name in its YAML, to the function that builds it."""

import importlib
from collections.abc import Callable

from pipeline.inputs.targets import borrowed, imported_as, refusal
from pipeline.records.request import StageSpec
from pipeline.stages.api import Runner, StageError


def build_function(spec: StageSpec) -> Callable[..., Runner]:
    """The `build` of a stage's module.

    Raises:
        StageError: the module may not be imported (`pipeline.inputs.targets`), or has no `build` of its own.
    """
    if why := refusal(spec.target):
        raise StageError(f"stage {spec.name}: {spec.target} is not imported: {why}")
    try:
        build: Callable[..., Runner] = importlib.import_module(imported_as(spec.target)).build
    except (ImportError, AttributeError) as error:
        raise StageError(f"stage {spec.name}: {spec.target} has no build function ({error})") from error
    if why := borrowed(build):
        raise StageError(f"stage {spec.name}: the build of {spec.target} is none of its own: {why}")
    return build
